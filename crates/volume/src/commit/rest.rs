//! A leader's rest before its commit begins: where the anchor is slow, the flushes of the last commit come back, and share the next move.

use std::time::Duration;

use futures::future::{Either, select};

use super::Commit;
use crate::core::Core;

/// A leader rests for no more than this part of a move's time, and this long.
const REST_SHARE: u32 = 8;
const LONGEST_REST: Duration = Duration::from_millis(5);
/// Shorter rests are not worth the switch to another thread.
const SHORTEST_REST: Duration = Duration::from_micros(50);

/// A caller that waits for the commit of another one, for as long as this lives.
pub(super) struct Waiting<'a>(&'a Commit);

impl<'a> Waiting<'a> {
    pub(super) fn new(commit: &'a Commit) -> Self {
        commit.lock().waiting += 1;
        commit.arrived.notify(1);
        Self(commit)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

impl Core {
    /// Lets the callers of the last commit come back before the next one begins, where the anchor is slow. Else they would fall into two
    /// groups, each of which waits for the other's move of the anchor, and half as many flushes would share a move.
    pub(super) async fn rest(&self) {
        let (callers, time) = {
            let inner = self.commit.lock();
            (inner.callers, (inner.move_time / REST_SHARE).min(LONGEST_REST))
        };
        let Some(anchor) = &self.environment.anchor else { return };
        if callers < 2 || time < SHORTEST_REST {
            return;
        }
        let mut over = anchor.pause(time);
        loop {
            let arrived = self.commit.arrived.listen();
            if self.commit.lock().waiting + 1 >= callers {
                return;
            }
            match select(over, arrived).await {
                // An error is one that the move will meet as well.
                Either::Left(_) => return,
                Either::Right(((), rest)) => over = rest,
            }
        }
    }
}
