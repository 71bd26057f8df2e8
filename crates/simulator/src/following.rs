//! Sessions that follow one session and no other, as under the users of a device that lives on.

use anchor::State;
use volume::format::protections::Freshness;
use volume::{Kind, Left, attach};

use crate::guest::Guest;
use crate::simulation::{Failure, Outcomes, Simulation, say};

/// A session that has ended well.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Past {
    left: Left,
    /// Generation and head that the anchor vouched for then.
    anchored: Option<(u64, [u8; 32])>,
}

impl Simulation {
    /// A guest has detached: the next one may follow it.
    pub(crate) fn note_left(&mut self, guest: &Guest) {
        if guest.volume.failure().is_none() && guest.maintenance.is_none() && !self.tainted {
            let anchored = self.anchor.held().map(|stamp| (stamp.generation, stamp.head));
            self.left = Some(Past { left: guest.volume.left(), anchored });
        }
    }

    /// For the next attach: what it is to follow, if the last guest has detached, and the host has done nothing since.
    pub(crate) fn follow(&mut self, honest: bool) {
        let last = self.left.take();
        self.past = last.or(self.past);
        let possible = honest && self.zombie.is_none() && self.anchor.pending() == 0 && !self.tainted;
        let last = last.filter(|_| possible && self.rng.bool());
        self.follows = last.map(|past| past.left);
        self.coverage.followed += u64::from(self.follows.is_some());
    }

    /// Somebody tries to follow a session long past, and is refused.
    pub(crate) fn perhaps_follow_the_past(&mut self) -> Outcomes {
        let known = self.plan.create.freshness != Freshness::Off && !self.plan.mischief.anchor;
        let (Some(past), Some(stamp), Some(policy)) = (self.past, self.anchor.held(), self.policy.clone())
        else {
            return Ok(());
        };
        let gone_on = stamp.state != State::Released || past.anchored != Some((stamp.generation, stamp.head));
        let possible = known && gone_on && self.is_idle() && self.anchor.pending() == 0;
        if !possible || !self.once_in(8) {
            return Ok(());
        }
        say!(self, "somebody would follow the session that left {past:?}");
        let session = self.store.attach();
        let watched = self.audit.watch(&session);
        let options = volume::AttachOptions { follows: Some(past.left), ..self.plan.attach };
        let job = attach(self.environment(&watched), policy, self.keys.credential(), options)
            .map_err(|error| Failure(format!("following: {error}")))?;
        match self.drive_or_die(&session, job, None, ("following", 20_000))? {
            Some(Err(error)) if error.kind() == Kind::Fenced && watched.writes() == 0 => {
                self.coverage.not_followed += 1;
                Ok(())
            }
            Some(Err(error)) => self.expect(&error, "following a session long past"),
            _ => Err(Failure("a session long past was followed".into())),
        }
    }
}
