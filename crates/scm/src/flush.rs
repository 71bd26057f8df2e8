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
    /// The best one that this processor has.
    #[cfg(target_arch = "x86_64")]
    pub fn of_this_processor() -> Instruction {
        // CPUID leaf 7, subleaf 0, EBX: bit 24 CLWB, bit 23 CLFLUSHOPT.
        let features = std::arch::x86_64::__cpuid_count(7, 0).ebx;
        if features >> 24 & 1 == 1 {
            Instruction::Clwb
        } else if features >> 23 & 1 == 1 {
            Instruction::Clflushopt
        } else {
            Instruction::Clflush
        }
    }

    /// The one that every aarch64 processor has.
    #[cfg(target_arch = "aarch64")]
    pub fn of_this_processor() -> Instruction {
        Instruction::DcCvac
    }

    /// Begins to write back the lines of a range.
    ///
    /// # Safety
    /// The range is mapped memory.
    pub unsafe fn write_back(self, start: *const u8, len: usize) {
        let first = start.addr() % LINE;
        for offset in (0..len + first).step_by(LINE) {
            let line = start.wrapping_sub(first).wrapping_add(offset);
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
        #[cfg(target_arch = "x86_64")]
        let all = [Instruction::of_this_processor(), Instruction::Clflush];
        #[cfg(target_arch = "aarch64")]
        let all = [Instruction::of_this_processor()];
        for instruction in all {
            let memory: Vec<u8> = (0..=255).cycle().take(1000).collect();
            // SAFETY: the vector's memory is mapped.
            unsafe { instruction.write_back(memory.as_ptr().wrapping_add(3), 900) };
            fence();
            assert!(memory.iter().enumerate().all(|(i, byte)| i % 256 == usize::from(*byte)));
        }
    }
}
