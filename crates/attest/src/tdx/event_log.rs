//! The event log of a TDX guest's firmware and boot loader (ACPI table CCEL): what was extended into its four runtime registers, in order.
//!
//! Sources: TCG, "PC Client Platform Firmware Profile", sections on the crypto agile log; UEFI 2.10, section 38.4 (confidential computing): register
//! 0 of the log is MRTD, 1 to 4 are RTMR 0 to 3.

use std::fmt;

use aws_lc_rs::digest::{self, SHA384};
use serde::Serialize;

use crate::Hex;

/// Largest log that is read, in bytes.
pub const MAX_EVENT_LOG: usize = 1024 * 1024;
/// Most events.
const MAX_EVENTS: usize = 8192;
/// Most digests of one event.
const MAX_DIGESTS: u32 = 8;
/// The kind of an event that is not extended.
const NO_ACTION: u32 = 3;
/// The digest algorithm of the registers: SHA-384.
const SHA384_ID: u16 = 0x000c;
/// Digest algorithms that a log may have beside it, with their sizes.
const OTHERS: [(u16, usize); 4] = [(0x0004, 20), (0x000b, 32), (0x000d, 64), (0x0012, 32)];

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Event {
    /// The runtime register, 0 to 3.
    pub register: usize,
    /// The kind, by the specification's number.
    pub kind: u32,
    /// What was extended.
    pub digest: Hex<48>,
    /// What it is about. The host can write what it wants here; only the digest is in the register.
    #[serde(skip)]
    pub data: Vec<u8>,
}

impl fmt::Display for Event {
    /// Kind, and the readable part of the data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = KINDS.iter().find(|(number, _)| *number == self.kind).map(|(_, name)| *name);
        match kind {
            Some(name) => f.write_str(name)?,
            None => write!(f, "kind {:#x}", self.kind)?,
        }
        let readable: String = self
            .data
            .iter()
            .filter(|byte| (0x20..0x7f).contains(*byte))
            .map(|byte| char::from(*byte))
            .collect();
        if readable.is_empty() {
            Ok(())
        } else {
            write!(f, " {:?}", crate::hexadecimal::shortened(&readable))
        }
    }
}

/// Names of kinds.
const KINDS: [(u32, &str); 13] = [
    (0x04, "separator"),
    (0x05, "action"),
    (0x0a, "platform config flags"),
    (0x0d, "boot loader"),
    (0x8000_0001, "variable driver config"),
    (0x8000_0002, "variable boot"),
    (0x8000_0003, "boot services application"),
    (0x8000_0006, "partition table"),
    (0x8000_0007, "action of the firmware"),
    (0x8000_0009, "handoff tables"),
    (0x8000_000b, "handoff tables"),
    (0x8000_000a, "firmware volume"),
    (0x8000_00e0, "variable authority"),
];

/// Why bytes are no event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventLogError {
    /// It is longer than [`MAX_EVENT_LOG`]; its size in bytes.
    TooLong(usize),
    /// It does not begin with the header of a crypto agile log.
    Header,
    /// It ends within an event; its number.
    Cut(usize),
    /// An event is not one of this kind of log; its number, and what is wrong.
    Event(usize, String),
}

impl fmt::Display for EventLogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(size) => write!(f, "it has {size} bytes, and at most {MAX_EVENT_LOG} are read"),
            Self::Header => f.write_str("it does not begin with the header of a crypto agile log"),
            Self::Cut(number) => write!(f, "it ends within event {number}"),
            Self::Event(number, what) => write!(f, "event {number}: {what}"),
        }
    }
}

impl std::error::Error for EventLogError {}

/// What is left of a log.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn data(&mut self) -> Option<&'a [u8]> {
        let size = usize::try_from(self.u32()?).ok()?;
        self.bytes(size)
    }

    /// The header: an event in the old form, whose data names the algorithms.
    fn header(&mut self) -> Option<()> {
        let (_, kind) = (self.u32()?, self.u32()?);
        self.bytes(20)?;
        let data = self.data()?;
        (kind == NO_ACTION && data.starts_with(b"Spec ID Event03\0")).then_some(())
    }

    /// Whether only what memory is filled with is left.
    fn is_end(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0) || self.0.iter().all(|byte| *byte == 0xff)
    }
}

/// Reads a log: all events that were extended into a runtime register, in their order. Zeros or ones behind the last are left out.
///
/// # Errors
/// If it is no log of this kind.
pub fn events(log: &[u8]) -> Result<Vec<Event>, EventLogError> {
    if log.len() > MAX_EVENT_LOG {
        return Err(EventLogError::TooLong(log.len()));
    }
    let mut rest = Rest(log);
    rest.header().ok_or(EventLogError::Header)?;
    let mut found = Vec::new();
    for number in 1.. {
        if rest.is_end() {
            break;
        }
        if number > MAX_EVENTS {
            return Err(EventLogError::Event(number, format!("at most {MAX_EVENTS} are read")));
        }
        let (register, kind) = (rest.u32().ok_or(EventLogError::Cut(number))?, rest.u32());
        let kind = kind.ok_or(EventLogError::Cut(number))?;
        let digest = read_digests(&mut rest, number)?;
        let data = rest.data().ok_or(EventLogError::Cut(number))?;
        if kind == NO_ACTION {
            continue;
        }
        let register = match register {
            1..=4 => (register - 1) as usize,
            other => {
                return Err(EventLogError::Event(
                    number,
                    format!("register {other} is no runtime register's number"),
                ));
            }
        };
        found.push(Event { register, kind, digest, data: data.to_vec() });
    }
    Ok(found)
}

/// The SHA-384 digest among those of an event.
fn read_digests(rest: &mut Rest<'_>, number: usize) -> Result<Hex<48>, EventLogError> {
    let cut = || EventLogError::Cut(number);
    let count = rest.u32().ok_or_else(cut)?;
    if count > MAX_DIGESTS {
        return Err(EventLogError::Event(
            number,
            format!("{count} digests, and at most {MAX_DIGESTS} are read"),
        ));
    }
    let mut found = None;
    for _ in 0..count {
        let algorithm = rest.array().map(u16::from_le_bytes).ok_or_else(cut)?;
        if algorithm == SHA384_ID {
            let digest = rest.array().map(Hex).ok_or_else(cut)?;
            if found.replace(digest).is_some() {
                return Err(EventLogError::Event(number, "two SHA-384 digests".to_string()));
            }
            continue;
        }
        let other = OTHERS.iter().find(|(id, _)| *id == algorithm);
        let (_, size) = other.ok_or_else(|| {
            EventLogError::Event(number, format!("the digest algorithm {algorithm:#x} is not known"))
        })?;
        rest.bytes(*size).ok_or_else(cut)?;
    }
    found.ok_or_else(|| EventLogError::Event(number, "no SHA-384 digest".to_string()))
}

/// The runtime registers after all events: each begins as zeros, and an event makes it the digest of itself and the event's digest.
#[must_use]
pub fn replay(events: &[Event]) -> [Hex<48>; 4] {
    let mut registers = [Hex([0; 48]); 4];
    for event in events {
        let Some(register) = registers.get_mut(event.register) else { continue };
        let mut next = digest::Context::new(&SHA384);
        next.update(&register.0);
        next.update(&event.digest.0);
        register.0.copy_from_slice(next.finish().as_ref());
    }
    registers
}
