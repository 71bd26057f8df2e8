//! What can go wrong with key slots.

use std::fmt;

use super::{LABEL_SIZE, MIN_KEY_FILE_SIZE, SLOT_COUNT};

/// A cost of Argon2id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Memory in KiB.
    Memory,
    /// Passes over the memory.
    Passes,
    /// Lanes.
    Lanes,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cost::Memory => "KiB of memory",
            Cost::Passes => "passes",
            Cost::Lanes => "lanes",
        })
    }
}

/// Why key slots did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotError {
    /// The bytes of a slot are not what this version writes.
    Malformed {
        /// The slot's index.
        slot: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Argon2id would cost less than its minimum or more than the limit.
    Cost {
        /// The slot's index; `None` for one yet to be added.
        slot: Option<usize>,
        /// Which cost.
        cost: Cost,
        /// What the slot asks for.
        asked: u32,
        /// The least that Argon2id takes.
        least: u32,
        /// The most that is allowed.
        most: u32,
    },
    /// There is not enough memory for Argon2id.
    OutOfMemory {
        /// What the slot asks for, in KiB.
        memory_kib: u32,
    },
    /// No slot is for this credential.
    WrongCredential,
    /// The credential is right, but the slot was changed, or belongs to another volume or place.
    Tampered {
        /// The slot's index.
        slot: usize,
    },
    /// All slots are taken.
    Full,
    /// There is no such slot, or it is empty.
    Empty {
        /// The slot's index.
        slot: usize,
    },
    /// The last slot must stay.
    Last,
    /// A new slot's label is too long or not printable.
    Label,
    /// A new slot's passphrase is empty, or its key file too short.
    Weak,
}

impl fmt::Display for SlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SlotError::Malformed { slot, what } => write!(
                f,
                "key slot {slot} is malformed ({what}): the volume is damaged or was tampered with; restore \
                 its header from a backup"
            ),
            SlotError::Cost { slot, cost, asked, least, most } => {
                match slot {
                    Some(slot) => write!(f, "key slot {slot}")?,
                    None => f.write_str("the new key slot")?,
                }
                write!(f, " asks for {asked} {cost} of Argon2id, allowed are {least} to {most}: ")?;
                match slot {
                    Some(_) => f.write_str("it was tampered with; restore the volume's header from a backup"),
                    None => f.write_str("choose a value in between"),
                }
            }
            SlotError::OutOfMemory { memory_kib } => {
                write!(
                    f,
                    "the key slot asks for {memory_kib} KiB of memory for Argon2id, which this machine does not have free: free \
                     some, or open the volume by another slot; if none ever asked for as much, it was tampered with"
                )
            }
            SlotError::WrongCredential => {
                f.write_str("no key slot opens with this: check the passphrase or key file, and the volume")
            }
            SlotError::Tampered { slot } => write!(
                f,
                "the credential is that of key slot {slot}, but the slot was changed or comes from another \
                 volume or place: restore the volume's header from a backup"
            ),
            SlotError::Full => write!(f, "all {SLOT_COUNT} key slots are taken: remove one first"),
            SlotError::Empty { slot } => write!(f, "there is no key in slot {slot}: list the slots"),
            SlotError::Last => {
                f.write_str("this is the last key slot; without it the volume is lost: add another first")
            }
            SlotError::Label => {
                write!(
                    f,
                    "the label has more than {LABEL_SIZE} bytes or unprintable characters: choose another"
                )
            }
            SlotError::Weak => write!(
                f,
                "an empty passphrase or a key file of less than {MIN_KEY_FILE_SIZE} bytes protects nothing: \
                 choose another"
            ),
        }
    }
}

impl std::error::Error for SlotError {}
