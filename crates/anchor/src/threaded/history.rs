//! What an anchor has said before.
//!
//! Stamps of one volume have an order: claims never go down, and within one session neither does the generation. So an anchor
//! that answers with an older stamp than it did before was rolled back.

use crate::{Stamp, State};

/// The newest stamp that the anchor was seen to hold.
#[derive(Default)]
pub(super) struct History(Option<Stamp>);

impl History {
    /// What the anchor is known to hold, or to have held.
    pub(super) fn note(&mut self, stamp: &Stamp) {
        self.0 = Some(stamp.clone());
    }

    /// Compares what it holds now with what it held before.
    pub(super) fn check(&mut self, found: Option<&Stamp>) -> Result<(), String> {
        let Some(known) = &self.0 else {
            self.0 = found.cloned();
            return Ok(());
        };
        let Some(found) = found else {
            return Err(format!("it holds nothing, and held {} before", name(known)));
        };
        // Of another volume: the volume refuses it, which has the key.
        if found.volume != known.volume {
            return Ok(());
        }
        if is_older(found, known) {
            return Err(format!("it holds {}, and held {} before", name(found), name(known)));
        }
        self.note(found);
        Ok(())
    }
}

fn is_older(found: &Stamp, known: &Stamp) -> bool {
    let ended = known.state == State::Terminal && found.state != State::Terminal;
    let same_session = found.claims == known.claims && found.session == known.session;
    let order = |stamp: &Stamp| (stamp.generation, stamp.state == State::Released);
    ended || found.claims < known.claims || (same_session && order(found) < order(known))
}

fn name(stamp: &Stamp) -> String {
    format!("generation {} of claim {}", stamp.generation, stamp.claims)
}
