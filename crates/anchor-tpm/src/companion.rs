//! The companion file: the attempts that the index's value is made of, which the index itself does not keep.
//!
//! Two slots of 16 KiB, written in turn, little-endian:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `cvmioTC1` |
//! | 8 | 8 | sequence number; the slot's index is its lowest bit |
//! | 16 | 4 | number of attempts, at most 63 |
//! | 20 | 8 | zero |
//! | 28 | 4 | CRC-32 (IEEE) of the bytes before it and of the attempts |
//! | 32 | 256 each | the attempts |
//!
//! What lies behind the last attempt is not used. The file need not be trusted: the index's value proves what is in it, and a file that
//! was changed, cut or put back leads to no state. The checksum only tells a write that was cut short.
//!
//! All that either whole slot has counts: an attempt too many does no harm, one too few may.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anchor::{Lock, lock_within};

use crate::attempt::{self, Attempt};
use crate::error::Error;
use crate::steps::Log;

const SLOT_SIZE: usize = 16 * 1024;
/// Bytes of a companion file.
pub const FILE_SIZE: usize = 2 * SLOT_SIZE;
/// Most attempts of a slot.
pub const MAX_ATTEMPTS: usize = (SLOT_SIZE - HEAD) / attempt::SIZE;
const HEAD: usize = 32;
const CHECKSUM: usize = 28;
/// How long one attempt waits for the lock: longer than a chip takes for what others do under it.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const MAGIC: &[u8; 8] = b"cvmioTC1";

/// What one slot says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The slot with the higher number was written last.
    pub sequence: u64,
    /// The attempts.
    pub attempts: Vec<Attempt>,
}

impl Slot {
    /// As it lies in the file; the rest of the slot is not used.
    ///
    /// # Panics
    /// If there are more than [`MAX_ATTEMPTS`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.attempts.len() <= MAX_ATTEMPTS, "a slot has room for {MAX_ATTEMPTS} attempts");
        let count = u32::try_from(self.attempts.len()).expect("few");
        let mut out = vec![0; HEAD];
        out[..8].copy_from_slice(MAGIC);
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..20].copy_from_slice(&count.to_le_bytes());
        for attempt in &self.attempts {
            out.extend_from_slice(&attempt.encode());
        }
        let checksum = checksum(&out);
        out[CHECKSUM..HEAD].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads what [`Slot::encode`] wrote. `None` if the slot was never whole, or is damaged.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Slot> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let number = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let count = usize::try_from(number(16)?).ok()?;
        if head[..8] != *MAGIC || count > MAX_ATTEMPTS || head[20..CHECKSUM].iter().any(|&byte| byte != 0) {
            return None;
        }
        let used = bytes.get(..HEAD + count * attempt::SIZE)?;
        if number(CHECKSUM)? != checksum(used) {
            return None;
        }
        let (attempts, _) = rest[..count * attempt::SIZE].as_chunks::<{ attempt::SIZE }>();
        let attempts = attempts.iter().map(|bytes| Attempt::decode(bytes).ok()).collect::<Option<_>>()?;
        Some(Slot { sequence: u64::from_le_bytes(head[8..16].try_into().ok()?), attempts })
    }
}

fn checksum(used: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&used[..CHECKSUM]);
    hasher.update(&used[HEAD..]);
    hasher.finalize()
}

/// A companion file that no other process uses now.
#[derive(Debug)]
pub struct Companion {
    path: PathBuf,
    file: File,
    /// The slot that is written next, and its sequence number.
    next: u64,
}

impl Companion {
    /// Makes a file with one attempt, readable by its owner only. It gets its name when it is whole.
    ///
    /// # Errors
    /// If there is one already, or it can't be made.
    pub fn create(path: &Path, first: &Attempt) -> Result<(), Error> {
        let failed = |doing| move |source| Error::File { path: path.to_path_buf(), doing, source };
        let directory = path.parent().unwrap_or(Path::new("/"));
        let file = tempfile::Builder::new().tempfile_in(directory).map_err(failed("making it"))?;
        let mut bytes = vec![0; FILE_SIZE];
        for sequence in [0, 1] {
            let slot = Slot { sequence, attempts: vec![first.clone()] }.encode();
            bytes[offset(sequence)..][..slot.len()].copy_from_slice(&slot);
        }
        file.as_file().write_all_at(&bytes, 0).map_err(failed("writing"))?;
        file.as_file().sync_all().map_err(failed("syncing"))?;
        file.persist_noclobber(path).map_err(|error| failed("giving it its name")(error.error))?;
        let directory = File::open(directory).map_err(failed("opening its directory"))?;
        directory.sync_all().map_err(failed("syncing its directory"))
    }

