//! Volumes as ublk devices.

use guest::{Bed, Guest};
use std::fs;
use std::time::Duration;

/// For the scripts: a volume on the first disk, and what is done with it.
const PRELUDE: &str = r#"
    head -c 32 /dev/urandom > key
    create() { cvmio volume create /dev/vda --key-file key --policy policy.toml --anchor file:/root/anchor --force "$@"; }
    attach() { cvmio volume attach /dev/vda --name day --key-file key --policy policy.toml --json "$@" > ready; }
    kill_daemon() {
        daemon=$(sed -n 's/.*"process": *\([0-9]*\).*/\1/p' ready)
        kill -9 "$daemon"
        while [ -e "/proc/$daemon" ]; do sleep 0.05; done
    }
    must_fail() { if "$@"; then echo "this succeeded: $*"; exit 1; fi; }
    device=/dev/ublkb0
"#;

fn with_ublk(bed: &Bed) -> Guest<'_> {
    let programs = [
        "usr/sbin/mkfs.ext4",
        "usr/sbin/e2fsck",
        "usr/sbin/mkfs.xfs",
        "usr/sbin/xfs_repair",
        "usr/bin/sqlite3",
        "usr/bin/dd",
    ];
    let disk = bed.disk("volume", 512 << 20);
    let guest = bed.guest().modules(&["ublk_drv", "ext4", "xfs"]).programs(&programs).disk(&disk);
    guest.limit(Duration::from_secs(300))
}

fn run(guest: Guest<'_>, script: &str) -> String {
    guest.succeed(&format!("{PRELUDE}{script}"))
}

