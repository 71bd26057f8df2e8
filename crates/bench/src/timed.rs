//! An anchor whose moves are timed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anchor::{Anchor, AnchorFuture, Health, Stamp};
use hdrhistogram::Histogram;
use volume::format::protections::Freshness;
use volume::{Error, Kind, Result, Status};

use super::BenchArgs;
use super::load::histogram;
use super::report::{Moves, Times};
use super::setup::Contestants;

/// How long an anchor may be away before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// An anchor, and how long each of its moves took.
pub struct Timed {
    anchor: Arc<dyn Anchor>,
    times: Mutex<Histogram<u64>>,
}

/// Opens the anchor that was asked for.
///
/// # Errors
/// When there is none, or the level needs none.
pub fn open(address: &str, args: &BenchArgs) -> Result<Arc<Timed>> {
    if args.setup.protections.freshness == Freshness::Off {
        return Err(Error::new(Kind::Usage, "--anchor needs another level than --freshness off"));
    }
    let options = anchor::typed_options(&args.anchor_option)?;
    let created = anchor::create_address(address, &options, Some(PATIENCE))?;
    Ok(Arc::new(Timed { anchor: created.anchor, times: Mutex::new(histogram()) }))
}

impl Timed {
    fn times(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins anew.
    pub fn forget(&self) {
        self.times().reset();
    }

    /// What has happened since the status was this.
    pub fn moves(&self, before: &Status, bench: &Contestants) -> Moves {
        let now = bench.session.volume.status();
        Moves {
            moves: now.anchor_moves - before.anchor_moves,
            flushes: now.flushes - before.flushes,
            times: Times::of(&self.times()),
        }
    }
}

impl Anchor for Timed {
    fn read(&self) -> AnchorFuture<'_, Option<Stamp>> {
        self.anchor.read()
    }

    fn advance(&self, expected: Option<&Stamp>, new: &Stamp) -> AnchorFuture<'_, ()> {
        let (begun, moving) = (Instant::now(), self.anchor.advance(expected, new));
        Box::pin(async move {
            let moved = moving.await;
            let nanoseconds = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.times().saturating_record(nanoseconds);
            moved
        })
    }

    fn pause(&self, time: Duration) -> AnchorFuture<'_, ()> {
        self.anchor.pause(time)
    }

    fn address(&self) -> String {
        self.anchor.address()
    }

    fn health(&self) -> Health {
        self.anchor.health()
    }
}
