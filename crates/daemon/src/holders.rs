//! Who uses the device: asked of the kernel, never of the file, which this process serves.
//!
//! Some have a device open for a moment only, and do not use it: systemd-udevd reads each block device that somebody has closed, and a
//! process that is about to run another program has, until it does, all that its parent has open. They are waited for.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long a process may have the device open and count as no user of it.
const MOMENT: Duration = Duration::from_millis(500);
/// How often it is looked at in that time.
const GLANCE: Duration = Duration::from_millis(10);

/// Processes that have `file` or a loop device on it open, and mounts of such a device; in words.
pub fn of(file: &Path) -> Vec<String> {
    let loops = export::loopdev::holders(file).unwrap_or_default();
    let mounts = mounts(&loops);
    let mut targets = loops;
    targets.push(file.to_path_buf());
    with_processes(mounts, &targets)
}

/// Adds the processes that have one of `targets` open, and not for a moment only. Where there are other users nothing is waited for.
fn with_processes(mut users: Vec<String>, targets: &[PathBuf]) -> Vec<String> {
    let started = Instant::now();
    loop {
        let found = processes(targets);
        if found.is_empty() || !users.is_empty() || started.elapsed() > MOMENT {
            users.extend(found);
            return users;
        }
        thread::sleep(GLANCE);
    }
}

/// The same for a block device and its partitions: also who has mounted it in another mount namespace than ours, and what lies on it.
pub fn of_block_device(device: &Path) -> Vec<String> {
    let name = device.file_name().unwrap_or_default();
    let block = Path::new("/sys/class/block").join(name);
    let parts = names(&block).filter(|part| block.join(part).join("partition").exists());
    let mut devices = vec![device.to_path_buf()];
    devices.extend(parts.map(|part| Path::new("/dev").join(part)));
    let mut users = Vec::new();
    for device in &devices {
        let block = Path::new("/sys/class/block").join(device.file_name().unwrap_or_default());
        users.extend(
            names(&block.join("holders"))
                .map(|holder| format!("{} lies on {}", holder.display(), device.display())),
        );
        // Not among those: the kernel has it open as any file.
        let loops = export::loopdev::holders(device).unwrap_or_default();
        users.extend(loops.iter().map(|user| format!("{} lies on {}", user.display(), device.display())));
    }
    users.extend(swaps_in(&fs::read_to_string("/proc/swaps").unwrap_or_default(), &devices));
    users.extend(mounts_anywhere(&devices));
    users.extend(btrfs_in(Path::new("/sys/fs/btrfs"), &devices));
    with_processes(users, &devices)
}

/// What is in a directory; nothing, if it cannot be read.
fn names(path: &Path) -> impl Iterator<Item = OsString> {
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.file_name())
}

/// From a table of the kernel's (proc_swaps(5)).
fn swaps_in(table: &str, devices: &[PathBuf]) -> Vec<String> {
    let swaps = table.lines().filter_map(|line| line.split_whitespace().next());
    let ours = swaps.filter(|swap| devices.iter().any(|device| device == Path::new(swap)));
    ours.map(|swap| format!("{swap} is swap")).collect()
}

/// File systems of several devices: the tables of mounts name one of them only. `root` has a directory for each, with its devices below.
fn btrfs_in(root: &Path, devices: &[PathBuf]) -> Vec<String> {
    let parts = names(root).flat_map(|id| {
        names(&root.join(&id).join("devices")).map(move |device| (id.clone(), device)).collect::<Vec<_>>()
    });
    let ours = parts.filter_map(|(id, device)| {
        let found = devices.iter().find(|known| known.file_name() == Some(&device))?;
        Some(format!("btrfs {} has {}", id.display(), found.display()))
    });
    ours.collect()
}

/// Mounts of the devices in the mount namespaces of all processes.
fn mounts_anywhere(devices: &[PathBuf]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut found = BTreeSet::new();
    let devices = numbered(devices);
    for process in process_ids() {
        let Ok(namespace) = fs::read_link(format!("/proc/{process}/ns/mnt")) else { continue };
        if seen.insert(namespace) {
            let table = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
            found.extend(mounts_in(&table, &devices));
        }
    }
    found.into_iter().collect()
}

fn process_ids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn mounts(devices: &[PathBuf]) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts_in(&table, &numbered(devices))
}

/// Block devices with their numbers, as `8:1`: one may be mounted by another name than ours, such as a link.
fn numbered(devices: &[PathBuf]) -> Vec<(PathBuf, Option<String>)> {
    let number = |device: &PathBuf| {
        let text = fs::read_to_string(Path::new("/sys/class/block").join(device.file_name()?).join("dev"));
        Some(text.ok()?.trim().to_string())
    };
    devices.iter().map(|device| (device.clone(), number(device))).collect()
}

/// From a table of the kernel's (proc_pid_mountinfo(5)). A file system of many devices has a number of its own, and names one of them.
fn mounts_in(table: &str, devices: &[(PathBuf, Option<String>)]) -> Vec<String> {
    let mounted = table.lines().filter_map(|line| {
        let (fields, source) = line.split_once(" - ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let (number, at) = (*fields.get(2)?, fields.get(4)?);
        let source = source.split(' ').nth(1)?;
        // The kernel writes a space in a path as \040.
        let at = at.replace("\\040", " ");
        let same = |(path, known): &&(PathBuf, Option<String>)| {
            known.as_deref() == Some(number) || path == Path::new(source)
        };
        devices.iter().find(same).map(|(device, _)| format!("{} is mounted on {at}", device.display()))
    });
    mounted.collect()
}

fn processes(targets: &[PathBuf]) -> Vec<String> {
    let mut found: Vec<u32> =
        process_ids().filter(|&id| id != std::process::id() && has_open(id, targets)).collect();
    found.sort_unstable();
    found.into_iter().map(describe).collect()
}

fn has_open(process: u32, targets: &[PathBuf]) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    entries.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|path| targets.contains(&path)))
}

