//! Who uses the device: asked of the kernel, never of the file, which this process serves.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Processes that have `file` or a loop device on it open, and mounts of such a device; in words.
pub fn of(file: &Path) -> Vec<String> {
    let loops = export::loopdev::holders(file).unwrap_or_default();
    let mut users = mounts(&loops);
    let mut targets = loops;
    targets.push(file.to_path_buf());
    users.extend(processes(&targets));
    users
}

/// The same for a block device and its partitions: also who has mounted it in another mount namespace than ours, and what lies on it.
pub fn of_block_device(device: &Path) -> Vec<String> {
    let name = device.file_name().unwrap_or_default();
    let block = Path::new("/sys/class/block").join(name);
    let names =
        |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let parts = names(block.clone()).filter(|part| block.join(part).join("partition").exists());
    let mut devices = vec![device.to_path_buf()];
    devices.extend(parts.map(|part| Path::new("/dev").join(part)));
    let mut users = Vec::new();
    for device in &devices {
        let block = Path::new("/sys/class/block").join(device.file_name().unwrap_or_default());
        users.extend(
            names(block.join("holders"))
                .map(|holder| format!("{} lies on {}", holder.display(), device.display())),
        );
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let swaps = swaps.lines().filter_map(|line| line.split_whitespace().next());
    users.extend(
        swaps
            .filter(|swap| devices.iter().any(|device| device == Path::new(swap)))
            .map(|swap| format!("{swap} is swap")),
    );
    users.extend(mounts_anywhere(&devices));
    users.extend(processes(&devices));
    users
}

/// Mounts of the devices in the mount namespaces of all processes.
fn mounts_anywhere(devices: &[PathBuf]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut found = BTreeSet::new();
    for process in process_ids() {
        let Ok(namespace) = fs::read_link(format!("/proc/{process}/ns/mnt")) else { continue };
        if seen.insert(namespace) {
            let table = fs::read_to_string(format!("/proc/{process}/mounts")).unwrap_or_default();
            found.extend(mounts_in(&table, devices));
        }
    }
    found.into_iter().collect()
}

fn process_ids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn mounts(devices: &[PathBuf]) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts_in(&table, devices)
}

fn mounts_in(table: &str, devices: &[PathBuf]) -> Vec<String> {
    let mounted = table.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (device, at) = (fields.next()?, fields.next()?);
        // The kernel writes a space in a path as \040.
        let at = at.replace("\\040", " ");
        devices.iter().any(|known| known == Path::new(device)).then(|| format!("{device} is mounted on {at}"))
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
    fn a_mount_is_named_with_its_place() {
        let table =
            "proc /proc proc rw 0 0\n/dev/loop3 /srv/my\\040data ext4 rw 0 0\n/dev/loop33 /x ext4 rw 0 0\n";
        assert_eq!(mounts_in(table, &["/dev/loop3".into()]), ["/dev/loop3 is mounted on /srv/my data"]);
    }
}
