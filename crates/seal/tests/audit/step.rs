//! Single-stepping: every access to the shared page, seen one instruction at a time.

use std::collections::HashMap;

use iced_x86::{
    CpuidFeature, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
    UsedMemory,
};
use libc::user_regs_struct as Registers;
use memory::FileMapping;

use crate::cpu::Cpu;
use crate::page::{self, Block, SIZE};
use crate::subject::{Work, plaintext, subject};
use crate::tracer::{Refused, Tracee};

/// What is in the page before something is sealed there.
const BEFORE: Block = [0xEE; SIZE];

/// What one round did to the shared page.
pub struct Round {
    pub steps: usize,
    /// How often each byte was loaded and stored.
    loads: Vec<u32>,
    stores: Vec<u32>,
    /// Each value that a store left, and where.
    left: Vec<(usize, u8)>,
    /// What the page holds at the end.
    end: Block,
}

fn bytes(counts: &[u32], which: impl Fn(u32) -> bool) -> usize {
    counts.iter().filter(|count| which(**count)).count()
}

impl Round {
    /// Bytes that were loaded at all: of a destination, bytes that were read back.
    pub fn loaded(&self) -> usize {
        bytes(&self.loads, |count| count > 0)
    }

    pub fn loaded_twice(&self) -> usize {
        bytes(&self.loads, |count| count > 1)
    }

    pub fn stored(&self) -> usize {
        bytes(&self.stores, |count| count > 0)
    }

    /// Bytes that held, for a time, something that was not there at the end.
    pub fn held_other(&self) -> usize {
        let mut other = [false; SIZE];
        self.left.iter().for_each(|(at, value)| other[*at] |= self.end[*at] != *value);
        other.iter().filter(|other| **other).count()
    }
}

/// Lets a subject seal or open, as often as `cpu` wants it, and watches.
pub fn step_through(name: &str, work: Work, cpu: &Cpu) -> Result<Vec<Round>, Refused> {
    let subject = subject(name).map_err(Refused)?;
    let file = page::file();
    let page = page::mapping(&file);
    page.copy_from(0, &BEFORE);
    let tag = subject.seal(&plaintext()[..cpu.size], &mut page::shared(&file));
    let ciphertext = read(&page);
    let mut tracee = Tracee::start(name, work, cpu, &file, tag)?;
    let mut code = HashMap::new();
    let mut rounds = Vec::new();
    // First, libraries look at the CPU.
    step_round(&mut tracee, &mut code, cpu, &page);
    assert_eq!(tracee.go_on(), None, "{name}: ended before the first round");
    loop {
        page.copy_from(0, if work == Work::Seal { &BEFORE } else { &ciphertext });
        rounds.push(step_round(&mut tracee, &mut code, cpu, &page));
        assert!(read(&page) == ciphertext, "{name}: sealed to something else");
        if let Some(said) = tracee.go_on() {
            assert_eq!(said, tag, "{name}: another tag");
            assert_eq!(rounds.len(), cpu.rounds());
            return Ok(rounds);
        }
    }
}

/// What the page holds now.
fn read(page: &FileMapping) -> Block {
    let mut block = [0; SIZE];
    page.copy_to(0, &mut block);
    block
}

fn byte(page: &FileMapping, at: usize) -> u8 {
    let mut byte = [0];
    page.copy_to(at, &mut byte);
    byte[0]
}

fn step_round(tracee: &mut Tracee, code: &mut HashMap<u64, Op>, cpu: &Cpu, page: &FileMapping) -> Round {
    let mut registers = tracee.registers();
    let start = registers.rdi;
    let mut round =
        Round { steps: 0, loads: vec![0; SIZE], stores: vec![0; SIZE], left: Vec::new(), end: [0; SIZE] };
    loop {
        let op = code
            .entry(registers.rip)
            .or_insert_with(|| Op::decode(&tracee.code(registers.rip), registers.rip));
        if op.marker {
            tracee.step();
            round.end = read(page);
            return round;
        }
        assert!(!op.features.iter().any(|feature| cpu.hides(*feature)), "{}: {}", cpu.name, op.text());
        let stored = op.accesses(&registers, start, tracee, &mut round);
        tracee.step();
        round.steps += 1;
        round.left.extend(stored.map(|at| (at, byte(page, at))));
        let before = std::mem::replace(&mut registers, tracee.registers());
        if op.instruction.mnemonic() == Mnemonic::Cpuid {
            cpu.hide(before.rax, before.rcx, &mut registers);
            tracee.set_registers(&registers);
        }
    }
}

/// One instruction of the tracee.
struct Op {
    marker: bool,
    instruction: Instruction,
    memory: Vec<UsedMemory>,
    features: Vec<CpuidFeature>,
}

