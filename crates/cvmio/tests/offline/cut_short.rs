//! Commands that make something, killed before each system call that changes a file: done again, each ends as if nothing had happened.

use crate::common::machine::{has, tell, tell_skipped};
use crate::common::{Desk, Said};
use std::process::{Command, Stdio};

/// Every system call by which these commands change a file or a directory, or make something durable.
const CHANGES: [&str; 14] = [
    "openat",
    "ftruncate",
    "fallocate",
    "write",
    "pwrite64",
    "fsync",
    "fdatasync",
    "rename",
    "renameat2",
    "link",
    "unlink",
    "flock",
    "io_uring_setup",
    "io_uring_enter",
];

/// Kills `command` before each of its `calls` in turn, on a new desk each time, and lets `then` look at what is left; how many were killed.
pub fn cut_everywhere(
    calls: &[&str],
    prepare: impl Fn(&Desk),
    command: impl Fn(&Desk) -> String,
    then: impl Fn(&Desk, &str),
) -> usize {
    let mut cut = 0;
    for &call in calls {
        for nth in 1.. {
            let desk = Desk::new();
            prepare(&desk);
            let arguments = command(&desk);
            if !is_killed(&desk, &arguments, call, nth) {
                break;
            }
            cut += 1;
            then(&desk, &format!("killed before {call} number {nth}"));
        }
    }
    cut
}

/// Whether the command came to that call, and was killed there.
fn is_killed(desk: &Desk, arguments: &str, call: &str, nth: usize) -> bool {
    let program = desk.command(arguments);
    let mut traced = Command::new("strace");
    traced
        .args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")])
        .args(["-e", &format!("inject={call}:signal=SIGKILL:when={nth}")])
        .arg(program.get_program())
        .args(program.get_args())
        .current_dir(program.get_current_dir().unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    program.get_envs().for_each(|(name, value)| match value {
        Some(value) => drop(traced.env(name, value)),
        None => drop(traced.env_remove(name)),
    });
    // It dies of what its command died of.
    let ended = traced.status().unwrap();
    assert!(ended.success() || ended.code().is_none(), "{arguments}: {ended}");
    !ended.success()
}

/// Why no process can be traced here, if it is so.
pub fn untraceable() -> Option<&'static str> {
    if !has("strace") {
        return Some("there is no strace");
    }
    let tried = Command::new("strace").args(["-o", "/dev/null", "true"]).stderr(Stdio::null()).status();
    (!tried.unwrap().success()).then_some("ptrace is forbidden here")
}

fn create(desk: &Desk) -> String {
    format!(
        "volume create disk.img --size 16M --key-file key --anchor file:{}",
        desk.path("anchor").display()
    )
}

#[test]
fn an_interrupted_creation_can_be_done_again() {
    if let Some(why) = untraceable() {
        return tell_skipped(why);
    }
    let again = |desk: &Desk, cut: &str| {
        let said = desk.run(&create(desk));
        if said.code != 0 {
            // Something is there already: it says what to do, and that works.
            assert!(said.error.contains("--force"), "{cut}: {}", said.error);
            let Said { code, error, .. } = desk.run(&format!("{} --force", create(desk)));
            // The claim of its anchor is the last that a creation does: behind that there is nothing to do again.
            let is_whole = code == 8 && error.contains("belongs to a volume already");
            assert!(code == 0 || is_whole, "{cut}: {error}");
        }
        desk.done("volume check disk.img --key-file key");
    };
    let cut = cut_everywhere(&CHANGES, |_| (), create, again);
    tell(&format!("killed {cut} times"));
    assert!(cut > 30, "only {cut}: does it still work by these calls?");
}

#[test]
fn an_interrupted_preparation_can_be_done_again() {
    if let Some(why) = untraceable() {
        return tell_skipped(why);
    }
    let prepare = |desk: &Desk| {
        format!("volume prepare policy.toml --size 16M --anchor file:{}", desk.path("anchor").display())
    };
    let again = |desk: &Desk, cut: &str| {
        let said = desk.run(&prepare(desk));
        let is_whole = said.code == 2 && said.error.contains("there is a policy");
        assert!(said.code == 0 || is_whole, "{cut}: {}", said.error);
        let policy = String::from_utf8(desk.read("policy.toml")).unwrap();
        assert!(policy.contains("format-if-blank = true"), "{cut}: {policy}");
    };
    assert!(cut_everywhere(&CHANGES, |_| (), prepare, again) > 10);
}

#[test]
fn an_interrupted_backup_leaves_a_whole_one_or_none() {
    if let Some(why) = untraceable() {
        return tell_skipped(why);
    }
    let backup = |_: &Desk| "volume header backup disk.img saved --key-file key".to_owned();
    let again = |desk: &Desk, cut: &str| {
        let said = desk.run(&backup(desk));
        let is_whole = said.code == 2 && said.error.contains("never overwritten");
        assert!(said.code == 0 || is_whole, "{cut}: {}", said.error);
        desk.done("volume header restore disk.img saved --key-file key");
    };
    assert!(cut_everywhere(&CHANGES, |desk| desk.create(""), backup, again) > 10);
}
