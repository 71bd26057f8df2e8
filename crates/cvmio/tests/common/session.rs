//! Daemons that are killed, and putting away what they leave.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use super::Desk;
use super::machine::{has_ended, quietly, sh, wait_for};

/// How a volume in `disk.img` is attached.
const ATTACH: &str = "volume attach disk.img --key-file key --memory 64M --json";

/// A daemon that serves `disk.img`.
pub struct Session {
    desk: Rc<Desk>,
    pub process: u32,
    /// The volume's file.
    pub file: PathBuf,
    /// The loop device on it.
    pub device: Option<PathBuf>,
}

impl Session {
    /// # Panics
    /// If the volume cannot be attached.
    pub fn attach(desk: &Rc<Desk>, use_loop: bool) -> Self {
        Self::attach_with(desk, if use_loop { "--loop" } else { "" })
    }

    /// # Panics
    /// If the volume cannot be attached.
    pub fn attach_with(desk: &Rc<Desk>, more: &str) -> Self {
        let ready: Value = serde_json::from_str(&desk.done(&format!("{ATTACH} {more}"))).unwrap();
        let process = u32::try_from(ready["process"].as_u64().unwrap()).unwrap();
        let file = desk.path("run/disk/disk");
        let device = ready["loop-device"].as_str().map(PathBuf::from);
        Self { desk: Rc::clone(desk), process, file, device }
    }

    pub fn kill(&self) {
        sh(&format!("kill -9 {}", self.process));
        wait_for("the daemon's end", || has_ended(self.process));
    }

    pub fn mount(&self) -> PathBuf {
        let at = self.desk.path("at");
        fs::create_dir_all(&at).unwrap();
        sh(&format!("mount -t ext4 {} {}", self.device.as_ref().unwrap().display(), at.display()));
        at
    }

    pub fn unmount(&self) {
        unmount(&self.desk.path("at"));
    }

    pub fn detach(self) {
        self.desk.done("volume detach disk");
        wait_for("the daemon's end", || has_ended(self.process));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            quietly(&format!("kill -9 {}", self.process));
            leave_nothing(&self.desk);
        }
    }
}

fn attach(use_loop: bool) -> String {
    format!("{ATTACH}{}", if use_loop { " --loop" } else { "" })
}

/// Begins to attach, and kills the daemon after `delay`. Whether the device had been announced by then.
pub fn kill_attach(desk: &Desk, use_loop: bool, delay: Duration) -> bool {
    let said = desk.path("said");
    let mut command = desk.command(&format!("{} --foreground", attach(use_loop)));
    let mut daemon = command.stdout(fs::File::create(&said).unwrap()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(delay);
    let ended = daemon.try_wait().unwrap();
    assert!(ended.is_none(), "attaching failed by itself: {ended:?}");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    clean_up(desk);
    !fs::read(&said).unwrap().is_empty()
}

/// Puts away what a killed daemon leaves: the file system on its device, and the device. The dead mount of FUSE is left for the next
/// daemon.
pub fn clean_up(desk: &Desk) {
    unmount(&desk.path("at"));
    // Whoever was just making the loop device must have ended, or have made it.
    wait_for("the helper's end", || helpers(&desk.path("run")) == 0);
    for device in loop_devices(&desk.path("run")) {
        loop_detach(&device, &desk.path("run"));
    }
    wait_for("the loop device's end", || loop_devices(&desk.path("run")).is_empty());
}

/// How many processes make or take away a loop device of a file below `directory`.
fn helpers(directory: &Path) -> usize {
    let directory = directory.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let commands = processes.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok());
    commands.filter(|command| command.contains("loop-attach") && command.contains(directory)).count()
}

/// The loop devices on files below `directory`, by the name that they were made with: when a daemon has died, its mount is taken away, and
/// the kernel's own name for the file has no directory any more.
pub fn loop_devices(directory: &Path) -> Vec<PathBuf> {
    let attached = fs::read_dir("/sys/block").unwrap().flatten().filter(|entry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
        backing == "/disk\n" || Path::new(&backing).starts_with(directory)
    });
    let devices = attached.map(|entry| Path::new("/dev").join(entry.file_name()));
    let file = |device: &PathBuf| loop_file(&fs::File::open(device).ok()?);
    devices.filter(|device| file(device).is_some_and(|file| file.starts_with(directory))).collect()
}

/// Detaches a loop device if it is still one on a file below `directory`. A helper of the daemon's may have detached it since, and its number may
/// be somebody else's by now: by its path alone, that one would be taken away.
fn loop_detach(device: &Path, directory: &Path) {
    const CLEAR: rustix::ioctl::Opcode = 0x4c01;
    let Ok(device) = fs::File::open(device) else { return };
    // As long as this is open, the device stays what it is.
    if loop_file(&device).is_some_and(|file| file.starts_with(directory)) {
        // SAFETY: the operation takes no argument.
        let _ = unsafe { rustix::ioctl::ioctl(&device, rustix::ioctl::NoArg::<CLEAR>::new()) };
    }
}

/// The file that a loop device was made of (loop(4), `lo_file_name`).
fn loop_file(device: &fs::File) -> Option<PathBuf> {
    const GET_STATUS64: rustix::ioctl::Opcode = 0x4c05;
    const FILE_NAME: std::ops::Range<usize> = 56..120;
    // SAFETY: the operation fills in a `struct loop_info64`, which is 232 bytes of integers.
    let info = unsafe {
        let get = rustix::ioctl::Getter::<GET_STATUS64, [u64; 29]>::new();
        rustix::ioctl::ioctl(device, get).ok()?
    };
    let bytes: Vec<u8> = info.into_iter().flat_map(u64::to_ne_bytes).collect();
    let name = bytes[FILE_NAME].split(|&byte| byte == 0).next()?;
    Some(PathBuf::from(String::from_utf8_lossy(name).into_owned()))
}

/// Unmounts, as soon as nobody uses it any more.
fn unmount(at: &Path) {
    let line = format!(" {} ", at.display());
    wait_for("the unmounting", || {
        let mounted = || fs::read_to_string("/proc/mounts").unwrap().contains(&line);
        !mounted() || (quietly(&format!("umount {}", at.display())) && !mounted())
    });
}

/// Takes everything away that is below a desk, whatever the test did. Panics never.
pub fn leave_nothing(desk: &Desk) {
    quietly(&format!("umount -l {}", desk.path("at").display()));
    for device in loop_devices(&desk.path("run")) {
        loop_detach(&device, &desk.path("run"));
    }
    quietly(&format!("umount -l {}", desk.path("run/disk/mnt").display()));
}

/// Runs `command` of the program, and kills the daemon `process` after `delay`, while it is at it.
pub fn kill_during(desk: &Desk, command: &str, process: u32, delay: Duration) {
    let mut asked: Command = desk.command(command);
    let mut asked = asked.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(delay);
    // It may have ended already.
    quietly(&format!("kill -9 {process}"));
    wait_for("the daemon's end", || has_ended(process));
    asked.wait().unwrap();
}