    /// Opens a file. While another process uses it, this waits for a second at most. That is one attempt; the caller makes the next one.
    ///
    /// # Errors
    /// If it is not there, or is no companion file, or somebody has it locked for so long.
    pub fn open(path: &Path, read_only: bool) -> Result<Companion, Error> {
        let failed = |doing| move |source| Error::File { path: path.to_path_buf(), doing, source };
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(!read_only);
            options.custom_flags(
                rustix::fs::OFlags::CLOEXEC.union(rustix::fs::OFlags::NONBLOCK).bits().cast_signed(),
            );
            let file = match options.open(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Err(damaged(
                        path,
                        "it is not there; put it back. Any whole copy from after the last move will do; if there is none, the anchor is lost, and the volume's owner sets a new one (reanchor, without the old one)",
                    ));
                }
                other => other.map_err(failed("opening"))?,
            };
            let lock = if read_only { Lock::Shared } else { Lock::Exclusive };
            lock_within(&file, lock, Some(LOCK_PATIENCE)).map_err(failed("locking"))?;
            let opened = file.metadata().map_err(failed("looking at it"))?;
            if !opened.is_file() {
                return Err(damaged(path, "it is no regular file; name another with the option `companion`"));
            }
            // Between opening and locking it may have been replaced; then the other one counts.
            let named = fs::metadata(path).map_err(failed("looking at it"))?;
            if (opened.dev(), opened.ino()) == (named.dev(), named.ino()) {
                return Ok(Companion { path: path.to_path_buf(), file, next: 0 });
            }
        }
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        // A byte more than there should be, to notice a file that is longer.
        let mut bytes = vec![0; FILE_SIZE + 1];
        let mut length = 0;
        while length < bytes.len() {
            match self.file.read_at(&mut bytes[length..], length as u64) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    fn failed(&self, doing: &'static str) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::File { path: self.path.clone(), doing, source }
    }
}

impl Log for Companion {
    fn load(&mut self) -> Result<Vec<Attempt>, Error> {
        let bytes = self.read().map_err(self.failed("reading"))?;
        if bytes.len() != FILE_SIZE {
            let what = format!(
                "it has {} bytes, and a companion file has {FILE_SIZE}; put a whole one back",
                bytes.len()
            );
            return Err(damaged(&self.path, &what));
        }
        let (first, second) = bytes.split_at(SLOT_SIZE);
        let mut slots: Vec<Slot> =
            [Slot::decode(first), Slot::decode(second)].into_iter().flatten().collect();
        slots.sort_by_key(|slot| std::cmp::Reverse(slot.sequence));
        let Some(newest) = slots.first() else {
            return Err(damaged(
                &self.path,
                "both of its slots are damaged, or it is no companion file; put a whole one back, or let the volume's owner set a new anchor (reanchor)",
            ));
        };
        // The other slot is the one that is older, or is damaged.
        self.next =
            newest.sequence.checked_add(1).ok_or_else(|| damaged(&self.path, "its numbers are used up"))?;
        Ok(slots.into_iter().flat_map(|slot| slot.attempts).collect())
    }

    fn store(&mut self, attempts: &[Attempt]) -> Result<(), Error> {
        let slot = Slot { sequence: self.next, attempts: attempts.to_vec() };
        let at = offset(slot.sequence) as u64;
        self.file.write_all_at(&slot.encode(), at).map_err(self.failed("writing"))?;
        self.file.sync_data().map_err(self.failed("syncing"))
    }

    fn unknown(&self) -> Error {
        damaged(
            &self.path,
            "its attempts do not lead to the value of the TPM's index: the file is an older copy or was changed, or something else has moved the index. Put back the newest whole copy; if there is none, the anchor is lost, and the volume's owner sets a new one (reanchor, without the old one)",
        )
    }
}

