//! Making the volume; perhaps not at the first attempt.

use std::sync::Arc;

use anchor::Anchor as _;
use seal::slot::{KeySlots, SlotLimits};
use seal::{DataMode, Suite};
use store::BLOCK_SIZE;
use volume::format::protections::{Freshness, SuiteCode};
use volume::policy::Policy;
use volume::{AttachOptions, CreateOptions, Driven, Environment, Error, Kind, SavePolicy};

use crate::audit::Book;
use crate::simulation::{Failure, Outcomes, Simulation, say};

/// What `create` handed out to be kept.
type Kept = std::sync::mpsc::Receiver<Policy>;

/// A place that keeps the policy.
pub(crate) fn keep() -> (SavePolicy, Kept) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let save = Box::new(move |policy: &Policy| {
        let _ = sender.send(policy.clone());
        Ok(())
    });
    (save, receiver)
}

impl Simulation {
    /// Makes the volume, with a host that is honest. It may be cut short a few times before.
    pub(crate) fn create(&mut self) -> Outcomes {
        for _ in 0..self.plan.cut_creations {
            if self.create_and_die()? {
                return self.created();
            }
        }
        let options = CreateOptions { force: self.plan.cut_creations > 0, ..self.plan.create.clone() };
        let session = self.store.attach();
        let (save, kept) = keep();
        let mut job = begin(self.environment(&self.audit.watch(&session)), options, save)?;
        for _ in 0..1000 {
            if let Some(result) = job.poll() {
                result.map_err(|error| Failure(format!("creating the volume: {error}")))?;
                self.policy = kept.try_recv().ok();
                return self.created();
            }
            self.store.complete_all();
        }
        Err(Failure("creating the volume does not end".into()))
    }

    /// Begins to make the volume, and dies somewhere on the way. Whether there is one then.
    fn create_and_die(&mut self) -> Result<bool, Failure> {
        let session = self.store.attach();
        let options = CreateOptions { force: true, ..self.plan.create.clone() };
        let (save, kept) = keep();
        let mut job = begin(self.environment(&self.audit.watch(&session)), options, save)?;
        self.anchor.hold(true);
        for _ in 0..self.rng.u32(1..30) {
            match job.poll() {
                // Its owner is told, and the volume may be there or not, as after a crash.
                Some(Err(error)) => {
                    self.expect(&error, "creating the volume")?;
                    break;
                }
                Some(Ok(_)) => break,
                None => {}
            }
            let _ = self.store.complete_some();
            if self.rng.bool() {
                self.move_anchor();
            }
        }
        drop(job);
        say!(self, "the creation of the volume is cut short");
        self.coverage.cut_creations += 1;
        self.power_off();
        while self.anchor.pending() > 0 {
            if self.rng.bool() {
                self.anchor.lose_next();
            } else {
                self.anchor.complete_next();
            }
        }
        self.anchor.hold(false);
        let Some(policy) = kept.try_recv().ok() else {
            return match self.anchor.held() {
                None => Ok(false),
                Some(_) => Err(Failure("the anchor was claimed before the policy was kept".into())),
            };
        };
        self.policy = Some(policy);
        self.judge_half_made()
    }

    /// Whether what a cut creation left is a volume: either it is whole, or its owner is told that it is not.
    fn judge_half_made(&mut self) -> Result<bool, Failure> {
        let anchored = self.plan.create.freshness != Freshness::Off;
        let claimed = self.anchor.held().is_some();
        let session = self.store.attach();
        let mut job = self.attaching(&self.audit.watch(&session))?;
        let result = loop {
            if let Some(result) = job.poll() {
                break result.map(drop);
            }
            if self.store.complete_all() == 0 {
                return Err(Failure("an attach of a volume that was made in part does not end".into()));
            }
        };
        drop(job);
        self.power_off();
        match result {
            Ok(()) if anchored && !claimed => {
                Err(Failure("a volume was attached, and nobody had claimed its anchor".into()))
            }
            Ok(()) => Ok(true),
            Err(error) if anchored && claimed => Err(Failure(format!(
                "the anchor was claimed for a volume that is not there: {:?}: {error}",
                error.kind()
            ))),
            Err(error) => {
                let expected: &[Kind] = if anchored { &[Kind::Anchor] } else { &[Kind::Corrupt] };
                say!(self, "there is no volume yet: {error}");
                if expected.contains(&error.kind()) {
                    Ok(false)
                } else {
                    Err(Failure(format!(
                        "a volume that was made in part is refused as {:?}: {error}",
                        error.kind()
                    )))
                }
            }
        }
    }

    /// It is made: opens the second reader's book, and lets the anchor be slow.
    fn created(&mut self) -> Outcomes {
        self.anchor.hold(self.plan.slow_anchor || self.plan.mischief.anchor);
        let Some(policy) = &self.policy else { return Err(Failure("there is no policy".into())) };
        let wrong = |what: &str| Failure(format!("the key slots of a new volume: {what}"));
        let image = self.store.snapshot();
        let opened = [1, 3].into_iter().find_map(|at| {
            let area: &[u8; BLOCK_SIZE] = image.block(at);
            let slots = KeySlots::decode(area).ok()?;
            slots.unlock(&policy.volume, &Self::credential(), &SlotLimits::default()).ok()
        });
        let create = &self.plan.create;
        let suite = suite_of(create.suite);
        self.audit.use_key(opened.ok_or_else(|| wrong("none opens"))?);
        self.audit.open(Book {
            volume: policy.volume,
            suite,
            mode: DataMode::new(suite, create.confidentiality, create.integrity)
                .map_err(|error| wrong(&error.to_string()))?,
            integrity: create.integrity,
            tampering: self.plan.mischief.tamper,
            older_headers: self.plan.mischief.lies && create.freshness == Freshness::Off,
            geometry: self.geometry,
        });
        Ok(())
    }

    /// An attach of whatever is there.
    pub(crate) fn attaching(
        &self,
        store: &crate::audit::Audited,
    ) -> Result<Driven<Result<volume::Volume, Error>>, Failure> {
        let Some(policy) = self.policy.clone() else { return Err(Failure("there is no policy".into())) };
        let environment = self.environment(store);
        let options = AttachOptions { follows: self.follows, ..self.plan.attach };
        volume::attach(environment, policy, self.keys.credential(), options)
            .map_err(|error| Failure(format!("attach: {error}")))
    }
}

fn begin(
    environment: Environment,
    options: CreateOptions,
    save: SavePolicy,
) -> Result<Driven<Result<Policy, Error>>, Failure> {
    volume::create(environment, options, Simulation::credential(), save)
        .map_err(|error| Failure(format!("creating the volume: {error}")))
}

fn suite_of(code: SuiteCode) -> Suite {
    match code {
        SuiteCode::Aes256Gcm => Suite::Aes256Gcm,
        SuiteCode::Aegis128x2 => Suite::Aegis128x2,
        SuiteCode::Aegis256x2 => Suite::Aegis256x2,
        SuiteCode::Aes256Xts => Suite::Aes256Xts,
    }
}

/// A stamp in another's place, by whoever can write to the anchor. What it was before must be known.
pub(crate) fn put_stamp(anchor: &Arc<anchor::ScriptedAnchor>, from: &anchor::Stamp, to: &anchor::Stamp) {
    anchor.hold(false);
    let mut moving = anchor.advance(Some(from), to);
    let _ = moving.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
}