fn describe(process: u32) -> String {
    format!("{} has it open", name(process))
}

/// A process, by its number and its program's name.
pub fn name(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    format!("process {process} ({})", name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_with_the_file_open_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().canonicalize().unwrap();
        assert_eq!(of(&path), Vec::<String>::new());
        let stdin = Stdio::from(fs::File::open(&path).unwrap());
        let mut child = Command::new("sleep").arg("60").stdin(stdin).spawn().unwrap();
        let users = of(&path);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(users, [format!("process {} (sleep) has it open", child.id())]);
    }

    #[test]
    fn who_has_the_file_open_for_a_moment_is_no_user() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().canonicalize().unwrap();
        let stdin = Stdio::from(fs::File::open(&path).unwrap());
        let mut child = Command::new("sleep").arg("0.05").stdin(stdin).spawn().unwrap();
        let users = of(&path);
        child.wait().unwrap();
        assert_eq!(users, Vec::<String>::new());
    }

    /// A loop device with a partition, and an ext4 on that; gone when this is dropped.
    struct Partitioned {
        _image: tempfile::NamedTempFile,
        device: PathBuf,
    }

    fn run(program: &str, arguments: &[&str]) -> Option<String> {
        let output = Command::new(program).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().into())
    }

    impl Partitioned {
        fn new() -> Option<Self> {
            let image = tempfile::NamedTempFile::new().ok()?;
            image.as_file().set_len(16 << 20).ok()?;
            // Kernels for machines like this one often read no partition tables, so the partition is told to them.
            let device = run("losetup", &["-P", "-f", "--show", image.path().to_str()?])?;
            let made = Self { _image: image, device: device.clone().into() };
            run("addpart", &[&device, "1", "2048", "16384"])?;
            run("mkfs.ext4", &["-q", "-F", &made.partition()])?;
            Some(made)
        }

        fn partition(&self) -> String {
            format!("{}p1", self.device.display())
        }
    }

    impl Drop for Partitioned {
        fn drop(&mut self) {
            let device = self.device.display().to_string();
            run("delpart", &[&device, "1"]);
            run("losetup", &["-d", &device]);
        }
    }

    #[test]
    fn who_has_a_partition_is_named_also_in_another_mount_namespace() {
        let Some(disk) = Partitioned::new() else {
            return crate::testing::tell_skipped("no loop device with a partition and ext4 to be had");
        };
        assert_eq!(of_block_device(&disk.device), Vec::<String>::new());
        let partition = disk.partition();
        let stdin = Stdio::from(fs::File::open(&partition).unwrap());
        let mut reader = Command::new("sleep").arg("60").stdin(stdin).spawn().unwrap();
        let reading = of_block_device(&disk.device);
        reader.kill().unwrap();
        reader.wait().unwrap();
        assert_eq!(reading, [format!("process {} (sleep) has it open", reader.id())]);
        let place = tempfile::tempdir().unwrap();
        let script = format!("mount {partition} {} && echo mounted && read line", place.path().display());
        let mut elsewhere = Command::new("unshare");
        elsewhere.args(["--mount", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut elsewhere = elsewhere.spawn().unwrap();
        let mut said = [0; 8];
        std::io::Read::read_exact(elsewhere.stdout.as_mut().unwrap(), &mut said).unwrap();
        let mounted = of_block_device(&disk.device);
        drop(elsewhere.stdin.take());
        elsewhere.wait().unwrap();
        assert_eq!(mounted, [format!("{partition} is mounted on {}", place.path().display())]);
        let above = run("losetup", &["-f", "--show", &partition]).expect("a loop device over it");
        let under = of_block_device(&disk.device);
        run("losetup", &["-d", &above]);
        assert_eq!(under, [format!("{above} lies on {partition}")]);
    }

    #[test]
    fn swap_and_the_second_device_of_a_btrfs_are_named() {
        let devices = [PathBuf::from("/dev/loop4"), PathBuf::from("/dev/loop4p1")];
        let table =
            "Filename Type Size Used Priority\n/dev/loop44 partition 1 0 -2\n/dev/loop4p1 partition 1 0 -3\n";
        assert_eq!(swaps_in(table, &devices), ["/dev/loop4p1 is swap"]);
        let root = tempfile::tempdir().unwrap();
        for part in ["1-2/devices/sda", "1-2/devices/loop4", "3-4/devices/loop44", "features/x"] {
            fs::create_dir_all(root.path().join(part)).unwrap();
        }
        assert_eq!(btrfs_in(root.path(), &devices), ["btrfs 1-2 has /dev/loop4"]);
        assert!(btrfs_in(&root.path().join("none"), &devices).is_empty());
    }

    #[test]
    fn a_mount_is_named_with_its_place() {
        let table = "22 1 0:5 / /proc rw - proc proc rw\n\
                     36 35 7:3 / /srv/my\\040data rw,noatime shared:1 - ext4 /dev/disk/by-label/data rw\n\
                     37 35 7:33 / /x rw - ext4 /dev/loop33 rw\n\
                     38 35 0:44 / /many rw - btrfs /dev/loop4 rw\n";
        let device = |path: &str, number: &str| (PathBuf::from(path), Some(number.to_string()));
        let loops = [device("/dev/loop3", "7:3"), device("/dev/loop4", "7:4")];
        assert_eq!(
            mounts_in(table, &loops),
            ["/dev/loop3 is mounted on /srv/my data", "/dev/loop4 is mounted on /many"]
        );
    }
}
