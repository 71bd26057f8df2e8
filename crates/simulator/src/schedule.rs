//! What happens next in a run: by chance, or until something has come to its end.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use testkit::{Outcome, ScriptedAnchor};
use volume::format::protections::Freshness;

use crate::simulation::{Failure, Outcomes, Simulation, say};

/// What the scheduler may do next.
#[derive(Debug, Clone, Copy)]
enum Action {
    Request,
    Queue,
    Maintenance,
    Reseal,
    Keys,
    Scrub,
    Import,
    Export,
    Store,
    Anchor,
    Clock,
    Checkpoint,
    Snapshot,
    Zombie,
    Settle,
}

impl Simulation {
    pub(crate) fn step(&mut self) -> Outcomes {
        if self.plan.crashes_when_publishing && self.is_publishing() && self.once_in(12) {
            say!(self, "a superblock is on its way");
            self.coverage.crashes_when_publishing += 1;
            self.crash();
            return self.recover();
        }
        let attacks = self.plan.mischief.rollback || self.plan.mischief.tamper;
        let weights = [
            (30, Action::Request),
            (20, Action::Queue),
            (15, Action::Maintenance),
            (if self.is_resealing() { 15 } else { 0 }, Action::Reseal),
            (if self.is_changing_keys() { 15 } else { 0 }, Action::Keys),
            (if self.is_scrubbing() { 15 } else { 0 }, Action::Scrub),
            (if self.is_importing() { 15 } else { 0 }, Action::Import),
            (if self.export.is_some() { 15 } else { 0 }, Action::Export),
            (20, Action::Store),
            (if self.plan.slow_anchor { 6 } else { 20 }, Action::Anchor),
            (4, Action::Clock),
            (1, Action::Checkpoint),
            (if attacks { 1 } else { 0 }, Action::Snapshot),
            (if self.zombie.is_some() { 15 } else { 0 }, Action::Zombie),
            (1, Action::Settle),
        ];
        let total: u32 = weights.iter().map(|(weight, _)| weight).sum();
        let mut left = self.rng.u32(..total);
        let mut chosen = Action::Request;
        for (weight, action) in weights {
            if left < weight {
                chosen = action;
                break;
            }
            left -= weight;
        }
        match chosen {
            Action::Request => self.request_and_more(),
            Action::Queue => {
                let queue = self.rng.usize(..self.plan.queues);
                self.poll_queue(queue).map(drop)
            }
            Action::Maintenance => self.poll_maintenance(),
            Action::Reseal => self.poll_reseal(),
            Action::Keys => self.poll_keys(),
            Action::Scrub => self.poll_scrub(),
            Action::Import => self.poll_import(),
            Action::Export => self.poll_export(),
            Action::Store => {
                let _ = self.store.complete_some();
                Ok(())
            }
            Action::Anchor => {
                self.move_anchor();
                Ok(())
            }
            Action::Clock => {
                self.tick();
                Ok(())
            }
            Action::Checkpoint if self.plan.mischief.keys && self.once_in(2) => self.change_keys_beside(),
            Action::Checkpoint if self.plan.scrubs && self.once_in(3) => self.begin_scrub(),
            Action::Checkpoint if self.plan.streams && self.once_in(2) => {
                if self.rng.bool() {
                    self.begin_import()
                } else {
                    self.export_beside()
                }
            }
            Action::Checkpoint if self.once_in(2) => self.read_what_goes(),
            Action::Checkpoint => {
                if let Some(guest) = &self.guest {
                    say!(self, "guest {} is asked for a checkpoint", guest.name);
                    guest.volume.checkpoint_soon();
                }
                Ok(())
            }
            Action::Snapshot => {
                self.take_snapshot();
                Ok(())
            }
            Action::Zombie => (0..self.rng.u32(1..20)).try_for_each(|_| self.zombie_step()),
            Action::Settle if self.once_in(2) => self.check_window(),
            Action::Settle => self.settle("now and then"),
        }
    }

