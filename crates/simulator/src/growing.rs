//! The owner gives the volume more room; while nobody has it, or while somebody is believed dead, and perhaps not to the end.

use std::sync::PoisonError;

use memory::BLOCK_SIZE;
use testkit::hostile::{Faults, Image, Session};
use volume::format::header::Header;
use volume::format::protections::{Freshness, Provision};
use volume::geometry::Geometry;
use volume::policy::Policy;
use volume::{Driven, Error, Grown, Growth, Kind, Volume, grow};

use crate::attack::Attack;
use crate::creation::keep;
use crate::keyring::numbered;
use crate::simulation::{Failure, Outcomes, Simulation, say};

pub(crate) const OLD_HEADER: &[Kind] = &[Kind::Stale, Kind::Policy, Kind::Locked];

/// How often a growth is tried before something must be wrong.
const ATTEMPTS: u32 = 40;

/// What the owner asks for.
#[derive(Debug, Clone, Copy)]
struct Wish {
    logical: Option<u64>,
    /// The store is a file, which becomes as long as it must.
    file: bool,
}

impl Simulation {
    pub(crate) fn perhaps_grow(&mut self) -> Outcomes {
        let anchored = self.plan.create.freshness != Freshness::Off;
        let alone = self.guest.is_none() && (self.zombie.is_none() || anchored);
        let possible = alone && !self.tainted && self.prepared.is_none() && self.guests > 0;
        if self.plan.growths == 0 || !possible || !self.once_in(2) {
            return Ok(());
        }
        self.plan.growths -= 1;
        let before = self.store.snapshot();
        self.coverage.growths_under_zombies += u64::from(self.zombie.is_some());
        let wish = self.wish();
        for attempt in 0..ATTEMPTS {
            // Of just before: a machine that died in the last attempt may have taken with it what nobody had made durable.
            let image = self.store.snapshot();
            let dies = (attempt < 4 && self.once_in(2)).then(|| self.rng.u32(..40));
            if attempt == 6 {
                self.store.set_faults(Faults::default());
            }
            match self.grow_once(wish, dies)? {
                Some(Ok(grown)) => {
                    self.begin_faults();
                    return self.grown(&grown, before);
                }
                Some(Err(error)) if error.kind() == Kind::Usage => return self.refused(wish, &error, &image),
                Some(Err(error)) => self.growth_failed(&error)?,
                None => {
                    say!(self, "the growth is cut short");
                    self.coverage.cut_growths += 1;
                }
            }
            if self.once_in(2) {
                self.look_in_between()?;
            }
        }
        Err(Failure(format!("{ATTEMPTS} growths in a row did not succeed")))
    }

    fn wish(&mut self) -> Wish {
        let (logical, physical) = (self.geometry.logical_blocks, self.geometry.physical_blocks);
        let more = self.rng.u64(1..=logical.min(600));
        let file = self.rng.bool();
        if !file || self.once_in(4) {
            // A disk becomes larger before anybody asks for it.
            let larger = physical + self.rng.u64(16..=physical.min(1500));
            say!(self, "the disk has at least {larger} blocks now");
            self.store.extend(larger);
        }
        let thin = self.plan.create.provision == Provision::Thin;
        let logical =
            (file || (thin && self.rng.bool())).then_some(logical + if thin { more / 2 } else { more });
        say!(self, "the owner lets the volume grow to {logical:?} blocks");
        Wish { logical, file }
    }

    /// One growth; nothing, if the machine dies before it ends.
    fn grow_once(&mut self, wish: Wish, dies: Option<u32>) -> Result<Option<Result<Grown, Error>>, Failure> {
        let (save, kept) = keep();
        let store = self.store.clone();
        let enlarge = move |blocks: u64, _: Provision| {
            if wish.file {
                store.extend(blocks);
            }
            Ok(())
        };
        let growth = Growth { logical_blocks: wish.logical, enlarge: Box::new(enlarge), save, force: true };
        let (session, job) = self.begin_growth(growth)?;
        let ended = self.drive_or_die(&session, job, dies, ("growing", 20_000));
        if let Ok(policy) = kept.try_recv() {
            say!(self, "the policy says {} bytes now", policy.size);
            self.policy = Some(policy);
        }
        ended
    }

    fn begin_growth(&mut self, growth: Growth) -> Result<(Session, Driven<Result<Grown, Error>>), Failure> {
        let session = self.store.attach();
        let environment = self.environment(&self.audit.watch(&session));
        let job = grow(environment, self.owners_policy()?, numbered(0), growth, self.plan.attach)
            .map_err(|error| Failure(format!("growing: {error}")))?;
        Ok((session, job))
    }

    pub(crate) fn owners_policy(&self) -> Result<Policy, Failure> {
        self.policy.clone().ok_or_else(|| Failure("there is no policy".into()))
    }

    /// Errors that have a reason: the host's, or a guest's that lives and moves the anchor.
    fn growth_failed(&mut self, error: &Error) -> Outcomes {
        say!(self, "the growth fails: {error}");
        // What a dead guest had sent to the anchor, or an earlier attempt, may arrive now.
        let late = self.plan.create.freshness != Freshness::Off && error.kind() == Kind::Fenced;
        if late { Ok(()) } else { self.expect(error, "growing") }
    }

