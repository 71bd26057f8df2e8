//! A thin volume on a store that cannot say what it has left, such as a device: that may be thin itself, and full at any moment.
//!
//! Invariants:
//! 1. No write of a user completes before the store has it. So one that finds no room fails, and no flush waits for it.
//! 2. Journal, bitmap and superblocks were written to when the volume was made, as far as a volume's fixed places ever are
//!    ([`fixed_places`](crate::store_room::fixed_places)): a store that has once given a place needs no room there.
//! 3. So were the places of a checkpoint's nodes before a session serves anybody, as far as the store takes them. They are free, and of units that
//!    the session has reserved.

use std::ops::Range;

use store::Store;

use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::geometry::Geometry;
use crate::io::Io;
use crate::space::Purpose;
use crate::store_room::{allocate_fixed, fixed_places};

/// Blocks of one write: 256 KiB.
const AT_ONCE: usize = 64;

/// Has the store give the places of a new thin volume that never move.
///
/// # Errors
/// `Usage` when it has no room for them; what a store that cannot say what it has left says otherwise.
pub(crate) async fn take_fixed_places(store: &dyn Store, io: &Io, geometry: &Geometry) -> Result<()> {
    let taken = match store.usage() {
        Some(_) => match allocate_fixed(store, geometry) {
            // A file system that cannot reserve room gives it as it is written to.
            Err(error) if error.kind != store::ErrorKind::NoSpace => return Ok(()),
            taken => taken.map_err(Error::from),
        },
        None => write_fixed_places(io, geometry).await,
    };
    taken.map_err(|error| match error.kind() {
        Kind::NoSpace => {
            Error::new(Kind::Usage, format!("{error}: there is no room even for journal and free-space map"))
        }
        _ => error,
    })
}

async fn write_fixed_places(io: &Io, geometry: &Geometry) -> Result<()> {
    for run in fixed_places(geometry) {
        for blocks in parts(run) {
            write_zeros(io, blocks).await?;
        }
    }
    Ok(())
}

impl Core {
    /// Writes zeros to the places that the next nodes go to.
    pub(crate) async fn write_node_places(&self, io: &Io) {
        if !self.room.untold {
            return;
        }
        for run in self.space.take(Purpose::Nodes, self.node_room(), 0) {
            for blocks in parts(run.clone()) {
                // What the store does not take now may find room when it is needed.
                let _ = write_zeros(io, blocks).await;
            }
            self.space.give_back(run);
        }
    }
}

fn parts(run: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = run.end;
    run.step_by(AT_ONCE).map(move |at| at..end.min(at + AT_ONCE as u64))
}

async fn write_zeros(io: &Io, blocks: Range<u64>) -> Result<()> {
    let count = usize::try_from(blocks.end - blocks.start).unwrap_or(AT_ONCE);
    let mut buffer = io.buffer(count);
    buffer.copy_from(0, &vec![0; count * store::BLOCK_SIZE]);
    io.write(blocks.start, buffer).await
}
