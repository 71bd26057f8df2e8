//! While a volume belongs to a place and is not there, nothing can be written to that place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::common::Desk;
use crate::common::machine::{is_mounted, quietly, sh, wait_for};
use crate::common::session::{Session, leave_nothing};

/// A desk with a directory to mount on, and nothing left of it at the end.
struct Clean(Rc<Desk>);

impl Clean {
    fn new() -> Self {
        let desk = Rc::new(Desk::new());
        desk.create("");
        fs::create_dir(desk.path("shown")).unwrap();
        fs::set_permissions(desk.path("shown"), fs::Permissions::from_mode(0o750)).unwrap();
        desk.write("data", b"in the clear");
        Self(desk)
    }

    fn shown(&self) -> PathBuf {
        self.0.path("shown")
    }

    /// The directory as it was before.
    fn is_open_again(&self) {
        let mode = fs::metadata(self.shown()).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode, fs::read_dir(self.shown()).unwrap().count()), (0o750, 0));
    }

    fn kill(&self, session: &Session, mountpoint: &Path) {
        session.kill();
        wait_for("the end of the dead mount", || !is_mounted(mountpoint));
    }
}

impl Drop for Clean {
    fn drop(&mut self) {
        leave_nothing(&self.0);
        quietly(&format!("umount -l {}", self.shown().display()));
    }
}

/// All that somebody may do with the volume's file, thinking that the volume is there.
fn nothing_can_be_written(desk: &Desk, file: &Path) {
    let (at, data) = (file.display(), desk.path("data"));
    for command in [
        format!("dd if={} of={at} conv=notrunc,fsync", data.display()),
        format!("dd if={} of={at}", data.display()),
        format!("cp {} {at}", data.display()),
        format!("cat {} > {at}", data.display()),
        format!("tee {at} < {}", data.display()),
        format!("truncate -s 16M {at}"),
        format!("mkfs.ext4 -q -F {at} 4096"),
        format!("cat {at}"),
        format!("losetup --find --show {at}"),
        format!("mount -o loop {at} {}", desk.path("at").display()),
    ] {
        assert!(!quietly(&command), "{command}");
    }
}

/// The same with the directory, where root is kept out by its flag.
fn nothing_can_be_made(desk: &Desk, directory: &Path) {
    let (at, data) = (directory.display(), desk.path("data"));
    for command in [
        format!("touch {at}/other"),
        format!("mkdir {at}/other"),
        format!("cp -f {} {at}/disk", data.display()),
        format!("cp --remove-destination {} {at}/disk", data.display()),
        format!("mv {} {at}/disk", data.display()),
        format!("rm -f {at}/disk"),
    ] {
        assert!(!quietly(&command), "{command}");
    }
    assert!(data.exists());
}

#[test]
fn what_a_killed_daemon_showed_is_an_error_until_the_volume_is_there_again() {
    crate::skip_without_devices!();
    let clean = Clean::new();
    let desk = &clean.0;
    fs::create_dir(desk.path("at")).unwrap();
    let shown = clean.shown();
    let has_flag = quietly(&format!("chattr +i {0} && chattr -i {0}", shown.display()));
    for (more, directory) in [("", desk.path("run/disk/mnt")), ("--mount shown", shown.clone())] {
        let session = Session::attach_with(desk, more);
        sh(&format!(
            "dd if={} of={} conv=notrunc,fsync",
            desk.path("data").display(),
            session.file.display()
        ));
        clean.kill(&session, &directory);
        // The mount is gone; and somebody takes away whatever else there is.
        quietly(&format!("umount -l {}", directory.display()));
        for file in [session.file.clone(), directory.join("disk")] {
            nothing_can_be_written(desk, &file);
        }
        if has_flag {
            nothing_can_be_made(desk, &directory);
        }
        // An attach that fails leaves all as it is.
        assert_eq!(desk.run("volume attach disk.img --key-file other --name disk").code, 10);
        nothing_can_be_written(desk, &session.file);
        nothing_can_be_written(desk, &directory.join("disk"));
        assert!(desk.done("volume list").contains("dead"));

        let again = Session::attach_with(desk, more);
        assert!(sh(&format!("head -c 12 {}", again.file.display())) == "in the clear");
        again.detach();
        clean.is_open_again();
        assert!(!desk.path("run/disk").exists());
    }
}

#[test]
fn a_mount_that_somebody_takes_away_under_a_daemon_leaves_no_place_to_write_to() {
    crate::skip_without_devices!();
    let clean = Clean::new();
    fs::create_dir(clean.0.path("at")).unwrap();
    let session = Session::attach_with(&clean.0, "--mount shown");
    let user = fs::File::open(clean.shown().join("disk")).unwrap();
    sh(&format!("umount -l {}", clean.shown().display()));
    nothing_can_be_written(&clean.0, &session.file);
    nothing_can_be_written(&clean.0, &clean.shown().join("disk"));
    drop(user);
    wait_for("the detach", || clean.0.run("volume detach disk").code == 0);
    clean.is_open_again();
}

#[test]
fn list_and_detach_agree_about_what_is_dead() {
    crate::skip_without_devices!();
    let clean = Clean::new();
    let desk = &clean.0;
    let session = Session::attach_with(desk, "--mount shown");
    clean.kill(&session, &clean.shown());
    // Another front end, in another place: the old one is open again, and the new one is the volume's.
    let other = Session::attach_with(desk, "");
    clean.is_open_again();
    clean.kill(&other, &desk.path("run/disk/mnt"));
    // Whatever is left of it.
    fs::remove_file(desk.path("run/disk/lock")).unwrap();
    assert!(desk.done("volume list").contains("dead"));
    assert!(desk.done("volume detach disk").contains("killed daemon"));
    assert_eq!(desk.done("volume list"), "no volume is attached\n");

    fs::create_dir_all(desk.path("run/disk")).unwrap();
    fs::write(desk.path("run/disk/mine"), "").unwrap();
    assert!(desk.done("volume list").contains("dead"));
    let said = desk.run("volume detach disk");
    assert!(said.code == 2 && said.error.contains("[DIR]/run/disk/mine"), "{}", said.error);
    fs::remove_file(desk.path("run/disk/mine")).unwrap();
    desk.done("volume detach disk");
    assert_eq!(desk.done("volume list"), "no volume is attached\n");
}
