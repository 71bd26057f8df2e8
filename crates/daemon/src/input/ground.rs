//! On which bytes a path stands. Two paths with nothing in common may be the same bytes: a loop device and its file, a disk and its partition.
//!
//! The kernel's tables tell it: `/sys/dev/block` (sysfs-block), and the state of a loop device (loop(4)).

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The unit of sysfs, whatever sectors a device has.
const SECTOR: u64 = 512;

/// More layers than anybody stacks; the tables are the kernel's, but they change while they are read.
const MOST_PARTS: usize = 256;

/// What a path names, as far as two paths can be told apart by it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Thing {
    /// A file, by whatever name: links and bind mounts lead to the same number.
    File(u64, u64),
    /// A block device, through whichever of its nodes.
    Device(u64),
    /// What is not there yet: its directory, and its name there.
    New(u64, u64, OsString),
    /// Nobody can tell; the path itself.
    Unknown(PathBuf),
}

/// Some bytes of a thing.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    thing: Thing,
    bytes: Range<u64>,
}

impl Part {
    fn meets(&self, other: &Self) -> bool {
        let (one, two) = (&self.bytes, &other.bytes);
        self.thing == other.thing && one.start < two.end && two.start < one.end
    }

    /// The same bytes in what this begins at `at` of.
    fn within(&self, thing: Thing, at: u64) -> Self {
        let bytes = self.bytes.start.saturating_add(at)..self.bytes.end.saturating_add(at);
        Self { thing, bytes }
    }
}

/// What a path stands on.
#[derive(Debug)]
pub struct Ground {
    /// The same bytes under all their names, what the path itself names first: a loop device, and its part of a file.
    same: Vec<Part>,
    /// What has these bytes somewhere, and others beside them: the file system of a file, the disks of a logical volume. Two things may
    /// lie on such a one and have nothing in common.
    below: Vec<Part>,
}

/// How two paths have something to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Common {
    /// They name the same.
    Itself,
    /// One of them is, or lies on, bytes of the other.
    Bytes,
}

impl Ground {
    /// That of a path in this machine.
    pub fn of(path: &Path) -> Self {
        Self::by(path, &Kernel::default())
    }

    fn by(path: &Path, kernel: &Kernel) -> Self {
        let (thing, file_system) = named(path);
        Self::by_thing(thing, file_system, kernel)
    }

    fn by_thing(thing: Thing, file_system: Option<u64>, kernel: &Kernel) -> Self {
        let mut ground = Self { same: Vec::new(), below: Vec::new() };
        let mut rest = vec![(kernel.whole(thing), false)];
        rest.extend(file_system.map(|device| (kernel.whole(Thing::Device(device)), true)));
        while let Some((part, shared)) = rest.pop() {
            let known = if shared { &mut ground.below } else { &mut ground.same };
            if known.contains(&part) || known.len() >= MOST_PARTS {
                continue;
            }
            known.push(part.clone());
            let Thing::Device(device) = part.thing else { continue };
            rest.extend(kernel.under(device, &part).into_iter().map(|(part, among)| (part, shared || among)));
        }
        ground
    }

    /// Whether writing to the one may change the other.
    pub fn in_common_with(&self, other: &Self) -> Option<Common> {
        let first = |ground: &Self| ground.same.first().map(|part| part.thing.clone());
        if first(self) == first(other) {
            return Some(Common::Itself);
        }
        let meet = |ours: &[Part], theirs: &[Part]| {
            ours.iter().any(|part| theirs.iter().any(|other| part.meets(other)))
        };
        let common =
            meet(&self.same, &other.same) || meet(&self.same, &other.below) || meet(&self.below, &other.same);
        common.then_some(Common::Bytes)
    }
}

