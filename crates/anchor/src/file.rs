//! An anchor in a file.

mod patience;
mod slot;
#[cfg(test)]
mod tests;

use crate::{Access, Address, Anchor, AnchorFuture, Error, Health, Stamp};
use patience::Patience;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use slot::{FILE_SIZE, Record, SLOT_SIZE, SlotError};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// An anchor in a file of 8192 bytes: two slots, written in turn, each a whole stamp with a sequence
/// number and a checksum. A write that is cut short spoils only the slot that is not in force.
///
/// Each compare-and-swap reads, compares and writes under an exclusive `flock`, so any number of
/// processes may share the file. Its future does this in one poll, and blocks for as long: one
/// synchronous write, plus the wait for the lock. Somebody who keeps the lock makes it an anchor that is away, which is waited for as
/// long as it was opened for.
///
/// The file must lie where the host of the volume can't reach it, on a medium that keeps what it
/// acknowledged: a slot in force that decays cannot be told from one whose writing was cut short, so
/// the stamp before it would come back into force.
#[derive(Debug)]
pub struct FileAnchor {
    path: PathBuf,
    inner: Mutex<Inner>,
    patience: Patience,
}

#[derive(Debug)]
struct Inner {
    file: File,
    doubt: Doubt,
}

/// What must be made durable before the file's content may be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    None,
    /// The file was just opened; a process that died may have left its write in the page cache.
    Cached,
    /// The write of the slot with this sequence number failed. The page cache may now show what the
    /// disk does not have, and another sync would succeed without writing it.
    Written(u64),
}

impl FileAnchor {
    /// Makes a new anchor that was never claimed, readable by its owner only (mode 0600). It gets its name when it is
    /// whole: an interruption leaves no half anchor, which could not be told from a damaged one.
    ///
    /// # Errors
    /// [`Error::Unusable`] if anything exists at `path`: an anchor is never overwritten.
    pub fn create(path: &Path) -> Result<FileAnchor, Error> {
        FileAnchor::create_for(path, None)
    }

