//! Who can open the volume, and how that changes.

use std::collections::BTreeSet;

use memory::BLOCK_SIZE;
use seal::SecretBytes;
use seal::slot::{Argon2Params, Credential, SlotLimits};
use testkit::hostile::{Image, Session};
use volume::format::header::{self, Header};
use volume::{Driven, Error, KeyChange, KeysChanged, Kind, change_keys};

use crate::simulation::{Failure, Outcomes, Simulation, say};

/// The credentials that open the volume. Number 0 always does; a change that was cut short leaves others in doubt.
#[derive(Default)]
pub(crate) struct Keys {
    certain: BTreeSet<u8>,
    doubtful: BTreeSet<u8>,
    last: u8,
    /// For the next attach: one that has been removed.
    pub(crate) revoked: Option<u8>,
    /// What the disk held before a credential was removed, and which.
    pub(crate) before_removal: Vec<(Image, u8)>,
}

pub(crate) fn numbered(number: u8) -> Credential {
    Credential::KeyFile(SecretBytes::from_slice(&[7 + number; 64]))
}

fn label(number: u8) -> String {
    if number == 0 { "simulator".into() } else { format!("key {number}") }
}

impl Keys {
    /// What to attach with.
    pub(crate) fn credential(&self) -> Credential {
        numbered(self.revoked.unwrap_or_else(|| self.certain.last().copied().unwrap_or(0)))
    }

    /// Those that a change of key must keep, beside number 0.
    pub(crate) fn kept(&self) -> Vec<u8> {
        self.certain.iter().copied().collect()
    }

    /// Whether these slots are in force for all that is known.
    fn explains(&self, labels: &BTreeSet<String>) -> bool {
        let certain: BTreeSet<String> = self.certain.iter().chain(&[0]).map(|key| label(*key)).collect();
        let doubtful: BTreeSet<String> = self.doubtful.iter().map(|key| label(*key)).collect();
        certain.is_subset(labels) && labels.difference(&certain).all(|label| doubtful.contains(label))
    }

    pub(crate) fn believe(&mut self, labels: &BTreeSet<String>) {
        let known = (1..=self.last).filter(|key| labels.contains(&label(*key)));
        self.certain = known.collect();
        self.doubtful.clear();
    }
}

/// A change of the slots beside a guest's users.
pub(crate) struct ChangingKeys {
    wanted: Wanted,
    /// What the disk held when it began.
    before: Image,
    job: Changing,
}

type Changing = Driven<Result<KeysChanged, Error>>;

/// What a change was to do.
#[derive(Clone, Copy)]
enum Wanted {
    Add(u8),
    Remove(u8),
}

impl Simulation {
    /// The owner adds a credential, or removes one; while nobody has the volume, and perhaps not to the end.
    pub(crate) fn change_keys(&mut self) -> Outcomes {
        let late_moves = self.anchor.pending() > 0;
        let Some(wanted) = self.wanted() else { return Ok(()) };
        let before = self.store.snapshot();
        let dies = self.once_in(2).then(|| self.rng.u32(..40));
        let (session, job) = self.begin_change(wanted)?;
        let Some(result) = self.drive_or_die(&session, job, dies, ("changing the keys", 20_000))? else {
            say!(self, "the change of the keys is cut short");
            self.coverage.cut_key_changes += 1;
            self.doubt(wanted);
            return Ok(());
        };
        match result {
            Ok(changed) => {
                let labels = changed.slots.into_iter().map(|slot| slot.label).collect();
                self.changed(wanted, &labels, before)
            }
            Err(error) => {
                say!(self, "the change of the keys fails: {error}");
                self.doubt(wanted);
                // What a dead guest, or an earlier change, had sent to the anchor may arrive now.
                let late = late_moves && error.kind() == Kind::Fenced;
                let io = self.plan.mischief.errors && error.kind() == Kind::Io;
                if io || late { Ok(()) } else { self.expect(&error, "changing the keys") }
            }
        }
    }

