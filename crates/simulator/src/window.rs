//! Level `interval`: what the anchor may not cover yet.

use std::time::Duration;

use volume::format::protections::Freshness;

use crate::simulation::{Failure, Outcomes, Simulation, say};

impl Simulation {
    /// The bound in commits: it holds at every moment, whatever the clock says.
    pub(crate) fn check_commits(&self) -> Outcomes {
        let Some(guest) = &self.guest else { return Ok(()) };
        let limit = self.plan.attach.window.commits;
        let behind = guest.commits - guest.commits_anchored;
        // The one that finds the bound passed counts as well until its own move has arrived.
        if self.plan.create.freshness != Freshness::Interval || behind <= limit + 1 {
            return Ok(());
        }
        Err(Failure(format!("{behind} commits are not anchored, the window allows {limit}")))
    }

    /// The bound in time: when everything has come to rest and the window has passed, all that is committed is anchored.
    pub(crate) fn check_window(&mut self) -> Outcomes {
        self.settle("before the window passes")?;
        let alive = |simulation: &Self| {
            let guest = simulation.guest.as_ref();
            guest.is_some_and(|guest| {
                !guest.stopping && guest.maintenance.is_some() && guest.volume.failure().is_none()
            })
        };
        let honest = !self.plan.mischief.anchor && !self.plan.mischief.clock && self.zombie.is_none();
        if self.plan.create.freshness != Freshness::Interval || !honest || !alive(self) {
            return Ok(());
        }
        // Twice: what was not committed yet when the first one passed has a window of its own.
        for _ in 0..2 {
            self.pass_window()?;
        }
        let Some(guest) = self.guest.as_ref().filter(|_| alive(self)) else { return Ok(()) };
        let status = guest.volume.status();
        self.coverage.windows += 1;
        if status.anchored_generation == Some(status.generation) {
            return Ok(());
        }
        Err(Failure(format!(
            "the window has passed, and the anchor stands at {:?}, the journal at {}",
            status.anchored_generation, status.generation
        )))
    }

    /// Lets the time of one window pass, and everything come to rest.
    fn pass_window(&mut self) -> Outcomes {
        say!(self, "the window passes");
        self.clock.advance(self.plan.attach.window.time + Duration::from_millis(1));
        self.tick();
        let refusals = |simulation: &Self| {
            simulation.guest.as_ref().map_or(0, |guest| guest.volume.status().waits_for_store)
        };
        let (mut idle, mut refused) = (0, refusals(self));
        while idle < 10 {
            // What the store had no room for is tried again with the next tick.
            if refusals(self) > refused {
                refused = refusals(self);
                self.tick();
            }
            self.poll_maintenance()?;
            // Each of these may lead a commit, or load a node, that the maintenance job waits for.
            self.poll_reseal()?;
            self.poll_keys()?;
            self.poll_scrub()?;
            let moved = self.store.complete_all() > 0 || self.move_anchor();
            idle = if moved { 0 } else { idle + 1 };
        }
        Ok(())
    }
}
