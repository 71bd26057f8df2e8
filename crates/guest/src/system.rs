//! A Debian system with systemd, as it is on a disk.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Bed;
use crate::command::output;

/// What a system runs when it is up. A script that came with the guest counts more than one that came with the system.
const RUNNER: &str = "\
#!/bin/sh
script=/run/guest-script
[ -e $script ] || script=/usr/lib/guest/script
cd /root
sh $script </dev/null >/dev/vport0p1 2>&1
echo $? >/dev/vport0p2
systemctl --no-block poweroff
";

/// Those who would wait for what is not there: a bus, and somebody who logs in.
const MASKED: [&str; 2] = ["systemd-logind.service", "getty.target"];

/// A system in a directory.
#[derive(Debug)]
pub struct System<'a> {
    bed: &'a Bed,
    tree: PathBuf,
}

impl<'a> System<'a> {
    pub(crate) fn new(bed: &'a Bed) -> Self {
        let tree = bed.running.join("system");
        // Links: nothing is written in place here.
        output(Command::new("cp").arg("-al").arg(bed.debian.system()).arg(&tree));
        let system = Self { bed, tree };
        let unit =
            |name: &str, text: &str| system.file(&format!("etc/systemd/system/{name}"), text.as_bytes());
        unit(
            "guest.target",
            "[Unit]\nRequires=multi-user.target\nAfter=multi-user.target\nWants=guest.service\nAllowIsolate=yes\n",
        );
        unit(
            "guest.service",
            "[Unit]\nAfter=multi-user.target\n[Service]\nType=oneshot\nExecStart=/bin/sh /usr/lib/guest/runner\n",
        );
        system.file("usr/lib/guest/runner", RUNNER.as_bytes());
        system.link("etc/systemd/system/default.target", "guest.target");
        for name in MASKED {
            system.link(&format!("etc/systemd/system/{name}"), "/dev/null");
        }
        system
    }

    /// Puts a file there, instead of what was there.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn file(&self, path: &str, content: &[u8]) {
        let place = self.make_way(path);
        fs::write(&place, content).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
    }

    /// Puts a copy of a file there.
    ///
    /// # Panics
    /// When it cannot be copied.
    pub fn copy(&self, path: &str, file: &Path) {
        self.file(path, &fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
    }

    /// Unpacks a Debian package there.
    ///
    /// # Panics
    /// When it is none.
    pub fn unpack(&self, package: &Path) {
        output(Command::new("dpkg-deb").arg("-x").arg(package).arg(&self.tree));
    }

    /// Makes an initramfs with the system's own `mkinitramfs`. `None` where this machine does not let a process
    /// have another root, and says so in a line that `scripts/test` counts.
    ///
    /// # Errors
    /// What `mkinitramfs` says when it fails.
    ///
    /// # Panics
    /// When it cannot be run.
    pub fn initramfs(&self) -> Option<Result<PathBuf, String>> {
        // Its mounts are seen by nobody else, and go with it.
        let script = r#"
            set -e
            for directory in dev proc; do mount --rbind "/$directory" "$1/$directory"; done
            chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin mkinitramfs -o /tmp/initramfs "$2"
        "#;
        let apart = |script: &str| {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--map-root-user", "sh", "-c", script, "sh"]);
            command
        };
        if !apart("mount -t tmpfs none /mnt").output().is_ok_and(|tried| tried.status.success()) {
            crate::skipped("this machine allows no user namespaces");
            return None;
        }
        let made = apart(script).arg(&self.tree).arg(self.bed.debian.version()).output();
        let made = made.expect("it ran a moment ago");
        if !made.status.success() {
            return Some(Err(String::from_utf8_lossy(&made.stderr).into_owned()));
        }
        let archive = self.bed.running.join("initramfs");
        fs::rename(self.tree.join("tmp/initramfs"), &archive).expect("both are on one file system");
        Some(Ok(archive))
    }

    /// Puts a link there.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn link(&self, path: &str, to: &str) {
        let place = self.make_way(path);
        symlink(to, &place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
    }

    /// What the system runs when it is up, in a guest that brings no script along.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn script(&self, text: &str) {
        self.file("usr/lib/guest/script", text.as_bytes());
    }

    /// A disk of `size` bytes with the system on it, as ext4.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn disk(&self, name: &str, size: u64) -> PathBuf {
        let disk = self.bed.disk(name, size);
        let mut make = self.bed.debian.program("usr/sbin/mke2fs");
        make.env("MKE2FS_CONFIG", self.bed.debian.path("etc/mke2fs.conf"));
        output(
            make.args(["-q", "-t", "ext4", "-b", "4096", "-E", "root_owner=0:0", "-d"])
                .arg(&self.tree)
                .arg(&disk),
        );
        disk
    }

    fn make_way(&self, path: &str) -> PathBuf {
        let place = self.tree.join(path);
        let parent = place.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).unwrap_or_else(|error| panic!("{}: {error}", parent.display()));
        match fs::remove_file(&place) {
            Err(error) if error.kind() != ErrorKind::NotFound => panic!("{}: {error}", place.display()),
            _ => place,
        }
    }
}
