//! What the host does.

use anchor::Stamp;
use testkit::hostile::{Faults, HostileStore, Image};
use volume::format::protections::Freshness;
use volume::{Error, Kind};

use crate::guest::{Asked, Guest};
use crate::simulation::{Failure, Outcomes, Simulation, Snapshot, say};

/// Something that was done to the image, or said in the anchor's name, while nobody was attached.
pub(crate) struct Attack {
    what: &'static str,
    /// What the disk held before.
    pub(crate) genuine: Image,
    /// The attach must be refused.
    must_refuse: bool,
    /// How it may be refused; not at all, if there is no kind.
    kinds: &'static [Kind],
    /// A stamp that was put in the place of another.
    pub(crate) stamps: Option<(Stamp, Stamp)>,
    /// Of an old image: what the anchor vouched for when it was made.
    made_at: Option<u64>,
    /// Of an old image: nothing but header and key slots may be older than what the anchor vouches for.
    only_header: bool,
}

impl Attack {
    pub(crate) fn that_must_fail(what: &'static str, genuine: Image, kinds: &'static [Kind]) -> Self {
        Self { what, genuine, must_refuse: true, kinds, stamps: None, made_at: None, only_header: false }
    }

    /// What the host has a right to do.
    pub(crate) fn that_must_succeed(what: &'static str, genuine: Image) -> Self {
        Self { must_refuse: false, ..Self::that_must_fail(what, genuine, &[]) }
    }

    fn that_may_fail(what: &'static str, genuine: Image, kinds: &'static [Kind]) -> Self {
        Self { must_refuse: false, ..Self::that_must_fail(what, genuine, kinds) }
    }

    /// Whether it put another state of the same volume in place.
    pub(crate) fn is_old_image(&self) -> bool {
        self.kinds == OLD_IMAGE
    }

    /// Whether the header from a backup would make it what the anchor vouches for.
    pub(crate) fn is_mended_by_header(&self) -> bool {
        self.only_header
    }

    /// Whether another state of this volume stands there, which no command may take.
    pub(crate) fn is_other_image(&self) -> bool {
        self.must_refuse && matches!(self.kinds, OLD_IMAGE | OLD_SIZE)
    }

    /// Whether this is how such an attack is refused.
    pub(crate) fn judge(&self, error: &Error) -> Outcomes {
        if self.kinds.contains(&error.kind()) {
            return Ok(());
        }
        Err(Failure(format!("{} is refused as {:?}: {error}", self.what, error.kind())))
    }
}

const ANY_DAMAGE: &[Kind] =
    &[Kind::Corrupt, Kind::Stale, Kind::Forked, Kind::Policy, Kind::Locked, Kind::Io, Kind::Usage];
const OLD_IMAGE: &[Kind] = &[Kind::Stale, Kind::Forked];
const OLD_SLOTS: &[Kind] = &[Kind::Stale, Kind::Forked, Kind::Locked];
/// Of a volume that has grown since.
const OLD_SIZE: &[Kind] = &[Kind::Stale, Kind::Forked, Kind::Locked, Kind::Policy];
const OLD_STAMP: &[Kind] = &[Kind::Stale, Kind::Forked, Kind::Fenced, Kind::Anchor];
/// It may also vouch for a header of before, which a machine that lost its power has kept as one of the two copies: under a key that no
/// superblock is under any more, of another size, or with other slots.
const OLD_STAMP_AND_HEADER: &[Kind] =
    &[Kind::Stale, Kind::Forked, Kind::Fenced, Kind::Anchor, Kind::Corrupt, Kind::Policy, Kind::Locked];

impl Simulation {
    /// The host keeps a copy of the disk.
    pub(crate) fn take_snapshot(&mut self) {
        let Some(guest) = &self.guest else { return };
        let generation = guest.volume.status().generation;
        say!(self, "the host takes a snapshot (generation {generation} at most)");
        if self.snapshots.len() >= 4 {
            let victim = self.rng.usize(..self.snapshots.len());
            self.snapshots.swap_remove(victim);
        }
        let anchored = self.anchored();
        let image = self.store.snapshot();
        self.snapshots.push(Snapshot { image, generation, anchored, given_up: false });
    }

