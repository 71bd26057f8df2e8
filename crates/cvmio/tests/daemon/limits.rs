//! Limits of the process, signals, and a runtime directory or a host without room: an error, and nothing that stays claimed or left behind.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::common::machine::{content, has_ended, quietly, sh, wait_for};
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
struct Clean(Rc<Desk>);

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
    let limits = descriptors.into_iter().chain(memory).zip(["nbd", "fuse"].into_iter().cycle());
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
    assert!(worked >= 3 && refused >= 10, "{worked} worked, {refused} were refused");
    desk.done("volume check disk.img --key-file key");
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

fn process(desk: &Desk) -> u32 {
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

/// Whatever step cannot be done for want of room, there is no device, no mount and no daemon afterwards.
#[test]
fn a_full_runtime_directory_leaves_no_device_behind() {
    skip_without_devices!();
    let desk = Rc::new(Desk::new());
    desk.create("");
    let _clean = Clean(Rc::clone(&desk));
    let run = desk.path("run");
    fs::create_dir(&run).unwrap();
    let (mut worked, mut refused) = (0, 0);
    // Of files, and of pages.
    let limits = (1..12).map(|files| format!("nr_inodes={files}"));
    for limit in limits.chain((1..7).map(|pages| format!("size={}", pages * 4096))) {
        sh(&format!("mount -t tmpfs -o {limit} none {}", run.display()));
        let said = desk.run(&format!("{ATTACH} --loop"));
        let detached = if said.code == 0 { desk.run("volume detach disk").code } else { 0 };
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

/// A thin volume on a file system without a block to spare, whose daemon was killed while it wrote: the next one attaches, reads, discards and
/// goes on.
#[test]
fn a_crowded_volume_on_a_full_host_is_attached_after_a_kill() {
    skip_without_devices!();
    let desk = Rc::new(Desk::new());
    let _clean = Clean(Rc::clone(&desk));
    let small = desk.path("small");
    fs::create_dir(&small).unwrap();
    sh(&format!(
        "truncate -s 150M {0}/fs && mkfs.ext4 -q {0}/fs && mount -o loop {0}/fs {0}/small",
        desk.path("").display()
    ));
    let anchor = desk.path("anchor");
    desk.done(&format!(
        "volume create small/disk.img --size 512M --provision thin --policy policy --key-file key --anchor file:{}",
        anchor.display()
    ));
    let attach = "volume attach small/disk.img --policy policy --key-file key --memory 32M";
    let disk = desk.path("run/disk/disk");
    let mut codes = Vec::new();
    for round in 0..4 {
        codes.push(desk.run(attach));
        if codes.last().is_some_and(|said| said.code != 0) {
            break;
        }
        let process = process(&desk);
        // In small pieces, all over the volume, until there is no room; then the rest of the host's is taken by somebody else.
        for at in 0..200 {
            let written = quietly(&format!(
                "dd if=/dev/urandom of={} bs=64k count=16 seek={} conv=notrunc status=none",
                disk.display(),
                (at * 37 + round * 11) % 500 * 16
            ));
            if !written {
                break;
            }
        }
        fill(&small);
        quietly(&format!("timeout 5 sync {}", disk.display()));
        sh(&format!("kill -9 {process}"));
        wait_for("the daemon's end", || has_ended(process));
    }
    let last = desk.run(attach);
    let read = quietly(&format!("dd if={} of=/dev/null bs=1M status=none", disk.display()));
    let discarded = quietly(&format!("fallocate -p -o 0 -l 480M {0} && sync {0}", disk.display()));
    fs::remove_file(small.join("others")).unwrap();
    // The host's file system gives back what was freed when its own journal has it.
    let write =
        format!("dd if=/dev/urandom of={} bs=1M count=8 conv=notrunc,fsync status=none", disk.display());
    let begun = Instant::now();
    let mut goes_on = quietly(&write);
    while !goes_on && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(100));
        goes_on = quietly(&write);
    }
    let detached = desk.run("volume detach disk");
    let checked = desk.run("volume check small/disk.img --policy policy --key-file key");
    sh(&format!("umount {}", small.display()));
    assert!(codes.iter().all(|said| said.code == 0), "{codes:?}");
    assert_eq!((last.code, detached.code, checked.code), (0, 0, 0), "{last:?} {detached:?} {checked:?}");
    assert!(read && discarded && goes_on, "read {read}, discarded {discarded}, goes on {goes_on}");
}

/// Leaves no room in a file system.
fn fill(directory: &Path) {
    let file = directory.join("others");
    for size in ["1M", "4k"] {
        quietly(&format!("dd if=/dev/zero bs={size} status=none >> {}", file.display()));
    }
}
