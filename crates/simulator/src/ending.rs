//! How sessions end.

use std::sync::PoisonError;

use volume::format::protections::Freshness;

use crate::guest::Guest;
use crate::simulation::{Outcomes, Simulation, say};

impl Simulation {
    /// Ends the session in one of the ways that there are.
    pub(crate) fn crash_or_detach(&mut self) -> Outcomes {
        let failed = self.guest.as_ref().is_none_or(|guest| guest.volume.failure().is_some());
        if !failed && self.once_in(4) {
            return self.detach();
        }
        self.crash();
        Ok(())
    }

    /// The guest dies, or the whole machine does.
    pub(crate) fn crash(&mut self) {
        self.coverage.crashes += 1;
        if self.rng.bool() {
            self.power_off();
        } else if let Some(guest) = self.guest.take() {
            say!(self, "guest {} dies", guest.name);
            self.bury(guest);
        }
        self.settle_anchor();
    }

    pub(crate) fn power_off(&mut self) {
        say!(self, "the power goes");
        self.store.crash();
        // After the disk: what their queues had not sent yet was never sent.
        self.guest = None;
        self.zombie = None;
        self.export = None;
        self.dead.clear();
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).forget_flights();
    }

    /// Whoever was believed dead is dead, and what it had in flight has happened.
    pub(crate) fn end_caution(&mut self) {
        if let Some(zombie) = self.zombie.take() {
            say!(self, "guest {} really dies", zombie.name);
            self.bury(zombie);
        }
        self.let_late_writes_happen();
    }

    /// What a dead guest had in flight happens in part.
    pub(crate) fn bury(&mut self, guest: Guest) {
        if guest.keys.is_some() {
            // A late write of a header that overwrites the only copy of its successor's, just then, would be two misfortunes at once, and the
            // header's two copies are for one.
            let _ = guest.session.complete_all();
        }
        guest.session.crash();
        self.dead.push(guest.session.clone());
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).forget_flights();
    }

    /// Moves that were on their way to the anchor when their guest died arrive, or not, or later.
    pub(crate) fn settle_anchor(&mut self) {
        while let Some(anchor) = self.busy_anchor() {
            if self.once_in(4) {
                break;
            }
            if self.rng.bool() {
                say!(self, "an anchor move is lost on its way");
                anchor.lose_next();
            } else {
                self.move_anchor();
            }
        }
    }

    fn detach(&mut self) -> Outcomes {
        if self.rng.bool() {
            self.settle("before the detach")?;
        }
        // A clean end keeps all that was answered, flushed or not.
        let before = self.model.tick();
        let Some(guest) = &mut self.guest else { return Ok(()) };
        say!(self, "guest {} is asked to detach", guest.name);
        guest.stopping = true;
        guest.volume.stop();
        self.drive("detaching", |simulation| {
            simulation
                .guest
                .as_ref()
                .is_none_or(|guest| guest.maintenance.is_none() && guest.outstanding.is_empty())
        })?;
        self.coverage.detaches += 1;
        if let Some(guest) = self.guest.take() {
            if guest.volume.failure().is_none() && self.plan.create.freshness != Freshness::Transaction {
                self.model.end_flush(before, guest.volume.status().generation);
            }
            self.note_left(&guest);
            self.bury(guest);
        }
        Ok(())
    }
}
