//! File systems on volumes: made at first use, and made again as long as nobody can have used them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::common::machine::{has, quietly, sh, tell_skipped};
use crate::service::Service;
use serde_json::{Value, json};

impl Service {
    /// Another volume, on a blank store that is large enough for an XFS.
    fn prepare_anew(&self, size: &str) {
        for file in ["policy.toml", "anchor"] {
            fs::remove_file(self.desk.path(file)).unwrap();
        }
        let anchor = self.desk.path("anchor").display().to_string();
        self.desk.done(&format!("volume prepare policy.toml --size {size} --anchor file:{anchor}"));
        fs::File::create(self.desk.path("store")).unwrap().set_len(700 << 20).unwrap();
    }

    /// A search path on which the program that makes a file system is killed before a call of it.
    fn killer_of(&self, kind: &str, call: &str, nth: u32) -> String {
        let (programs, search) = (self.desk.path("bin"), std::env::var("PATH").unwrap());
        fs::create_dir(&programs).unwrap();
        let program = programs.join(format!("mkfs.{kind}"));
        let script = format!(
            "#!/bin/sh\nPATH='{search}' exec strace -f -qq -o /dev/null -e trace={call} -e inject={call}:signal=SIGKILL:when={nth} \
             mkfs.{kind} \"$@\"\n"
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        format!("{}:{search}", programs.display())
    }

    /// The next activation has the file system there, and it keeps what is written.
    fn check_made(&self, when: &str) {
        let found = self.activate();
        assert!(found.code == 0 && self.is_mounted(), "{when}: {found:?}");
        fs::write(self.at().join("note"), "kept").unwrap();
        self.down();
        assert_eq!(self.activate().code, 0, "{when}");
        assert_eq!(fs::read_to_string(self.at().join("note")).unwrap(), "kept", "{when}");
        self.down();
    }
}

/// A program that stands for `mkfs.xfs`: the first one is killed when it has written the first superblock, which says that it is not done.
const KILLED: &str = r#"#!/bin/sh
echo "$@" >> CALLS
for device; do :; done
[ "$(wc -l < CALLS)" -gt 1 ] && exit 7
printf XFSB | dd of="$device" conv=notrunc status=none
printf '\001' | dd of="$device" bs=1 seek=126 conv=notrunc status=none
sync "$device"
kill -9 $$
"#;

#[test]
fn a_file_system_whose_making_was_killed_is_made_again() {
    crate::skip_without_devices!();
    let service = Service::new();
    service.change_config(&json!({ "fs": "xfs" }));
    let (programs, calls) = (service.desk.path("bin"), service.desk.path("calls"));
    fs::create_dir(&programs).unwrap();
    fs::write(programs.join("mkfs.xfs"), KILLED.replace("CALLS", calls.to_str().unwrap())).unwrap();
    fs::set_permissions(programs.join("mkfs.xfs"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let activate = || {
        let mut command = service.desk.command("volume activate --config config.json");
        let output = command.env("PATH", &path).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = [activate(), activate()];
    assert!(said.iter().all(|said| said.contains("mkfs.xfs failed")), "{said:?}");
    let calls = fs::read_to_string(calls).unwrap();
    let calls: Vec<&str> = calls.lines().collect();
    assert!(calls.len() == 2 && !calls[0].contains(" -f ") && calls[1].contains(" -f "), "{calls:?}");
    assert!(!service.is_mounted());
    service.down();
}

/// The real programs, killed before one of their calls. An XFS before its first superblock, between it and the last one, and behind all of
/// them; an ext4, whose superblock comes last, amid what comes before it.
#[test]
fn a_file_system_whose_making_is_killed_at_any_call_is_made_by_the_next() {
    crate::skip_without_devices!();
    if let Some(missing) = ["strace", "mkfs.xfs"].into_iter().find(|program| !has(program)) {
        return tell_skipped(missing);
    }
    let ext4 = [("pwrite64", 2), ("pwrite64", 4), ("pwrite64", 9), ("fsync", 1)];
    let xfs = [("pwrite64", 2), ("pwrite64", 4), ("pwrite64", 9), ("pwrite64", 20), ("fsync", 1)];
    let cases =
        ext4.map(|case| ("ext4", "32M", case)).into_iter().chain(xfs.map(|case| ("xfs", "320M", case)));
    for (kind, size, (call, nth)) in cases {
        if !kernel_knows(kind) {
            return tell_skipped(&format!("a kernel with {kind}"));
        }
        let service = Service::new();
        service.prepare_anew(size);
        service.change_config(&json!({ "fs": kind }));
        let mut first = service.desk.command("volume activate --config config.json");
        let first = first.env("PATH", service.killer_of(kind, call, nth)).output().unwrap();
        let said = String::from_utf8_lossy(&first.stderr);
        assert!(!first.status.success() && said.contains("SIGKILL"), "{kind} {call} number {nth}: {said}");
        service.check_made(&format!("{kind} {call} number {nth}"));
    }
}

/// Behind the superblock, where all that a mount reads begins.
fn damage(service: &Service) {
    let attach = "volume attach store --policy policy.toml --key-file key --name disk --loop --json";
    let ready: Value = serde_json::from_str(&service.desk.done(attach)).unwrap();
    let device = ready["loop-device"].as_str().unwrap();
    sh(&format!(
        "head -c 262144 /dev/zero | tr '\\0' Z | dd of={device} bs=4096 seek=1 conv=fsync status=none iflag=fullblock"
    ));
    service.desk.done("volume detach disk");
}

/// Damage stands for all that may become of it: a power loss that keeps the superblock and not what belongs to it, too.
#[test]
fn what_was_made_and_not_mounted_is_made_again_and_what_was_mounted_is_not() {
    crate::skip_without_devices!();
    for (kind, size) in [("ext4", "32M"), ("xfs", "320M")] {
        if !has(&format!("mkfs.{kind}")) || !kernel_knows(kind) {
            return tell_skipped(kind);
        }
        let service = Service::new();
        service.prepare_anew(size);
        service.change_config(&json!({ "fs": kind }));
        let programs = service.desk.path("bin");
        fs::create_dir(&programs).unwrap();
        fs::write(programs.join("mount"), "#!/bin/sh\nexit 32\n").unwrap();
        fs::set_permissions(programs.join("mount"), fs::Permissions::from_mode(0o755)).unwrap();
        let search = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut first = service.desk.command("volume activate --config config.json");
        let first = first.env("PATH", search).output().unwrap();
        assert!(String::from_utf8_lossy(&first.stderr).contains("mount failed"), "{first:?}");
        damage(&service);
        service.check_made(kind);
        damage(&service);
        for round in 0..2 {
            let refused = service.activate();
            assert!(
                refused.code == 3 && refused.error.contains("mount failed"),
                "{kind} {round}: {refused:?}"
            );
        }
    }
}

/// Not the program that makes the file system is killed, but the one that brings it to the device.
#[test]
fn a_first_use_that_is_killed_at_any_write_is_done_by_the_next() {
    crate::skip_without_devices!();
    if !has("strace") {
        return tell_skipped("strace");
    }
    let mut killed = 0;
    for nth in (1..6).chain((6..).step_by(5)) {
        let service = Service::new();
        let cvmio = service.desk.command("volume activate --config config.json");
        let mut first = std::process::Command::new("strace");
        let inject = format!("inject=pwrite64:signal=SIGKILL:when={nth}");
        first
            .args(["-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", &inject])
            .arg(cvmio.get_program());
        first.args(cvmio.get_args()).current_dir(service.desk.path(""));
        first.envs(cvmio.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let ended = first.output().unwrap().status.success();
        service.check_made(&format!("write number {nth}"));
        if ended {
            break;
        }
        killed += 1;
    }
    assert!(killed > 4, "{killed} were killed");
}

fn kernel_knows(kind: &str) -> bool {
    // What is a module is loaded by the first mount.
    quietly(&format!("modprobe -q {kind}"));
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.lines().any(|line| line.split_whitespace().last() == Some(kind))
}