    /// From now on what is on the disk may be wrong.
    pub(crate) fn taint(&mut self) {
        self.tainted = true;
        self.coverage.attacks += 1;
        for kind in ANY_DAMAGE {
            if !self.excused.contains(kind) && *kind != Kind::Usage {
                self.excused.push(*kind);
            }
        }
    }

    /// While the volume is attached.
    pub(crate) fn misbehave(&mut self) {
        if self.plan.mischief.lies && !self.tainted {
            say!(self, "the disk begins to lie: {:?}", self.plan.faults);
            self.taint();
            // Superblocks that read differently each time look like a rival's.
            self.excused.push(Kind::Fenced);
            self.store.set_faults(self.plan.faults);
        }
        if self.plan.mischief.tamper && self.once_in(4) {
            self.taint();
            self.tamper();
        }
        if self.plan.mischief.anchor
            && self.once_in(4)
            && let Some(stamp) = self.older_stamp()
        {
            say!(self, "from now on the anchor answers with its stamp of generation {}", stamp.generation);
            self.coverage.attacks += 1;
            self.anchor.answer_reads_with(Some(Ok(Some(stamp))));
        }
    }

    /// Changes some blocks.
    fn tamper(&mut self) {
        let image = self.store.snapshot();
        let written: Vec<u64> = image.written().collect();
        if written.is_empty() {
            // It was cut off there already.
            return;
        }
        let pick = |rng: &mut fastrand::Rng| written[rng.usize(..written.len())];
        match self.rng.u32(..10) {
            0..=3 => {
                let (block, bit) = (pick(&mut self.rng), self.rng.usize(..32768));
                say!(self, "the host flips bit {bit} of block {block}");
                self.store.corrupt_bit(block, bit);
            }
            4..=6 => {
                let (a, b) = (pick(&mut self.rng), pick(&mut self.rng));
                say!(self, "the host swaps blocks {a} and {b}");
                self.store.swap(a, b);
            }
            7..=8 if !self.snapshots.is_empty() => {
                let snapshot = self.rng.usize(..self.snapshots.len());
                let blocks = self.rng.u32(1..10);
                for _ in 0..blocks {
                    let block = pick(&mut self.rng);
                    say!(self, "the host replays block {block}");
                    self.store.replay_block(&self.snapshots[snapshot].image, block);
                }
            }
            9 if self.once_in(3) => {
                let blocks = self.rng.u64(..image.blocks());
                say!(self, "the host cuts the disk off at {blocks} blocks");
                self.store.truncate(blocks);
            }
            _ => {
                // Where it hurts most: header, key slots, superblocks.
                let (block, bit) = (self.rng.u64(..8), self.rng.usize(..32768));
                say!(self, "the host flips bit {bit} of block {block}");
                self.store.corrupt_bit(block, bit);
            }
        }
    }

    /// While nobody is attached.
    pub(crate) fn attack_at_rest(&mut self) -> Option<Attack> {
        if let Some(prepared) = self.prepared.take() {
            return Some(prepared);
        }
        if self.guests == 0 || self.zombie.is_some() || self.tainted {
            return None;
        }
        let mischief = self.plan.mischief;
        if mischief.rollback || mischief.tamper || mischief.anchor {
            // What is on its way has arrived: from here on only the next guest claims.
            while self.move_anchor() {}
        }
        let made = self.forgery();
        if made.is_some() {
            self.coverage.attacks += 1;
            self.coverage.forgeries += 1;
            return made;
        }
        if mischief.rollback && !self.snapshots.is_empty() && self.once_in(2) {
            return Some(self.roll_back());
        }
        if mischief.tamper && self.once_in(3) {
            let genuine = self.store.snapshot();
            self.coverage.attacks += 1;
            self.tamper();
            return Some(Attack::that_may_fail("a tampered image", genuine, ANY_DAMAGE));
        }
        if mischief.anchor && self.once_in(4) {
            return self.lie_about_the_stamp();
        }
        None
    }

