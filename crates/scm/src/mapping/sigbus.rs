//! What happens when memory behind a mapping is gone: a note, instead of the process's end.
//!
//! The handler looks the address up in a fixed table, puts anonymous zeros over the page that failed, so that the access ends, and notes the
//! first offset. The mapping looks at the note behind each access. An address that is none of ours gets the default: the process ends.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Mappings at a time.
const SLOTS: usize = 16;
const NONE: usize = usize::MAX;

struct Slot {
    /// Zero if the slot is free.
    base: AtomicUsize,
    len: AtomicUsize,
    granule: AtomicUsize,
    /// The first offset that was lost, or [`NONE`].
    lost: AtomicUsize,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        base: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        granule: AtomicUsize::new(0),
        lost: AtomicUsize::new(NONE),
    }
}; SLOTS];

/// A mapping in the table.
#[derive(Debug)]
pub(super) struct Watched(usize);

impl Watched {
    /// Enters a mapping, and installs the handler once.
    ///
    /// # Errors
    /// If the handler cannot be installed, or the table is full.
    pub(super) fn new(base: usize, len: usize, granule: u64) -> io::Result<Watched> {
        static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
        INSTALLED.get_or_init(install).map_err(io::Error::from_raw_os_error)?;
        for (index, slot) in TABLE.iter().enumerate() {
            // `len` stays zero until all is there, so the handler does not take a half-made slot for one.
            if slot.base.compare_exchange(0, base, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                slot.granule.store(usize::try_from(granule).unwrap_or(4096), Ordering::Relaxed);
                slot.lost.store(NONE, Ordering::Relaxed);
                slot.len.store(len, Ordering::Release);
                return Ok(Watched(index));
            }
        }
        Err(io::Error::new(io::ErrorKind::OutOfMemory, format!("more than {SLOTS} regions are mapped")))
    }

    /// The first offset that was lost.
    pub(super) fn lost(&self) -> Option<u64> {
        let lost = TABLE[self.0].lost.load(Ordering::Acquire);
        (lost != NONE).then_some(lost as u64)
    }

    /// Takes the mapping out of the table.
    pub(super) fn forget(&self) {
        let slot = &TABLE[self.0];
        slot.len.store(0, Ordering::Release);
        slot.base.store(0, Ordering::Release);
    }
}

fn install() -> Result<(), i32> {
    // SAFETY: all-zero is a valid sigaction: no handler, an empty mask, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction =
        handle as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and does only what a handler may.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands in a valid siginfo of a SIGBUS, which has an address.
    let address = unsafe { (*info).si_addr() }.addr();
    for slot in &TABLE {
        let (base, len) = (slot.base.load(Ordering::Acquire), slot.len.load(Ordering::Acquire));
        if base == 0 || len == 0 || address.wrapping_sub(base) >= len {
            continue;
        }
        let granule = slot.granule.load(Ordering::Relaxed);
        let page = (address - base) / granule * granule;
        let _ = slot.lost.compare_exchange(NONE, page, Ordering::AcqRel, Ordering::Relaxed);
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let place = std::ptr::without_provenance_mut(base + page);
        // SAFETY: the page lies in a mapping of ours, whose content there is gone; no reference to it exists anywhere.
        if unsafe { libc::mmap(place, granule, protection, flags, -1, 0) } != libc::MAP_FAILED {
            return;
        }
    }
    // SAFETY: back to the default; the access fails again, and ends the process as it would have without us.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}
