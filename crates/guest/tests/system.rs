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
dpkg -r cvmio
# The daemon needs no file of its own any more.
cat /mnt/file
echo second >> /mnt/file
umount /mnt
files > after
diff before after
dpkg -i /packages/new.deb
daemon=$(cvmio volume status ledger --json | sed -n 's/.*"process": *\([0-9]*\).*/\1/p')
cvmio volume deactivate ledger
# It runs from a file that has no name any more, and as long as such a file is there, nothing is mounted read-only.
while grep -qs cvmio /proc/$daemon/cmdline; do sleep 0.1; done
cat > /etc/cvmiotab <<END
ledger /dev/vdb /etc/cvmio/ledger.toml key-file:/etc/cvmio/ledger.key fs=ext4,mountpoint=/srv/ledger
broken /dev/vdc /etc/cvmio/broken.toml key-file:/etc/cvmio/wrong.key fs=ext4,mountpoint=/srv/broken,nofail
END
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

# In use, and not flushed, when the machine goes down.
sleep 1000 < /srv/ledger/file &
echo fourth >> /srv/ledger/file
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
[ "$(cat /ledger/file | tr '\n' ' ')" = 'first second third fourth ' ]
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
    let (ledger, broken) = (bed.disk("ledger", 128 << 20), bed.disk("broken", 128 << 20));
    let boot = || bed.guest().disk(&root).disk(&ledger).disk(&broken).limit(Duration::from_secs(480));
    let plain = || boot().modules(&["fuse", "loop", "ext4"]);
    let _ = plain().succeed(INSTALL);
    let said = boot().system().succeed(UNITS);
    assert!(said.contains("no key slot opens with this"), "{said}");
    assert!(said.contains("stays mounted"), "{said}");
    let said = plain().succeed(AFTERWARDS);
    assert!(said.contains("stamp: released"), "{said}");
}
