//! The memory of the logs of what is in flight: made here, kept by the VMM, brought back to the server that comes next.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;

use memory::{Access, FileMapping};
use rustix::fs::{MemfdFlags, SealFlags};
use vhost::vhost_user::message::VhostUserInflight;
use virtqueue::inflight::{ALIGNMENT, Log, length};

use crate::guard::Guarded;
use crate::memory_map::Piece;

/// A guest may make a queue larger than its VMM announces (SeaBIOS has 256 where QEMU says 128), up to what QEMU allows.
const LEAST_ENTRIES: u16 = 1024;

/// The logs of all queues of a disk, as the VMM keeps them.
#[derive(Debug, Clone)]
pub(crate) struct Logs {
    mapping: Arc<Guarded>,
    skip: usize,
    queues: u16,
    /// Bytes of each queue's log.
    each: usize,
}

/// New memory for so many queues of so many entries.
pub(crate) fn make(queues: u16, size: u16) -> io::Result<(VhostUserInflight, File)> {
    let each = length(size.max(LEAST_ENTRIES));
    let bytes = u64::try_from(each * usize::from(queues)).unwrap_or(u64::MAX);
    let memory = rustix::fs::memfd_create("cvmio-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, bytes)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok((VhostUserInflight::new(bytes, 0, queues, size), memory.into()))
}

impl fmt::Display for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the log of what is in flight, of {} queues with {} bytes each,", self.queues, self.each)
    }
}

impl Logs {
    /// Takes what a VMM brings.
    ///
    /// # Errors
    /// When it is no memory of the size that it must have.
    pub(crate) fn new(said: &VhostUserInflight, file: &File) -> io::Result<Self> {
        let queues = said.num_queues;
        let needed = u64::try_from(length(said.queue_size) * usize::from(queues)).unwrap_or(u64::MAX);
        let there = file.metadata()?.len();
        let fits = said.mmap_offset.checked_add(said.mmap_size).is_some_and(|end| end <= there);
        if said.mmap_size < needed || !fits || !said.mmap_offset.is_multiple_of(2) {
            let message = format!("a log of {} bytes in {there}, where {needed} are needed", said.mmap_size);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let page = said.mmap_offset - said.mmap_offset % 4096;
        let number = |bytes: u64| usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory);
        let whole = number(said.mmap_offset + said.mmap_size - page)?;
        let each = number(said.mmap_size)? / usize::from(queues.max(1));
        let each = each - each % ALIGNMENT;
        let mapping = FileMapping::untouched(file, page, whole, Access::ReadWrite)?;
        let (mapping, skip) = (Arc::new(Guarded::new(mapping)?), number(said.mmap_offset - page)?);
        Ok(Self { mapping, skip, queues, each })
    }

    /// Whether the VMM has cut their memory short.
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    /// The log of one queue, if it is one of those that the logs were made for.
    pub(crate) fn of(&self, queue: u16, size: u16) -> Option<Log<Piece>> {
        if queue >= self.queues || length(size) > self.each {
            return None;
        }
        let begin = self.skip + usize::from(queue) * self.each;
        Piece::new(self.mapping.clone(), begin..begin + length(size)).map(Log::new)
    }
}