#[test]
fn file_systems_live_on_it_and_other_disks_see_nothing_of_it() {
    let Some(bed) = guest::bed() else { return };
    let other = bed.disk("other", 0);
    let content: Vec<u8> =
        (0..4_000_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(&other, &content).unwrap();
    let said = run(
        with_ublk(&bed).disk(&other),
        r#"
    create
    sum=$(sha256sum < /dev/vdb)
    attach --as auto
    cd /sys/block/ublkb0
    for what in queue/logical_block_size queue/fua queue/write_cache queue/max_sectors_kb; do echo "$what: $(cat $what)"; done
    [ "$(cat queue/discard_max_bytes)" -gt 0 ] && [ "$(cat queue/write_zeroes_max_bytes)" -gt 0 ]
    [ "$(ls mq | wc -l)" = 2 ]
    cd /root
    dd if=/dev/urandom of=content bs=1M count=6 2>/dev/null
    for kind in ext4 xfs; do
        mkfs.$kind $([ $kind = ext4 ] && echo -q -F || echo -q -f) $device
        mount -t $kind $device /mnt
        for number in $(seq 20); do dd if=content of=/mnt/$number bs=64k count=$number conv=fsync 2>/dev/null; done
        sqlite3 /mnt/database 'pragma synchronous=full; create table t (n); insert into t values (1); insert into t values (2);'
        cp content /mnt/content
        must_fail cvmio volume detach day
        umount /mnt
        cvmio volume detach day
        [ ! -e $device ]
        attach --as ublk
        mount -t $kind $device /mnt
        cmp content /mnt/content
        for number in $(seq 20); do head -c $((number * 65536)) content | cmp - /mnt/$number; done
        echo "rows: $(sqlite3 /mnt/database 'select count(*) from t')"
        rm /mnt/content && fstrim /mnt
        umount /mnt
    done
    exec 5<$device
    must_fail cvmio volume detach day
    exec 5<&-
    cvmio volume status day
    cvmio volume detach day
    cvmio volume check /dev/vda --key-file key --policy policy.toml

    # Two daemons show it to readers at once, and nobody can write.
    image="image.img --key-file key --policy image.toml --buffered"
    cvmio volume create $image --size 32M --anchor file:/root/image-anchor
    cvmio volume attach $image --as ublk
    mkfs.ext4 -q -F $device
    mount -t ext4 $device /mnt
    cp content /mnt
    umount /mnt
    cvmio volume detach image
    before=$(cat image.img image-anchor | sha256sum)
    reader() { cvmio volume attach $image --name $1 --read-only --json --as $2 > ready; }
    refused() { must_fail "$@" 2>said; grep -i 'read-only\|not permitted\|permission denied' said; }
    reader one auto
    reader two ublk
    mkdir 0 1
    for number in 0 1; do
        device=/dev/ublkb$number
        echo "read-only: $(blockdev --getro $device)"
        # What root says about it does not help.
        blockdev --setrw $device
        refused dd if=content of=$device bs=4k count=1 oflag=direct conv=fsync
        refused dd if=content of=$device bs=4k count=1 conv=fsync
        must_fail blkdiscard $device
        mount -t ext4 -o ro,noload $device $number
    done
    cmp content 0/content
    cmp content 1/content
    refused touch 1/new
    must_fail cvmio volume detach two
    umount 0 1
    # There is nothing to go on with.
    kill_daemon
    for glance in $(seq 200); do [ ! -e $device ] || sleep 0.05; done
    [ ! -e $device ]
    reader two ublk
    for name in one two; do cvmio volume detach $name; done
    [ "$(cat image.img image-anchor | sha256sum)" = "$before" ]
    [ "$sum" = "$(sha256sum < /dev/vdb)" ]
    [ "$(dmesg | grep -c 'I/O error')" = 0 ]
"#,
    );
    for expected in [
        "logical_block_size: 4096",
        "queue/fua: 1",
        "write_cache: write back",
        "max_sectors_kb: 1024",
        "/dev/ublkb0 is mounted on /mnt",
        "(sh) has it open",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    for twice in ["rows: 2", "read-only: 1"] {
        assert_eq!(said.matches(twice).count(), 2, "{twice}: {said}");
    }
    assert!(fs::read(&other).unwrap() == content, "the other disk was written to");
}

#[test]
fn it_goes_on_when_its_daemon_was_killed() {
    let Some(bed) = guest::bed() else { return };
    run(
        with_ublk(&bed),
        r#"
    create
    attach --as ublk
    # Writes that have ended, and were never flushed.
    dd if=/dev/urandom of=content bs=1M count=4 2>/dev/null
    dd if=content of=$device bs=64k oflag=direct 2>/dev/null
    kill_daemon
    must_fail attach --as fuse
    must_fail attach --as ublk --read-only --force
    attach --as ublk
    dd if=$device of=back bs=64k count=64 iflag=direct 2>/dev/null
    cmp content back

    # Each record is a new file: its directory and its size are to be there, too.
    records() {
        number=0
        while [ ! -e stop ]; do
            number=$((number + 1))
            echo "record $number" | dd of=/mnt/records/$number conv=fsync 2>/dev/null || exit 1
            echo $number > acknowledged.new && mv acknowledged.new acknowledged
        done
    }
    rows() {
        number=0
        while [ ! -e stop ]; do
            number=$((number + 1))
            sqlite3 /mnt/database "pragma synchronous=full; insert into t values ($number);" || exit 1
            echo $number > inserted.new && mv inserted.new inserted
        done
    }
    # Writes without a sync, which go to the device when the kernel likes.
    bulk() { while [ ! -e stop ]; do cat content > /mnt/bulk || exit 1; done; }
    # All that was acknowledged, and what may have been on its way.
    whole() {
        number=0
        while [ $number -lt "$(cat acknowledged)" ]; do
            number=$((number + 1))
            read -r record < /mnt/records/$number
            [ "$record" = "record $number" ]
        done
        [ "$(ls /mnt/records | wc -l)" -le $((number + 1)) ]
    }
    for kind in ext4 xfs; do
        rm -f stop acknowledged inserted
        mkfs.$kind $([ $kind = ext4 ] && echo -q -F || echo -q -f) $device
        mount -t $kind $device /mnt
        mkdir /mnt/records
        sqlite3 /mnt/database 'create table t (n);'
        records & records=$!
        rows & rows=$!
        bulk & bulk=$!
        for round in 1 2 3 4; do
            before=$(cat acknowledged 2>/dev/null || echo 0)
            sleep 0.$((round * 2 + 1))
            kill_daemon
            attach --as ublk
            # Until it has gone on.
            while [ "$(cat acknowledged)" -lt $((before + 3)) ]; do sleep 0.1; done
        done
        touch stop
        wait $records; wait $rows; wait $bulk
        echo "$kind: $(cat acknowledged) records, $(cat inserted) rows"
        whole
        umount /mnt
        kill_daemon
        attach --as ublk
        if [ $kind = ext4 ]; then e2fsck -fn $device; else xfs_repair -n $device 2>&1; fi
        mount -t $kind $device /mnt
        whole
        [ "$(sqlite3 /mnt/database 'pragma integrity_check; select count(*) from t' | tr '\n' ' ')" = "ok $(cat inserted) " ]
        cmp content /mnt/bulk
        umount /mnt
    done
    [ "$(dmesg | grep -c 'I/O error')" = 0 ]
    [ "$(dmesg | grep -c 'XFS.*\(orrupt\|hutdown\|shut down\)')" = 0 ]

    # Nobody goes on with it.
    kill_daemon
    cvmio volume detach day
    [ ! -e $device ] && [ ! -e /run/cvmio/day ]

    # What was flushed is not the last word there, so the device goes with its daemon.
    rm policy.toml anchor
    create --freshness transaction
    attach --as ublk
    kill_daemon
    for glance in $(seq 200); do [ ! -e $device ] || sleep 0.05; done
    [ ! -e $device ]
    attach --as ublk
    cvmio volume detach day
"#,
    );
}

#[test]
fn a_service_goes_on_with_its_device() {
    let Some(bed) = guest::bed() else { return };
    run(
        with_ublk(&bed),
        r#"
    cvmio volume prepare /root/policy.toml --size 256M --anchor file:/root/anchor
    up() {
        echo '{"name": "day", "store": "/dev/vda", "policy": "/root/policy.toml", "key-file": "/root/key", "as": "'$1'",
            "fs": "ext4", "mountpoint": "/root/at", "read-only": '${2:-false}'}' | cvmio volume activate --config -
    }
    up auto > first
    cat first
    grep '"front-end": "ublk"' first
    grep '"device": "/dev/ublkb0"' first
    grep "^$device /root/at ext4 " /proc/mounts
    for front in auto ublk; do up $front > again; cmp again first; done
    must_fail up fuse
    # Its daemon is killed, and its users wait.
    echo kept > at/note
    cvmio volume status day --json > ready
    kill_daemon
    must_fail cvmio volume deactivate day
    must_fail up fuse
    must_fail up auto true
    up auto > again
    cmp again first
    [ "$(cat at/note)" = kept ]
    sync
    cvmio volume deactivate day
    cvmio volume deactivate day
    [ ! -e $device ]
    up ublk > again
    cmp again first
    [ "$(cat at/note)" = kept ]
    umount at
    # Nobody uses it: what its daemon has left is put away.
    cvmio volume status day --json > ready
    kill_daemon
    cvmio volume deactivate day
    [ ! -e $device ]
    up auto > again
    [ "$(cat at/note)" = kept ]
    cvmio volume deactivate day
    # For reading only.
    up auto true > again
    cmp again first
    [ "$(cat at/note)" = kept ]
    must_fail touch at/note
    must_fail up auto
    cvmio volume deactivate day
    [ ! -e $device ]
    "#,
    );
}

/// A new key under a mounted file system, its daemon killed on the way; then a scrub, and a block that the host has damaged.
#[test]
fn its_upkeep_goes_on_beside_its_users() {
    let Some(bed) = guest::bed() else { return };
    run(
        with_ublk(&bed),
        r#"
    create
    attach --as ublk
    mkfs.ext4 -q -F $device
    mount -t ext4 $device /mnt
    dd if=/dev/urandom of=content bs=1M count=64 2>/dev/null
    cp content /mnt/content
    sync
    head -c 32 /dev/urandom > new
    cvmio volume key add day --key-file key --new-key-file new
    records() {
        number=0
        while [ ! -e stop ]; do
            number=$((number + 1))
            echo "record $number" | dd of=/mnt/record conv=fsync 2>/dev/null || exit 1
            echo $number > acknowledged.new && mv acknowledged.new acknowledged
        done
    }
    records & records=$!
    state() { cvmio volume status day --json | sed -n "s/.*\"$1\": *\"*\([a-z0-9]*\).*/\1/p" | head -n 1; }
    cvmio volume rekey day --key-file new --remove-other-slots & rekey=$!
    until [ "$(state resealed-blocks)" -gt 100 ]; do sleep 0.05; done
    [ "$(state rekeying)" = true ]
    kill_daemon
    must_fail wait $rekey
    # The one slot that is left opens it, and what is left of the change goes on.
    must_fail attach --as ublk
    cvmio volume attach /dev/vda --name day --key-file new --policy policy.toml --json --as ublk > ready
    [ "$(state rekeying)" = true ]
    until [ "$(state rekeying)" = false ]; do sleep 0.2; done
    before=$(cat acknowledged)
    until [ "$(cat acknowledged)" -gt "$before" ]; do sleep 0.05; done
    cvmio volume scrub day --rate 1G
    until cvmio volume status day | grep 'scrub .*done;.* none damaged'; do sleep 0.2; done
    touch stop
    wait $records
    echo 3 > /proc/sys/vm/drop_caches
    cmp content /mnt/content
    [ "$(cat /mnt/record)" = "record $(cat acknowledged)" ]
    umount /mnt
    cvmio volume detach day
    cvmio volume check /dev/vda --key-file new --policy policy.toml
    [ "$(dmesg | grep -c 'I/O error')" = 0 ]

    # A damaged block is an error there, and nowhere else.
    small="small.img --key-file key --policy small.toml --buffered"
    cvmio volume create $small --size 16M --anchor file:/root/small-anchor
    start=$(cvmio volume dump small.img --json | sed -n 's/.*"data-start": *\([0-9]*\).*/\1/p' | head -n 1)
    cvmio volume attach $small --as ublk
    cp small.img before
    head -c 262144 content > written
    dd if=written of=$device bs=4k oflag=direct conv=fsync 2>/dev/null
    victim=$(cmp -l before small.img | awk -v start="$start" '{ at = int(($1 - 1) / 4096); if (at >= start) { print at; exit } }')
    dd if=/dev/urandom of=small.img bs=4k seek="$victim" count=1 conv=notrunc 2>/dev/null
    failed=0
    for block in $(seq 0 63); do
        if dd if=$device of=back bs=4k skip="$block" count=1 iflag=direct 2>said; then
            dd if=written bs=4k skip="$block" count=1 2>/dev/null | cmp - back
        else
            grep 'Input/output error' said
            failed=$((failed + 1))
        fi
    done
    [ "$failed" = 1 ]
    cvmio volume status small | grep 'TAMPERING'
    "#,
    );
}
