//! What the machine is, and what else it does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use report::run::{Disturbance, Machine};

use crate::ledger::unescaped;

/// The machine that this runs on; `storage` is where the files of the targets are to lie.
pub fn describe(storage: &Path) -> Machine {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib =
        total.and_then(|rest| rest.split_whitespace().next()).and_then(|number| number.parse::<u64>().ok());
    let system = rustix::system::uname();
    let hypervisor = field("flags").filter(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
    Machine {
        cpu: field("model name").unwrap_or_else(|| "unknown".into()),
        cores: std::thread::available_parallelism()
            .map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX)),
        memory: kib.unwrap_or(0) << 10,
        kernel: system.release().to_string_lossy().into_owned(),
        architecture: system.machine().to_string_lossy().into_owned(),
        hypervisor: hypervisor.map(|_| hypervisor_name()),
        confidential: confidential(),
        storage: mount_of(storage),
        details: details(&field, storage),
    }
}

/// What else speed depends on, as far as the kernel says it.
fn details(cpu: &dyn Fn(&str) -> Option<String>, storage: &Path) -> BTreeMap<String, String> {
    let line = |path: &Path| {
        let text = fs::read_to_string(path).ok()?;
        Some(text.trim().to_string()).filter(|text| !text.is_empty())
    };
    let of_cpu = |name: &str| line(&Path::new("/sys/devices/system/cpu").join(name));
    let mut details = vec![
        ("flags", cpu("flags")),
        ("microcode", cpu("microcode")),
        ("governor", of_cpu("cpu0/cpufreq/scaling_governor")),
        ("turbo", of_cpu("cpufreq/boost")),
        ("threads-per-core", of_cpu("smt/active")),
        ("huge-pages", line(Path::new("/sys/kernel/mm/transparent_hugepage/enabled"))),
        ("kernel-build", line(Path::new("/proc/version"))),
        ("kernel-command", line(Path::new("/proc/cmdline"))),
    ];
    if let Some(disk) = disk_of(storage) {
        let of_disk = |name: &str| line(&disk.join(name));
        details.extend([
            ("disk", of_disk("device/model")),
            ("disk-name", disk.file_name().map(|name| name.to_string_lossy().into_owned())),
            ("disk-sectors", of_disk("size")),
            ("disk-rotates", of_disk("queue/rotational")),
            ("disk-cache", of_disk("queue/write_cache")),
            ("scheduler", of_disk("queue/scheduler")),
        ]);
    }
    let known = details.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?)));
    known.collect()
}

/// The disk that a path lies on, in sysfs; none for what has no disk of its own, as memory and networks.
fn disk_of(path: &Path) -> Option<std::path::PathBuf> {
    let device = fs::metadata(path).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = Path::new("/sys/dev/block").join(format!("{major}:{minor}")).canonicalize().ok()?;
    // A partition lies in its disk.
    if place.join("partition").exists() { place.parent().map(Into::into) } else { Some(place) }
}

fn hypervisor_name() -> String {
    let product = fs::read_to_string("/sys/class/dmi/id/sys_vendor").unwrap_or_default();
    let product = product.trim();
    if product.is_empty() { "one that does not say its name".into() } else { product.into() }
}

/// Whether this is a confidential guest: the drivers of both kinds give it a device.
fn confidential() -> Option<String> {
    let devices = [("/dev/sev-guest", "SEV-SNP"), ("/dev/tdx_guest", "TDX")];
    devices.into_iter().find(|(path, _)| Path::new(path).exists()).map(|(_, name)| name.to_string())
}

/// Type and device of the file system that a path lies on, and where that is mounted.
pub fn mount_of(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.into());
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let fits = mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        let place = unescaped(words.nth(4)?);
        let mut behind = words.skip_while(|word| *word != b"-").skip(1).map(unescaped);
        let (kind, device) = (behind.next()?, behind.next()?);
        let shown = format!("{} on {}, mounted at {}", kind.display(), device.display(), place.display());
        path.starts_with(&place).then_some((place.as_os_str().len(), shown))
    });
    // Of two at one place the later one is seen.
    fits.max_by_key(|(length, _)| *length).map_or_else(|| "unknown".into(), |(_, text)| text)
}

