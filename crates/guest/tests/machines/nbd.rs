//! Volumes over NBD, with the kernel's own client.

#[test]
fn the_kernels_client_has_a_file_system_on_it() {
    let Some(bed) = guest::bed() else { return };
    let disk = bed.disk("volume", 128 << 20);
    let programs = ["usr/sbin/mkfs.ext4", "usr/sbin/e2fsck", "usr/sbin/nbd-client", "usr/bin/dd"];
    let guest = bed.guest().modules(&["nbd", "ext4"]).programs(&programs).disk(&disk);
    let said = guest.succeed(
        r#"
    head -c 32 /dev/urandom > key
    cvmio volume create /dev/vda --key-file key --policy policy.toml --anchor file:/root/anchor
    attach() { cvmio volume attach /dev/vda --name day --key-file key --policy policy.toml --as nbd; }
    # By its path: the shell has another one of this name built in.
    connect() { /usr/sbin/nbd-client -unix /run/cvmio/day/nbd.sock /dev/nbd0 -name day -block-size 4096 -connections 2; }
    # The kernel lets go of its sockets a moment after it was asked to.
    detach() { for glance in $(seq 100); do cvmio volume detach day 2>said && return; sleep 0.1; done; cat said; return 1; }
    attach
    connect
    cd /sys/block/nbd0
    for what in size queue/logical_block_size queue/fua queue/write_cache; do echo "$what: $(cat $what)"; done
    [ "$(cat queue/discard_max_bytes)" -gt 0 ]
    cd /root
    mkfs.ext4 -q /dev/nbd0
    mount -t ext4 /dev/nbd0 /mnt
    dd if=/dev/urandom of=content bs=1M count=8 2>/dev/null
    dd if=content of=/mnt/content bs=64k conv=fsync 2>/dev/null
    if cvmio volume detach day; then echo 'detached while mounted'; exit 1; fi
    umount /mnt
    /usr/sbin/nbd-client -d /dev/nbd0
    detach
    attach
    connect
    e2fsck -fn /dev/nbd0
    mount -t ext4 /dev/nbd0 /mnt
    cmp content /mnt/content
    rm /mnt/content
    fstrim -v /mnt
    umount /mnt
    /usr/sbin/nbd-client -d /dev/nbd0
    detach
    cvmio volume check /dev/vda --key-file key --policy policy.toml
    [ "$(dmesg | grep -c 'I/O error')" = 0 ]
"#,
    );
    for expected in ["logical_block_size: 4096", "queue/fua: 1", "write_cache: write back", "is connected"] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}
