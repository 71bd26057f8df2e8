//! Writing cache lines back to memory, by what the processor has.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CLWB, CLFLUSHOPT, CLFLUSH, SFENCE; volume 1, section 11.4.4.
//! On aarch64 `dc cvac` and `dsb ish`: to the point of coherency, which persistent memory is behind (Arm ARM, D7.4).

/// The instruction that is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    /// Writes a line back and may keep it in the cache.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// Writes a line back and drops it; ordered by a fence only.
    #[cfg(target_arch = "x86_64")]
    Clflushopt,
    /// Writes a line back and drops it, one after the other.
    #[cfg(target_arch = "x86_64")]
    Clflush,
    /// aarch64: cleans a line to the point of coherency.
    #[cfg(target_arch = "aarch64")]
    DcCvac,
}

const LINE: usize = 64;

impl Instruction {
    /// Those that this processor has, the best one first.
    #[cfg(target_arch = "x86_64")]
    #[must_use]
    pub fn of_this_processor() -> Vec<Instruction> {
        // CPUID leaf 7, subleaf 0, EBX: bit 24 CLWB, bit 23 CLFLUSHOPT. Every x86-64 processor has CLFLUSH.
        let features = std::arch::x86_64::__cpuid_count(7, 0).ebx;
        let all = [(24, Instruction::Clwb), (23, Instruction::Clflushopt)];
        let there = all.into_iter().filter(|(bit, _)| features >> bit & 1 == 1).map(|(_, it)| it);
        there.chain([Instruction::Clflush]).collect()
    }

    /// The one that every aarch64 processor has.
    #[cfg(target_arch = "aarch64")]
    #[must_use]
    pub fn of_this_processor() -> Vec<Instruction> {
        vec![Instruction::DcCvac]
    }

    /// Begins to write back the lines of a range.
    ///
    /// # Safety
    /// The range is mapped memory.
    pub(crate) unsafe fn write_back(self, start: *const u8, len: usize) {
        for line in lines(start, len) {
            // SAFETY: the line has a byte of the range, which is mapped (the caller's promise); the instruction was chosen by what the
            // processor has, and changes neither memory's content nor registers nor flags.
            unsafe { self.line(line) };
        }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn line(self, line: *const u8) {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Instruction::Clwb => {
                    std::arch::asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                Instruction::Clflushopt => {
                    std::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                }
                Instruction::Clflush => {
                    std::arch::asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
                }
            }
        }
    }

    #[cfg(target_arch = "aarch64")]
    unsafe fn line(self, line: *const u8) {
        // SAFETY: the caller's.
        unsafe { std::arch::asm!("dc cvac, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
}

/// The beginnings of the lines that have a byte of a range.
fn lines(start: *const u8, len: usize) -> impl Iterator<Item = *const u8> {
    let before = start.addr() % LINE;
    let first = start.wrapping_sub(before);
    (0..len + before).step_by(LINE).map(move |offset| first.wrapping_add(offset))
}

/// Returns when all lines that were written back before are in memory.
pub fn fence() {
    // SAFETY: a fence changes nothing that the program can see.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("dsb ish", options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That a line reaches memory no program can see; that each instruction runs here and leaves the content alone it can.
    #[test]
    fn content_stays_whatever_instruction_is_used() {
        for instruction in Instruction::of_this_processor() {
            let memory: Vec<u8> = (0..=255).cycle().take(1000).collect();
            // SAFETY: the vector's memory is mapped.
            unsafe { instruction.write_back(memory.as_ptr().wrapping_add(3), 900) };
            fence();
            assert!(memory.iter().enumerate().all(|(i, byte)| i % 256 == usize::from(*byte)));
        }
    }

    #[test]
    fn the_lines_of_a_range_are_those_that_have_a_byte_of_it() {
        let lines = |start: usize, len| -> Vec<usize> {
            lines(std::ptr::without_provenance(start), len).map(|line| line.addr()).collect()
        };
        assert_eq!(lines(64, 64), [64]);
        assert_eq!(lines(64, 65), [64, 128]);
        assert_eq!(lines(127, 1), [64]);
        assert_eq!(lines(127, 2), [64, 128]);
        assert_eq!(lines(72, 8), [64]);
        assert!(lines(4096, 4096).len() == 64 && lines(4104, 4096).len() == 65);
    }
}