    /// The owner begins to change the slots of an attached volume; whether that has happened is in doubt until it is told.
    pub(crate) fn change_keys_beside(&mut self) -> Outcomes {
        let Some(guest) = self.guest.as_ref().filter(|guest| guest.keys.is_none() && !guest.stopping) else {
            return Ok(());
        };
        let volume = guest.volume.clone();
        let Some(wanted) = self.wanted().filter(|_| !self.tainted && volume.failure().is_none()) else {
            return Ok(());
        };
        let before = self.store.snapshot();
        let change = self.order(wanted)?;
        let job = volume
            .change_keys(numbered(0), change, SlotLimits::default())
            .map_err(|error| Failure(format!("changing the keys: {error}")))?;
        self.doubt(wanted);
        if let Some(guest) = &mut self.guest {
            guest.keys = Some(ChangingKeys { wanted, before, job });
        }
        Ok(())
    }

    /// Moves that on.
    pub(crate) fn poll_keys(&mut self) -> Outcomes {
        let Some(guest) = &mut self.guest else { return Ok(()) };
        let Some(result) = guest.keys.as_mut().and_then(|keys| keys.job.poll()) else { return Ok(()) };
        let (stopping, failed) = (guest.stopping, guest.volume.failure().is_some());
        let Some(ChangingKeys { wanted, before, .. }) = guest.keys.take() else { return Ok(()) };
        match result {
            Ok(changed) => {
                self.coverage.key_changes_beside += 1;
                let labels = changed.slots.into_iter().map(|slot| slot.label).collect();
                self.changed(wanted, &labels, before)
            }
            Err(error) => {
                say!(self, "the change of the keys fails: {error}");
                let io = self.plan.mischief.errors && error.kind() == Kind::Io;
                if stopping || failed || io { Ok(()) } else { self.expect(&error, "changing the keys") }
            }
        }
    }

    /// What the owner may want of the slots.
    fn wanted(&mut self) -> Option<Wanted> {
        match self.keys.certain.first().copied() {
            Some(key) if self.keys.certain.len() >= 3 || self.rng.bool() => {
                if self.coverage.rollbacks_accepted > 0 && self.slot_of(key).is_err() {
                    // It was added behind the image that is in place now.
                    self.keys.certain.remove(&key);
                    return None;
                }
                Some(Wanted::Remove(key))
            }
            _ if self.keys.last < 200 => Some(Wanted::Add(self.keys.last + 1)),
            _ => None,
        }
    }

    fn order(&mut self, wanted: Wanted) -> Result<KeyChange, Failure> {
        Ok(match wanted {
            Wanted::Add(key) => {
                say!(self, "the owner adds key {key}");
                self.keys.last = key;
                let argon2 = Argon2Params { memory_kib: 8, passes: 1, lanes: 1 };
                KeyChange::Add { credential: numbered(key), label: label(key), argon2 }
            }
            Wanted::Remove(key) => {
                say!(self, "the owner removes key {key}");
                KeyChange::Remove { slot: self.slot_of(key)? }
            }
        })
    }

    fn begin_change(&mut self, wanted: Wanted) -> Result<(Session, Changing), Failure> {
        let change = self.order(wanted)?;
        let Some(policy) = self.policy.clone() else { return Err(Failure("there is no policy".into())) };
        let session = self.store.attach();
        let environment = self.environment(&self.audit.watch(&session));
        let job = change_keys(environment, policy, numbered(0), change, true, self.plan.attach)
            .map_err(|error| Failure(format!("changing the keys: {error}")))?;
        Ok((session, job))
    }

