//! How sessions begin and end.

use std::collections::BTreeMap;

use store::hostile::{Faults, Session};
use volume::format::protections::Freshness;
use volume::{Driven, Error, Volume};

use crate::attack::Attack;
use crate::guest::Guest;
use crate::simulation::{Failure, Outcomes, Simulation, say};

/// How an attach went.
enum Attached {
    /// It succeeded.
    Up(Volume, Session),
    Refused(Error),
    /// The guest or the machine died meanwhile.
    Crashed,
}

impl Simulation {
    /// Makes the volume; with an honest host, and to the end.
    pub(crate) fn create(&mut self) -> Outcomes {
        let session = self.store.attach();
        let (sender, receiver) = std::sync::mpsc::channel();
        let save = Box::new(move |policy: &volume::policy::Policy| {
            let _ = sender.send(policy.clone());
            Ok(())
        });
        let mut job =
            volume::create(self.environment(&session), self.plan.create.clone(), Self::credential(), save)
                .map_err(|error| Failure(format!("creating the volume: {error}")))?;
        for _ in 0..1000 {
            if let Some(result) = job.poll() {
                result.map_err(|error| Failure(format!("creating the volume: {error}")))?;
                self.policy = receiver.try_recv().ok();
                self.anchor.hold(self.plan.slow_anchor || self.plan.mischief.anchor);
                return Ok(());
            }
            self.store.complete_all();
        }
        Err(Failure("creating the volume does not end".into()))
    }

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
    fn crash(&mut self) {
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
        self.dead.clear();
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
        self.store.crash_session(&guest.session);
        self.dead.push(guest.session.clone());
    }

