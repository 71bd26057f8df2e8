//! Growing: which sizes may follow those that a volume has.

use std::fmt;

use super::extents::{Extent, MAX_GROWTHS};
use super::{Geometry, MAX_PHYSICAL, SizeError, check_logical, check_physical, sizing};
use crate::format::BLOCK_SIZE;

/// A volume's journal and units stay as they were created, and serve no store that is more than so many times as large: what a session may
/// have reserved at a time is listed in one superblock, and must hold the nodes of a checkpoint.
const MAX_FACTOR: u64 = 64;

/// Why a volume cannot grow as asked. Sizes are in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrowthError {
    /// It would become smaller.
    Smaller {
        /// The logical size that it has.
        has: u64,
        /// What was asked for.
        asked: u64,
    },
    /// It would occupy less of the store.
    Physical {
        /// What it occupies.
        has: u64,
        /// What it would.
        asked: u64,
    },
    /// It has these sizes.
    Nothing,
    /// What the store has more is too little for a unit of data.
    TooLittle,
    /// It has grown 16 times.
    TooOften,
    /// It would occupy too much of the store for its journal and units.
    TooFar {
        /// What it would occupy.
        asked: u64,
        /// What it may occupy.
        most: u64,
    },
    /// No volume has such a size.
    Size(SizeError),
}

impl fmt::Display for GrowthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |blocks: u64| u128::from(blocks) * BLOCK_SIZE as u128;
        match *self {
            Self::Smaller { has, asked } => write!(
                f,
                "the volume has {} bytes, and {} would be fewer: a volume does not shrink; copy its content to a smaller one",
                bytes(has),
                bytes(asked)
            ),
            Self::Physical { has, asked } => {
                write!(
                    f,
                    "the volume occupies {} bytes of its store, and never fewer, as {}",
                    bytes(has),
                    bytes(asked)
                )
            }
            Self::Nothing => write!(f, "the volume has these sizes already"),
            Self::TooLittle => {
                write!(f, "what the store has more is too little to be of use; give it more")
            }
            Self::TooOften => write!(
                f,
                "the volume has grown {MAX_GROWTHS} times, and a header lists no more; copy its content to a new volume"
            ),
            Self::TooFar { asked, most } => write!(
                f,
                "the volume would occupy {} bytes of its store, and its journal and units, which stay as they were created, serve {} bytes at most; copy its content to a new volume",
                bytes(asked),
                bytes(most)
            ),
            Self::Size(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for GrowthError {}

impl Geometry {
    /// The volume once it has grown to these sizes: it keeps all places, and has an extent more.
    ///
    /// # Errors
    /// One per [`GrowthError`].
    pub fn grown(&self, logical: u64, physical: u64) -> Result<Self, GrowthError> {
        let (shape, last) = (self.shape(), *self.last());
        if logical < last.logical {
            return Err(GrowthError::Smaller { has: last.logical, asked: logical });
        }
        if physical < last.end {
            return Err(GrowthError::Physical { has: last.end, asked: physical });
        }
        check_logical(logical, &shape).map_err(GrowthError::Size)?;
        check_physical(physical, &shape).map_err(GrowthError::Size)?;
        if (logical, physical) == (last.logical, last.end) {
            return Err(GrowthError::Nothing);
        }
        if self.growths() == MAX_GROWTHS {
            return Err(GrowthError::TooOften);
        }
        let most = self.most_physical();
        if physical > most {
            return Err(GrowthError::TooFar { asked: physical, most });
        }
        let extent = self.extent(logical, physical);
        if physical > last.end && extent.data_blocks < u64::from(self.unit_blocks) {
            return Err(GrowthError::TooLittle);
        }
        Ok(self.with(extent))
    }

    /// The most blocks of a store that the volume may grow to.
    pub fn most_physical(&self) -> u64 {
        if u64::from(self.unit_blocks) == self.shape().unit.most {
            return MAX_PHYSICAL;
        }
        self.created().end.saturating_mul(MAX_FACTOR).min(MAX_PHYSICAL)
    }

    /// The fewest blocks of a store on which the volume, grown to `logical` blocks, is fully provisioned; no fewer than it has.
    ///
    /// # Errors
    /// When there is no such volume.
    pub fn physical_to_grow(&self, logical: u64) -> Result<u64, GrowthError> {
        let has = self.last().end;
        if logical < self.logical_blocks {
            return Err(GrowthError::Smaller { has: self.logical_blocks, asked: logical });
        }
        check_logical(logical, &self.shape()).map_err(GrowthError::Size)?;
        if self.would_be_full(logical, has) {
            return Ok(has);
        }
        let lacks = |physical: u64| {
            self.extent(logical, physical).data_blocks < self.unit_blocks.into()
                || !self.would_be_full(logical, physical)
        };
        let most = self.most_physical();
        match sizing::greatest(has, MAX_PHYSICAL, lacks) {
            short if short >= most => Err(GrowthError::TooFar { asked: short.saturating_add(1), most }),
            short => Ok(short + 1),
        }
    }

    /// The most logical blocks that the volume has fully provisioned, grown to `physical` blocks of the store; no fewer than it has.
    pub fn logical_to_grow(&self, physical: u64) -> u64 {
        let most = self.shape().max_logical;
        sizing::greatest(self.logical_blocks, most, |logical| self.would_be_full(logical, physical))
    }

    fn would_be_full(&self, logical: u64, physical: u64) -> bool {
        let data = self.data_blocks() + self.extent(logical, physical).data_blocks;
        sizing::is_full(logical, data, &self.shape())
    }

    /// What a growth to these sizes would append, if it is one.
    fn extent(&self, logical: u64, physical: u64) -> Extent {
        let last = self.last();
        last.after(logical, physical.max(last.end), self.unit_blocks, &self.shape())
    }
}
