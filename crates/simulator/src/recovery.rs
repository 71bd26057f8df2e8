//! How sessions begin.

use std::collections::BTreeMap;
use std::sync::Arc;

use testkit::hostile::{Faults, Session};
use volume::format::protections::Freshness;
use volume::{Error, Kind, Volume};

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

/// How often an attach is tried before something must be wrong.
const ATTEMPTS: u32 = 8;

impl Simulation {
    /// What the owner does while nobody has the volume. The generation that counts then, if he has said so.
    fn between_sessions(&mut self) -> Result<Option<u64>, Failure> {
        if self.zombie.as_ref().is_some_and(|zombie| zombie.replaced) {
            if self.plan.mischief.undead {
                self.believe_nothing("a guest of two claims ago is still alive");
                self.coverage.old_zombies += 1;
            } else {
                self.end_caution();
            }
        }
        if self.plan.mischief.keys && self.is_idle() && self.once_in(3) {
            self.change_keys()?;
        }
        self.perhaps_grow()?;
        self.perhaps_restore_header()?;
        self.perhaps_follow_the_past()?;
        self.perhaps_export()?;
        self.perhaps_blank()?;
        if self.plan.mischief.rekey && self.is_idle() && self.guests > 0 && self.once_in(2) {
            self.rekey()?;
        }
        self.perhaps_move()
    }

    /// Whether nobody has the volume or may be believed to, and the host has done nothing to it.
    pub(crate) fn is_idle(&self) -> bool {
        self.guest.is_none() && self.zombie.is_none() && !self.tainted && self.prepared.is_none()
    }