    /// A request; and by chance what ends a session, or what the host does.
    fn request_and_more(&mut self) -> Outcomes {
        let failed = self.guest.as_ref().is_some_and(|guest| guest.volume.failure().is_some());
        let hasty = self.hasty && self.once_in(4);
        if hasty || (failed && self.once_in(4)) || self.rng.u32(..self.plan.crash_every) == 0 {
            let may_sleep = !(failed || self.is_changing_keys() || self.is_importing());
            if may_sleep && self.plan.mischief.zombies && self.zombie.is_none() && self.once_in(2) {
                self.let_sleep();
            } else if self.plan.mischief.fork && self.once_in(2) {
                return self.fork();
            } else {
                self.crash_or_detach()?;
            }
            return self.recover();
        }
        if self.once_in(25) {
            self.misbehave();
        }
        self.coverage.requests += 1;
        self.request(false)
    }

    pub(crate) fn tick(&mut self) {
        if self.plan.mischief.clock && self.once_in(6) {
            // Hours, in either direction: time is the host's.
            let by = Duration::from_secs(self.rng.u64(1..20_000));
            let ahead = self.rng.bool();
            say!(self, "the clock jumps {} by {by:?}", if ahead { "forwards" } else { "backwards" });
            self.coverage.clock_jumps += 1;
            self.clock.jump(by, ahead);
        }
        self.clock.advance(Duration::from_millis(self.rng.u64(1..400)));
        for guest in self.guest.iter().chain(&self.zombie) {
            guest.volume.tick();
        }
    }

    /// Lets the oldest anchor move happen, or fail. False if there is none.
    pub(crate) fn move_anchor(&mut self) -> bool {
        let Some(anchor) = self.busy_anchor() else { return false };
        let outcome = match self.rng.u32(..8) {
            0 if self.plan.mischief.anchor => Outcome::FailBefore,
            1 if self.plan.mischief.anchor => Outcome::FailAfter,
            _ => Outcome::Proceed,
        };
        self.coverage.anchor_failures += u64::from(outcome != Outcome::Proceed);
        let before = anchor.held();
        anchor.complete_next_with(outcome);
        let now = anchor.held();
        let moved = before != now;
        if let Some(stamp) = now {
            say!(
                self,
                "an anchor move ends ({outcome:?}), the anchor {} generation {}, claim {}, {:?}",
                if moved { "moves to" } else { "stays at" },
                stamp.generation,
                stamp.claims,
                stamp.state
            );
        }
        true
    }

    /// One that has a move to make: the volume's, or the one that the volume is on its way to.
    pub(crate) fn busy_anchor(&self) -> Option<Arc<ScriptedAnchor>> {
        let anchors = [Some(&self.anchor), self.next_anchor.as_ref()];
        anchors.into_iter().flatten().find(|anchor| anchor.pending() > 0).cloned()
    }

    /// Says whether the queue has more to do at once.
    pub(crate) fn poll_queue(&mut self, queue: usize) -> Result<bool, Failure> {
        let Some(guest) = &mut self.guest else { return Ok(false) };
        let (completions, more) = guest.poll_queue(queue);
        self.note_checkpoints();
        completions.into_iter().try_for_each(|completion| self.answered(false, completion))?;
        Ok(more)
    }

    pub(crate) fn poll_maintenance(&mut self) -> Outcomes {
        let Some(guest) = &mut self.guest else { return Ok(()) };
        let (ended, stopping, name) = (guest.poll_maintenance(), guest.stopping, guest.name);
        self.note_checkpoints();
        match ended {
            None => Ok(()),
            Some(Ok(())) if stopping => {
                say!(self, "guest {name} has detached");
                Ok(())
            }
            Some(Ok(())) => Err(Failure("the maintenance job ended, and nobody had asked for it".into())),
            Some(Err(error)) => {
                say!(self, "guest {name}: the maintenance job ends: {error}; {}", self.waiting());
                self.expect(&error, "the maintenance job")
            }
        }
    }

