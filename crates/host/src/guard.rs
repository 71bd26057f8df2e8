//! Memory that its owner may cut short while we use it.
//!
//! The kernel answers an access behind the end of a mapped file with `SIGBUS`. The handler looks whether the address is in a guarded mapping, puts
//! empty private memory in its place so that the access can end, and marks it lost. Whoever uses the mapping looks at the mark before it
//! believes what it has read, and after it has written.

use std::io;
use std::mem;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use libc::{c_int, c_void, siginfo_t};
use memory::FileMapping;

/// Most mappings at a time.
const MOST: usize = 4096;

/// What the handler knows of a mapping. It may not lock, nor allocate.
struct Slot {
    is_taken: AtomicBool,
    /// Odd while the next two are being changed, and another number after each change: base and length that were read under one even number
    /// belong together.
    version: AtomicUsize,
    base: AtomicUsize,
    /// 0 while there is no mapping.
    length: AtomicUsize,
    is_lost: AtomicBool,
}

static SLOTS: [Slot; MOST] = [const {
    Slot {
        is_taken: AtomicBool::new(false),
        version: AtomicUsize::new(0),
        base: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        is_lost: AtomicBool::new(false),
    }
}; MOST];

/// A mapping whose loss is noticed.
#[derive(Debug)]
pub struct Guarded {
    mapping: FileMapping,
    slot: &'static Slot,
}

impl Slot {
    /// For the slot's owner alone.
    fn set(&self, base: usize, length: usize) {
        self.version.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.base.store(base, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Base and length, if nobody changes them just now. A slot whose mapping faults does not change: its user keeps it.
    fn get(&self) -> Option<(usize, usize)> {
        let before = self.version.load(Ordering::Acquire);
        let found = (self.base.load(Ordering::Relaxed), self.length.load(Ordering::Relaxed));
        fence(Ordering::SeqCst);
        (before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before).then_some(found)
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "lost: {}", self.is_lost.load(Ordering::Relaxed))
    }
}

impl Guarded {
    /// Guards a mapping.
    ///
    /// # Errors
    /// When there are too many, or the handler cannot be installed.
    pub fn new(mapping: FileMapping) -> io::Result<Self> {
        install()?;
        let free = SLOTS.iter().find(|slot| !slot.is_taken.swap(true, Ordering::AcqRel));
        let slot = free.ok_or_else(|| io::Error::other("more than 4096 pieces of guests' memory"))?;
        slot.is_lost.store(false, Ordering::Relaxed);
        slot.set(mapping.as_ptr().addr(), mapping.len());
        Ok(Self { mapping, slot })
    }

    /// The mapping.
    #[must_use]
    pub fn mapping(&self) -> &FileMapping {
        &self.mapping
    }

    /// Whether an access found no memory. What was read since then means nothing.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.slot.is_lost.load(Ordering::Acquire)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.slot.set(0, 0);
        self.slot.is_taken.store(false, Ordering::Release);
    }
}

fn install() -> io::Result<()> {
    static ONCE: Once = Once::new();
    static FAILED: AtomicBool = AtomicBool::new(false);
    ONCE.call_once(|| {
        // SAFETY: all zero is a valid sigaction, and every field that matters is set below. The handler makes only system calls and atomic
        // accesses, which a signal handler may.
        let result = unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut())
        };
        FAILED.store(result != 0, Ordering::Release);
    });
    match FAILED.load(Ordering::Acquire) {
        true => Err(io::Error::other("the handler of SIGBUS cannot be installed")),
        false => Ok(()),
    }
}

extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel hands over a valid siginfo, and for SIGBUS it has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    for slot in &SLOTS {
        let Some((base, length)) = slot.get() else { continue };
        if address.wrapping_sub(base) < length {
            slot.is_lost.store(true, Ordering::Release);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            let at = ptr::with_exposed_provenance_mut(base);
            // SAFETY: the range is a mapping of ours, which is known by address only and stays mapped until its owner has given the slot
            // back; its content is the other side's, so another content is no surprise to anybody.
            let put = unsafe { libc::mmap(at, length, protection, flags, -1, 0) };
            if put != libc::MAP_FAILED {
                return;
            }
        }
    }
    // Not ours, or hopeless: as if there were no handler, at the next try of the same access.
    // SAFETY: restores what was there at the start of the process.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use memory::Access;

    #[test]
    fn memory_that_is_cut_short_is_lost_and_nobody_dies() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let guard =
            || Guarded::new(FileMapping::untouched(&file, 0, 8192, Access::ReadWrite).unwrap()).unwrap();
        let (short, other) = (guard(), guard());
        short.mapping().store_u16(4096, 7);
        assert!(!short.is_lost());
        file.set_len(4096).unwrap();
        assert_eq!(short.mapping().load_u16(4096), 0);
        assert!(short.is_lost() && !other.is_lost());
        other.mapping().store_u16(8190, 7);
        assert!(other.is_lost());
        drop((short, other));
        assert!(!guard().is_lost(), "a slot is used again");
    }
}
