//! Raw accesses to memory that another security domain may read and write at any time.

/// Copies `len` bytes. Each is loaded once and stored once, by instructions that the compiler neither
/// repeats nor leaves out.
///
/// `memcpy` promises no such thing, and the C library's loads the first bytes of a block twice.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, they don't overlap, and no Rust reference
/// covers the one of them that is shared. The private side is initialised, and nobody else uses it meanwhile.
#[cfg(target_arch = "x86_64")]
pub unsafe fn copy_once(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the words and the bytes behind them are `len` bytes on both sides (the caller's promise); the
    // direction flag is clear, as everywhere between instructions of Rust's.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            "mov ecx, {rest:e}",
            "rep movsb",
            rest = in(reg) len % 8,
            inout("rcx") len / 8 => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `len` bytes. Each is loaded once and stored once, by instructions that the compiler neither
/// repeats nor leaves out.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, they don't overlap, and no Rust reference
/// covers the one of them that is shared. The private side is initialised, and nobody else uses it meanwhile.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy_once(from: *const u8, to: *mut u8, len: usize) {
    let aligned = from.addr().is_multiple_of(8) && to.addr().is_multiple_of(8);
    let words = if aligned { len / 8 } else { 0 };
    for i in 0..words {
        // SAFETY: word i lies within the `len` bytes on both sides, and both are aligned.
        unsafe { to.cast::<u64>().add(i).write_volatile(from.cast::<u64>().add(i).read_volatile()) };
    }
    for i in words * 8..len {
        // SAFETY: i < len.
        unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
    }
}

/// Asks for the cache lines of memory that is to be written soon, at most 8 KiB of it. It is only a hint: any address will do, it never
/// faults, and it changes nothing.
pub fn prefetch_for_writing(start: *mut u8, len: usize) {
    /// More than this would push out of L1 what the caller is working on.
    const MOST: usize = 8 * 1024;
    for offset in (0..len.min(MOST)).step_by(64) {
        let line = start.wrapping_add(offset);
        // SAFETY: a prefetch touches neither memory nor registers nor flags that the program can see.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn just_the_bytes_are_copied_whatever_the_alignment() {
        let from: Vec<u8> = (1..=200).collect();
        for (skip, len) in (0..9).flat_map(|skip| (0..100).map(move |len| (skip, len))) {
            let mut to = [0; 200];
            // SAFETY: both have more than skip + len bytes.
            unsafe { copy_once(from.as_ptr().add(skip), to.as_mut_ptr().add(8), len) };
            assert_eq!(to[8..8 + len], from[skip..skip + len]);
            assert!(to[..8].iter().chain(&to[8 + len..]).all(|byte| *byte == 0));
        }
    }
}
