//! The root file system on a volume: the initramfs attaches it, systemd runs on it, and it is put away at the very end.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What the system does when it is up: the first time it writes, without a sync, and the second time it compares.
const SCRIPT: &str = r#"
set -eu
[ "$(readlink -f /dev/cvmio/root)" = "$(readlink -f "$(findmnt -n -o SOURCE /)")" ]
cvmio volume status root
cvmio volume status root --json | grep '"on-tamper": "stop"'
daemon=$(cvmio volume status root --json | sed -n 's/.*"process": *\([0-9]*\).*/\1/p')
[ "$(head -c 1 /proc/$daemon/cmdline)" = @ ]
# It has nothing of the root file system, and nobody has its mounts or its keys.
ls -l /proc/$daemon/exe /proc/$daemon/root /proc/$daemon/cwd /proc/$daemon/fd
grep /run/initramfs /proc/self/mounts
[ "$(grep -c /run/initramfs/ /proc/self/mounts)" = 0 ]
[ ! -e /run/initramfs/etc/cvmio/root.key ]
if cvmio volume detach root; then echo 'detached under the root'; exit 1; fi
if [ -e /root/sum ]; then
    sha256sum -c /root/sum
    echo 'the second boot'
else
    dd if=/dev/urandom of=/root/content bs=1M count=8 2>/dev/null
    sha256sum /root/content > /root/sum
fi
"#;

fn volume(cvmio: &Path, arguments: &[&str], files: &[&Path]) {
    let made = Command::new(cvmio).arg("volume").args(arguments).args(files).output().unwrap();
    assert!(made.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&made.stderr));
}

/// The volume while this machine has it: put away in any case.
struct Attached<'a> {
    cvmio: &'a Path,
    runtime: &'a Path,
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        volume(self.cvmio, &["detach", "root", "--runtime-dir"], &[self.runtime]);
    }
}

#[test]
fn a_system_boots_from_a_volume_and_puts_it_away() {
    let Some(bed) = guest::bed() else { return };
    let Some(package) = bed.package("0.1.0-1") else { return };
    let key: Vec<u8> = (0..32).collect();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("key"), &key).unwrap();
    let store = bed.disk("store", 512 << 20);
    let cvmio = |arguments: &[&str], files: &[&Path]| volume(bed.cvmio(), arguments, files);
    let (policy, secret) = (at("policy"), at("key"));
    let known = [policy.to_str().unwrap(), secret.to_str().unwrap()];
    cvmio(&["create", "--freshness", "off", "--policy", known[0], "--key-file", known[1]], &[&store]);

    let system = bed.system();
    system.unpack(&package);
    system.copy("etc/cvmio/root.toml", &policy);
    system.file("etc/cvmio/root.key", &key);
    system.file(
        "etc/cvmiotab",
        b"root /dev/vda /etc/cvmio/root.toml key-file:/etc/cvmio/root.key initramfs,on-tamper=stop\n",
    );
    system.file(
        "etc/initramfs-tools/initramfs.conf",
        b"MODULES=list\nBUSYBOX=auto\nCOMPRESS=gzip\nRUNSIZE=20%\nUMASK=0077\n",
    );
    system.file("etc/initramfs-tools/modules", b"virtio_blk\next4\n");
    system.script(SCRIPT);
    let text = std::fs::read_to_string(&policy).unwrap();
    system.file(
        "etc/cvmio/root.toml",
        format!("anchor = \"file:/a\"\n{}", text.replace("\"off\"", "\"strict\"")).as_bytes(),
    );
    let Some(refused) = system.initramfs() else { return };
    let refused = refused.unwrap_err();
    assert!(refused.contains("cvmio: error: root: an anchor in a file"), "{refused}");
    system.copy("etc/cvmio/root.toml", &policy);
    let initramfs = system.initramfs().unwrap().unwrap();
    let root = system.disk("root", 320 << 20);

    let attached = Attached { cvmio: bed.cvmio(), runtime: &at("run") };
    let shown = ["--name", "root", "--as", "nbd", "--runtime-dir", attached.runtime.to_str().unwrap()];
    cvmio(&[&["attach", "--policy", known[0], "--key-file", known[1]], &shown[..]].concat(), &[&store]);
    bed.write_to(&root, &format!("nbd+unix:///?socket={}", attached.runtime.join("root/nbd.sock").display()));
    drop(attached);

    for boot in 1..=2 {
        let guest = bed.guest().disk(&store).initramfs(&initramfs, "root=/dev/cvmio/root rw");
        let outcome =
            guest.limit(Duration::from_secs(480)).run("").unwrap_or_else(|trouble| panic!("{trouble}"));
        assert_eq!(outcome.code, 0, "{outcome}");
        assert!(outcome.console.contains("detached root"), "{outcome}");
        assert_eq!(outcome.output.contains("the second boot"), boot == 2, "{outcome}");
    }
    cvmio(&["check", "--policy", known[0], "--key-file", known[1]], &[&store]);
}
