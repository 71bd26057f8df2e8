//! A volume of an ordinary user: everything but the loop device, which the kernel gives to root only.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use crate::common::machine::{content, has, is_mounted, quietly, tell_skipped, wait_for};
use crate::common::{Desk, Said};

/// `nobody`.
const USER: u32 = 65534;

/// Why this machine cannot show it, if so.
fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root");
    }
    if fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return Some("no /dev/fuse");
    }
    if !has("setpriv") || !has("fusermount3") {
        return Some("no setpriv or no fusermount3");
    }
    // The program must be within reach.
    let reach = format!(
        "setpriv --reuid={USER} --regid={USER} --clear-groups test -x {}",
        env!("CARGO_BIN_EXE_cvmio")
    );
    (!quietly(&reach)).then_some("the program is where other users cannot read")
}

struct User(Desk);

impl User {
    fn new() -> Self {
        let desk = Desk::new();
        for name in ["", "key"] {
            chown(desk.path(name), Some(USER), Some(USER)).unwrap();
        }
        fs::create_dir(desk.path("runtime")).unwrap();
        chown(desk.path("runtime"), Some(USER), Some(USER)).unwrap();
        fs::set_permissions(desk.path("runtime"), fs::Permissions::from_mode(0o700)).unwrap();
        Self(desk)
    }

    fn create(&self) {
        let anchor = self.0.path("anchor");
        self.done(&format!(
            "volume create disk.img --size 16M --key-file key --anchor file:{}",
            anchor.display()
        ));
    }

    fn setpriv(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={USER}"), format!("--regid={USER}")]).arg("--clear-groups");
        command.current_dir(self.0.path("")).env("HOME", self.0.path("")).env_remove("CVMIO_RUNTIME_DIR");
        command.env("XDG_RUNTIME_DIR", self.0.path("runtime"));
        command
    }

    fn run(&self, arguments: &str) -> Said {
        let mut command = self.setpriv();
        let output = command.arg(env!("CARGO_BIN_EXE_cvmio")).args(arguments.split(' ')).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said {
            code: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            error: text(&output.stderr),
        }
    }

    fn done(&self, arguments: &str) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, 0, "cvmio {arguments}: {}{}", said.out, said.error);
        said.out
    }

    /// A command of the shell, as this user.
    fn sh(&self, command: &str) -> bool {
        self.setpriv().args(["sh", "-c", command]).status().unwrap().success()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.run("volume detach disk");
        quietly(&format!("umount -l {}", self.0.path("runtime/cvmio/disk/mnt").display()));
    }
}

/// What an attach says where this user may not use FUSE.
fn denied() -> String {
    let user = User::new();
    user.create();
    user.run("volume attach disk.img --key-file key").error
}

fn can_open_fuse() -> bool {
    quietly(&format!("setpriv --reuid={USER} --regid={USER} --clear-groups sh -c ': <> /dev/fuse'"))
}

/// Runs this test again where the device is for everybody, as it is on most machines: in a mount namespace of its own.
fn again_with_fuse_for_everybody(test: &str) {
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "mknod -m 666 {0}/fuse c 10 229 && mount --bind {0}/fuse /dev/fuse && \"$0\" --exact {test} --nocapture",
        directory.path().display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).arg(std::env::current_exe().unwrap()).env("AGAIN", "1");
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}

#[test]
fn an_ordinary_user_creates_attaches_writes_and_detaches() {
    if let Some(reason) = missing() {
        return tell_skipped(reason);
    }
    if !can_open_fuse() {
        assert!(std::env::var_os("AGAIN").is_none(), "/dev/fuse is still not for everybody");
        let said = denied();
        assert!(said.contains("/dev/fuse") && said.contains("chmod"), "{said}");
        return again_with_fuse_for_everybody(
            "unprivileged::an_ordinary_user_creates_attaches_writes_and_detaches",
        );
    }
    let user = User::new();
    user.create();
    user.0.write("data", &content(1, 1 << 20));
    fs::set_permissions(user.0.path("data"), fs::Permissions::from_mode(0o644)).unwrap();

    let said = user.run("volume attach disk.img --key-file key --loop");
    assert_ne!(said.code, 0, "{}", said.out);
    assert!(said.error.contains("root") && said.error.contains("--loop"), "{}", said.error);
    assert!(!user.0.path("runtime/cvmio/disk").exists(), "nothing is left of it");

    for round in 0..2 {
        let said = user.done("volume attach disk.img --key-file key");
        let file = user.0.path("runtime/cvmio/disk/disk");
        assert!(said.contains(file.to_str().unwrap()), "{said}");
        let shown = file.display();
        if round == 0 {
            assert!(user.sh(&format!("dd if=data of={shown} bs=64k conv=notrunc,fsync status=none")));
        }
        assert!(user.sh(&format!("cmp -n 1048576 data {shown}")), "round {round}");
        assert!(user.done("volume status disk").contains("disk.img"));
        user.done("volume detach disk");
        wait_for("the daemon's end", || !user.0.path("runtime/cvmio/disk").exists());
    }
    user.done("volume check disk.img --key-file key");

    // Its daemon is killed: nothing can be written in its place, until the same user attaches it again.
    user.done("volume attach disk.img --key-file key");
    let (mount, file) = (user.0.path("runtime/cvmio/disk/mnt"), user.0.path("runtime/cvmio/disk/disk"));
    let status: serde_json::Value = serde_json::from_str(&user.done("volume status disk --json")).unwrap();
    quietly(&format!("kill -9 {}", status["process"]));
    wait_for("the end of the dead mount", || !is_mounted(&mount));
    for at in [&file, &mount.join("disk"), &mount.join("other")] {
        assert!(!user.sh(&format!("dd if=data of={} status=none 2>/dev/null", at.display())));
    }
    user.done("volume attach disk.img --key-file key");
    assert!(user.sh(&format!("cmp -n 1048576 data {}", file.display())));
    user.done("volume detach disk");
}

/// So many threads as one user may have: root may have any number, so it is another one.
#[test]
fn a_limit_on_threads_is_found_out_before_the_volume_is_claimed() {
    // Of its own: how many threads another test's daemons have must not matter.
    const USER: u32 = 61_234;
    if let Some(why) = missing() {
        return tell_skipped(why);
    }
    let desk = Desk::new();
    desk.create("");
    let own = |name: &str| std::os::unix::fs::chown(desk.path(name), Some(USER), Some(USER)).unwrap();
    ["", "disk.img", "disk.img.policy.toml", "anchor", "key"].into_iter().for_each(own);
    let attach = desk.command("volume attach disk.img --key-file key --memory 32M --queues 2 --as nbd");
    let (mut worked, mut refused) = (0, 0);
    for limit in [1, 2, 3, 5, 8, 12, 14, 15, 16, 64] {
        let before = desk.read("anchor");
        let line = format!(
            "ulimit -u {limit}; exec setpriv --reuid {USER} --regid {USER} --clear-groups \"$0\" \"$@\""
        );
        let mut command = Command::new("bash");
        command.args(["-c", &line]).arg(attach.get_program()).args(attach.get_args());
        command.current_dir(desk.path("")).env("CVMIO_RUNTIME_DIR", desk.path("run"));
        let output = command.output().unwrap();
        if output.status.success() {
            worked += 1;
            desk.done("volume detach disk");
            continue;
        }
        refused += 1;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains("cvmio: error: "), "{limit}: {error}");
        assert!(desk.read("anchor") == before, "{limit}: claimed, and then {error}");
    }
    assert!(worked >= 1 && refused >= 3, "{worked} worked, {refused} were refused");
    desk.done("volume check disk.img --key-file key");
}