/// Now, as in RFC 3339, in UTC and whole seconds.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    rfc3339(seconds)
}

/// Seconds since 1970 as a date. Source: Hinnant, "chrono-compatible low-level date algorithms", civil_from_days.
fn rfc3339(seconds: u64) -> String {
    let (days, time) = (seconds / 86400 + 719_468, seconds % 86400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}Z", time / 3600, time / 60 % 60, time % 60)
}

/// Ticks of the processors' clock in a second, as `/proc` counts.
fn ticks() -> f64 {
    u32::try_from(rustix::param::clock_ticks_per_second()).map_or(100.0, f64::from)
}

/// A process as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    name: String,
    parent: u32,
    ticks: u64,
    /// Ticks of its children that have ended and were waited for.
    reaped: u64,
    /// When it began, in ticks since the machine did: with its number, what it is for as long as the machine runs. Its name may change.
    began: u64,
}

/// When a process began, in ticks since the machine did; none if there is no such process.
pub fn process_began(number: u32) -> Option<u64> {
    Some(process(number)?.began)
}

fn processes() -> BTreeMap<u32, Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter_map(|number| Some((number, process(number)?))).collect()
}

fn process(number: u32) -> Option<Process> {
    parse_stat(&fs::read_to_string(format!("/proc/{number}/stat")).ok()?)
}

/// Source: proc_pid_stat(5). The name stands in parentheses and may have any character, so the last one ends it.
fn parse_stat(stat: &str) -> Option<Process> {
    let (head, rest) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_string();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    // Field 3, the state, is the first of these: parent 4, user time 14, system time 15, those of children 16 and 17, its begin 22.
    Some(Process {
        name,
        parent: u32::try_from(number(1)?).ok()?,
        ticks: number(11)?.saturating_add(number(12)?),
        reaped: number(13)?.saturating_add(number(14)?),
        began: number(19)?,
    })
}

/// Ticks that the hypervisor gave to others. Source: proc_stat(5).
fn stolen() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    stat.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// Watches what other programs do while something is measured.
pub struct Watch {
    began: Instant,
    processes: BTreeMap<u32, Process>,
    stolen: u64,
}

impl Watch {
    /// From now on.
    pub fn begin() -> Self {
        Self { began: Instant::now(), processes: processes(), stolen: stolen() }
    }

    /// Until now. Programs that began and ended in between are not seen, but for our own.
    pub fn end(self) -> Seen {
        let seconds = self.began.elapsed().as_secs_f64().max(0.001);
        let per_second =
            |ticks_used: u64| f64::from(u32::try_from(ticks_used).unwrap_or(u32::MAX)) / ticks() / seconds;
        let after = processes();
        let ours = family(&after, std::process::id());
        let (programs, family) = used(&self.processes, &after, &ours);
        let others = per_second(programs.values().sum());
        let mut programs: Vec<(String, f64)> =
            programs.into_iter().map(|(name, used)| (name.to_string(), per_second(used))).collect();
        programs.sort_by(|a, b| b.1.total_cmp(&a.1));
        programs.truncate(3);
        programs.retain(|(_, share)| *share >= 0.01);
        let steal = per_second(stolen().saturating_sub(self.stolen));
        Seen { meanwhile: Disturbance { others, steal, programs }, processors: per_second(family) }
    }
}