/// What a path names, and the device of the file system that it lies on. (A file system of several devices has a number that is none's.)
fn named(path: &Path) -> (Thing, Option<u64>) {
    if let Ok(found) = fs::metadata(path) {
        return match found.file_type().is_block_device() {
            true => (Thing::Device(found.rdev()), None),
            false => (Thing::File(found.dev(), found.ino()), Some(found.dev())),
        };
    }
    // A link that leads nowhere yet names what it leads to.
    let target = fs::read_link(path).map(|to| path.parent().unwrap_or(Path::new("")).join(to));
    let path = target.as_deref().unwrap_or(path);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (fs::metadata(directory), path.file_name()) {
        (Ok(directory), Some(name)) => {
            (Thing::New(directory.dev(), directory.ino(), name.into()), Some(directory.dev()))
        }
        _ => (Thing::Unknown(path.to_path_buf()), None),
    }
}

/// The kernel's tables of block devices.
struct Kernel {
    /// A link for each device, named by its number: `8:1`.
    devices: PathBuf,
    /// Where their nodes are.
    nodes: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Self { devices: "/sys/dev/block".into(), nodes: "/dev".into() }
    }
}

impl Kernel {
    fn entry(&self, device: u64) -> PathBuf {
        self.devices.join(format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
    }

    /// A device as long as it is. A file may grow.
    fn whole(&self, thing: Thing) -> Part {
        let sectors = match thing {
            Thing::Device(device) => number(&self.entry(device).join("size")).filter(|size| *size > 0),
            _ => None,
        };
        Part { bytes: 0..sectors.map_or(u64::MAX, |sectors| sectors.saturating_mul(SECTOR)), thing }
    }

    /// What is right below a part of a device, and whether other things may lie there beside it.
    fn under(&self, device: u64, part: &Part) -> Vec<(Part, bool)> {
        let entry = self.entry(device);
        let mut found = Vec::new();
        if let Some((disk, start)) = partition(&entry) {
            found.push((part.within(Thing::Device(disk), start), false));
        }
        if let Some((backing, file_system, offset)) = self.backing(&entry) {
            found.push((part.within(backing, offset), false));
            found.extend(file_system.map(|device| (self.whole(Thing::Device(device)), true)));
        }
        // Which part of a slave it is, sysfs does not say: logical volumes of one group share none.
        let slaves = fs::read_dir(entry.join("slaves")).into_iter().flatten().flatten();
        let slaves = slaves.filter_map(|slave| device_number(&slave.path()));
        found.extend(slaves.map(|slave| (self.whole(Thing::Device(slave)), true)));
        found
    }

    /// What a loop device is made of, the device of the file system below that, and at which byte of it the loop device begins.
    fn backing(&self, entry: &Path) -> Option<(Thing, Option<u64>, u64)> {
        let mut path = fs::read(entry.join("loop/backing_file")).ok()?;
        // By number, since a path means something else in another mount namespace, and to a file that was removed none leads.
        if let Some(backing) = self.node(entry).and_then(|node| export::loopdev::backing(&node)) {
            let thing = backing.block_device.map(Thing::Device);
            let file_system = thing.is_none().then_some(backing.device);
            let thing = thing.unwrap_or(Thing::File(backing.device, backing.inode));
            return Some((thing, file_system, backing.offset));
        }
        path.pop_if(|last| *last == b'\n');
        let (thing, file_system) = named(Path::new(OsStr::from_bytes(&path)));
        Some((thing, file_system, number(&entry.join("loop/offset")).unwrap_or(0)))
    }

    fn node(&self, entry: &Path) -> Option<PathBuf> {
        let facts = fs::read_to_string(entry.join("uevent")).ok()?;
        let name = facts.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
        let node = self.nodes.join(name);
        let is_it = |found: fs::Metadata| {
            found.file_type().is_block_device() && Some(found.rdev()) == device_number(entry)
        };
        fs::metadata(&node).is_ok_and(is_it).then_some(node)
    }
}

/// The disk of a partition, and at which byte of it the partition begins.
fn partition(entry: &Path) -> Option<(u64, u64)> {
    let start = number(&entry.join("start")).filter(|_| entry.join("partition").exists())?;
    // The entry is a link into the tree of devices, where a partition lies below its disk.
    let disk = device_number(fs::canonicalize(entry).ok()?.parent()?)?;
    Some((disk, start.saturating_mul(SECTOR)))
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn device_number(entry: &Path) -> Option<u64> {
    let text = fs::read_to_string(entry.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}
