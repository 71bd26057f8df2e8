//! The CPU that a library is made to see: this one, with features hidden.
//!
//! Three ways to hide, one for each who asks: aws-lc and OpenSSL read `OPENSSL_ia32cap`, the C library reads
//! `GLIBC_TUNABLES`, and whoever executes CPUID while it is stepped through gets a changed answer. What was
//! really executed is checked afterwards.

use iced_x86::CpuidFeature::{
    self, AES, AVX, AVX2, AVX512BW, AVX512F, AVX512VL, PCLMULQDQ, VAES, VPCLMULQDQ,
};
use libc::user_regs_struct as Registers;

/// CPUID's bits that are hidden.
#[derive(Clone, Copy)]
pub struct Cpu {
    pub name: &'static str,
    /// Bytes that are sealed and opened.
    pub size: usize,
    leaf1_ecx: u32,
    leaf7_ebx: u32,
    leaf7_ecx: u32,
    /// The C library's names for the same.
    tunables: &'static str,
    /// What must not be executed then.
    hidden: &'static [CpuidFeature],
}

const fn bits(numbers: &[u32]) -> u32 {
    let mut all = 0;
    let mut i = 0;
    while i < numbers.len() {
        all |= 1 << numbers[i];
        i += 1;
    }
    all
}

const AVX512_EBX: u32 = bits(&[16, 17, 21, 28, 30, 31]);
const AVX512_ECX: u32 = bits(&[1, 6, 9, 10, 11, 12, 14]);
const AVX2_EBX: u32 = AVX512_EBX | bits(&[5]);
const AVX_ECX: u32 = bits(&[12, 28]);
const AES_ECX: u32 = AVX_ECX | bits(&[1, 25]);

pub const ALL: [Cpu; 4] = [
    Cpu {
        name: "all features",
        size: 4096,
        leaf1_ecx: 0,
        leaf7_ebx: 0,
        leaf7_ecx: 0,
        tunables: "",
        hidden: &[],
    },
    // AMD Milan, say.
    Cpu {
        name: "no AVX-512, VAES",
        size: 4096,
        leaf1_ecx: 0,
        leaf7_ebx: AVX512_EBX,
        leaf7_ecx: AVX512_ECX,
        tunables: "-AVX512F,-AVX512VL,-AVX512BW",
        hidden: &[AVX512F, AVX512VL, AVX512BW, VAES, VPCLMULQDQ],
    },
    Cpu {
        name: "no AVX",
        size: 4096,
        leaf1_ecx: AVX_ECX,
        leaf7_ebx: AVX2_EBX,
        leaf7_ecx: AVX512_ECX,
        tunables: "-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX,-AVX_Fast_Unaligned_Load",
        hidden: &[AVX512F, AVX512VL, AVX512BW, VAES, VPCLMULQDQ, AVX, AVX2],
    },
    // Software takes hundreds of instructions for a byte, and so a short block.
    Cpu {
        name: "no AVX, AES-NI",
        size: 256,
        leaf1_ecx: AES_ECX,
        leaf7_ebx: AVX2_EBX,
        leaf7_ecx: AVX512_ECX,
        tunables: "-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX,-AVX_Fast_Unaligned_Load",
        hidden: &[AVX512F, AVX512VL, AVX512BW, VAES, VPCLMULQDQ, AVX, AVX2, AES, PCLMULQDQ],
    },
];

impl Cpu {
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let extended = u64::from(self.leaf7_ecx) << 32 | u64::from(self.leaf7_ebx);
        let masks = format!("~0x{:x}:~0x{extended:x}", u64::from(self.leaf1_ecx) << 32);
        let tunables = format!("glibc.cpu.hwcaps={}", self.tunables);
        vec![("OPENSSL_ia32cap", masks), ("GLIBC_TUNABLES", tunables)]
    }

    /// Hides the features from whoever has just asked with these values of eax and ecx.
    pub fn hide(&self, leaf: u64, subleaf: u64, answer: &mut Registers) {
        match (leaf & 0xffff_ffff, subleaf & 0xffff_ffff) {
            (1, _) => answer.rcx &= !u64::from(self.leaf1_ecx),
            (7, 0) => {
                answer.rbx &= !u64::from(self.leaf7_ebx);
                answer.rcx &= !u64::from(self.leaf7_ecx);
            }
            _ => {}
        }
    }

    /// How often a block is sealed or opened. The first time, libraries also prepare themselves.
    pub fn rounds(&self) -> usize {
        if self.hidden.is_empty() { 2 } else { 1 }
    }

    /// Whether `cipher` has an implementation for this CPU. (Without AVX, libaegis does without AES-NI, too.)
    pub fn concerns(&self, cipher: &str) -> bool {
        let without_avx = self.hides(AVX) && !self.hides(AES);
        !(without_avx && cipher.starts_with("aegis"))
    }

    pub fn hides(&self, feature: CpuidFeature) -> bool {
        self.hidden.contains(&feature)
    }
}