    /// Attaches, as often as it takes, and compares everything.
    pub(crate) fn recover(&mut self) -> Outcomes {
        // What the anchor says while nobody is attached is another attack.
        self.anchor.answer_reads_with(None);
        // The generation that the owner has chosen, until somebody who may have written has died.
        let mut chosen = self.between_sessions()?;
        if self.zombie.is_some() && self.plan.create.freshness == Freshness::Off {
            self.believe_nothing("two guests at once, and no anchor");
        }
        // A guest that is not dead yet may be answered what the next one did not find any more; also after its death.
        let slept = self.zombie.is_some();
        // What may be lost because of an attack that a guest accepted before it died.
        let mut agreed = None;
        let mut deaths = 0;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                // A journal that is full of sessions that ended soon can need room.
                self.store.set_room(None);
            }
            // Only the predecessor can be alive: whoever came before is known to be gone when the next one takes over.
            let late = self.dead.len().saturating_sub(1);
            for session in self.dead.drain(..late) {
                session.complete_all();
            }
            let attack = if attempt < 3 { self.attack_at_rest() } else { None };
            if let Some(attack) = &attack {
                self.owner_meets(attack)?;
            }
            let honest = attack.is_none();
            self.follow(honest);
            let claimed = |simulation: &Self| simulation.anchor.held().map(|stamp| stamp.session);
            let (before, anchored) = (claimed(self), self.anchored());
            let promise = agreed.unwrap_or(self.promise(honest && !slept));
            match self.attach(attempt)? {
                Attached::Crashed => {
                    chosen = None;
                    self.coverage.crashes_in_recovery_of_recovery += u64::from(deaths > 0);
                    deaths += 1;
                    match attack {
                        // It had claimed what the host offered: that is the volume now.
                        Some(attack) if claimed(self) != before => {
                            self.judge_success(&attack, anchored)?;
                            agreed = Some(promise);
                        }
                        Some(attack) => self.undo(attack),
                        None => {}
                    }
                }
                Attached::Refused(error) => {
                    say!(self, "the attach is refused: {:?}: {error}", error.kind());
                    self.coverage.refusals += 1;
                    if attack.is_some() && claimed(self) != before {
                        // It had claimed what the host offered, and went no further: what that did not have is given up.
                        agreed = Some(promise);
                    }
                    chosen = self.judge_refusal(attack, &error)?.or(chosen);
                    if chosen.is_some() {
                        agreed = Some(crate::model::Promise::Whatever);
                    }
                    if self.lost {
                        return Ok(());
                    }
                }
                Attached::Up(volume, session) => {
                    if let Some(attack) = &attack {
                        self.judge_success(attack, anchored)?;
                    }
                    // An attach that has to tidy up first may reserve space, which has a record.
                    let found = volume.status().generation;
                    let tidied = volume.status().checkpoints > 0;
                    let wrong = |chosen: &u64| found < *chosen || (found > *chosen && !tidied);
                    if let Some(chosen) = chosen.filter(wrong) {
                        return Err(Failure(format!(
                            "generation {chosen} was chosen, and {found} was found"
                        )));
                    }
                    self.stand_up(volume, session)?;
                    self.compare_all(promise)?;
                    return self.go_on_importing();
                }
            }
        }
        Err(Failure(format!("{ATTEMPTS} attaches in a row did not succeed")))
    }

    /// From now on anything may be damaged, and must be found out.
    pub(crate) fn believe_nothing(&mut self, why: &str) {
        if !self.tainted {
            say!(self, "{why}: what is on the disk may be damaged");
            self.taint();
        }
    }

    /// One attach, which may be cut short by a crash.
    fn attach(&mut self, attempt: u32) -> Result<Attached, Failure> {
        self.guests += 1;
        self.coverage.attaches += 1;
        let session = self.store.attach();
        say!(self, "guest {} attaches", self.guests);
        if attempt == 3 && self.plan.mischief.errors {
            say!(self, "the disk works again");
            self.store.set_faults(Faults::default());
        }
        if let Some((header, key)) = self.key_in_force() {
            self.audit.use_key(key);
            // The image may be one of before a growth, or of behind it again.
            self.audit.resize(header.geometry);
        }
        let watched = self.audit.watch(&session);
        let before = self.anchor.held();
        let mut job = self.attaching(&watched)?;
        let dies = (attempt < 5 && self.guests > 1 && self.once_in(5)).then(|| self.rng.u32(..60));
        for round in 0..20_000u32 {
            // The moment behind the claim is one of its own.
            let claimed = dies.is_some() && self.anchor.held() != before && self.once_in(4);
            if claimed || dies == Some(round) {
                say!(self, "guest {} dies while it attaches", self.guests);
                self.coverage.crashes += 1;
                self.coverage.crashes_in_recovery += 1;
                if self.zombie.is_none() && (claimed || self.rng.bool()) {
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
            let result = job.poll();
            if let Some(zombie) = &mut self.zombie {
                zombie.claimed_away |= self.anchor.held() != before || before.is_none();
            }
            if let Some(result) = result {
                return match result {
                    Ok(volume) => Ok(Attached::Up(volume, session)),
                    Err(error) if self.anchor.held() == before && watched.writes() > 0 => {
                        self.may_have_written(error)
                    }
                    Err(error) => Ok(Attached::Refused(error)),
                };
            }
            if self.rng.bool() {
                let _ = self.store.complete_some();
            } else {
                self.store.complete_all();
            }
            self.move_anchor();
            if self.zombie.as_ref().is_some_and(|zombie| !zombie.deep) && self.once_in(2) {
                self.zombie_step()?;
            }
        }
        Err(Failure("an attach does not end".into()))
    }

    /// An attach that was refused has written, and nothing was claimed. At freshness `off` there is nothing to claim, and writing begins
    /// once everything was checked.
    fn may_have_written(&self, error: Error) -> Result<Attached, Failure> {
        let early =
            matches!(error.kind(), Kind::Usage | Kind::Stale | Kind::Forked | Kind::Locked | Kind::Policy);
        if early || self.plan.create.freshness != Freshness::Off {
            return Err(Failure(format!("an attach wrote before it claimed, and was refused: {error}")));
        }
        Ok(Attached::Refused(error))
    }

    fn stand_up(&mut self, volume: Volume, session: Session) -> Outcomes {
        self.look_at_the_size(&volume)?;
        self.check_copies()?;
        let fault = |error: Error| Failure(format!("opening queues: {error}"));
        let mut queues = Vec::new();
        for _ in 0..self.plan.queues {
            queues.push(volume.queue(32).map_err(fault)?);
        }
        let maintenance = Some(volume.maintenance().map_err(fault)?);
        let reseal =
            volume.is_rekeying().then(|| volume.reseal(Arc::default())).transpose().map_err(fault)?;
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
        if self.zombie.is_some() && status.taken_units > 0 {
            self.believe_nothing("for want of space the predecessor's units were taken, and it is alive");
        }
        if let Some(zombie) = &mut self.zombie {
            zombie.replaced = true;
            // Its maintenance job may have committed all that it was told of until now.
            zombie.flushed = self.model.tick();
        }
        // What it believes to be free it uses before the next one has changed anything.
        let steps = if self.zombie.as_ref().is_some_and(|zombie| zombie.wakes_busy) { 300 } else { 0 };
        self.guest = Some(Guest {
            name: self.guests,
            session,
            volume,
            queues,
            maintenance,
            reseal,
            scrub: None,
            import: None,
            keys: None,
            outstanding: BTreeMap::new(),
            replaced: false,
            claimed_away: false,
            deep: false,
            wakes_busy: false,
            changed: 0,
            flushed: 0,
            stopping: false,
            checkpoints: 0,
            commits: status.commits,
            commits_anchored: status.commits,
            anchored: status.anchored_generation,
            discarded: 0,
            waits_for_store: 0,
            evictions: 0,
            block_cache_hits: 0,
            foreign: status.foreign_units,
            taken: status.taken_units,
        });
        (0..steps).try_for_each(|_| self.zombie_step())
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
                        found.push(self.read_alone(single)?);
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

    /// The version of one block; nothing, if it cannot be read. A read that changes under way does not make a block lost for good.
    fn read_alone(&mut self, block: u64) -> Result<Option<u64>, Failure> {
        let attempts = if self.plan.mischief.lies { 16 } else { 1 };
        for _ in 0..attempts {
            if let Ok(versions) = self.read_now(block, 1)? {
                return Ok(versions.first().copied());
            }
        }
        Ok(None)
    }

    /// The generation that the owner has chosen because of it, if it came to that.
    fn judge_refusal(&mut self, attack: Option<Attack>, error: &Error) -> Result<Option<u64>, Failure> {
        let Some(attack) = attack else {
            if self.excused.contains(&error.kind()) {
                // It may be over with the volume; once the faults end, only tampering is an excuse.
                self.lost = self.tainted;
                return Ok(None);
            }
            if self.tainted && error.kind() == Kind::Usage {
                // Nothing is left by which it could be told that this was a volume.
                self.lost = true;
                return Ok(None);
            }
            return Err(Failure(format!("the attach fails for no reason: {:?}: {error}", error.kind())));
        };
        attack.judge(error)?;
        if attack.is_old_image()
            && self.once_in(3)
            && let Some(chosen) = self.reanchor(&attack)?
        {
            return Ok(Some(chosen));
        }
        self.undo(attack);
        Ok(None)
    }
}
