//! Moves of the anchor: one at a time, within a commit or beside those that follow.

use std::time::Duration;

use anchor::{Stamp, State};

use super::abandoned;
use crate::core::Core;
use crate::error::Result;
use crate::mutation::{Mutation, mutated};
use crate::witness::Anchored;

/// What a move of the anchor covers.
pub(super) struct Reached {
    /// All commits up to this one.
    number: u64,
    /// Generation and head.
    end: (u64, [u8; 32]),
    /// When the move began, and how many bytes it covers.
    at: Duration,
    bytes: u64,
    /// Changes of the overlay below this sequence number.
    sequence: u64,
}

/// Ends a move of the anchor that its task gave up: nobody knows whether it moved.
pub(super) struct Moving<'a> {
    core: &'a Core,
    ended: bool,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.core.stop(&abandoned());
        }
        self.core.commit.lock().moving = false;
        self.core.commit.changed.notify(usize::MAX);
    }
}

impl Core {
    /// Has the anchor cover commit `number`, which is durable, while other commits go on.
    pub(super) async fn anchor_beside(&self, number: u64) -> Result<()> {
        let Some(mut moving) = self.begin_move(number).await? else { return Ok(()) };
        let reached = self.reached();
        let held = self.commit.stamp().map_or(0, |stamp| stamp.generation);
        // A commit of several parts may have anchored more already.
        let moved = if reached.end.0 < held {
            Ok(())
        } else {
            self.move_anchor_to(reached.end, State::Claimed, None).await
        };
        moving.ended = true;
        match &moved {
            Ok(()) => self.covered(&reached),
            Err(error) if !mutated(Mutation::FailedCommitGoesOn) => self.stop(error),
            Err(_) => {}
        }
        moved.map_err(|error| self.reason(error))
    }

    /// Moves the anchor within a commit, when no other move is under way.
    pub(super) async fn move_alone(
        &self,
        end: (u64, [u8; 32]),
        state: State,
        header: Option<[u8; 32]>,
    ) -> Result<()> {
        let Some(mut moving) = self.begin_move(u64::MAX).await? else { return Ok(()) };
        let moved = self.move_anchor_to(end, state, header).await;
        moving.ended = true;
        moved
    }

    /// Waits until nobody else moves the anchor. `None` if it covers commit `number` by then.
    async fn begin_move(&self, number: u64) -> Result<Option<Moving<'_>>> {
        loop {
            let listener = self.commit.changed.listen();
            {
                let mut inner = self.commit.lock();
                if inner.anchored >= number {
                    return Ok(None);
                }
                if let Some(reason) = &inner.poison {
                    return Err(reason.clone());
                }
                if !inner.moving {
                    inner.moving = true;
                    return Ok(Some(Moving { core: self, ended: false }));
                }
            }
            listener.await;
        }
    }

    /// What a move of the anchor that begins now covers.
    pub(super) fn reached(&self) -> Reached {
        let now = self.environment.clock.now();
        let inner = self.commit.lock();
        Reached {
            number: inner.durable,
            end: inner.end,
            at: now,
            bytes: inner.unanchored_bytes,
            sequence: inner.durable_sequence,
        }
    }

    /// The anchor has moved there.
    pub(super) fn covered(&self, reached: &Reached) {
        {
            let mut inner = self.commit.lock();
            inner.anchored = inner.anchored.max(reached.number);
            inner.anchored_sequence = inner.anchored_sequence.max(reached.sequence);
            inner.anchored_at = reached.at;
            inner.unanchored_bytes = inner.unanchored_bytes.saturating_sub(reached.bytes);
        }
        self.let_go(true, reached.number);
        if self.commit.reservation_waits() {
            self.work.notify(usize::MAX);
        }
    }

    /// Asks the anchor whether this session still has the volume. What is durable before the question is known to whoever claims the volume
    /// after the answer.
    pub(crate) async fn confirm_claim(&self) -> Result<()> {
        let Some(anchor) = &self.environment.anchor else { return Ok(()) };
        if mutated(Mutation::ClaimNotConfirmed) || mutated(Mutation::AttachWithoutClaim) {
            return Ok(());
        }
        match anchor.read().await? {
            Some(stamp) if stamp.session == self.session && stamp.claims == self.claims => Ok(()),
            _ => Err(anchor::Error::Conflict(None).into()),
        }
    }

    /// Moves the anchor to a committed state by compare-and-swap.
    pub(super) async fn move_anchor_to(
        &self,
        (generation, head): (u64, [u8; 32]),
        state: State,
        header: Option<[u8; 32]>,
    ) -> Result<()> {
        let Some(witness) = self.commit.witness() else { return Ok(()) };
        let Some(old) = witness.held() else { return Ok(()) };
        let header_digest = header.unwrap_or(old.header_digest);
        let same = old.generation == generation && old.head == head && old.state == state;
        if same && old.header_digest == header_digest {
            return Ok(());
        }
        let new = Stamp { generation, head, state, header_digest, ..old.clone() };
        let moved = witness.advance(&self.stamp_key, new).await?;
        self.commit.lock().anchored_by = Anchored::Claimed(moved);
        self.counters.anchor_moves.add(1);
        Ok(())
    }
}
