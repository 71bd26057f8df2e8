//! The root: what vouches for the table and the bitmap.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 8 | generation |
//! | 8 | 32 | HMAC-SHA-256 of generation, sum of all pages' states, and session id (in a region of version 1, without that) |
//! | 40 | 24 | zero |
//!
//! There are two, and generation g lies in root g mod 2: the one in force is never overwritten. A torn root is no root, since its MAC fails.
//!
//! Both are genuine, so whoever destroys the one in force takes the last step back. Where that step was to encrypt an open page, the root before
//! vouches for nothing of that page. So behind a clean stop, a recovery and each batch of pages both roots vouch for the same.

use crate::geometry::{Geometry, LINE};
use crate::keys::{Keys, Sum};
use crate::medium::{Fault, Medium};
use crate::mutation::{Mutation, mutated};

/// The root in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) generation: u64,
    pub(crate) sum: Sum,
}

impl Root {
    /// Stores and writes back, without a fence.
    pub(crate) fn store(
        &self,
        medium: &dyn Medium,
        geometry: &Geometry,
        keys: &Keys,
        session: Option<&[u8; 32]>,
    ) -> Result<(), Fault> {
        let slot = if mutated(Mutation::RootInPlace) { 0 } else { self.generation % 2 };
        let mut line = [0; 40];
        line[..8].copy_from_slice(&self.generation.to_le_bytes());
        line[8..].copy_from_slice(&keys.sign_root(session, self.generation, &self.sum));
        let at = geometry.root_at(slot);
        medium.write(at, &line)?;
        medium.write_back(at, LINE)
    }

    /// Vouches for the same once more, in the other root. Behind its fence that one is in force.
    pub(crate) fn again(
        &mut self,
        medium: &dyn Medium,
        geometry: &Geometry,
        keys: &Keys,
        session: &[u8; 32],
    ) -> Result<(), Fault> {
        let next = Root { generation: self.generation + 1, sum: self.sum };
        next.store(medium, geometry, keys, Some(session))?;
        medium.fence()?;
        *self = next;
        Ok(())
    }
}

/// A root as it was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    pub(crate) generation: u64,
    pub(crate) mac: [u8; 32],
}

/// Both roots, the later one first.
pub(crate) fn claims(medium: &dyn Medium, geometry: &Geometry) -> Result<[Claim; 2], Fault> {
    let claim = |slot| {
        let mut line = [0; 40];
        medium.read(geometry.root_at(slot), &mut line)?;
        Ok(Claim {
            generation: u64::from_le_bytes(std::array::from_fn(|i| line[i])),
            mac: std::array::from_fn(|i| line[8 + i]),
        })
    };
    let mut claims = [claim(0)?, claim(1)?];
    claims.sort_by_key(|claim| std::cmp::Reverse(claim.generation));
    Ok(claims)
}