    /// The same, to wait for its lock as [`FileAnchor::open_for`] does.
    pub(crate) fn create_for(path: &Path, timeout: Option<Duration>) -> Result<FileAnchor, Error> {
        let path = absolute(path)?;
        let created = |error: io::Error| match error.kind() {
            ErrorKind::AlreadyExists => {
                unusable(&path, "exists already, and an anchor is never overwritten: name another path")
            }
            _ => unusable(&path, &format!("can't be created: {error}")),
        };
        let directory = path.parent().unwrap_or(Path::new("/"));
        if directory.try_exists().is_ok_and(|exists| !exists) {
            let message =
                format!("can't be created: there is no directory {}; make it first", directory.display());
            return Err(unusable(&path, &message));
        }
        let unnamed = tempfile::Builder::new().prefix(".anchor-").tempfile_in(directory).map_err(created)?;
        fill(unnamed.as_file()).map_err(|error| failed(&path, "filling the new file", &error))?;
        unnamed.persist_noclobber(&path).map_err(|error| created(error.error))?;
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|error| failed(&path, "syncing its directory", &error))?;
        FileAnchor::open_for(&path, Access::ReadWrite, timeout)
    }

    /// Opens the anchor at `path`.
    ///
    /// # Errors
    /// [`Error::Unusable`] if there is none, or it can't be used; the message says why.
    pub fn open(path: &Path) -> Result<FileAnchor, Error> {
        FileAnchor::open_for(path, Access::ReadWrite, None)
    }

    /// Opens the anchor at `path` for reading only: it never moves through this, and a file that may only be read will do.
    ///
    /// # Errors
    /// As [`FileAnchor::open`].
    pub fn open_read_only(path: &Path) -> Result<FileAnchor, Error> {
        FileAnchor::open_for(path, Access::ReadOnly, None)
    }

    /// Opens the anchor at `path`. Its lock is waited for no longer than `timeout`; without one, until it is had, but for the first time
    /// as long as for any anchor ([`Limits::first_contact`](crate::Limits::first_contact)).
    ///
    /// # Errors
    /// As [`FileAnchor::open`]; and [`Error::Io`] if somebody has it locked for so long.
    pub fn open_for(path: &Path, access: Access, timeout: Option<Duration>) -> Result<FileAnchor, Error> {
        // With O_DSYNC one system call writes a slot and makes it durable. The blocks were allocated
        // when the file was made, so no metadata has to be written with them.
        let access = match access {
            Access::ReadOnly => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR | OFlags::DSYNC,
        };
        let path = absolute(path)?;
        let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => unusable(
                &path,
                "there is no anchor here: check the path; if the anchor is lost, only the volume's owner can set a new one (reanchor)",
            ),
            Errno::ISDIR => unusable(&path, "this is a directory: name the anchor file in it"),
            Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                unusable(&path, &format!("an anchor must be readable and writable: {errno}"))
            }
            other => unusable(&path, &format!("can't be opened: {other}")),
        })?);
        let metadata = file.metadata().map_err(|error| failed(&path, "looking at the file", &error))?;
        if !metadata.is_file() {
            return Err(unusable(&path, "this is not a regular file, so not an anchor"));
        }
        let anchor = FileAnchor {
            path,
            inner: Mutex::new(Inner { file, doubt: Doubt::Cached }),
            patience: Patience::new(timeout),
        };
        anchor.locked(|_, _| Ok(()))?;
        Ok(anchor)
    }

    /// The stamp that is in force, durably.
    fn current(&self) -> Result<Option<Stamp>, Error> {
        self.locked(|_, record| Ok(record.stamp))
    }

    fn swap(&self, expected: Option<&Stamp>, new: Stamp) -> Result<(), Error> {
        self.locked(|inner, record| {
            if record.stamp.as_ref() != expected {
                return Err(Error::Conflict(record.stamp.map(Box::new)));
            }
            let sequence = record
                .sequence
                .checked_add(1)
                .ok_or_else(|| unusable(&self.path, "its sequence numbers are used up"))?;
            self.write(inner, &Record { sequence, stamp: Some(new) })
        })
    }

    /// Runs `act` on the record in force while no other process or thread can move it.
    fn locked<T>(&self, act: impl FnOnce(&mut Inner, Record) -> Result<T, Error>) -> Result<T, Error> {
        let mut inner: MutexGuard<'_, Inner> = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.patience.lock(&inner.file).map_err(|error| failed(&self.path, "locking", &error))?;
        let result = self.still_there(&inner.file).and_then(|()| {
            let record = self.newest(&inner.file)?;
            let record = self.settle(&mut inner, record)?;
            act(&mut inner, record)
        });
        // Closing would release it too; until then no other process could go on.
        let _ = inner.file.unlock();
        result
    }

    /// An open file that was deleted or replaced still works, but no other process would see it move.
    fn still_there(&self, file: &File) -> Result<(), Error> {
        let opened = identity(file, Path::new(""), AtFlags::EMPTY_PATH)
            .map_err(|errno| failed(&self.path, "looking at the file", &errno.into()))?;
        match identity(CWD, self.path.as_path(), AtFlags::empty()) {
            Ok(named) if named == opened => Ok(()),
            Ok(_) => Err(unusable(
                &self.path,
                "was replaced by another file while it was in use: put the old one back",
            )),
            Err(Errno::NOENT) => Err(unusable(&self.path, "was removed while it was in use: put it back")),
            // The file is open; that its path can't be searched any more takes nothing away.
            Err(_) => Ok(()),
        }
    }

    /// The newer of the two slots that are whole.
    fn newest(&self, file: &File) -> Result<Record, Error> {
        // A byte more than there should be, to notice a file that is longer.
        let mut bytes = [0; FILE_SIZE + 1];
        let length = read_up_to(file, &mut bytes).map_err(|error| failed(&self.path, "reading", &error))?;
        let (slots, _) = bytes.as_chunks::<SLOT_SIZE>();
        let read = [Record::decode(&slots[0], 0), Record::decode(&slots[1], 1)];
        if read.iter().all(|slot| *slot == Err(SlotError::Foreign)) {
            return Err(unusable(
                &self.path,
                "this is not an anchor: check the path; if the anchor is lost, only the volume's owner can set a new one (reanchor)",
            ));
        }
        if length != FILE_SIZE {
            return Err(unusable(&self.path, &format!("an anchor has {FILE_SIZE} bytes, not {length}")));
        }
        for slot in &read {
            match slot {
                Err(SlotError::Stamp(error)) => return Err(unusable(&self.path, &error.to_string())),
                Err(SlotError::Unknown) => {
                    return Err(unusable(
                        &self.path,
                        "this program does not understand its content: use a newer one",
                    ));
                }
                Ok(_) | Err(SlotError::Foreign | SlotError::Torn) => {}
            }
        }
        match read {
            [Ok(first), Ok(second)] => Ok(if first.sequence > second.sequence { first } else { second }),
            [Ok(only), _] | [_, Ok(only)] => Ok(only),
            _ => Err(unusable(
                &self.path,
                "both of its slots are damaged: the anchor is lost, and only the volume's owner can set a new one (reanchor)",
            )),
        }
    }

    /// Makes what was read durable, where that is in doubt, and returns what then is in force.
    fn settle(&self, inner: &mut Inner, record: Record) -> Result<Record, Error> {
        match inner.doubt {
            Doubt::None => Ok(record),
            Doubt::Cached => self.sync(inner).map(|()| record),
            // Another process has moved the anchor on since.
            Doubt::Written(sequence) if record.sequence > sequence => self.sync(inner).map(|()| record),
            // Only the slot whose write failed is written again, with whichever stamp turned out to be
            // in force: the other slot may be the only one that is durable.
            Doubt::Written(sequence) => {
                let settled = Record { sequence, stamp: record.stamp };
                self.write(inner, &settled)?;
                Ok(settled)
            }
        }
    }

    fn sync(&self, inner: &mut Inner) -> Result<(), Error> {
        inner.file.sync_data().map_err(|error| failed(&self.path, "syncing", &error))?;
        inner.doubt = Doubt::None;
        Ok(())
    }

    fn write(&self, inner: &mut Inner, record: &Record) -> Result<(), Error> {
        inner.doubt = Doubt::Written(record.sequence);
        let offset = if record.index() == 0 { 0 } else { SLOT_SIZE as u64 };
        inner
            .file
            .write_all_at(&record.encode(), offset)
            .map_err(|error| failed(&self.path, "writing", &error))?;
        inner.doubt = Doubt::None;
        Ok(())
    }
}