    fn note_checkpoints(&mut self) {
        let Some(guest) = &mut self.guest else { return };
        let status = guest.volume.status();
        self.coverage.evictions += status.cache_evictions - guest.evictions;
        guest.evictions = status.cache_evictions;
        self.coverage.block_cache_hits += status.block_cache_hits - guest.block_cache_hits;
        guest.block_cache_hits = status.block_cache_hits;
        let now = status.checkpoints;
        let new = now - guest.checkpoints;
        let anchored = status.anchored_generation;
        if anchored != guest.anchored {
            (guest.anchored, guest.commits_anchored) = (anchored, status.commits);
        }
        guest.commits = status.commits;
        self.coverage.foreign_units += u64::from(guest.foreign == 0 && status.foreign_units > 0);
        let taken_over = status.taken_units > guest.taken;
        guest.taken = status.taken_units;
        guest.foreign = status.foreign_units;
        guest.checkpoints = now;
        let name = guest.name;
        let waiting = !guest.outstanding.is_empty();
        if taken_over {
            self.end_caution();
        }
        if new == 0 {
            return;
        }
        let transactional = self.plan.create.freshness == Freshness::Transaction;
        self.lifted |= !transactional;
        *(if transactional { &mut self.coverage.spills } else { &mut self.coverage.checkpoints }) += new;
        self.coverage.checkpoints_under_load += if waiting { new } else { 0 };
        say!(self, "guest {name} has made a {}", if transactional { "spill" } else { "checkpoint" });
    }

    fn is_resealing(&self) -> bool {
        self.guest.as_ref().is_some_and(|guest| guest.reseal.is_some())
    }

    fn is_changing_keys(&self) -> bool {
        self.guest.as_ref().is_some_and(|guest| guest.keys.is_some())
    }

    fn is_scrubbing(&self) -> bool {
        self.guest.as_ref().is_some_and(|guest| guest.scrub.is_some())
    }

    pub(crate) fn is_importing(&self) -> bool {
        self.guest.as_ref().is_some_and(|guest| guest.import.is_some())
    }

    fn is_publishing(&self) -> bool {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).is_publishing()
    }

    /// Moves everything on until all requests are answered.
    pub(crate) fn settle(&mut self, why: &str) -> Outcomes {
        self.drive(why, |simulation| {
            let guest = simulation.guest.as_ref();
            guest.is_none_or(|guest| {
                guest.outstanding.is_empty() && guest.keys.is_none() && guest.import.is_none()
            })
        })
    }

    /// Moves everything on until `done`; a failure when nothing moves any more. The clock stands: no request may depend on it.
    pub(crate) fn drive(&mut self, why: &str, done: impl Fn(&Self) -> bool) -> Outcomes {
        const PATIENCE: u32 = 6;
        let (mut idle, mut ticked, mut rounds) = (0, false, 0);
        while !done(self) {
            // An import may wait for checkpoint after checkpoint that has nothing to write.
            let come_to = |simulation: &Self| {
                simulation.guest.as_ref().map(|guest| (guest.outstanding.len(), guest.checkpoints))
            };
            let before = come_to(self);
            let ended = self.store.complete_all();
            let mut moved = self.move_anchor();
            for queue in 0..self.plan.queues {
                moved |= self.poll_queue(queue)?;
            }
            self.poll_maintenance()?;
            self.poll_reseal()?;
            self.poll_keys()?;
            self.poll_scrub()?;
            self.poll_import()?;
            idle = if ended > 0 || moved || come_to(self) != before { 0 } else { idle + 1 };
            rounds += 1;
            if rounds > 20_000 {
                return Err(Failure(format!("{why}: much moves, and nothing ends; {}", self.waiting())));
            }
            if idle > 0 && ticked && done(self) {
                return Err(Failure(format!(
                    "{why}: only the clock's tick moved things on: a wake-up was lost"
                )));
            }
            if idle > PATIENCE && ticked {
                return Err(Failure(format!("{why}: nothing moves; {}", self.waiting())));
            }
            if idle > PATIENCE {
                (idle, ticked) = (0, true);
                say!(self, "{why}: nothing moves, so the clock ticks; {}", self.waiting());
                self.tick();
            }
        }
        if ticked {
            return Err(Failure(format!("{why}: only the clock's tick moved things on: a wake-up was lost")));
        }
        Ok(())
    }

    /// Who waits for what.
    fn waiting(&self) -> String {
        let Some(guest) = &self.guest else { return "nobody is attached".into() };
        let requests: Vec<String> =
            guest.outstanding.iter().map(|(token, waiting)| format!("#{token} {}", waiting.asked)).collect();
        format!(
            "guest {} waits for {}; maintenance job {}; {} store operations in flight; status {:?}",
            guest.name,
            if requests.is_empty() { "nothing".into() } else { requests.join(", ") },
            if guest.maintenance.is_some() { "lives" } else { "has ended" },
            self.store.in_flight(),
            guest.volume.status()
        )
    }
}
