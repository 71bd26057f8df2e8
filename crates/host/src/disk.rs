//! What is served: a file or a block device of this machine.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags};
use store::{Error, ErrorKind, FileStore, Options};
use virtqueue::block::{Config, ID_LENGTH, Kind, SECTOR, features};

use crate::settings::DiskSettings;

/// Most segments of data in a request: what fits a queue of 128, QEMU's own, with header and status.
const SEGMENTS: u32 = 126;
/// Most segments of a discard, and most sectors of one (2 GiB).
pub(crate) const MOST_DISCARDS: usize = 16;
const DISCARD_SECTORS: u32 = 1 << 22;
/// Where the file system can't zero ranges, zeros are written; so this stays small (16 MiB).
const ZERO_SECTORS: u32 = 1 << 15;

/// How long a disk may stay in use by a server that was killed. The kernel keeps its lock until the last of its requests has ended, and must:
/// such a write could otherwise land behind one of ours.
const PATIENCE: Duration = Duration::from_secs(30);

/// An open disk.
#[derive(Debug)]
pub struct Disk {
    store: FileStore,
    bytes: AtomicU64,
    block_size: u32,
    /// To what a buffer in memory must be aligned.
    memory_alignment: usize,
    read_only: bool,
    id: [u8; ID_LENGTH],
    /// A flush has failed: what the kernel has dropped is not known, and no later flush can bring it back.
    is_failed: AtomicBool,
    opened: Instant,
    /// The second in which a failure was reported.
    reported: AtomicU64,
}

impl Disk {
    /// Opens a disk, alone. One that is still held by a server that was killed is waited for.
    ///
    /// # Errors
    /// When it is not there, no file or block device, in use, mounted, not allowed, or too small; each says what to do.
    pub fn open(settings: &DiskSettings) -> Result<Self, Error> {
        let options =
            Options { direct: settings.direct, read_only: settings.read_only, ..Options::default() };
        let begun = Instant::now();
        let store = loop {
            match FileStore::open(&settings.file, options) {
                Err(error) if error.kind == ErrorKind::InUse && begun.elapsed() < settings.patience() => {
                    thread::sleep(Duration::from_millis(50));
                }
                opened => break opened?,
            }
        };
        let failed = |error: io::Error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            Error::from_errno(errno, "open", settings.file.display().to_string())
        };
        let bytes = store.size().map_err(failed)?;
        let (block_size, memory_alignment) = alignment(&store, settings.direct);
        Ok(Self {
            bytes: AtomicU64::new(bytes - bytes % u64::from(block_size)),
            store,
            block_size,
            memory_alignment,
            read_only: settings.read_only,
            id: id(settings),
            is_failed: AtomicBool::new(false),
            opened: Instant::now(),
            reported: AtomicU64::new(0),
        })
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether it is only to be read.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// What a driver may agree to.
    pub(crate) fn features(&self) -> u64 {
        let common = features::VERSION_1
            | features::ACCESS_PLATFORM
            | features::INDIRECT
            | features::SEG_MAX
            | features::BLOCK_SIZE
            | features::TOPOLOGY
            | features::QUEUES;
        let change = features::FLUSH | features::DISCARD | features::WRITE_ZEROES;
        common | if self.read_only { features::READ_ONLY } else { change }
    }

    pub(crate) fn config(&self, queues: u16) -> Config {
        let is_changeable = !self.read_only;
        let if_changeable = |limit: u32| if is_changeable { limit } else { 0 };
        let block = self.block_size / 512;
        Config {
            sectors: self.bytes() / SECTOR,
            segments: SEGMENTS,
            block_size: self.block_size,
            physical_exponent: u8::try_from((4096 / self.block_size).trailing_zeros()).unwrap_or(0),
            queues,
            discard: [DISCARD_SECTORS, 16, block].map(if_changeable),
            write_zeroes: [ZERO_SECTORS, 1].map(if_changeable),
            may_unmap: is_changeable,
        }
    }

    /// Whether a range of whole blocks is inside.
    pub(crate) fn has(&self, sector: u64, bytes: u64) -> bool {
        let begin = sector.checked_mul(SECTOR);
        let block = u64::from(self.block_size);
        let end = begin.and_then(|begin| begin.checked_add(bytes));
        begin.is_some_and(|begin| begin.is_multiple_of(block))
            && bytes.is_multiple_of(block)
            && end.is_some_and(|end| end <= self.bytes())
    }

    pub(crate) fn memory_alignment(&self) -> usize {
        self.memory_alignment
    }

    pub(crate) fn id(&self) -> &[u8; ID_LENGTH] {
        &self.id
    }

    /// Whether a flush has failed since it was opened.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.is_failed.load(Ordering::Acquire)
    }

    /// Tells the journal of a request that the kernel has refused, at most once a second: a guest may provoke them.
    pub(crate) fn report(&self, kind: Kind, errno: i32) {
        let now = self.opened.elapsed().as_secs() + 1;
        if self.reported.swap(now, Ordering::Relaxed) != now {
            let error = io::Error::from_raw_os_error(errno);
            log::warn!("{}: {kind:?} failed: {error}", store::Store::name(&self.store));
        }
    }

    pub(crate) fn fail(&self) {
        self.is_failed.store(true, Ordering::Release);
    }
}

impl AsFd for Disk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.store.as_fd()
    }
}

impl DiskSettings {
    fn patience(&self) -> Duration {
        // One that only reads has nothing that could land late.
        if self.read_only { Duration::ZERO } else { PATIENCE }
    }
}

/// Bytes of a logical block, and to how many bytes memory must be aligned.
fn alignment(store: &FileStore, direct: bool) -> (u32, usize) {
    let sector = rustix::fs::ioctl_blksszget(store).ok().filter(|_| store.is_device());
    if !direct {
        return (sector.unwrap_or(512), 1);
    }
    let asked = rustix::fs::statx(store, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok();
    let told = asked.filter(|told| told.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let offset = told.map_or(0, |told| told.stx_dio_offset_align);
    let memory = told.map_or(0, |told| told.stx_dio_mem_align);
    let block = sector.unwrap_or(if offset.is_power_of_two() { offset.clamp(512, 4096) } else { 512 });
    let memory = usize::try_from(memory).ok().filter(|align| align.is_power_of_two());
    (block, memory.unwrap_or(512))
}

/// What the guest sees as the disk's serial number.
fn id(settings: &DiskSettings) -> [u8; ID_LENGTH] {
    let name = settings
        .id
        .clone()
        .unwrap_or_else(|| settings.file.file_name().unwrap_or_default().to_string_lossy().into_owned());
    let mut id = [0; ID_LENGTH];
    id.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    id
}
