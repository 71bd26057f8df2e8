//! Who may go on, and who has to wait: what is in memory has limits, and so has the journal.
//!
//! Invariants:
//! 1. Whatever will need room in the journal is counted from its admission until its record is written: as promised while its request is
//!    under way, as pending in the overlay, and as promised again while a commit writes it.
//! 2. What is counted is never more than the journal can take without a checkpoint that frees segments, less what the checkpoint itself
//!    needs. So no commit finds the journal full, however many large requests arrive together.

use std::sync::atomic::Ordering;

use futures::FutureExt;

use crate::commit::Want;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::protections::{Freshness, Provision};
use crate::io::Io;
use crate::mutation::{Mutation, mutated};

/// Most blocks that one request of a thin volume may change: 2 MiB.
const THIN_REQUEST: u64 = 512;

impl Core {
    /// Waits while there is more in memory than may be, or more under way than the journal can take. So many items are the caller's then,
    /// until they are in the overlay.
    pub(crate) async fn admit(&self, io: &Io, items: u64) -> Result<Promise<'_>> {
        let most = self.largest_request();
        if items > most {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "a request that changes {items} blocks is too large for this volume; change at most {most} at a time"
                ),
            ));
        }
        // Whoever finds nobody in line and room goes on; the others queue up, and only the first of them looks whether there is some now.
        let in_line = self.admitting.available_permits() == 0;
        let unhindered = if in_line { None } else { self.try_admit(items) };
        let promise = match unhindered {
            Some(promise) => promise,
            None => self.wait_for_room(io, items).boxed_local().await?,
        };
        self.check_writable()?;
        if self.stopping.load(Ordering::SeqCst) {
            return Err(Self::stopped());
        }
        Ok(promise)
    }

    async fn wait_for_room(&self, io: &Io, items: u64) -> Result<Promise<'_>> {
        // Nobody closes it.
        let _turn = self.admitting.acquire().await.ok();
        loop {
            if let Some(promise) = self.try_admit(items) {
                return Ok(promise);
            }
            let progress = self.progress.listen();
            // Blocks that wait only for their readers: nobody else collects them when the last one ends.
            let ended = self.readers.listen();
            self.space.collect();
            self.check_alive()?;
            if let Some(promise) = self.try_admit(items) {
                return Ok(promise);
            }
            self.work.notify(usize::MAX);
            if self.journal_is_owed() {
                // The maintenance job would commit, but not before the checkpoint ends that it may be in the middle of.
                self.commit(io, Want { data: true, ..Want::default() }).boxed_local().await?;
                continue;
            }
            if self.journal_room() < self.largest_request() {
                // No commit makes room there, and of its own accord nobody may come and see.
                self.want_checkpoint();
            }
            self.counters.waits_for_checkpoint.add(1);
            futures::future::select(progress, ended).await;
        }
    }

    /// Blocks that one request may change: so few that there is room for them in the journal when what waits there is not yet enough for
    /// the maintenance job to see to, and that a full volume has them to spare. On a thin one they are kept from new data, so there are fewer.
    pub(crate) fn largest_request(&self) -> u64 {
        let most = (self.journal_share() / 2).min(2 * self.limits.pinned);
        match self.header.provision {
            Provision::Full => most,
            Provision::Thin => most.min(THIN_REQUEST),
        }
    }

    fn try_admit(&self, items: u64) -> Option<Promise<'_>> {
        if self.is_over_limits() {
            return None;
        }
        let room = if self.header.freshness == Freshness::Transaction {
            self.journal_share()
        } else {
            self.journal_room().saturating_sub(self.overlay.pending())
        };
        if self.closing.load(Ordering::SeqCst) {
            return None;
        }
        // And again, in this order: who closes looks at what is promised after that.
        Promise::within(self, items, room).filter(|_| !self.closing.load(Ordering::SeqCst))
    }

    /// Admits nothing until the next cut. Says whether what waits and what is under way fits into one commit that leaves a third segment
    /// alone; if not, everything goes on.
    pub(crate) fn close_for_one_commit(&self) -> bool {
        self.closing.store(true, Ordering::SeqCst);
        // In this order: what moves from the one to the other meanwhile counts twice.
        let under_way = self.promised.load(Ordering::SeqCst);
        let items = under_way + self.overlay.pending();
        let fits = items <= self.commit.room(&self.geometry);
        if !fits {
            self.reopen();
        }
        fits
    }

    /// Admits again, if it did not.
    pub(crate) fn reopen(&self) {
        if self.closing.swap(false, Ordering::SeqCst) {
            self.progress.notify(usize::MAX);
        }
    }

    fn is_over_limits(&self) -> bool {
        let unpublished = self.overlay.active() + self.overlay.superseded();
        let journalled = self.header.freshness != Freshness::Transaction;
        // While a checkpoint is under way, only as much of the room as it has made by now.
        let most = if journalled { self.limits.overlay.min(self.limits.pinned) } else { self.limits.overlay };
        unpublished >= self.limits.overlay
            || unpublished >= self.pace.allowed(most)
            || self.journal_is_owed()
            || (journalled && unpublished + self.space.pinned() >= 2 * self.limits.pinned)
    }

    /// Whether as many changes wait for the journal as may.
    pub(crate) fn journal_is_owed(&self) -> bool {
        self.header.freshness != Freshness::Transaction && self.overlay.pending() >= self.limits.pending
    }

    /// Tells the maintenance job when it may have something to do.
    pub(crate) fn nudge(&self) {
        let unpublished = self.overlay.active() + self.overlay.superseded();
        if unpublished >= self.limits.overlay / 2
            || self.overlay.pending() >= self.limits.pending / 2
            || unpublished >= self.limits.pinned
        {
            self.work.notify(usize::MAX);
        }
    }
}

/// Items that need room in the journal and are not in the overlay.
pub(crate) struct Promise<'a> {
    core: &'a Core,
    items: u64,
}

impl<'a> Promise<'a> {
    /// If they and all others that are promised are no more than `room`.
    fn within(core: &'a Core, items: u64, room: u64) -> Option<Self> {
        let add = |promised: u64| {
            let sum = promised + items;
            (sum <= room || mutated(Mutation::InFlightNotCounted)).then_some(sum)
        };
        core.promised.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).ok()?;
        Some(Self { core, items })
    }

    pub(crate) fn items(&self) -> u64 {
        self.items
    }

    /// Goes on without its holder, until [`kept`](Self::kept) takes it up again.
    pub(crate) fn keep(self) -> u64 {
        std::mem::ManuallyDrop::new(self).items
    }

    /// Takes up promises of so many items that were kept.
    pub(crate) fn kept(core: &'a Core, items: u64) -> Self {
        Self { core, items }
    }

    /// For items that were admitted before.
    pub(crate) fn again(core: &'a Core, items: u64) -> Self {
        core.promised.fetch_add(items, Ordering::SeqCst);
        Self { core, items }
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.core.promised.fetch_sub(self.items, Ordering::SeqCst);
        // Costs next to nothing when nobody waits.
        self.core.progress.notify(usize::MAX);
    }
}
