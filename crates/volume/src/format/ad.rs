//! Associated data: what a sealed block is, so that it opens as nothing else.
//!
//! Journal records have theirs in [`record`](super::record).

use super::Malformed;

use crate::mutation::{Mutation, mutated};

/// Bytes of a block's associated data.
pub const AD_SIZE: usize = 32;

/// A radix tree of sealed nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tree {
    /// Logical block to entry.
    Map = 1,
    /// Epoch to salt.
    Salts = 2,
    /// Blocks in use.
    Bitmap = 3,
    /// The old key's salt table, while a change of key is under way. It is sealed as a salt table, and no journal item names it.
    OldSalts = 4,
}

impl Tree {
    /// The number in associated data and journal items.
    pub fn code(self) -> u8 {
        match self {
            Self::Map => 1,
            Self::Salts => 2,
            Self::Bitmap => 3,
            Self::OldSalts => 4,
        }
    }

    /// Whether it is a table of salts, each of whose nodes has a salt and so a key of its own.
    pub fn is_self_salted(self) -> bool {
        matches!(self, Self::Salts | Self::OldSalts)
    }

    /// The tree of a number.
    ///
    /// # Errors
    /// When there is no such tree.
    pub fn from_code(code: u64) -> Result<Self, Malformed> {
        match code {
            1 => Ok(Self::Map),
            2 => Ok(Self::Salts),
            3 => Ok(Self::Bitmap),
            _ => {
                Err(Malformed { what: "tree", field: "number", message: format!("{code} is not 1, 2 or 3") })
            }
        }
    }
}

const DATA: u8 = 1;
const NODE: u8 = 2;
const SALT_NODE: u8 = 3;
const SUPERBLOCK: u8 = 4;

/// Of a data block.
pub fn data_ad(volume: &[u8; 16], logical: u64) -> [u8; AD_SIZE] {
    lay_out(volume, DATA, 0, 0, if mutated(Mutation::LogicalLeftOut) { 0 } else { logical })
}

/// Of a node of the map or the bitmap: leaves are level 0, `index` counts within the level.
pub fn node_ad(volume: &[u8; 16], tree: Tree, level: u8, index: u64) -> [u8; AD_SIZE] {
    lay_out(volume, NODE, tree.code(), level, index)
}

/// Of a node of the salt table, which is self-salted.
pub fn salt_node_ad(volume: &[u8; 16], level: u8, index: u64) -> [u8; AD_SIZE] {
    lay_out(volume, SALT_NODE, Tree::Salts.code(), level, index)
}

/// Of the superblock in slot `slot` (0 to 3).
pub fn superblock_ad(volume: &[u8; 16], slot: u8) -> [u8; AD_SIZE] {
    lay_out(volume, SUPERBLOCK, 0, 0, slot.into())
}

fn lay_out(volume: &[u8; 16], kind: u8, tree: u8, level: u8, number: u64) -> [u8; AD_SIZE] {
    let mut ad = [0; AD_SIZE];
    ad[..16].copy_from_slice(volume);
    ad[16] = kind;
    ad[17] = tree;
    ad[18] = level;
    ad[24..].copy_from_slice(&number.to_le_bytes());
    ad
}
