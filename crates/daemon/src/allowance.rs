//! How much memory this process can have: all of the machine, or what its control groups allow. One that takes more is killed, and its volume
//! with it, so a session that may come to need more is refused before it claims anything.
//!
//! Control groups: `Documentation/admin-guide/cgroup-v2.rst` (`memory.max`), `cgroup-v1/memory.rst` (`memory.limit_in_bytes`), proc(5)
//! (`mountinfo`), cgroups(7) (`/proc/PID/cgroup`).

use std::fs;
use std::path::{Path, PathBuf};

use cli::failure::Failure;
use cli::output::bytes;

/// What a daemon takes beside the memory for changes, map and blocks: `docs/operations.md`, "Memory".
const BESIDE: u64 = 64 << 20;

/// Refuses what this process can never have: the system would give its memory piece by piece, and end the process at some time.
///
/// # Errors
/// When `memory` for changes and map and `block_cache`, in bytes, and what a daemon needs beside them are more than one of the limits.
pub fn check(memory: u64, block_cache: u64) -> Result<(), Failure> {
    let system = rustix::system::sysinfo();
    let all = system.totalram.saturating_mul(u64::from(system.mem_unit.max(1)));
    let mut limits = vec![(all, "all memory of this machine".to_owned())];
    limits.extend(of_control_groups(Path::new("/")).into_iter().map(|(limit, group)| {
        (limit, format!("the control group {} allows, {}", group.display(), bytes(limit)))
    }));
    check_against(&limits, memory, block_cache)
}

fn check_against(limits: &[(u64, String)], memory: u64, block_cache: u64) -> Result<(), Failure> {
    let wanted = memory.saturating_add(block_cache).saturating_add(BESIDE);
    let Some((_, what)) = limits.iter().filter(|(limit, _)| *limit < wanted).min_by_key(|(limit, _)| limit)
    else {
        return Ok(());
    };
    Err(Failure::usage(format!(
        "{} for changes and map (--memory, memory=), {} for blocks (--block-cache, block-cache=) and {} beside are more than {what}. \
         Nothing was changed; allow less",
        bytes(memory),
        bytes(block_cache),
        bytes(BESIDE)
    )))
}

/// The limits of this process' control groups and of those around them, in bytes, each with its directory. `root` is where `proc` is
/// mounted, and where the paths in it begin. What cannot be read limits nothing: the system's word comes later.
fn of_control_groups(root: &Path) -> Vec<(u64, PathBuf)> {
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let groups = read("proc/self/cgroup");
    let mut found = Vec::new();
    for mounted in read("proc/self/mountinfo").lines().filter_map(Mounted::read) {
        let Some(within) = groups.lines().find_map(|line| mounted.of(line)) else { continue };
        let mountpoint = root.join(mounted.point.strip_prefix('/').unwrap_or(mounted.point));
        for group in mountpoint.join(within).ancestors().take_while(|group| group.starts_with(&mountpoint)) {
            let limit = fs::read_to_string(group.join(mounted.file)).ok();
            // `max` is none, and a number behind all memory is none either.
            found
                .extend(limit.and_then(|limit| limit.trim().parse().ok()).map(|limit| (limit, group.into())));
        }
    }
    found
}

/// A mounted hierarchy of control groups that limits memory.
struct Mounted<'a> {
    /// The group that is at the mount point.
    group: &'a str,
    point: &'a str,
    /// The file with the limit.
    file: &'static str,
}

impl<'a> Mounted<'a> {
    /// `line` of `mountinfo`.
    fn read(line: &'a str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (group, point) = (mount.next()?, mount.next()?);
        let mut file_system = file_system.split(' ');
        let file = match (file_system.next()?, file_system.nth(1)?) {
            ("cgroup2", _) => "memory.max",
            ("cgroup", options) if options.split(',').any(|option| option == "memory") => {
                "memory.limit_in_bytes"
            }
            _ => return None,
        };
        Some(Self { group, point, file })
    }

    /// The process' group below the mount point, if this `line` of `cgroup` is of this hierarchy.
    fn of<'b>(&self, line: &'b str) -> Option<&'b str> {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let is_this = match self.file {
            "memory.max" => controllers.is_empty(),
            _ => controllers.split(',').any(|controller| controller == "memory"),
        };
        if !is_this {
            return None;
        }
        // In a name space of its own a process sees paths from there. Above the mount point nothing can be read.
        Some(path.strip_prefix(self.group).unwrap_or(path).trim_start_matches('/'))
            .filter(|path| !path.contains(".."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        root
    }

    fn limits(files: &[(&str, &str)]) -> Vec<u64> {
        of_control_groups(tree(files).path()).into_iter().map(|(limit, _)| limit).collect()
    }

    const V2: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_group_and_those_around_it_limit_a_process() {
        let files = [
            ("proc/self/cgroup", "0::/system.slice/ledger.service\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/system.slice/ledger.service/memory.max", "max\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "1048576\n"),
            ("sys/fs/cgroup/memory.max", "4194304\n"),
            ("sys/fs/memory.max", "1\n"),
        ];
        assert_eq!(limits(&files), [1_048_576, 4_194_304]);
    }

    #[test]
    fn a_container_sees_its_group_at_the_mount_point() {
        let files = [
            ("proc/self/cgroup", "4:memory:/docker/5f\n2:cpu,cpuacct:/docker/5f\n0::/\n"),
            (
                "proc/self/mountinfo",
                "35 31 0:32 /docker/5f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                 36 31 0:33 /docker/5f /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\nno mount\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n"),
        ];
        assert_eq!(limits(&files), [128 << 20]);
    }

    #[test]
    fn where_nothing_is_said_nothing_is_limited() {
        assert!(limits(&[]).is_empty());
        assert!(limits(&[("proc/self/cgroup", "0::/../..\n"), ("proc/self/mountinfo", V2)]).is_empty());
        assert!(limits(&[("proc/self/cgroup", "\n::\n0:\n"), ("proc/self/mountinfo", V2)]).is_empty());
    }

    #[test]
    fn the_smallest_limit_is_named() {
        let limits = [(1 << 30, "all memory of this machine".to_owned()), (100 << 20, "a group".to_owned())];
        check_against(&limits, 16 << 20, 20 << 20).unwrap();
        let failure = check_against(&limits, 16 << 20, 21 << 20).unwrap_err();
        assert!(failure.is_usage() && failure.to_string().contains("more than a group"), "{failure}");
        assert!(check_against(&limits, u64::MAX, u64::MAX).is_err());
        check_against(&[], u64::MAX, u64::MAX).unwrap();
    }
}