impl Anchor for FileAnchor {
    fn read(&self) -> AnchorFuture<'_, Option<Stamp>> {
        Box::pin(async { self.current() })
    }

    fn advance(&self, expected: Option<&Stamp>, new: &Stamp) -> AnchorFuture<'_, ()> {
        let (expected, new) = (expected.cloned(), new.clone());
        Box::pin(async move { self.swap(expected.as_ref(), new) })
    }

    fn address(&self) -> String {
        Address::file(&self.path).to_string()
    }

    fn health(&self) -> Health {
        Health { away: self.patience.away(), ..Health::default() }
    }
}

/// The path in full: the address goes into policies, and what it names must not depend on the reader's directory.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    let path = std::path::absolute(path).map_err(|error| failed(path, "finding its whole path", &error))?;
    match path.to_str() {
        Some(_) => Ok(path),
        None => Err(unusable(&path, "its path is not UTF-8, so no policy can name it")),
    }
}

fn fill(file: &File) -> io::Result<()> {
    for sequence in [0, 1] {
        let record = Record { sequence, stamp: None };
        file.write_all_at(&record.encode(), if record.index() == 0 { 0 } else { SLOT_SIZE as u64 })?;
    }
    file.sync_all()
}

/// Device and inode of a file. No times are asked for: after a look at them, Linux 6.13 and later must write the
/// inode with the next write (multigrain timestamps), which makes that write slower.
fn identity(directory: impl AsFd, path: &Path, flags: AtFlags) -> Result<(u32, u32, u64), Errno> {
    let found = rustix::fs::statx(directory, path, flags, StatxFlags::INO)?;
    Ok((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
}

fn read_up_to(file: &File, bytes: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    // A file of the right size ends there: one call says so, since it may bring a byte more.
    while length < bytes.len() && length != FILE_SIZE {
        match file.read_at(&mut bytes[length..], length as u64) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

fn unusable(path: &Path, why: &str) -> Error {
    Error::Unusable(format!("anchor {}: {why}", path.display()))
}

fn failed(path: &Path, doing: &str, error: &io::Error) -> Error {
    Error::Io(format!("anchor {}: {doing}: {error}", path.display()))
}