    /// One of the attacks that need more than the disk's own blocks.
    fn forgery(&mut self) -> Option<Attack> {
        let mischief = self.plan.mischief;
        if mischief.rollback && !self.hasty && self.once_in(2) {
            if self.once_in(3) {
                return self.put_old_slots_back().or_else(|| self.put_old_header_back());
            }
            return self.drop_suffix();
        }
        if mischief.tamper && self.once_in(2) {
            return match self.rng.u32(..3) {
                0 => self.offer_another_volume(),
                1 => self.rewrite_header(),
                _ => Some(self.shrink()),
            };
        }
        if mischief.anchor && self.once_in(6) {
            return self.forge_stamp();
        }
        None
    }

    /// An image that has been replaced since, and that must be refused.
    pub(crate) fn old_image(&self, image: &Image, genuine: Image) -> Attack {
        let kinds = if self.has_grown_since(image) { OLD_SIZE } else { OLD_IMAGE };
        Attack::that_must_fail("an old image", genuine, kinds)
    }

    fn roll_back(&mut self) -> Attack {
        self.let_late_writes_happen();
        let genuine = self.store.snapshot();
        let latest = std::mem::take(&mut self.hasty);
        let at = if latest { self.snapshots.len() - 1 } else { self.rng.usize(..self.snapshots.len()) };
        let snapshot = &self.snapshots[at];
        let anchored = self.anchored();
        let digest = self.anchor.held().map(|stamp| stamp.header_digest);
        let must_refuse = self.plan.create.freshness != Freshness::Off
            && (anchored > snapshot.generation || digest.is_some_and(|digest| !snapshot.has_slots(&digest)));
        self.store.restore(&snapshot.image);
        self.coverage.attacks += 1;
        self.coverage.rollbacks += 1;
        say!(
            self,
            "the host puts back the image of generation {} at most; the anchor stands at {anchored}",
            snapshot.generation
        );
        // Without an anchor it has the key slots of its time.
        let mut kinds = if digest.is_some() { OLD_IMAGE } else { OLD_SLOTS };
        if self.has_grown_since(&snapshot.image) {
            kinds = OLD_SIZE;
        }
        if snapshot.given_up && !must_refuse {
            kinds = ANY_DAMAGE;
        }
        let (made_at, only_header) = (Some(snapshot.anchored), anchored <= snapshot.generation);
        Attack { must_refuse, made_at, only_header, ..Attack::that_must_fail("an old image", genuine, kinds) }
    }

    /// The last record that the anchor vouches for.
    pub(crate) fn anchored(&self) -> u64 {
        self.anchor.held().map_or(0, |stamp| stamp.generation)
    }

    pub(crate) fn let_late_writes_happen(&mut self) {
        for session in self.dead.drain(..) {
            session.complete_all();
        }
    }

    fn lie_about_the_stamp(&mut self) -> Option<Attack> {
        let stamp = self.older_stamp()?;
        say!(
            self,
            "the anchor answers with its stamp of generation {}, claim {}",
            stamp.generation,
            stamp.claims
        );
        self.coverage.attacks += 1;
        self.anchor.answer_reads_with(Some(Ok(Some(stamp))));
        let genuine = self.store.snapshot();
        let changes = self.plan.mischief.rekey || self.plan.mischief.keys || self.coverage.growths > 0;
        let kinds = if changes { OLD_STAMP_AND_HEADER } else { OLD_STAMP };
        Some(Attack::that_may_fail("an old stamp", genuine, kinds))
    }

    /// One that the anchor held once.
    fn older_stamp(&mut self) -> Option<Stamp> {
        let history = self.anchor.history();
        let older = history.len().checked_sub(2)?;
        Some(history[self.rng.usize(..=older)].clone())
    }

