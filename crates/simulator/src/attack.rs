//! What the host does.

use store::hostile::{Faults, HostileStore, Image};
use volume::format::protections::Freshness;
use volume::{Error, Kind};

use crate::guest::Asked;
use crate::simulation::{Failure, Outcomes, Simulation, Snapshot, say};

/// Something that was done to the image, or said in the anchor's name, while nobody was attached.
pub(crate) struct Attack {
    what: &'static str,
    /// What the disk held before.
    genuine: Image,
    /// The attach must be refused.
    must_refuse: bool,
    /// How it may be refused.
    kinds: &'static [Kind],
}

impl Attack {
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
const OLD_STAMP: &[Kind] = &[Kind::Stale, Kind::Forked, Kind::Fenced, Kind::Anchor];

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
        self.snapshots.push(Snapshot { image: self.store.snapshot(), generation });
    }

    /// From now on what is on the disk may be wrong.
    fn taint(&mut self) {
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
            self.store.set_faults(self.plan.faults);
        }
        if self.plan.mischief.tamper && self.once_in(4) {
            self.taint();
            self.tamper();
        }
    }

    /// Changes some blocks.
    fn tamper(&mut self) {
        let image = self.store.snapshot();
        let written: Vec<u64> = image.written().collect();
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
        if mischief.rollback && !self.snapshots.is_empty() && self.once_in(2) {
            return Some(self.roll_back());
        }
        if mischief.tamper && self.once_in(3) {
            let genuine = self.store.snapshot();
            self.coverage.attacks += 1;
            self.tamper();
            return Some(Attack { what: "a tampered image", genuine, must_refuse: false, kinds: ANY_DAMAGE });
        }
        if mischief.anchor && self.once_in(4) {
            return self.lie_about_the_stamp();
        }
        None
    }

    fn roll_back(&mut self) -> Attack {
        self.let_late_writes_happen();
        let genuine = self.store.snapshot();
        let at = self.rng.usize(..self.snapshots.len());
        let snapshot = &self.snapshots[at];
        let anchored = self.anchor.held().map_or(0, |stamp| stamp.generation);
        let must_refuse = self.plan.create.freshness != Freshness::Off && anchored > snapshot.generation;
        self.store.restore(&snapshot.image);
        self.coverage.attacks += 1;
        self.coverage.rollbacks += 1;
        say!(
            self,
            "the host puts back the image of generation {} at most; the anchor stands at {anchored}",
            snapshot.generation
        );
        Attack { what: "an old image", genuine, must_refuse, kinds: OLD_IMAGE }
    }

    pub(crate) fn let_late_writes_happen(&mut self) {
        for session in self.dead.drain(..) {
            session.complete_all();
        }
    }

    fn lie_about_the_stamp(&mut self) -> Option<Attack> {
        let history = self.anchor.history();
        let older = history.len().checked_sub(2)?;
        let stamp = history[self.rng.usize(..=older)].clone();
        say!(
            self,
            "the anchor answers with its stamp of generation {}, claim {}",
            stamp.generation,
            stamp.claims
        );
        self.coverage.attacks += 1;
        self.anchor.answer_reads_with(Some(Ok(Some(stamp))));
        let genuine = self.store.snapshot();
        Some(Attack { what: "an old stamp", genuine, must_refuse: false, kinds: OLD_STAMP })
    }

    /// The honest state comes back.
    pub(crate) fn undo(&mut self, attack: Attack) {
        say!(self, "the host gives up, and the genuine image is there again");
        self.store.set_faults(Faults::default());
        self.anchor.answer_reads_with(None);
        self.let_late_writes_happen();
        self.store.restore(&attack.genuine);
    }

    /// An attach succeeded all the same.
    pub(crate) fn judge_success(&mut self, attack: &Attack) -> Outcomes {
        if attack.must_refuse {
            return Err(Failure(format!("{} was accepted, and must not be", attack.what)));
        }
        self.anchor.answer_reads_with(None);
        match attack.kinds {
            OLD_IMAGE => self.coverage.rollbacks_accepted += 1,
            // The swap told the truth, and the volume listened.
            OLD_STAMP => {}
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
        self.watch_store();
        self.zombie = self.guest.take();
        self.let_late_writes_happen();
        self.coverage.forks += 1;
        self.coverage.attacks += 1;
        say!(self, "the host forks the disk: a second machine runs on a copy");
        self.recover()?;
        let before = self.anchor.held().map_or(0, |stamp| stamp.generation);
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
        let anchored = self.anchor.held().map_or(0, |stamp| stamp.generation);
        first.crash();
        self.power_off();
        while self.anchor.lose_next() {}
        if anchored > before {
            say!(
                self,
                "the host presents the first machine's disk; the anchor went from {before} to {anchored}"
            );
            let genuine = self.store.snapshot();
            self.store.restore(&first.snapshot());
            self.prepared = Some(Attack { what: "a fork", genuine, must_refuse: true, kinds: OLD_IMAGE });
        }
        self.recover()
    }
}