    /// Header and key slots of each copy that the anchor vouches for; without an anchor, of each that is whole.
    pub(crate) fn copies_in_force<'a>(
        &self,
        image: &'a Image,
    ) -> impl Iterator<Item = (&'a [u8; BLOCK_SIZE], &'a [u8; BLOCK_SIZE])> {
        let anchored = self.anchor.held().map(|stamp| stamp.header_digest);
        let copies = [0, 2].map(|at| (image.block(at), image.block(at + 1)));
        copies.into_iter().filter(move |(header, slots)| match anchored {
            Some(digest) => digest == seal::sha256(&[*header, *slots]),
            None => header::is_whole(header, *slots) == Some(true),
        })
    }

    /// The slot that holds a key, as the copy in force says it: the newer one, when a change was cut between the two.
    pub(crate) fn slot_of(&self, key: u8) -> Result<usize, Failure> {
        let image = self.store.snapshot();
        self.copies_in_force(&image)
            .filter_map(|(header, slots)| {
                Some((
                    Header::decode_as(header, self.plan.create.shape).ok()?,
                    seal::slot::KeySlots::decode(slots).ok()?,
                ))
            })
            .max_by_key(|(header, _)| header.generation)
            .and_then(|(_, slots)| {
                slots.list().iter().find(|slot| slot.label == label(key)).map(|slot| slot.index)
            })
            .ok_or_else(|| Failure(format!("key {key} has no slot, and was never removed")))
    }

    /// Drives a job of the owner's to its end, which must come within so many rounds; nothing, if it dies before.
    pub(crate) fn drive_or_die<T>(
        &mut self,
        session: &Session,
        job: Driven<Result<T, Error>>,
        dies: Option<u32>,
        limit: (&str, u32),
    ) -> Result<Option<Result<T, Error>>, Failure> {
        self.drive_until(session, job, |_, round| dies == Some(round), limit)
    }

    /// The same, for a death at a moment of its own.
    pub(crate) fn drive_until<T>(
        &mut self,
        session: &Session,
        mut job: Driven<Result<T, Error>>,
        mut dies: impl FnMut(&mut Self, u32) -> bool,
        (what, rounds): (&str, u32),
    ) -> Result<Option<Result<T, Error>>, Failure> {
        for round in 0..rounds {
            if dies(self, round) {
                drop(job);
                self.kill_job(session);
                return Ok(None);
            }
            if let Some(result) = job.poll() {
                return Ok(Some(result));
            }
            let _ = self.store.complete_some();
            self.move_anchor();
            if self.zombie.as_ref().is_some_and(|zombie| !zombie.deep) && self.once_in(2) {
                self.zombie_step()?;
            }
        }
        Err(Failure(format!("{what} does not end")))
    }

    /// The job dies with its machine, or alone: then the disk has what it was given, and has not made all of it durable.
    fn kill_job(&mut self, session: &Session) {
        self.coverage.crashes += 1;
        if self.rng.bool() {
            self.power_off();
        } else {
            say!(self, "the job is killed");
            self.coverage.killed_jobs += 1;
            if self.plan.mischief.late {
                // As in `bury`: a late write of a header would be the second misfortune.
                session.complete_all();
            }
            session.crash();
        }
        self.settle_anchor();
    }

    fn doubt(&mut self, wanted: Wanted) {
        let (Wanted::Add(key) | Wanted::Remove(key)) = wanted;
        self.keys.certain.remove(&key);
        self.keys.doubtful.insert(key);
    }

    fn changed(
        &mut self,
        wanted: Wanted,
        labels: &BTreeSet<String>,
        before: testkit::hostile::Image,
    ) -> Outcomes {
        self.coverage.key_changes += 1;
        match wanted {
            Wanted::Add(key) => drop(self.keys.certain.insert(key)),
            Wanted::Remove(key) => {
                self.keys.certain.remove(&key);
                self.keys.before_removal.push((before, key));
            }
        }
        say!(self, "keys in force: {labels:?}");
        // An older image that was accepted brings its slots along.
        let older = self.coverage.rollbacks_accepted > 0 || self.tainted;
        if !older && !self.keys.explains(labels) {
            return Err(Failure(format!("after a change of the keys these are in force: {labels:?}")));
        }
        self.keys.believe(labels);
        Ok(())
    }
}
