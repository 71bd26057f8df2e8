//! The lock of a file: waiting for it, within a limit, and the process that holds it.

use rustix::fs::{major, minor};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// Between two looks at a lock that somebody has: first, and at most. Those who have it do one synchronous write, as a rule.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Whether others may hold the lock at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Nobody.
    Exclusive,
    /// Others that lock it so.
    Shared,
}

/// Takes the lock of a file (flock(2)). It waits no longer than `patience`; with `None` there is no limit.
///
/// # Errors
/// [`ErrorKind::TimedOut`] when another process kept the lock for that time; the message names the process. Otherwise the system's error.
pub fn lock_within(file: &File, lock: Lock, patience: Option<Duration>) -> io::Result<()> {
    let Some(patience) = patience else { return lock_for_ever(file, lock) };
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match if lock == Lock::Shared { file.try_lock_shared() } else { file.try_lock() } {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => continue,
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => {}
        }
        let rest = patience.saturating_sub(begun.elapsed());
        if rest.is_zero() {
            let who = holder(file).unwrap_or_else(|| "another process".into());
            let what =
                format!("{who} has it locked; have that let go of it (`lslocks` shows it), then try again");
            return Err(io::Error::new(ErrorKind::TimedOut, what));
        }
        std::thread::sleep(pause.min(rest));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// In the order in which the kernel gives it.
fn lock_for_ever(file: &File, lock: Lock) -> io::Result<()> {
    loop {
        match if lock == Lock::Shared { file.lock_shared() } else { file.lock() } {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// The process that has a file locked, by its number and its program's name, if the kernel tells us.
fn holder(file: &File) -> Option<String> {
    let metadata = file.metadata().ok()?;
    let process = holder_in(&fs::read_to_string("/proc/locks").ok()?, metadata.dev(), metadata.ino())?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    Some(format!("process {process} ({})", name.trim()))
}

/// From the kernel's table (proc_locks(5)): a line for each lock, and one with an arrow for each that waits for it.
fn holder_in(table: &str, device: u64, inode: u64) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let ours = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&file.as_str());
        // Of a process outside our namespace there is no number.
        fields.get(4).filter(|_| ours)?.parse().ok().filter(|process| *process != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_and_who_has_it_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (first, second) = (File::open(file.path()).unwrap(), File::open(file.path()).unwrap());
        let wait = |lock| lock_within(&second, lock, Some(Duration::from_millis(50)));
        first.lock().unwrap();
        for lock in [Lock::Exclusive, Lock::Shared] {
            let error = wait(lock).unwrap_err();
            let who = format!("process {} (", std::process::id());
            assert!(error.kind() == ErrorKind::TimedOut && error.to_string().starts_with(&who), "{error}");
        }
        first.unlock().unwrap();
        first.lock_shared().unwrap();
        assert!(wait(Lock::Exclusive).is_err());
        wait(Lock::Shared).unwrap();
        second.unlock().unwrap();
        std::thread::scope(|scope| {
            let patient = scope.spawn(|| lock_within(&second, Lock::Exclusive, Some(Duration::from_mins(1))));
            std::thread::sleep(Duration::from_millis(50));
            first.unlock().unwrap();
            patient.join().unwrap().unwrap();
        });
    }

    #[test]
    fn who_waits_has_nothing_locked() {
        let table = "1: FLOCK  ADVISORY  WRITE 70 fd:00:77 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 71 fd:0a:77 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 72 fd:0a:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 0 fd:0a:78 0 EOF\n\
                     4: FLOCK  ADVISORY  READ 73 fd:0a:77 0 EOF\n";
        let device = rustix::fs::makedev(0xfd, 0x0a);
        assert_eq!(holder_in(table, device, 77), Some(73));
        assert_eq!(holder_in(table, device, 78), None);
        assert_eq!(holder_in("", device, 77), None);
    }
}