fn offset(sequence: u64) -> usize {
    if sequence.is_multiple_of(2) { 0 } else { SLOT_SIZE }
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::Companion { path: path.to_path_buf(), what: what.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::tests::stamp;
    use proptest::prelude::*;

    fn attempts(count: u64) -> Vec<Attempt> {
        let one = |number| Attempt {
            base: [3; 32],
            random: [4; 16],
            number,
            stamp: (number > 0).then(|| stamp(number)),
        };
        (0..count).map(one).collect()
    }

    fn fresh() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("companion");
        Companion::create(&path, &attempts(1)[0]).unwrap();
        (directory, path)
    }

    fn load(path: &Path) -> Result<Vec<Attempt>, Error> {
        Companion::open(path, false)?.load()
    }

    #[test]
    fn golden_slot() {
        let slot = Slot { sequence: 0x0201, attempts: attempts(2) }.encode();
        assert_eq!(&slot[..28], b"cvmioTC1\x01\x02\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(slot[32..288], attempts(2)[0].encode());
        assert_eq!(slot[288..], attempts(2)[1].encode());
    }

    #[test]
    fn a_file_keeps_what_was_stored_and_is_never_overwritten() {
        let (_directory, path) = fresh();
        assert_eq!(load(&path).unwrap()[0], attempts(1)[0]);
        for count in [2, 5, 63, 1] {
            let mut file = Companion::open(&path, false).unwrap();
            file.load().unwrap();
            file.store(&attempts(count)).unwrap();
            drop(file);
            assert_eq!(load(&path).unwrap()[..usize::try_from(count).unwrap()], attempts(count));
        }
        assert!(matches!(Companion::create(&path, &attempts(1)[0]), Err(Error::File { .. })));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(Companion::open(&path, true).unwrap().load().is_ok());
    }

    #[test]
    fn a_file_that_somebody_keeps_locked_is_tried_again_and_not_waited_for() {
        let (_directory, path) = fresh();
        let other = File::open(&path).unwrap();
        other.lock().unwrap();
        for read_only in [false, true] {
            let begun = std::time::Instant::now();
            let error = Companion::open(&path, read_only).unwrap_err();
            assert!(
                begun.elapsed() < Duration::from_secs(10) && error.to_string().contains("has it locked"),
                "{error}"
            );
            assert!(matches!(anchor::Failure::from(error), anchor::Failure::Away(_)), "it may let go");
        }
        other.unlock().unwrap();
        assert!(load(&path).is_ok());
    }

    #[test]
    fn a_write_cut_short_anywhere_loses_nothing_that_was_there() {
        let (_directory, path) = fresh();
        let mut file = Companion::open(&path, false).unwrap();
        file.load().unwrap();
        file.store(&attempts(3)).unwrap();
        let old = fs::read(&path).unwrap();
        file.load().unwrap();
        file.store(&attempts(7)).unwrap();
        drop(file);
        let new = fs::read(&path).unwrap();
        let changed = old.iter().zip(&new).rposition(|(old, new)| old != new).unwrap();
        for cut in (0..=changed + 1).step_by(13).chain([changed, changed + 1]) {
            for (head, tail) in [(&new, &old), (&old, &new)] {
                fs::write(&path, [&head[..cut], &tail[cut..]].concat()).unwrap();
                let found = load(&path).unwrap();
                assert!(attempts(3).iter().all(|attempt| found.contains(attempt)), "cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_no_companion_file_is_refused_with_a_reason() {
        let (directory, path) = fresh();
        let refusal = |path: &Path| load(path).unwrap_err().to_string();
        assert!(refusal(&directory.path().join("none")).contains("it is not there"));
        assert!(refusal(directory.path()).contains("directory"));
        assert!(refusal(Path::new("/dev/null")).contains("no regular file"));
        let good = fs::read(&path).unwrap();
        for (bytes, why) in [
            (&good[..FILE_SIZE - 1], "put a whole one back"),
            (&[&good[..], b"x"].concat(), "put a whole one back"),
            (&vec![0; FILE_SIZE], "both of its slots are damaged"),
            (&Vec::new(), "it has 0 bytes"),
        ] {
            fs::write(&path, bytes).unwrap();
            assert!(refusal(&path).contains(why), "{why}");
        }
    }

    proptest! {
        #[test]
        fn a_slot_that_is_read_is_laid_out_again(
            count in 0_u64..5, sequence: u64, changes in prop::collection::vec((0..1300_usize, any::<u8>()), 0..4), seal: bool,
        ) {
            let mut bytes = Slot { sequence, attempts: attempts(count) }.encode();
            let used = bytes.len();
            for (at, byte) in changes {
                bytes[at % used] = byte;
            }
            if seal {
                let sum = checksum(&bytes).to_le_bytes();
                bytes[CHECKSUM..HEAD].copy_from_slice(&sum);
            }
            if let Some(slot) = Slot::decode(&bytes) {
                let again = slot.encode();
                prop_assert_eq!(&again[..], &bytes[..again.len()]);
            }
        }
    }
}
