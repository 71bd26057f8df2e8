//! Making the volume; perhaps not at the first attempt.

use std::sync::Arc;

use anchor::Anchor as _;
use memory::BLOCK_SIZE;
use seal::slot::{KeySlots, SlotLimits};
use seal::{DataMode, Suite};
use testkit::hostile::Image;
use volume::format::protections::{Freshness, SuiteCode};
use volume::policy::Policy;
use volume::{AttachOptions, CreateOptions, Driven, Error, Kind, SavePolicy};

use crate::audit::{Audited, Book};
use crate::simulation::{Failure, Outcomes, Simulation, say};

/// A creation under way.
type Creation = Driven<Result<Policy, Error>>;

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
        if self.plan.named {
            self.policy = Some(self.policy_in_advance());
        }
        for _ in 0..self.plan.cut_creations {
            if self.create_and_die()? {
                return self.created();
            }
        }
        loop {
            match self.create_to_the_end()? {
                Ok(policy) if !self.plan.named || self.policy.as_ref() == Some(&policy) => {
                    self.policy = Some(policy);
                    return self.created();
                }
                Ok(_) => return Err(Failure("the volume is not the one that its policy names".into())),
                Err(error) => self.blank_what_is_torn(&error)?,
            }
        }
    }

    fn create_to_the_end(&mut self) -> Result<Result<Policy, Error>, Failure> {
        let session = self.store.attach();
        let (mut job, _kept) = self.begin_creation(&self.audit.watch(&session))?;
        for _ in 0..1000 {
            if let Some(result) = job.poll() {
                return Ok(result);
            }
            self.store.complete_all();
        }
        Err(Failure("creating the volume does not end".into()))
    }

    /// A creation by name goes on where it was cut; but of headers that were torn nothing says whose they were to be, and their owner has to
    /// blank the store.
    fn blank_what_is_torn(&mut self, error: &Error) -> Outcomes {
        let image = self.store.snapshot();
        let torn = image.written().next().is_some() && self.copies_in_force(&image).count() == 0;
        if self.plan.named && torn && error.kind() == Kind::Usage {
            say!(self, "the store is refused: {error}");
            self.store.restore(&Image::new(self.plan.store_blocks));
            return Ok(());
        }
        Err(Failure(format!("creating the volume: {error}")))
    }

    /// What the owner writes down before there is a volume.
    fn policy_in_advance(&mut self) -> Policy {
        let create = &self.plan.create;
        let mut volume = [0; 16];
        self.rng.fill(&mut volume);
        Policy {
            version: volume::policy::VERSION,
            volume,
            suite: create.suite,
            confidentiality: create.confidentiality,
            integrity: create.integrity,
            freshness: create.freshness,
            size: self.geometry.logical_bytes(),
            anchor: (create.freshness != Freshness::Off).then(|| self.anchor.address()),
            format_if_blank: false,
            anchor_options: anchor::Options::default(),
        }
    }

    fn begin_creation(&self, watched: &Audited) -> Result<(Creation, Kept), Failure> {
        let environment = self.environment(watched);
        let (save, kept) = keep();
        let create = self.plan.create.clone();
        let job = match &self.policy {
            Some(policy) if self.plan.named => {
                volume::create_as(environment, create, policy.volume, Self::credential())
            }
            _ => {
                let options = CreateOptions { force: self.plan.cut_creations > 0, ..create };
                volume::create(environment, options, Self::credential(), save)
            }
        };
        let job = job.map_err(|error| Failure(format!("creating the volume: {error}")))?;
        Ok((job, kept))
    }

    /// The host blanks the disk, or leaves no more of it than a creation that was cut would have, and hopes that it is made into a volume
    /// again: a rollback to nothing.
    pub(crate) fn perhaps_blank(&mut self) -> Outcomes {
        let anchored = self.plan.create.freshness != Freshness::Off;
        if !self.plan.named || !anchored || !self.is_idle() || self.guests == 0 || !self.once_in(4) {
            return Ok(());
        }
        self.let_late_writes_happen();
        self.store.complete_all();
        let genuine = self.store.snapshot();
        let mut blanked = Image::new(genuine.blocks());
        if self.rng.bool() {
            (0..4).for_each(|block| blanked.set(block, genuine.block(block)));
        }
        self.store.restore(&blanked);
        say!(self, "the host blanks the disk, and the owner's machine would make the volume");
        let session = self.store.attach();
        let watched = self.audit.watch(&session);
        let (job, _kept) = self.begin_creation(&watched)?;
        let ended = self.drive_or_die(&session, job, None, ("making the volume again", 1000))?;
        self.store.restore(&genuine);
        match ended {
            Some(Err(error)) if error.kind() == Kind::Stale && watched.writes() == 0 => {
                self.coverage.blanked += 1;
                Ok(())
            }
            Some(Err(error)) => self.expect(&error, "making the volume again"),
            _ => Err(Failure("a volume was made again on a disk that the host had blanked".into())),
        }
    }

    /// Begins to make the volume, and dies somewhere on the way. Whether there is one then.
    fn create_and_die(&mut self) -> Result<bool, Failure> {
        let session = self.store.attach();
        let (mut job, kept) = self.begin_creation(&self.audit.watch(&session))?;
        self.anchor.hold(true);
        for _ in 0..self.rng.u32(1..30) {
            match job.poll() {
                // Its owner is told, and the volume may be there or not, as after a crash.
                Some(Err(error)) if error.kind() == Kind::Usage => {
                    self.anchor.hold(false);
                    return self.blank_what_is_torn(&error).map(|()| false);
                }
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
        let named = self.policy.clone().filter(|_| self.plan.named);
        let Some(policy) = kept.try_recv().ok().or(named) else {
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
                let expected: &[Kind] = match (anchored, self.plan.named) {
                    (true, _) => &[Kind::Anchor],
                    (false, false) => &[Kind::Corrupt],
                    // Perhaps there is nothing at all.
                    (false, true) => &[Kind::Corrupt, Kind::Usage],
                };
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
        store: &Audited,
    ) -> Result<Driven<Result<volume::Volume, Error>>, Failure> {
        let Some(policy) = self.policy.clone() else { return Err(Failure("there is no policy".into())) };
        let environment = self.environment(store);
        let options = AttachOptions { follows: self.follows, ..self.plan.attach };
        volume::attach(environment, policy, self.keys.credential(), options)
            .map_err(|error| Failure(format!("attach: {error}")))
    }
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
pub(crate) fn put_stamp(anchor: &Arc<testkit::ScriptedAnchor>, from: &anchor::Stamp, to: &anchor::Stamp) {
    anchor.hold(false);
    let mut moving = anchor.advance(Some(from), to);
    let _ = moving.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
}
