//! What a whole system does with the package: dpkg installs it, and systemd runs its units.

use std::time::Duration;

/// dpkg in its system, with a volume that is attached while it works.
const INSTALL: &str = r#"
mount -t ext4 /dev/vda /mnt
for directory in dev proc sys run; do mount --bind /$directory /mnt/$directory; done
cat > /mnt/root/script <<'SCRIPT'
set -eu
cd /root
mkdir -p /mnt
files() { find / -xdev \( -path /root -o -path /tmp -o -path /var -o -path /etc/cvmio -o -path /etc/ld.so.cache \) -prune -o -print | sort; }
state() { dpkg-query -W -f '${Version} ${db:Status-Status}' cvmio; }
files > before
dpkg -i /packages/old.deb
[ "$(state)" = '0.0.9-1 installed' ]
mkdir /etc/cvmio /var/lib/cvmio
(umask 077; head -c 32 /dev/urandom > /etc/cvmio/ledger.key; head -c 32 /dev/urandom > /etc/cvmio/wrong.key)
cvmio volume prepare /etc/cvmio/ledger.toml --size 64M --anchor file:/var/lib/cvmio/ledger.anchor
cvmio volume create /dev/vdc --key-file /etc/cvmio/ledger.key --policy /etc/cvmio/broken.toml --freshness off
cvmio volume activate --config - <<END
{"name": "ledger", "store": "/dev/vdb", "policy": "/etc/cvmio/ledger.toml", "key-file": "/etc/cvmio/ledger.key", "fs": "ext4", "mountpoint": "/mnt"}
END
echo first > /mnt/file
dpkg -i /packages/new.deb
[ "$(state)" = '0.1.0-1 installed' ]
cvmio volume status ledger > /dev/null
cat /mnt/file
dpkg -r cvmio > removed 2>&1
cat removed
grep '^ledger  *attached' removed
# The daemon needs no file of its own any more.
cat /mnt/file
echo second >> /mnt/file
umount /mnt
# Nor does a purge take anything that is in use, or its owner's.
kept="/run/cvmio/ledger/control /etc/cvmio/ledger.toml /etc/cvmio/ledger.key /var/lib/cvmio/ledger.anchor"
dpkg --purge cvmio
if dpkg-query -W cvmio; then echo 'it is known still'; exit 1; fi
ls $kept
files > after
diff before after
dpkg -i /packages/new.deb
daemon=$(cvmio volume status ledger --json | sed -n 's/.*"process": *\([0-9]*\).*/\1/p')
cvmio volume deactivate ledger
# It runs from a file that has no name any more, and as long as such a file is there, nothing is mounted read-only.
while grep -qs cvmio /proc/$daemon/cmdline; do sleep 0.1; done
cat > /etc/cvmiotab <<END
ledger /dev/vdb /etc/cvmio/ledger.toml key-file:/etc/cvmio/ledger.key fs=ext4,mountpoint=/srv/ledger,tamper-hook=/usr/local/bin/hook
broken /dev/vdc /etc/cvmio/broken.toml key-file:/etc/cvmio/wrong.key fs=ext4,mountpoint=/srv/broken,nofail
scratch /dev/vdd /etc/cvmio/scratch.toml key-file:/etc/cvmio/ledger.key as=ublk,fs=xfs,mountpoint=/srv/scratch,provision=thin,on-tamper=stop
END
# Made at the first boot.
cvmio volume prepare /etc/cvmio/scratch.toml --size 320M --anchor file:/var/lib/cvmio/scratch.anchor
mkdir -p /usr/local/bin
printf '#!/bin/sh\necho "$CVMIO_NAME $CVMIO_KIND" >> /root/told\n' > /usr/local/bin/hook
chmod +x /usr/local/bin/hook
# What a killed daemon has left goes with a purge, the table stays, and all works again.
cvmio volume attach /dev/vdc --name left --policy /etc/cvmio/broken.toml --key-file /etc/cvmio/ledger.key --json > ready
daemon=$(sed -n 's/.*"process": *\([0-9]*\).*/\1/p' ready)
kill -9 $daemon
while [ -e /proc/$daemon ]; do sleep 0.1; done
ls /run/cvmio/left/lock
dpkg --purge cvmio
ls -A /run/cvmio && exit 1
ls /etc/cvmiotab ${kept#* }
dpkg -i /packages/new.deb
SCRIPT
chroot /mnt /bin/bash /root/script
mount -o remount,ro /mnt
"#;

/// systemd, at boot and later.
const UNITS: &str = r#"
set -eu
must_fail() { if "$@"; then echo "this succeeded: $*"; exit 1; fi; }
property() { systemctl show -P "$1" "$2"; }
systemctl is-active local-fs.target cvmio@ledger.service srv-ledger.mount
[ "$(cat /srv/ledger/file | tr '\n' ' ')" = 'first second ' ]
# The machine is up, and one can see what is wrong.
[ "$(property ActiveState cvmio@broken)" = failed ]
[ "$(property ExecMainStatus cvmio@broken)" = 10 ]
systemctl status --no-pager cvmio@broken | cat

systemctl stop cvmio@ledger
must_fail mountpoint -q /srv/ledger
cvmio volume list
systemctl start cvmio@ledger
[ "$(cat /srv/ledger/file | tr '\n' ' ')" = 'first second ' ]

# Somebody uses it: the unit fails, and nothing happens to them.
sleep 1000 < /srv/ledger/file & user=$!
systemctl stop cvmio@ledger
[ "$(property ActiveState cvmio@ledger)" = failed ]
systemctl status --no-pager cvmio@ledger | cat
echo third >> /srv/ledger/file
sync /srv/ledger/file
kill $user
systemctl restart cvmio@ledger
[ "$(cat /srv/ledger/file | tr '\n' ' ')" = 'first second third ' ]

# The daemon dies.
daemon=$(cvmio volume status ledger --json | sed -n 's/.*"process": *\([0-9]*\).*/\1/p')
kill -9 "$daemon"
systemctl restart cvmio@ledger
[ "$(cat /srv/ledger/file | tr '\n' ' ')" = 'first second third ' ]

# One that systemd has made, on a ublk device that outlives its daemon.
systemctl is-active cvmio@scratch.service srv-scratch.mount
findmnt -n -o SOURCE,FSTYPE /srv/scratch | grep '^/dev/ublkb0 *xfs'
echo kept > /srv/scratch/file
sync /srv/scratch/file
daemon=$(cvmio volume status scratch --json | sed -n 's/.*"process": *\([0-9]*\).*/\1/p')
kill -9 "$daemon"
cvmio volume activate scratch
[ "$(cat /srv/scratch/file)" = kept ]
systemctl stop cvmio@scratch
[ ! -e /dev/ublkb0 ]
[ ! -e /root/told ]

# The host puts an older state back: the journal says so, and the hook is run.
systemctl stop cvmio@ledger
cp --sparse=always /dev/vdb /root/old
systemctl start cvmio@ledger
echo fourth >> /srv/ledger/file
systemctl stop cvmio@ledger
cp --sparse=always /dev/vdb /root/new
dd if=/root/old of=/dev/vdb bs=1M conv=fsync 2>/dev/null
must_fail systemctl start cvmio@ledger
[ "$(property ExecMainStatus cvmio@ledger)" = 5 ]
[ "$(cat /root/told)" = 'ledger stale' ]
journalctl --no-pager -o cat MESSAGE_ID=6d68ac3b75fc44b1992387937ea2538c CVMIO_NAME=ledger | grep 'cannot be attached'
dd if=/root/new of=/dev/vdb bs=1M conv=fsync 2>/dev/null
rm /root/old /root/new
systemctl start cvmio@ledger

# The package goes, and comes back, under a volume that is up.
dpkg -r cvmio
[ "$(property LoadState cvmio@scratch)" = not-found ]
[ ! -e /run/systemd/generator/cvmio@ledger.service.d ]
[ "$(property ActiveState cvmio@ledger)" = active ]
cat /srv/ledger/file
dpkg -i /packages/new.deb
[ "$(property LoadState cvmio@scratch)" = loaded ]
systemctl is-active local-fs.target cvmio@ledger srv-ledger.mount
cvmio volume status ledger > /dev/null

# In use, and not flushed, when the machine goes down.
sleep 1000 < /srv/ledger/file &
echo fifth >> /srv/ledger/file
"#;

/// What is left: of a clean end, with all that was written.
const AFTERWARDS: &str = r#"
set -eu
mount -t ext4 -o ro /dev/vda /mnt
mkdir -p /var/lib /etc
cp -r /mnt/var/lib/cvmio /var/lib/cvmio
cvmio volume dump /dev/vdb --policy /mnt/etc/cvmio/ledger.toml
cvmio volume attach /dev/vdb --name ledger --policy /mnt/etc/cvmio/ledger.toml --key-file /mnt/etc/cvmio/ledger.key --loop
mkdir /ledger
mount -t ext4 -o ro,noload /dev/loop0 /ledger
[ "$(cat /ledger/file | tr '\n' ' ')" = 'first second third fourth fifth ' ]
umount /ledger
cvmio volume detach ledger
"#;

#[test]
fn the_package_is_installed_and_systemd_runs_its_units() {
    let Some(bed) = guest::bed() else { return };
    let system = bed.system();
    for (version, name) in [("0.0.9-1", "old"), ("0.1.0-1", "new")] {
        let Some(package) = bed.package(version) else { return };
        system.copy(&format!("packages/{name}.deb"), &package);
    }
    let root = system.disk("root", 512 << 20);
    let disk = |name, size: u64| bed.disk(name, size << 20);
    let (ledger, broken, scratch) = (disk("ledger", 128), disk("broken", 128), disk("scratch", 512));
    let boot = || {
        let guest = bed.guest().disk(&root).disk(&ledger).disk(&broken).disk(&scratch);
        guest.limit(Duration::from_secs(480))
    };
    let plain = || boot().modules(&["fuse", "loop", "ext4"]);
    let _ = plain().succeed(INSTALL);
    let said = boot().system().succeed(UNITS);
    assert!(said.contains("no key slot opens with this"), "{said}");
    assert!(said.contains("stays mounted"), "{said}");
    let said = plain().succeed(AFTERWARDS);
    assert!(said.contains("stamp: released"), "{said}");
}
