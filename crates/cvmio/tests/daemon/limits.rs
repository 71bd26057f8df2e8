//! Limits of the process, signals, and a runtime directory or a host without room: an error, and nothing that stays claimed or left behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use crate::common::machine::{content, has_ended, quietly, sh, tell_skipped, wait_for};
use crate::common::session::{Session, leave_nothing, loop_devices};
use crate::common::{Desk, Said};
use crate::skip_without_devices;
use serde_json::Value;

/// Runs the program behind a line of the shell.
fn under(desk: &Desk, line: &str, arguments: &str) -> Said {
    let program = desk.command(arguments);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{line}; exec \"$0\" \"$@\"")]).arg(program.get_program());
    command.args(program.get_args()).current_dir(desk.path("")).env("CVMIO_RUNTIME_DIR", desk.path("run"));
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Said { code: output.status.code().unwrap_or(-1), out: text(output.stdout), error: text(output.stderr) }
}

const ATTACH: &str = "volume attach disk.img --key-file key --memory 32M --queues 2";

/// Takes everything away, also after a failed assertion.
pub struct Clean(pub Rc<Desk>);

impl Drop for Clean {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.run("volume detach disk");
            leave_nothing(&self.0);
            quietly(&format!("umount -l {}", self.0.path("run").display()));
            quietly(&format!("umount -l {}", self.0.path("small").display()));
        }
    }
}

/// Descriptors, and memory: it works, or it is refused and the anchor has not moved.
#[test]
fn a_limit_that_is_too_low_is_found_out_before_the_volume_is_claimed() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    let _clean = Clean(Rc::clone(&desk));
    let (mut worked, mut refused) = (0, 0);
    let descriptors = [6, 12, 20, 28, 36, 40, 44, 48, 256].map(|limit| format!("ulimit -n {limit}"));
    // Of these some fail in the middle if it is only tried whether there is enough: threads take heaps in any order.
    let memory =
        [60, 180, 210, 285, 300, 360, 420, 555, 3000].map(|limit| format!("ulimit -v {}", limit * 1024));
    // Of what is written to there is less, and of the stack of the main thread little.
    let data = [20, 60, 100, 140, 180, 220, 3000].map(|limit| format!("ulimit -d {}", limit * 1024));
    let stack = [64, 128, 256, 511, 512].map(|limit| format!("ulimit -s {limit}"));
    let limits = descriptors
        .into_iter()
        .chain(memory)
        .chain(data)
        .chain(stack)
        .zip(["nbd", "fuse"].into_iter().cycle());
    for (limit, front_end) in limits {
        let before = desk.read("anchor");
        let said = under(&desk, &limit, &format!("{ATTACH} --as {front_end}"));
        if said.code == 0 {
            worked += 1;
            let (status, detached) = (desk.run("volume status disk"), desk.run("volume detach disk"));
            assert_eq!((status.code, detached.code), (0, 0), "{limit} {front_end}: {status:?} {detached:?}");
            continue;
        }
        refused += 1;
        // Without memory for the smallest things a program ends as the runtime wants.
        assert!(said.error.contains("cvmio: error: ") || limit.contains("-v"), "{limit}: {said:?}");
        // Whoever reads needs a volume that nobody has claimed.
        assert!(desk.read("anchor") == before, "{limit} {front_end}: claimed, and then {said:?}");
        assert_eq!(
            fs::read_dir(desk.path("run")).map_or(0, Iterator::count),
            0,
            "{limit}: something is left"
        );
    }
    assert!(worked >= 6 && refused >= 18, "{worked} worked, {refused} were refused");
    desk.done("volume check disk.img --key-file key");
}

/// Memory that cannot be locked is said by a warning. What else can be limited, a daemon does not need: priorities, queues of messages,
/// signals that wait, locks, core files.
#[test]
fn limits_that_mean_nothing_to_a_daemon_change_nothing() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    let _clean = Clean(Rc::clone(&desk));
    for limit in ["-l 0", "-e 0", "-q 0", "-i 0", "-x 0", "-r 0", "-c 0"] {
        let attach = desk.command(&format!("{ATTACH} --as fuse"));
        let mut command = Command::new("bash");
        command.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]).arg(attach.get_program());
        command.args(attach.get_args()).current_dir(desk.path("")).env("CVMIO_RUNTIME_DIR", desk.path("run"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{limit}: {output:?}");
        desk.write("content", &content(1, 1 << 20));
        sh(&format!(
            "dd if={} of={} bs=1M conv=notrunc,fsync status=none",
            desk.path("content").display(),
            desk.path("run/disk/disk").display()
        ));
        desk.done("volume detach disk");
    }
    desk.done("volume check disk.img --key-file key");
}