/// Ticks that were used between two looks: by programs, and by our own.
fn used<'a>(
    before: &BTreeMap<u32, Process>,
    after: &'a BTreeMap<u32, Process>,
    ours: &BTreeSet<u32>,
) -> (BTreeMap<&'a str, u64>, u64) {
    let (mut programs, mut own) = (BTreeMap::<&str, u64>::new(), 0u64);
    for (number, process) in after {
        // The same process, whatever it calls itself now: a worker of the kernel takes the name of its work.
        let before = before.get(number).filter(|before| before.began == process.began);
        let since = |now: u64, then: fn(&Process) -> u64| now.saturating_sub(before.map_or(0, then));
        let used = since(process.ticks, |before| before.ticks);
        if ours.contains(number) {
            own = own.saturating_add(used).saturating_add(since(process.reaped, |before| before.reaped));
        } else {
            *programs.entry(&process.name).or_default() += used;
        }
    }
    (programs, own)
}

/// What was seen while something was measured.
#[derive(Debug)]
pub struct Seen {
    /// What other programs did.
    pub meanwhile: Disturbance,
    /// Processors that were busy with what is measured: this program, and all that it has started, servers and guests among them.
    pub processors: f64,
}

/// A process and all that it started.
fn family(all: &BTreeMap<u32, Process>, head: u32) -> BTreeSet<u32> {
    let mut family = BTreeSet::from([head]);
    loop {
        let children = all
            .iter()
            .filter(|(number, process)| family.contains(&process.parent) && !family.contains(number));
        let children: Vec<u32> = children.map(|(number, _)| *number).collect();
        if children.is_empty() {
            return family;
        }
        family.extend(children);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(rfc3339(1_795_747_987), "2026-11-27T02:53:07Z");
    }

    #[test]
    fn a_process_name_may_have_parentheses() {
        let process = parse_stat("7 (a) (b) S 3 7 7 0 -1 0 0 0 0 0 11 22 3 4 20 0 1 0 99").unwrap();
        let Process { name, parent, ticks, reaped, began } = process;
        assert_eq!((name.as_str(), parent, ticks, reaped, began), ("a) (b", 3, 33, 7, 99));
        assert!(parse_stat("").is_none() && parse_stat("7 (x) S").is_none());
    }

    #[test]
    fn another_program_is_seen_and_ours_is_not() {
        // The shell ends at once, so that the loop that it leaves is no child of this process.
        let busy = "timeout 3 sh -c 'while :; do :; done'";
        std::process::Command::new("sh").args(["-c", &format!("{busy} >/dev/null 2>&1 &")]).status().unwrap();
        // Killed below; with a program between, the loop would outlive it.
        let mut own = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let watch = Watch::begin();
        std::thread::sleep(std::time::Duration::from_millis(1000));
        let seen = watch.end();
        own.kill().unwrap();
        own.wait().unwrap();
        assert!(seen.meanwhile.others > 0.02 && seen.processors > 0.02, "{seen:?}");
        assert!(!describe(Path::new("/")).kernel.is_empty());
    }

    #[test]
    fn a_process_that_changes_its_name_is_the_same_one() {
        let process = |name: &str, ticks: u64, reaped: u64, began: u64| Process {
            name: name.into(),
            parent: 2,
            ticks,
            reaped,
            began,
        };
        let before = BTreeMap::from([
            (7, process("kworker/u4:1-flush", 9_000_000, 0, 5)),
            (8, process("sh", 500, 0, 6)),
            (9, process("cvmio-bench", 100, 1000, 7)),
        ]);
        let after = BTreeMap::from([
            (7, process("kworker/u4:1-events", 9_000_003, 0, 5)),
            // Another one got its number.
            (8, process("sh", 40, 0, 60)),
            (9, process("cvmio-bench", 101, 1020, 7)),
            (10, process("fio", 8, 0, 70)),
        ]);
        let (programs, own) = used(&before, &after, &BTreeSet::from([9, 10]));
        assert_eq!(programs, BTreeMap::from([("kworker/u4:1-events", 3), ("sh", 40)]));
        assert_eq!(own, 1 + 20 + 8);
        let this = std::process::id();
        assert!(
            process_began(this).is_some() && process_began(this) == super::process(this).map(|own| own.began)
        );
    }
}
