//! The memory of the logs of what is in flight: made here, kept by the VMM, brought back to the server that comes next.

use std::fs::File;
use std::io;
use std::sync::Arc;

use memory::{Access, FileMapping};
use rustix::fs::{MemfdFlags, SealFlags};
use vhost::vhost_user::message::VhostUserInflight;
use virtqueue::inflight::{Log, length};

use crate::guard::Guarded;
use crate::memory_map::Piece;

/// The logs of all queues of a disk, as the VMM keeps them.
#[derive(Debug, Clone)]
pub(crate) struct Logs {
    mapping: Arc<Guarded>,
    skip: usize,
    queues: u16,
    size: u16,
}

/// New memory for so many queues of so many entries.
pub(crate) fn make(queues: u16, size: u16) -> io::Result<(VhostUserInflight, File)> {
    let bytes = u64::try_from(length(size) * usize::from(queues)).unwrap_or(u64::MAX);
    let memory = rustix::fs::memfd_create("cvmio-inflight", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, bytes)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok((VhostUserInflight::new(bytes, 0, queues, size), memory.into()))
}

impl Logs {
    /// Takes what a VMM brings.
    ///
    /// # Errors
    /// When it is no memory of the size that it must have.
    pub(crate) fn new(said: &VhostUserInflight, file: &File) -> io::Result<Self> {
        let (queues, size) = (said.num_queues, said.queue_size);
        let needed = u64::try_from(length(size) * usize::from(queues)).unwrap_or(u64::MAX);
        let there = file.metadata()?.len();
        let fits = said.mmap_offset.checked_add(said.mmap_size).is_some_and(|end| end <= there);
        if said.mmap_size < needed || !fits || !said.mmap_offset.is_multiple_of(2) {
            let message = format!("a log of {} bytes in {there}, where {needed} are needed", said.mmap_size);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let page = said.mmap_offset - said.mmap_offset % 4096;
        let number = |bytes: u64| usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory);
        let whole = number(said.mmap_offset + needed - page)?;
        let mapping = FileMapping::untouched(file, page, whole, Access::ReadWrite)?;
        let (mapping, skip) = (Arc::new(Guarded::new(mapping)?), number(said.mmap_offset - page)?);
        Ok(Self { mapping, skip, queues, size })
    }

    /// Whether the VMM has cut their memory short.
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    /// The log of one queue, if it is one of those that the logs were made for.
    pub(crate) fn of(&self, queue: u16, size: u16) -> Option<Log<Piece>> {
        if queue >= self.queues || size > self.size {
            return None;
        }
        let begin = self.skip + usize::from(queue) * length(self.size);
        Piece::new(self.mapping.clone(), begin..begin + length(size)).map(Log::new)
    }
}
