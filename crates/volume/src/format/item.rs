//! Item of a journal record: one change of the volume's state.

use super::ad::Tree;
use super::bytes::{Reader, Writer};
use super::entry::{ENTRY_SIZE, Entry};
use super::salts::SALT_SIZE;
use super::{EPOCH_END, Malformed};
use crate::geometry::Geometry;

/// Bytes of an item.
pub const ITEM_SIZE: usize = 40;
/// Most units in one item.
pub const UNITS_PER_ITEM: usize = 8;

const WHAT: &str = "journal item";
/// An item's argument has 56 bits.
const ARGUMENT_END: u64 = 1 << 56;

/// One to eight units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Units {
    units: [u32; UNITS_PER_ITEM],
    length: u8,
}

impl Units {
    /// `None` unless there are 1 to 8.
    pub fn new(units: &[u32]) -> Option<Self> {
        if units.is_empty() {
            return None;
        }
        let mut all = [0; UNITS_PER_ITEM];
        all.get_mut(..units.len())?.copy_from_slice(units);
        Some(Self { units: all, length: u8::try_from(units.len()).ok()? })
    }

    /// The units, in the order given.
    pub fn as_slice(&self) -> &[u32] {
        &self.units[..usize::from(self.length)]
    }
}

/// One change of the volume's state. Items apply in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// A logical block has a new entry.
    Write {
        /// Logical block, below 2^56.
        logical: u64,
        /// Its entry, never absent.
        entry: Entry,
    },
    /// Logical blocks have no entry any more.
    Discard {
        /// The first of them, below 2^56.
        logical: u64,
        /// How many; at least 1.
        blocks: u64,
    },
    /// The session reserves units.
    Reserve(Units),
    /// An epoch begins.
    Epoch {
        /// Its number.
        epoch: u32,
        /// Its salt.
        salt: [u8; SALT_SIZE],
    },
    /// A tree's root, replaced (level `transaction`).
    Root {
        /// The tree.
        tree: Tree,
        /// Growths of the volume that it knows: it has the levels of those sizes.
        growths: u8,
        /// Entry of its root node.
        entry: Entry,
    },
    /// Number of logical blocks with an entry (level `transaction`).
    Mapped(u64),
}

impl Item {
    /// Appends the item's 40 bytes.
    ///
    /// # Panics
    /// When a number exceeds its bits, as [`Entry::encode`] does.
    pub fn encode_into(&self, payload: &mut Vec<u8>) {
        let (argument, kind, body): (u64, u8, [u8; 32]) = match self {
            Self::Write { logical, entry } => (*logical, 1, entry.encode()),
            Self::Discard { logical, blocks } => (*logical, 2, number(*blocks)),
            Self::Reserve(units) => {
                let writer =
                    units.units.iter().fold(Writer::new(), |writer, unit| writer.put(&unit.to_le_bytes()));
                (units.length.into(), 3, writer.end())
            }
            Self::Epoch { epoch, salt } => ((*epoch).into(), 4, *salt),
            Self::Root { tree, growths, entry } => {
                (u64::from(tree.code()) | u64::from(*growths) << 8, 5, entry.encode())
            }
            Self::Mapped(blocks) => (0, 6, number(*blocks)),
        };
        assert!(argument < ARGUMENT_END);
        payload.extend_from_slice(&(argument | u64::from(kind) << 56).to_le_bytes());
        payload.extend_from_slice(&body);
    }