    /// The honest state comes back.
    pub(crate) fn undo(&mut self, attack: Attack) {
        say!(self, "the host gives up, and the genuine image is there again");
        self.store.set_faults(Faults::default());
        self.anchor.answer_reads_with(None);
        self.let_late_writes_happen();
        // A queue that goes waits for what it has in flight: who was refused leaves nothing for another image.
        self.store.complete_all();
        self.store.restore(&attack.genuine);
        self.keys.revoked = None;
        if let Some(stamps) = &attack.stamps {
            self.restore_stamp(stamps);
        }
    }

    /// An attach succeeded all the same. The anchor stood at `anchored` when it began.
    pub(crate) fn judge_success(&mut self, attack: &Attack, anchored: u64) -> Outcomes {
        if attack.must_refuse {
            return Err(Failure(format!("{} was accepted, and must not be", attack.what)));
        }
        if attack.made_at.is_some_and(|made_at| made_at < anchored) {
            // A machine that lost power may have kept a record and not its data. The next one drops such a record while nobody vouches for
            // it; here the anchor has moved meanwhile, on another image.
            self.believe_nothing("an image from before the anchor moved");
        }
        self.anchor.answer_reads_with(None);
        if attack.kinds.is_empty() || matches!(attack.kinds, OLD_IMAGE | OLD_SLOTS | OLD_SIZE) {
            // The next guest may die soon, and find all that again that this one has not found.
            self.hasty = true;
            let image = attack.genuine.clone();
            self.snapshots.push(Snapshot { image, generation: u64::MAX, anchored, given_up: false });
        }
        match attack.kinds {
            OLD_IMAGE | OLD_SLOTS | OLD_SIZE => self.coverage.rollbacks_accepted += 1,
            // The swap told the truth, and the volume listened; or the host did nothing wrong.
            OLD_STAMP | OLD_STAMP_AND_HEADER | &[] => {}
            _ => self.taint(),
        }
        Ok(())
    }

    /// The host runs a second machine on a copy, and then offers the first one's disk.
    pub(crate) fn fork(&mut self) -> Outcomes {
        self.settle("before the fork")?;
        while self.move_anchor() || self.store.complete_all() > 0 {
            self.poll_maintenance()?;
        }
        let copy = HostileStore::from_image(self.store.snapshot(), self.rng.u64(..), Faults::default());
        let first = std::mem::replace(&mut self.store, copy);
        self.export = None;
        self.watch_store();
        // It has a rest until the second one has claimed: what it would commit before, the copy could not have.
        self.zombie = self.guest.take().map(|guest| Guest { deep: true, scrub: None, ..guest });
        self.let_late_writes_happen();
        self.coverage.forks += 1;
        self.coverage.attacks += 1;
        say!(self, "the host forks the disk: a second machine runs on a copy");
        self.recover()?;
        if let Some(first) = &mut self.zombie {
            first.deep = false;
        }
        let before = self.anchored();
        for _ in 0..self.rng.u32(5..60) {
            if self.once_in(3) {
                self.request(false)?;
            }
            self.poll_queue(0)?;
            self.poll_maintenance()?;
            self.zombie_step()?;
            let _ = self.store.complete_some();
        }
        self.settle("after the fork")?;
        self.request_of(Asked::Commit)?;
        self.settle("after the fork")?;
        let anchored = self.anchored();
        first.crash();
        self.power_off();
        while self.anchor.lose_next() {}
        if anchored > before {
            say!(
                self,
                "the host presents the first machine's disk; the anchor went from {before} to {anchored}"
            );
            let genuine = self.store.snapshot();
            let image = first.snapshot();
            let kinds = if self.has_grown_since(&image) { OLD_SIZE } else { OLD_IMAGE };
            self.store.restore(&image);
            self.prepared = Some(Attack::that_must_fail("a fork", genuine, kinds));
        }
        self.recover()
    }
}
