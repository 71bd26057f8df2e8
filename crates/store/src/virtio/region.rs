//! The region: memory that we make, share with the host, and never take for our own.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use memory::{Access, BLOCK_SIZE, Buffer, FileMapping};
use rustix::fs::{MemfdFlags, SealFlags};
use vhost::VhostUserMemoryRegionInfo;
use virtqueue::Area;

/// Most entries of a queue.
pub(super) const MOST_ENTRIES: u16 = 1024;
/// What a queue takes in front of all data: its three rings, and a slot for each request.
const OF_QUEUE: usize = 64 << 10;
const AVAILABLE: usize = 16 << 10;
const USED: usize = 20 << 10;
const SLOTS: usize = 32 << 10;
/// Bytes of a slot: a header at 0, a status at 16.
const SLOT: usize = 64;
pub(super) const STATUS: usize = 16;
pub(super) const MOST_SLOTS: usize = (OF_QUEUE - SLOTS) / SLOT;

const _: () =
    assert!(16 * MOST_ENTRIES as usize <= AVAILABLE && 6 + 2 * (MOST_ENTRIES as usize) <= USED - AVAILABLE);
const _: () = assert!(6 + 8 * MOST_ENTRIES as usize <= SLOTS - USED);

/// Memory of the session.
#[derive(Debug)]
pub(super) struct Region {
    file: OwnedFd,
    mapping: Arc<FileMapping>,
    /// Pieces for data that nobody has: where, and how long.
    free: Mutex<BTreeMap<usize, usize>>,
}

impl Region {
    /// New memory for so many queues, and so many bytes of data.
    pub(super) fn new(queues: u16, data: usize) -> io::Result<Self> {
        let head = usize::from(queues) * OF_QUEUE;
        let data = data - data % BLOCK_SIZE;
        let length = head.checked_add(data).ok_or(io::ErrorKind::OutOfMemory)?;
        let size = u64::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let file = rustix::fs::memfd_create("cvmio-region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, size)?;
        // The host has it, too, and could cut it short under us.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = FileMapping::untouched(&file, 0, length, Access::ReadWrite)?;
        let free = if data > 0 { BTreeMap::from([(head, data)]) } else { BTreeMap::new() };
        Ok(Self { file, mapping: Arc::new(mapping), free: Mutex::new(free) })
    }

    /// As the host is told of it.
    pub(super) fn told(&self, base: u64) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: base,
            memory_size: u64::try_from(self.mapping.len()).unwrap_or(0),
            userspace_addr: base,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    /// Makes the rings of a queue zero. Says where descriptors, available and used ring lie.
    pub(super) fn clear(&self, queue: usize) -> [usize; 3] {
        let begin = queue * OF_QUEUE;
        self.mapping.copy_from(begin, &[0; OF_QUEUE]);
        [begin, begin + AVAILABLE, begin + USED]
    }

    /// Where the slot of a request lies.
    pub(super) fn slot(queue: usize, number: usize) -> usize {
        queue * OF_QUEUE + SLOTS + SLOT * number
    }

    pub(super) fn piece(&self, offset: usize, length: usize) -> Piece {
        Piece { mapping: self.mapping.clone(), offset, length }
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        self.mapping.copy_from(offset, bytes);
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        self.mapping.copy_to(offset, into);
    }

    /// Takes so many blocks for data, if they lie there together.
    pub(super) fn lease(self: &Arc<Self>, blocks: usize) -> Option<Lease> {
        let length = blocks.checked_mul(BLOCK_SIZE).filter(|length| *length > 0)?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (&offset, &there) = free.iter().find(|(_, there)| **there >= length)?;
        free.remove(&offset);
        if there > length {
            free.insert(offset + length, there - length);
        }
        Some(Lease { region: self.clone(), offset, length })
    }

    /// Where a buffer lies, if it is a piece of this region.
    pub(super) fn offset_of(&self, buffer: &Buffer) -> Option<usize> {
        let offset = buffer.as_ptr().addr().checked_sub(self.mapping.as_ptr().addr())?;
        (buffer.is_shared() && offset.checked_add(buffer.len())? <= self.mapping.len()).then_some(offset)
    }
}

/// A piece of the region for data; it goes back when this is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    region: Arc<Region>,
    offset: usize,
    length: usize,
}

impl Lease {
    pub(super) fn offset(&self) -> usize {
        self.offset
    }

    /// The piece as a buffer in shared memory.
    pub(super) fn into_buffer(self) -> Buffer {
        let start = self.region.mapping.as_ptr().wrapping_add(self.offset);
        let start = NonNull::new(start).expect("a mapping does not begin at zero");
        let length = self.length;
        // SAFETY: inside the mapping, which the lease keeps; initialised by the kernel; nobody else in this process has the piece until the
        // lease is dropped. The host may write it: that is what `shared` says.
        unsafe { Buffer::from_raw(start, length, true, Box::new(self)) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut free = self.region.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut offset, mut length) = (self.offset, self.length);
        if let Some((&before, &there)) = free.range(..offset).next_back()
            && before + there == offset
        {
            free.remove(&before);
            (offset, length) = (before, length + there);
        }
        if let Some(behind) = free.remove(&(offset + length)) {
            length += behind;
        }
        free.insert(offset, length);
    }
}

/// A part of the region that holds a ring.
#[derive(Debug)]
pub(super) struct Piece {
    mapping: Arc<FileMapping>,
    offset: usize,
    length: usize,
}

impl Area for Piece {
    fn size(&self) -> usize {
        self.length
    }

    fn load(&self, offset: usize) -> u16 {
        self.mapping.load_u16(self.offset + offset)
    }

    fn store(&self, offset: usize, value: u16) {
        self.mapping.store_u16(self.offset + offset, value);
    }

    fn read(&self, offset: usize, into: &mut [u8]) {
        self.mapping.copy_to(self.offset + offset, into);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.mapping.copy_from(self.offset + offset, bytes);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_back_and_grow_together() {
        let region = Arc::new(Region::new(1, 16 * BLOCK_SIZE).unwrap());
        let all: Vec<Lease> = (0..4).map(|_| region.lease(4).unwrap()).collect();
        assert!(region.lease(1).is_none() && region.lease(0).is_none());
        let [a, b, c, d] = <[Lease; 4]>::try_from(all).unwrap();
        drop((b, d));
        assert!(region.lease(5).is_none(), "they do not lie together");
        drop(c);
        let buffer = region.lease(12).unwrap().into_buffer();
        assert!(buffer.is_shared() && region.offset_of(&buffer).is_some());
        drop((a, buffer));
        assert!(region.lease(16).is_some());
        assert_eq!(region.offset_of(&Buffer::private_zeroed(1)), None);
    }
}