    /// Reads an item.
    ///
    /// # Errors
    /// When the kind is unknown, a field out of bounds, or `bytes` are not 40.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(WHAT, bytes);
        let first = reader.u64("kind")?;
        let (argument, kind) = (first & (ARGUMENT_END - 1), first >> 56);
        let item = match kind {
            1 => Self::Write { logical: argument, entry: data_entry(&mut reader)? },
            2 => {
                let blocks = number_in(&mut reader, "blocks")?;
                if blocks == 0 || argument.checked_add(blocks).is_none() {
                    return Err(reader.malformed("blocks", "none, or more than there can be"));
                }
                Self::Discard { logical: argument, blocks }
            }
            3 => Self::Reserve(units(&mut reader, argument)?),
            4 => match u32::try_from(argument) {
                Ok(epoch @ 1..EPOCH_END) => Self::Epoch { epoch, salt: reader.array("salt")? },
                _ => return Err(reader.malformed("epoch", format!("{argument} is out of bounds"))),
            },
            5 => {
                let growths = u8::try_from(argument >> 8).map_err(|_| {
                    reader.malformed("growths", format!("{} is out of bounds", argument >> 8))
                })?;
                let tree = Tree::from_code(argument & 0xff)?;
                let entry = Entry::decode(&reader.array::<ENTRY_SIZE>("entry")?)?;
                check_root(WHAT, "root", tree, &entry)?;
                Self::Root { tree, growths, entry }
            }
            6 if argument == 0 => Self::Mapped(number_in(&mut reader, "mapped blocks")?),
            6 => return Err(reader.malformed("argument", "it must be zero")),
            _ => return Err(reader.malformed("kind", format!("{kind} has no meaning"))),
        };
        reader.end()?;
        Ok(item)
    }

    /// Checks that what the item names exists in the volume.
    ///
    /// # Errors
    /// Names the field that points outside.
    pub fn check(&self, geometry: &Geometry) -> Result<(), Malformed> {
        let require = |field: &'static str, holds: bool| {
            let message = || "it is outside the volume".into();
            if holds { Ok(()) } else { Err(Malformed { what: WHAT, field, message: message() }) }
        };
        match *self {
            Self::Write { logical, entry } => {
                require("logical block", logical < geometry.logical_blocks)?;
                require("physical block", geometry.holds(entry.physical))
            }
            Self::Discard { logical, blocks } => {
                let end = logical.checked_add(blocks);
                require("blocks", end.is_some_and(|end| end <= geometry.logical_blocks))
            }
            Self::Reserve(units) => {
                require("units", units.as_slice().iter().all(|&unit| unit < geometry.units()))
            }
            Self::Epoch { epoch, .. } => require("epoch", epoch <= geometry.last_epoch()),
            Self::Root { tree, growths, entry } => {
                require("growths", usize::from(growths) <= geometry.growths())?;
                let own = geometry.as_of(growths.into());
                let inside = match tree {
                    Tree::Bitmap => own.is_bitmap_place(entry.physical),
                    Tree::Map | Tree::Salts | Tree::OldSalts => own.holds(entry.physical),
                };
                require("root", entry.is_absent() || inside)
            }
            Self::Mapped(blocks) => require("mapped blocks", blocks <= geometry.logical_blocks),
        }
    }
}

/// The items of an opened payload, up to and including the first that is malformed.
pub fn items(payload: &[u8]) -> impl Iterator<Item = Result<Item, Malformed>> + '_ {
    let mut whole = true;
    payload.chunks(ITEM_SIZE).map_while(move |bytes| {
        whole.then(|| {
            let item = Item::decode(bytes);
            whole = item.is_ok();
            item
        })
    })
}

/// What holds for a root's entry, whatever the volume: salt-table nodes have a salt of their own and so
/// neither epoch nor nonce, and only bitmap entries have flags.
pub(in crate::format) fn check_root(
    what: &'static str,
    field: &'static str,
    tree: Tree,
    entry: &Entry,
) -> Result<(), Malformed> {
    let refuse = |message: &str| Err(Malformed { what, field, message: message.into() });
    if tree != Tree::Bitmap && entry.flags != 0 {
        return refuse("flags must be zero");
    }
    match (entry.is_absent(), tree.is_self_salted()) {
        (false, true) if entry.epoch != 0 || entry.nonce != 0 => refuse("epoch and nonce must be zero"),
        (false, false) if entry.epoch == 0 => refuse("it has no epoch"),
        _ => Ok(()),
    }
}

fn data_entry(reader: &mut Reader<'_>) -> Result<Entry, Malformed> {
    let entry = Entry::decode(&reader.array::<ENTRY_SIZE>("entry")?)?;
    if entry.is_absent() || entry.epoch == 0 || entry.flags != 0 {
        return Err(reader.malformed("entry", "it is absent, has no epoch or has flags"));
    }
    Ok(entry)
}

fn units(reader: &mut Reader<'_>, count: u64) -> Result<Units, Malformed> {
    let all: [u32; UNITS_PER_ITEM] = {
        let mut all = [0; UNITS_PER_ITEM];
        for unit in &mut all {
            *unit = reader.u32("units")?;
        }
        all
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    match (all.get(..count).and_then(Units::new), all.get(count..)) {
        (Some(units), Some(rest)) if rest.iter().all(|&unit| unit == 0) => Ok(units),
        _ => Err(reader.malformed("units", "not 1 to 8 of them, and zeros behind")),
    }
}

fn number(value: u64) -> [u8; 32] {
    Writer::new().put(&value.to_le_bytes()).skip(24).end()
}

fn number_in(reader: &mut Reader<'_>, field: &'static str) -> Result<u64, Malformed> {
    let value = reader.u64(field)?;
    reader.zeros(24, "reserved")?;
    Ok(value)
}
