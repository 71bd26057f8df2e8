//! Subjects whose accesses are known, written by hand: what the instrument must report of them is exact.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;

use memory::Buffer;

use crate::subject::Subject;

/// Bytes that [`MASKED`] reads a second time, as bits.
const MASK: u64 = 0x8000_0000_ff00_000f;
/// A subject that reads with an AVX-512 mask.
pub const MASKED: &str = "masked";
/// A subject that encrypts in place.
pub const IN_PLACE: &str = "in place";

pub fn subject(name: &str) -> Option<Box<dyn Subject>> {
    Some(match name {
        MASKED => Box::new(Masked),
        IN_PLACE => Box::new(InPlace),
        _ => Box::new(Again(name.strip_prefix("again ")?.parse().expect("a number of bytes"))),
    })
}

/// Bytes that [`MASKED`] reads a second time, if this CPU can run it.
pub fn masked_bytes() -> Option<usize> {
    let avx512bw = 1 << 30;
    (__cpuid_count(7, 0).ebx & avx512bw != 0 && is_x86_feature_detected!("avx512bw"))
        .then(|| MASK.count_ones() as usize)
}

/// Copies, and then reads this many bytes again, one by one.
struct Again(usize);

impl Again {
    /// # Safety
    /// `memory` is valid for reads of that many bytes.
    unsafe fn read_again(&self, memory: *const u8) {
        for i in 0..self.0 {
            // SAFETY: i is below that number; a load changes nothing but the register that it names.
            unsafe {
                asm!("mov {}, byte ptr [{}]", out(reg_byte) _, in(reg) memory.add(i), options(nostack, readonly))
            };
        }
    }
}

/// # Safety
/// Both are valid for `len` bytes and don't overlap.
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise; the direction flag is clear, as always between functions.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _, options(nostack))
    };
}

impl Subject for Again {
    fn seal(&self, plaintext: &[u8], out: &mut Buffer) -> [u8; 16] {
        assert!(plaintext.len() <= out.len());
        let out = out.as_mut_ptr();
        // SAFETY: both have as many bytes, and `read_again` is asked for no more than there are.
        unsafe {
            copy(plaintext.as_ptr(), out, plaintext.len());
            self.read_again(out);
        }
        [0; 16]
    }

    fn open(&self, source: &Buffer, _tag: &[u8; 16], out: &mut [u8]) -> bool {
        assert!(out.len() <= source.len());
        let source = source.as_ptr();
        // SAFETY: as above.
        unsafe {
            copy(source, out.as_mut_ptr(), out.len());
            self.read_again(source);
        }
        true
    }
}

/// Copies, and then loads a vector under a mask.
struct Masked;

/// # Safety
/// `memory` is valid for reads of 64 bytes, and the CPU has AVX-512BW.
unsafe fn masked_load(memory: *const u8) {
    // SAFETY: the caller's promise; what is changed is named.
    unsafe {
        asm!("kmovq k1, {mask}", "vmovdqu8 zmm0{{k1}}{{z}}, [{memory}]", "vzeroupper", mask = in(reg) MASK,
            memory = in(reg) memory, out("k1") _, out("zmm0") _, options(nostack, readonly));
    }
}

impl Subject for Masked {
    fn seal(&self, plaintext: &[u8], out: &mut Buffer) -> [u8; 16] {
        assert!(plaintext.len() <= out.len());
        let out = out.as_mut_ptr();
        // SAFETY: both have as many bytes, at least 64; subjects that the CPU cannot run are not run.
        unsafe {
            copy(plaintext.as_ptr(), out, plaintext.len());
            masked_load(out);
        }
        [0; 16]
    }

    fn open(&self, source: &Buffer, _tag: &[u8; 16], out: &mut [u8]) -> bool {
        assert!(out.len() <= source.len());
        let source = source.as_ptr();
        // SAFETY: as above.
        unsafe {
            copy(source, out.as_mut_ptr(), out.len());
            masked_load(source);
        }
        true
    }
}

/// Writes the plaintext to the destination and encrypts it there (with the worst of ciphers).
struct InPlace;

impl Subject for InPlace {
    fn seal(&self, plaintext: &[u8], out: &mut Buffer) -> [u8; 16] {
        assert!(plaintext.len() <= out.len());
        let out = out.as_mut_ptr();
        // SAFETY: both have as many bytes; i is below their number.
        unsafe {
            copy(plaintext.as_ptr(), out, plaintext.len());
            for i in 0..plaintext.len() {
                asm!("xor byte ptr [{}], 0x55", in(reg) out.add(i), options(nostack));
            }
        }
        [0; 16]
    }

    fn open(&self, source: &Buffer, _tag: &[u8; 16], out: &mut [u8]) -> bool {
        assert!(out.len() <= source.len());
        let source = source.as_ptr();
        // SAFETY: both have as many bytes.
        unsafe { copy(source, out.as_mut_ptr(), out.len()) };
        out.iter_mut().for_each(|byte| *byte ^= 0x55);
        true
    }
}