/// A container's limit: more is refused, and what is not refused stays within it, however much is written.
#[test]
fn a_daemon_lives_within_the_memory_of_its_control_group() {
    let Some(group) = Group::new() else { return tell_skipped("no control group with memory can be made") };
    let desk = Rc::new(Desk::new());
    desk.create("");
    let _clean = Clean(Rc::clone(&desk));
    let before = desk.read("anchor");
    let inside = format!("echo $$ > {}/cgroup.procs", group.0.display());
    group.limit(80 << 20);
    let said = under(&desk, &inside, &format!("{ATTACH} --as fuse"));
    assert!(said.code == 2 && said.error.contains("control group"), "{said:?}");
    assert!(said.error.contains("80 MiB") && desk.read("anchor") == before, "{said:?}");
    group.limit(96 << 20);
    let said = under(&desk, &inside, &format!("{ATTACH} --as fuse"));
    assert_eq!(said.code, 0, "{said:?}");
    let process = process(&desk);
    desk.write("content", &content(1, 12 << 20));
    for _ in 0..10 {
        sh(&format!(
            "dd if={} of={} bs=64k conv=notrunc,fsync status=none",
            desk.path("content").display(),
            desk.path("run/disk/disk").display()
        ));
    }
    assert!(!has_ended(process), "the daemon was killed");
    desk.done("volume detach disk");
    wait_for("the daemon's end", || has_ended(process));
    desk.done("volume check disk.img --key-file key");
}

/// A control group that can limit memory, below the one that this process is in. It goes with this.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("cvmio-test-{}", std::process::id());
        let v1 = own.lines().find_map(|line| line.split_once(":memory:"));
        let v2 = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let group = match (v1, v2) {
            (Some((_, path)), _) => {
                Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/')).join(name)
            }
            (None, Some(path)) => Path::new("/sys/fs/cgroup").join(path).join(name),
            (None, None) => return None,
        };
        fs::create_dir(&group).ok()?;
        let group = Self(group);
        group.file().exists().then_some(group)
    }

    fn file(&self) -> PathBuf {
        let files = ["memory.limit_in_bytes", "memory.max"].map(|name| self.0.join(name));
        files.into_iter().find(|file| file.exists()).unwrap_or_else(|| self.0.join("memory.max"))
    }

    fn limit(&self, bytes: u64) {
        fs::write(self.file(), bytes.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes have ended, and the kernel takes note of that a moment later.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The store is larger than a file of this process may become: writes behind the limit fail, and the daemon says so.
#[test]
fn a_daemon_outlives_a_limit_on_the_size_of_files() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    let clean = Clean(Rc::clone(&desk));
    // In blocks of 512 bytes: 6 MiB.
    let said = under(&desk, "ulimit -f 12288", &format!("{ATTACH} --as fuse"));
    assert_eq!(said.code, 0, "{said:?}");
    let process = process(&desk);
    let disk = desk.path("run/disk/disk");
    desk.write("content", &content(1, 8 << 20));
    let written = quietly(&format!(
        "timeout 60 dd if={} of={} bs=1M conv=notrunc,fsync status=none",
        desk.path("content").display(),
        disk.display()
    ));
    assert!(!written && !has_ended(process), "the daemon is gone");
    let status = desk.done("volume status disk");
    assert!(status.contains("File too large"), "{status}");
    // Its last words may not reach the store either; it ends all the same.
    desk.run("volume detach disk");
    wait_for("the daemon's end", || has_ended(process));
    let session = Session::attach(&clean.0, false);
    session.detach();
    desk.done("volume check disk.img --key-file key");
}

pub fn process(desk: &Desk) -> u32 {
    let status: Value = serde_json::from_str(&desk.done("volume status disk --json")).unwrap();
    u32::try_from(status["process"].as_u64().unwrap()).unwrap()
}

/// Also the two that say that time is up, and that somebody has typed Ctrl-\.
#[test]
fn signals_that_end_a_process_have_the_volume_put_away() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    let _clean = Clean(Rc::clone(&desk));
    for signal in ["TERM", "INT", "HUP", "XCPU", "QUIT"] {
        desk.done(&format!("{ATTACH} --as nbd"));
        let process = process(&desk);
        sh(&format!("kill -{signal} {process}"));
        wait_for("the daemon's end", || has_ended(process));
        let anchor = desk.path("anchor");
        let shown: Value =
            serde_json::from_str(&desk.done(&format!("anchor show file:{} --json", anchor.display())))
                .unwrap();
        assert_eq!(shown["stamp"]["state"], "released", "{signal}");
    }
}

/// The limit itself, and not only its signal: a second of work, and then it is put away.
#[test]
fn a_daemon_whose_time_is_up_puts_the_volume_away() {
    let desk = Rc::new(Desk::new());
    desk.create("");
    let clean = Clean(Rc::clone(&desk));
    assert_eq!(under(&desk, "ulimit -S -t 1", &format!("{ATTACH} --as fuse")).code, 0);
    let (process, disk) = (process(&desk), desk.path("run/disk/disk"));
    desk.write("content", &content(1, 12 << 20));
    let copy = format!(
        "dd if={} of={} bs=1M conv=notrunc,fsync status=none",
        desk.path("content").display(),
        disk.display()
    );
    for _ in 0..2000 {
        if !quietly(&copy) {
            break;
        }
    }
    wait_for("the daemon's end", || has_ended(process));
    let session = Session::attach(&clean.0, false);
    session.detach();
    desk.done("volume check disk.img --key-file key");
}

