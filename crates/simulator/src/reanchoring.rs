//! The owner's way out of a refusal: a state of what is there is chosen, and counts from then on.

use std::collections::BTreeSet;
use std::sync::Arc;

use testkit::hostile::Session;
use volume::format::protections::Freshness;
use volume::policy::Policy;
use volume::{Choice, Driven, Error, Kind, Reanchor, StateName, Survey, Volume, reanchor, survey};

use crate::attack::Attack;
use crate::keyring::numbered;
use crate::simulation::{Failure, Simulation, Snapshot, say};

type Begun<T> = (Session, Driven<volume::Result<T>>);

impl Simulation {
    /// The owner takes an old image for what there is, instead of waiting for the genuine one. The generation that counts then; `None` if
    /// it did not come to that.
    pub(crate) fn reanchor(&mut self, attack: &Attack) -> Result<Option<u64>, Failure> {
        let Some((found, _)) = self.drive_owner(None, |simulation| simulation.begin_survey())? else {
            return Ok(None);
        };
        let state = self.choose(&found);
        say!(
            self,
            "the owner takes state {state}; the anchor says {:?}",
            found.anchor.map(|found| found.state)
        );
        let before = self.anchor.held();
        let dies = self.once_in(3).then(|| self.rng.u32(..12));
        let ended = self.drive_owner(dies, |simulation| simulation.begin_reanchor(state))?;
        let held = self.anchor.held();
        if held == before {
            self.coverage.cut_reanchors += 1;
            say!(self, "it came to nothing");
            return Ok(None);
        }
        let moved = held
            .as_ref()
            .is_some_and(|stamp| stamp.generation == state.generation && stamp.head.starts_with(&state.head));
        if !moved || (ended.is_some() && before.map(|stamp| stamp.session) == held.map(|stamp| stamp.session))
        {
            return Err(Failure(format!(
                "reanchoring to {state} moved the anchor elsewhere, or fences nobody"
            )));
        }
        self.coverage.reanchors += 1;
        self.give_up(attack, state.generation);
        let labels: BTreeSet<String> = found.slots.into_iter().map(|slot| slot.label).collect();
        self.keys.believe(&labels);
        self.keys.before_removal.clear();
        Ok(Some(state.generation))
    }

    /// Mostly the latest; else any. One that the store has gone on from may have lost some of its blocks to what came later.
    fn choose(&mut self, found: &Survey) -> StateName {
        let mut state = found.chosen;
        if self.once_in(4) {
            let all: Vec<StateName> =
                found.histories.iter().flat_map(|history| history.states.iter().copied()).collect();
            state = all[self.rng.usize(..all.len())];
        }
        let mut states = found.histories.iter().flat_map(|history| &history.states);
        if state != found.chosen || states.any(|other| other.generation > state.generation) {
            self.taint();
        }
        state
    }

    fn begin_survey(&mut self) -> volume::Result<Begun<(Survey, Volume)>> {
        let policy = self.policy.clone().ok_or_else(|| Error::new(Kind::Usage, "there is no policy"))?;
        let session = self.store.attach();
        let environment = self.environment(&self.audit.watch(&session));
        let job = survey(environment, policy, Arc::new(numbered(0)), Choice::Latest, self.plan.attach)?;
        Ok((session, job))
    }

    fn begin_reanchor(&mut self, state: StateName) -> volume::Result<Begun<Policy>> {
        let policy = self.policy.clone().ok_or_else(|| Error::new(Kind::Usage, "there is no policy"))?;
        let session = self.store.attach();
        let environment = self.environment(&self.audit.watch(&session));
        let order =
            Reanchor { state, anchor: None, anchor_options: Default::default(), save: Box::new(|_| Ok(())) };
        let job = reanchor(environment, policy, Arc::new(numbered(0)), order, self.plan.attach)?;
        Ok((session, job))
    }

    /// Drives a job of the owner's to its end, or until the machine dies. Nothing, if that or something excused ended it.
    fn drive_owner<T>(
        &mut self,
        dies: Option<u32>,
        begin: impl FnOnce(&mut Self) -> volume::Result<Begun<T>>,
    ) -> Result<Option<T>, Failure> {
        let (session, job) = begin(self).map_err(|error| Failure(format!("the owner's job: {error}")))?;
        match self.drive_or_die(&session, job, dies, ("reanchoring", 20_000))? {
            // The end of a transaction whose record the disk has kept, and not all of what it names. No attach would take it either. Or a state
            // that the owner has taken before, in an image that had gone on from there.
            Some(Err(error))
                if (self.plan.create.freshness == Freshness::Transaction || self.coverage.reanchors > 0)
                    && error.to_string().contains("no session can go on") =>
            {
                say!(self, "the owner is told: {error}");
                Ok(None)
            }
            Some(Err(error)) => {
                say!(self, "the owner is told: {error}");
                // An image from before a change of key has no say in an anchor whose stamp is signed by the new one.
                if error.kind() == Kind::Anchor && !self.old_keys.is_empty() {
                    return Ok(None);
                }
                self.expect(&error, "reanchoring").map(|()| None)
            }
            Some(Ok(result)) => Ok(Some(result)),
            None => Ok(None),
        }
    }

    /// What is behind `generation` must not come back once the volume has gone on.
    fn give_up(&mut self, attack: &Attack, generation: u64) {
        // One that was given up before may be of the very history that counts now.
        self.snapshots.retain(|snapshot| !snapshot.given_up);
        for snapshot in &mut self.snapshots {
            snapshot.given_up = snapshot.generation > generation;
            // An older one may hold the owner's state, too: as a commit that was on its way when a machine died, and that nobody took up.
            snapshot.generation = generation;
        }
        // Lenient from here on as towards any older image that was accepted: it brings its key slots along.
        self.coverage.rollbacks_accepted += 1;
        let image = attack.genuine.clone();
        let anchored = self.anchored();
        self.snapshots.push(Snapshot { image, generation, anchored, given_up: true });
    }
}
