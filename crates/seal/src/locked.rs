//! Memory for secrets: locked against swapping (in a CVM, swap lies on the host's disk), left out of
//! core dumps, zeroised when it is given back.
//!
//! RLIMIT_MEMLOCK may be as small as 64 KiB, so keys share locked chunks, cut into slots of 64 bytes.
//! Only longer secrets have a mapping of their own, and aws-lc has chunks for itself (`heap.rs`). If locking
//! fails, the secret still works; the failure is counted, and [`crate::hygiene::locking`] reports it.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use zeroize::Zeroize;

const SLOT_SIZE: usize = 64;
const CHUNK_SIZE: usize = 16 * 1024;

/// Bytes mapped for secrets that could not be locked, now.
static UNLOCKED: AtomicU64 = AtomicU64::new(0);
/// Free slots. Chunks are never unmapped: the free slots of today are the keys of the next epoch.
static FREE: Mutex<Vec<Slot>> = Mutex::new(Vec::new());

/// Bytes of secrets that could not be locked into memory, now.
pub(crate) fn unlocked() -> u64 {
    UNLOCKED.load(Ordering::Relaxed)
}

/// A piece of a mapping that stays for good.
pub(crate) struct Slot(pub(crate) NonNull<u8>);

// SAFETY: a Slot owns its bytes alone; nothing in it depends on the thread.
unsafe impl Send for Slot {}

/// `len` private bytes, zero at first and zeroised on drop.
pub(crate) struct Locked {
    start: NonNull<u8>,
    len: usize,
    /// The mapping to give back; `None` if the bytes are a slot of a shared chunk.
    mapping: Option<Mapping>,
}

// SAFETY: Locked owns its bytes alone, like a Box<[u8]>; access goes through &self and &mut self only.
unsafe impl Send for Locked {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for Locked {}

impl Locked {
    /// # Panics
    /// If the system has no memory left for a few pages.
    pub(crate) fn zeroed(len: usize) -> Locked {
        if len > SLOT_SIZE {
            let mapping = Mapping::new(len).expect("the system has memory for a few pages of secrets");
            return Locked { start: mapping.start, len, mapping: Some(mapping) };
        }
        Locked { start: take_slot().0, len, mapping: None }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: start..start+len is mapped, initialised and ours while self lives; &self excludes
        // bytes_mut.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and &mut self excludes any other access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Keeps the first `len` bytes and zeroises the others.
    pub(crate) fn truncate(&mut self, len: usize) {
        assert!(len <= self.len);
        self.bytes_mut()[len..].zeroize();
        self.len = len;
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.bytes_mut().zeroize();
        if self.mapping.is_none() {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).push(Slot(self.start));
        }
    }
}

fn take_slot() -> Slot {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if free.is_empty() {
        let chunk = Mapping::new(CHUNK_SIZE).expect("the system has memory for a few pages of keys");
        free.extend(std::mem::ManuallyDrop::new(chunk).slots(SLOT_SIZE));
    }
    free.pop().expect("a chunk has just been added")
}

/// An anonymous mapping, zero at first, locked if the system allows.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    size: usize,
    locked: bool,
}

// SAFETY: the address of memory that belongs to no thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// At least `len` bytes; `None` if the system has no memory left.
    pub(crate) fn new(len: usize) -> Option<Mapping> {
        let size = len.checked_next_multiple_of(rustix::param::page_size())?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice overlaps nothing.
        let address =
            unsafe { mmap_anonymous(std::ptr::null_mut(), size, access, MapFlags::PRIVATE) }.ok()?;
        // The kernel never maps address 0 unasked.
        let start = NonNull::new(address)?;
        // SAFETY: both calls name exactly the mapping made above, and change none of its content.
        let locked = unsafe {
            // Refused only by kernels older than 3.4; hygiene::protect_process turns dumps off too.
            let _ = madvise(address, size, Advice::LinuxDontDump);
            mlock(address, size).is_ok()
        };
        if !locked {
            UNLOCKED.fetch_add(size as u64, Ordering::Relaxed);
        }
        Some(Mapping { start: start.cast(), size, locked })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Cut into pieces of `size` bytes, for somebody who never unmaps it.
    pub(crate) fn slots(&self, size: usize) -> impl Iterator<Item = Slot> {
        let start = self.start;
        // SAFETY: each piece ends inside the mapping.
        (0..self.size / size).map(move |at| Slot(unsafe { start.add(at * size) }))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and size are those of our own mapping; its owner is being dropped, so that no
        // reference into it is left.
        let result = unsafe { munmap(self.start.as_ptr().cast(), self.size) };
        debug_assert!(result.is_ok());
        if !self.locked {
            UNLOCKED.fetch_sub(self.size as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of /proc/self/smaps for the mapping that holds `address`.
    fn mapping_of(address: usize) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        let mut found = String::new();
        for line in smaps.lines() {
            let range = line.split(' ').next().and_then(|word| word.split_once('-'));
            let bound = |text| usize::from_str_radix(text, 16);
            if let Some((Ok(start), Ok(end))) = range.map(|(a, b)| (bound(a), bound(b))) {
                inside = (start..end).contains(&address);
            }
            if inside {
                found.push_str(line);
                found.push('\n');
            }
        }
        found
    }

    #[test]
    fn slots_are_zeroised_reused_and_apart() {
        let mut a = Locked::zeroed(32);
        let b = Locked::zeroed(64);
        a.bytes_mut().fill(0xAA);
        assert_eq!(b.bytes(), [0; 64]);
        let distance = a.start.as_ptr().addr().abs_diff(b.start.as_ptr().addr());
        assert!(distance >= SLOT_SIZE);
        drop(a);
        // Whichever slot comes next, none may hold old bytes.
        let all: Vec<Locked> = (0..600).map(|_| Locked::zeroed(64)).collect();
        assert!(all.iter().all(|slot| slot.bytes() == [0; 64]));
    }

    #[test]
    fn key_memory_is_locked_and_not_dumped() {
        for len in [32, 10_000] {
            let memory = Locked::zeroed(len);
            let fields = mapping_of(memory.start.as_ptr().addr());
            let flags = fields.lines().find(|line| line.starts_with("VmFlags")).expect("smaps has flags");
            assert!(flags.contains(" dd"), "not excluded from dumps: {flags}");
            // A system that refuses to lock (RLIMIT_MEMLOCK) is reported, never passed over.
            assert!(flags.contains(" lo") || unlocked() > 0, "neither locked nor reported: {flags}");
        }
    }

    #[test]
    fn truncate_zeroises_the_tail() {
        let mut memory = Locked::zeroed(5000);
        memory.bytes_mut().fill(7);
        memory.truncate(10);
        assert_eq!(memory.bytes(), [7; 10]);
        memory.len = 5000;
        assert!(memory.bytes()[10..].iter().all(|byte| *byte == 0));
    }
}