    /// What was refused has changed nothing.
    fn refused(&mut self, wish: Wish, error: &Error, before: &Image) -> Outcomes {
        say!(self, "the growth is refused: {error}");
        let (thin, often) = (self.is_thin(), error.to_string().contains("16 times"));
        if wish.file && !thin && !often {
            return Err(Failure(format!("a growth to {:?} is refused: {error}", wish.logical)));
        }
        let now = self.store.snapshot();
        if (0..4).any(|block| now.block(block) != before.block(block)) && self.zombie.is_none() {
            return Err(Failure("a growth that was refused has changed the header".into()));
        }
        Ok(())
    }

    /// A reader attaches while the growth is half done: it finds the volume as the policy has it, or is told what to do.
    fn look_in_between(&mut self) -> Outcomes {
        if self.plan.mischief.errors || self.plan.mischief.anchor || self.zombie.is_some() {
            return Ok(());
        }
        let session = self.store.attach();
        let environment = self.environment(&self.audit.watch(&session));
        let policy = self.owners_policy()?;
        let size = policy.size;
        let job = volume::attach_read_only(environment, policy, numbered(0), self.plan.attach)
            .map_err(|error| Failure(format!("looking at half a growth: {error}")))?;
        match self.drive_or_die(&session, job, None, ("looking at half a growth", 20_000))? {
            Some(Ok(volume)) if volume.blocks() * BLOCK_SIZE as u64 == size => Ok(()),
            Some(Ok(volume)) => Err(Failure(format!("half a growth shows {} blocks", volume.blocks()))),
            Some(Err(error)) if error.kind() == Kind::Policy && error.to_string().contains("volume grow") => {
                Ok(())
            }
            Some(Err(error)) => {
                Err(Failure(format!("half a growth is refused as {:?}: {error}", error.kind())))
            }
            None => Ok(()),
        }
    }

    fn grown(&mut self, grown: &Grown, before: Image) -> Outcomes {
        let policy = self.owners_policy()?;
        say!(self, "the volume has grown to {:?} blocks, {} times in all", grown.now, grown.growths);
        if grown.policy != policy || policy.size != grown.now.0 * BLOCK_SIZE as u64 {
            return Err(Failure("a growth ended, and its policy was not kept".into()));
        }
        let old = self.geometry;
        self.resize()?;
        if (self.geometry.logical_blocks, self.geometry.physical_blocks) != grown.now {
            return Err(Failure(format!("the header in force says another size than {:?}", grown.now)));
        }
        self.coverage.growths += 1;
        self.coverage.lifts += u64::from(old.map_levels() < self.geometry.map_levels())
            + u64::from(old.bitmap_levels() < self.geometry.bitmap_levels());
        // What the owner asks for may be there already.
        if self.geometry != old {
            self.before_growth = Some(before);
            self.lifted = false;
        }
        if self.rng.bool() {
            self.plan.hot = self.geometry.logical_blocks;
        }
        Ok(())
    }

    /// Takes the sizes from the header in force.
    fn resize(&mut self) -> Outcomes {
        let Some(geometry) = self.geometry_in_force() else {
            return Err(Failure("there is no header".into()));
        };
        self.geometry = geometry;
        self.model.grow(geometry.logical_blocks);
        self.audit.resize(geometry);
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).resize(geometry);
        Ok(())
    }

    fn geometry_in_force(&self) -> Option<Geometry> {
        let size = self.policy.as_ref()?.size;
        let image = self.store.snapshot();
        let headers = self.copies_in_force(&image).filter_map(|(page, _)| {
            let header = Header::decode_as(page, self.plan.create.shape).ok()?;
            (header.geometry.logical_bytes() == size).then_some(header)
        });
        headers.max_by_key(|header| header.generation).map(|header| header.geometry)
    }

    /// An attach succeeded. An older image that was accepted may be of before a growth that the policy says nothing of.
    pub(crate) fn look_at_the_size(&mut self, volume: &Volume) -> Outcomes {
        if volume.blocks() != self.geometry.logical_blocks {
            return Err(Failure(format!("the volume has {} blocks", volume.blocks())));
        }
        // What an attach writes may go astray on a lying disk, and hit the copy of the header that it had just read.
        if self.plan.mischief.lies && self.geometry_in_force().is_none() {
            return Ok(());
        }
        self.resize()
    }

    /// Whether an image is of a volume of another size than the policy's.
    pub(crate) fn has_grown_since(&self, image: &Image) -> bool {
        let size = self.policy.as_ref().map_or(0, |policy| policy.size);
        let header = |at| Header::decode_as(image.block(at), self.plan.create.shape).ok();
        [0, 2].into_iter().filter_map(header).any(|header| header.geometry.logical_bytes() != size)
    }

    /// The host puts the header of before a growth back, and nothing else.
    pub(crate) fn put_old_header_back(&mut self) -> Option<Attack> {
        let anchored = self.plan.create.freshness != Freshness::Off;
        // A header that counts again because an older image does is no longer the one of before.
        let latest = self.coverage.rollbacks_accepted == 0 && self.coverage.reanchors == 0;
        let known = latest && (anchored || self.lifted);
        let old = self.before_growth.clone().filter(|_| known)?;
        let genuine = self.store.snapshot();
        say!(self, "the host puts the header of before a growth back");
        for block in 0..4 {
            self.store.replay_block(&old, block);
        }
        Some(Attack::that_must_fail("the header of before a growth", genuine, OLD_HEADER))
    }
}