/// A container that was not given the device, of a kernel that has the driver.
#[test]
fn without_the_fuse_device_a_container_is_told_what_it_lacks() {
    skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    let before = desk.read("anchor");
    let program = desk.command(ATTACH);
    let mut command = Command::new("unshare");
    command.args([
        "-m",
        "sh",
        "-c",
        "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec \"$0\" \"$@\"",
    ]);
    command.arg(program.get_program()).args(program.get_args());
    command.current_dir(desk.path("")).env("CVMIO_RUNTIME_DIR", desk.path("run"));
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && error.contains("--device /dev/fuse"), "{error}");
    assert!(!error.contains("modprobe"), "{error}");
    assert!(desk.read("anchor") == before);
}

/// Whatever step cannot be done for want of room, there is no device, no mount and no daemon afterwards, and the volume was not claimed.
#[test]
fn a_full_runtime_directory_leaves_no_device_behind() {
    skip_without_devices!();
    let desk = Rc::new(Desk::new());
    desk.create("");
    let _clean = Clean(Rc::clone(&desk));
    let run = desk.path("run");
    fs::create_dir(&run).unwrap();
    let (mut worked, mut refused, mut before) = (0, 0, desk.read("anchor"));
    // Of files, and of pages.
    let limits = (1..14).map(|files| format!("nr_inodes={files}"));
    for limit in limits.chain((1..7).map(|pages| format!("size={}", pages * 4096))) {
        sh(&format!("mount -t tmpfs -o {limit} none {}", run.display()));
        let said = desk.run(&format!("{ATTACH} --loop"));
        if said.code != 0 {
            assert_eq!((said.code, desk.read("anchor") == before), (2, true), "{limit}: {said:?}");
        }
        let detached = if said.code == 0 { desk.run("volume detach disk").code } else { 0 };
        before = desk.read("anchor");
        let left = loop_devices(&run);
        let unmounted = quietly(&format!("umount {}", run.display()));
        assert!(left.is_empty(), "{limit}: {left:?} is left, behind {said:?}");
        assert!(unmounted && detached == 0, "{limit}: a mount or a daemon is left, behind {said:?}");
        if said.code == 0 {
            worked += 1
        } else {
            refused += 1
        }
        let attached = desk.run(&format!(
            "{ATTACH} --as nbd --read-only --runtime-dir {}",
            desk.path("other-run").display()
        ));
        assert_eq!(attached.code, 0, "{limit}: the volume stays claimed: {attached:?}");
        desk.done(&format!("volume detach disk --runtime-dir {}", desk.path("other-run").display()));
    }
    assert!(worked >= 2 && refused >= 2, "{worked} worked, {refused} were refused");
}

/// As the seccomp profile of a container does that lets a ring be made, and not entered. Nothing may wait for what never comes.
#[test]
fn where_a_ring_may_not_be_entered_each_command_ends_and_says_so() {
    use std::os::unix::process::CommandExt;

    let desk = Rc::new(Desk::new());
    desk.create("");
    let _clean = Clean(Rc::clone(&desk));
    let anchor = format!("--anchor file:{}", desk.path("other-anchor").display());
    let create = format!("volume create other.img --size 16M --key-file key {anchor}");
    for arguments in [
        &create,
        "volume attach disk.img --key-file key --as nbd",
        "volume attach disk.img --key-file key --as nbd --foreground",
        "volume check disk.img --key-file key",
        "volume dump disk.img --key-file key",
    ] {
        let program = desk.command(arguments);
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "120"]).arg(program.get_program()).args(program.get_args());
        command.current_dir(desk.path("")).env("CVMIO_RUNTIME_DIR", desk.path("run"));
        let forbid = || testkit::seccomp::forbid(426, 1);
        // SAFETY: between fork and exec it makes two system calls, and takes no memory and no lock.
        unsafe { command.pre_exec(forbid) };
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{arguments}: {error}");
        assert!(error.contains("io_uring_enter") && error.contains("seccomp"), "{arguments}: {error}");
    }
    assert!(!desk.path("run/disk").exists());
    desk.done("volume check disk.img --key-file key");
}

#[test]
fn without_proc_an_attach_says_what_is_missing_and_with_it_the_daemon_has_its_name() {
    skip_without_devices!();
    let desk = Rc::new(Desk::new());
    let _clean = Clean(Rc::clone(&desk));
    desk.create("");
    let attach = desk.command(ATTACH);
    let mut without = Command::new("unshare");
    without.args(["--mount", "sh", "-c", "umount -l /proc; exec \"$0\" \"$@\""]);
    without.arg(attach.get_program()).args(attach.get_args()).current_dir(desk.path(""));
    let said = without.env("CVMIO_RUNTIME_DIR", desk.path("run")).output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.code() == Some(2) && text.contains("/proc is not mounted"), "{said:?}");
    desk.done(ATTACH);
    let name = fs::read_to_string(format!("/proc/{}/comm", process(&desk))).unwrap();
    assert_eq!(name, "cvmio\n");
    desk.done("volume detach disk");
}