impl Op {
    fn decode(bytes: &[u8], address: u64) -> Op {
        let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
        assert!(!instruction.is_invalid(), "the decoder does not know {bytes:02x?}");
        let touches = |memory: &&UsedMemory| memory.access() != OpAccess::NoMemAccess;
        Op {
            marker: Tracee::at_marker(bytes),
            memory: InstructionInfoFactory::new()
                .info(&instruction)
                .used_memory()
                .iter()
                .filter(touches)
                .copied()
                .collect(),
            features: instruction.cpuid_features().to_vec(),
            instruction,
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        iced_x86::FastFormatter::new().format(&self.instruction, &mut text);
        text
    }

    /// Counts what the instruction is about to do to the page at `start`, and says where it stores.
    fn accesses(
        &self,
        registers: &Registers,
        start: u64,
        tracee: &Tracee,
        round: &mut Round,
    ) -> std::vec::IntoIter<usize> {
        let mut stored = Vec::new();
        let idle = self.instruction.has_rep_prefix()
            && self.instruction.is_string_instruction()
            && registers.rcx == 0;
        for memory in self.memory.iter().filter(|_| !idle) {
            for at in self.touched(memory, registers, start, tracee) {
                let (loads, stores) = directions(memory.access());
                if loads {
                    round.loads[at] += 1;
                }
                if stores {
                    round.stores[at] += 1;
                    stored.push(at);
                }
            }
        }
        stored.into_iter()
    }

    /// The offsets in the page that an operand covers.
    fn touched(&self, memory: &UsedMemory, registers: &Registers, start: u64, tracee: &Tracee) -> Vec<usize> {
        assert_eq!(memory.vsib_size(), 0, "scattered accesses are not understood: {}", self.text());
        let address = memory.virtual_address(0, |register, _, _| value(registers, register));
        let address = address.unwrap_or_else(|| panic!("no address for {}", self.text()));
        let page = start..start + SIZE as u64;
        // One turn of a repeated instruction; the decoder gives its memory no size.
        let repeated = self.instruction.is_string_instruction();
        let kind = if repeated { self.instruction.memory_size() } else { memory.memory_size() };
        let size = kind.size() as u64;
        if size == 0 {
            // As large as the CPU's state: fine, as long as it is elsewhere.
            let far = address + 16384 <= start || page.end <= address;
            assert!(far, "how much does {} touch?", self.text());
            return Vec::new();
        }
        if address + size <= start || page.end <= address {
            return Vec::new();
        }
        let chosen = self.mask(memory, tracee);
        let element = kind.element_size() as u64;
        (0..size)
            .filter(|i| page.contains(&(address + i)) && chosen >> (i / element).min(63) & 1 == 1)
            .map(|i| usize::try_from(address + i - start).expect("below 4096"))
            .collect()
    }

    /// The elements that an AVX-512 mask lets through, as bits. (Elements of the compressing and expanding
    /// instructions are counted from the first; they are taken as a whole.)
    fn mask(&self, memory: &UsedMemory, tracee: &Tracee) -> u64 {
        let text = format!("{:?}", self.instruction.mnemonic());
        let packed = text.contains("compress") || text.contains("expand");
        match self.instruction.op_mask() {
            Register::None => u64::MAX,
            _ if packed || memory.memory_size().is_broadcast() => u64::MAX,
            k => tracee.mask(k as usize - Register::K0 as usize),
        }
    }
}

fn directions(access: OpAccess) -> (bool, bool) {
    match access {
        OpAccess::Read | OpAccess::CondRead => (true, false),
        OpAccess::Write | OpAccess::CondWrite => (false, true),
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
        OpAccess::None | OpAccess::NoMemAccess => (false, false),
    }
}

/// What an address is computed from.
fn value(registers: &Registers, register: Register) -> Option<u64> {
    let whole = match register.full_register() {
        Register::RAX => registers.rax,
        Register::RBX => registers.rbx,
        Register::RCX => registers.rcx,
        Register::RDX => registers.rdx,
        Register::RSI => registers.rsi,
        Register::RDI => registers.rdi,
        Register::RBP => registers.rbp,
        Register::RSP => registers.rsp,
        Register::R8 => registers.r8,
        Register::R9 => registers.r9,
        Register::R10 => registers.r10,
        Register::R11 => registers.r11,
        Register::R12 => registers.r12,
        Register::R13 => registers.r13,
        Register::R14 => registers.r14,
        Register::R15 => registers.r15,
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        _ => return None,
    };
    Some(if register.size() == 4 { whole & 0xffff_ffff } else { whole })
}