    /// Moves that were on their way to the anchor when their guest died arrive, or not, or later.
    fn settle_anchor(&mut self) {
        while self.anchor.pending() > 0 && !self.once_in(4) {
            if self.rng.bool() {
                say!(self, "an anchor move is lost on its way");
                self.anchor.lose_next();
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
            self.bury(guest);
        }
        Ok(())
    }

    /// The guest is believed dead, and sleeps.
    pub(crate) fn let_sleep(&mut self) {
        if let Some(guest) = self.guest.take() {
            say!(self, "guest {} falls asleep and is believed dead", guest.name);
            self.coverage.zombies += 1;
            self.zombie = Some(guest);
        }
    }

    /// Attaches, as often as it takes, and compares everything.
    pub(crate) fn recover(&mut self) -> Outcomes {
        if self.zombie.as_ref().is_some_and(|zombie| zombie.replaced) {
            self.end_caution();
        }
        for attempt in 0..6u32 {
            // Only the predecessor can be alive: whoever came before is known to be gone when the next one takes over.
            let late = self.dead.len().saturating_sub(1);
            for session in self.dead.drain(..late) {
                session.complete_all();
            }
            let attack = if attempt < 3 { self.attack_at_rest() } else { None };
            let honest = attack.is_none();
            // A guest that is not dead yet may be answered what the next one did not find any more.
            let promise = self.promise(honest && self.zombie.is_none());
            match self.attach(attempt)? {
                Attached::Crashed => {
                    if let Some(attack) = attack {
                        self.undo(attack);
                    }
                }
                Attached::Refused(error) => {
                    say!(self, "the attach is refused: {:?}: {error}", error.kind());
                    self.coverage.refusals += 1;
                    self.judge_refusal(attack, &error)?;
                    if self.lost {
                        return Ok(());
                    }
                }
                Attached::Up(volume, session) => {
                    if let Some(attack) = &attack {
                        self.judge_success(attack)?;
                    }
                    self.stand_up(volume, session)?;
                    return self.compare_all(promise);
                }
            }
        }
        Err(Failure("six attaches in a row did not succeed".into()))
    }

    /// One attach, which may be cut short by a crash.
    fn attach(&mut self, attempt: u32) -> Result<Attached, Failure> {
        let Some(policy) = self.policy.clone() else { return Err(Failure("there is no policy".into())) };
        self.guests += 1;
        self.coverage.attaches += 1;
        let session = self.store.attach();
        say!(self, "guest {} attaches", self.guests);
        if attempt == 3 && self.plan.mischief.errors {
            say!(self, "the disk works again");
            self.store.set_faults(Faults::default());
        }
        let environment = self.environment(&session);
        let mut job: Driven<Result<Volume, Error>> =
            volume::attach(environment, policy, Self::credential(), self.plan.attach)
                .map_err(|error| Failure(format!("attach: {error}")))?;
        let dies = (attempt < 3 && self.guests > 1 && self.once_in(6)).then(|| self.rng.u32(..60));
        for round in 0..20_000u32 {
            if dies == Some(round) {
                say!(self, "guest {} dies while it attaches", self.guests);
                self.coverage.crashes += 1;
                self.coverage.crashes_in_recovery += 1;
                if self.zombie.is_none() && self.rng.bool() {
                    self.power_off();
                } else {
                    self.store.crash_session(&session);
                    self.end_caution();
                    self.dead.push(session);
                }
                drop(job);
                self.settle_anchor();
                return Ok(Attached::Crashed);
            }
            if let Some(result) = job.poll() {
                return Ok(match result {
                    Ok(volume) => Attached::Up(volume, session),
                    Err(error) => Attached::Refused(error),
                });
            }
            if self.rng.bool() {
                let _ = self.store.complete_some();
            } else {
                self.store.complete_all();
            }
            self.move_anchor();
            if self.zombie.is_some() && self.once_in(2) {
                self.zombie_step()?;
            }
        }
        Err(Failure("an attach does not end".into()))
    }

    fn stand_up(&mut self, volume: Volume, session: Session) -> Outcomes {
        let fault = |error: Error| Failure(format!("opening queues: {error}"));
        let mut queues = Vec::new();
        for _ in 0..self.plan.queues {
            queues.push(volume.queue(32).map_err(fault)?);
        }
        let maintenance = Some(volume.maintenance().map_err(fault)?);
        let status = volume.status();
        say!(
            self,
            "guest {} is up: generation {}, claim {}, {} changes replayed",
            self.guests,
            status.generation,
            status.claims,
            status.overlay_changes
        );
        self.coverage.closed_legs += u64::from(status.overlay_changes > 0);
        self.coverage.foreign_units += u64::from(status.foreign_units > 0);
        self.coverage.depth_six += u64::from(self.geometry.map_levels() >= 6 && status.mapped_blocks > 0);
        if let Some(zombie) = &mut self.zombie {
            zombie.replaced = true;
            // Its maintenance job may have committed all that it was told of until now.
            zombie.flushed = self.model.tick();
        }
        self.guest = Some(Guest {
            name: self.guests,
            session,
            volume,
            queues,
            maintenance,
            outstanding: BTreeMap::new(),
            replaced: false,
            changed: 0,
            flushed: 0,
            stopping: false,
            checkpoints: 0,
            evictions: 0,
            foreign: status.foreign_units,
        });
        Ok(())
    }

    /// Reads the whole volume, compares it with what may have survived, and believes it.
    fn compare_all(&mut self, promise: crate::model::Promise) -> Outcomes {
        const CHUNK: u64 = 64;
        let size = self.geometry.logical_blocks;
        let faults = self.plan.mischief.errors;
        if faults {
            self.store.set_faults(Faults::default());
        }
        let mut found = Vec::new();
        let mut block = 0;
        while block < size {
            let blocks = CHUNK.min(size - block);
            match self.read_now(block, blocks)? {
                Ok(versions) => found.extend(versions.into_iter().map(Some)),
                Err(_) => {
                    for single in block..block + blocks {
                        found.push(self.read_now(single, 1)?.ok().map(|versions| versions[0]));
                    }
                }
            }
            block += blocks;
        }
        if faults {
            self.store.set_faults(self.plan.faults);
        }
        let unread = found.iter().filter(|version| version.is_none()).count();
        let written = found.iter().flatten().filter(|version| **version != 0).count();
        say!(self, "everything is read: {written} blocks hold data, {unread} cannot be read");
        let result = if self.contents_count() { self.model.recover(&found, promise) } else { Ok(()) };
        result.map_err(Failure)
    }

    fn judge_refusal(&mut self, attack: Option<Attack>, error: &Error) -> Outcomes {
        let Some(attack) = attack else {
            if self.excused.contains(&error.kind()) {
                // It may be over with the volume; once the faults end, only tampering is an excuse.
                self.lost = self.tainted;
                return Ok(());
            }
            return Err(Failure(format!("the attach fails for no reason: {:?}: {error}", error.kind())));
        };
        attack.judge(error)?;
        self.undo(attack);
        Ok(())
    }
}
