//! What the host makes of things that it has no key to, but old copies and others of the same owner's.

use anchor::Stamp;
use memory::BLOCK_SIZE;
use testkit::hostile::{Faults, HostileStore, Image};
use volume::format::header::{self, Header};
use volume::format::protections::{Freshness, Provision};
use volume::format::record::RecordHeader;
use volume::format::rekeying::Rekeying;
use volume::{CreateOptions, Environment, Kind};

use crate::attack::Attack;
use crate::creation::{keep, put_stamp};
use crate::growing::OLD_HEADER;
use crate::plan::protections;
use crate::simulation::{Simulation, say};

const NOT_ANCHORED: &[Kind] = &[Kind::Stale];
const NO_SLOT: &[Kind] = &[Kind::Locked];
const NOT_SIGNED: &[Kind] = &[Kind::Corrupt];
const OTHER_STAMP: &[Kind] = &[Kind::Anchor];
const OTHER_VOLUME: &[Kind] = &[Kind::Policy];
const TOO_SMALL: &[Kind] = &[Kind::Io];

impl Simulation {
    fn is_anchored(&self) -> bool {
        self.plan.create.freshness != Freshness::Off
    }

    /// The host offers another volume that the owner's key opens, with protections of its own.
    pub(crate) fn offer_another_volume(&mut self) -> Option<Attack> {
        let genuine = self.store.snapshot();
        let (suite, confidentiality, integrity, _) = protections(&mut self.rng);
        let options = CreateOptions {
            suite,
            confidentiality,
            integrity: integrity && self.rng.bool(),
            freshness: Freshness::Off,
            ..self.plan.create.clone()
        };
        let other = HostileStore::new(self.plan.store_blocks, self.rng.u64(..), Faults::default());
        let environment = Environment {
            store: std::sync::Arc::new(other.clone()),
            anchor: None,
            ..self.bare_environment()
        };
        let mut job = volume::create(environment, options, Self::credential(), keep().0).ok()?;
        let made = (0..1000).find_map(|_| {
            let result = job.poll();
            other.complete_all();
            result
        });
        // Some combinations are none, and then there is nothing to offer.
        made?.ok()?;
        say!(self, "the host offers another volume of the same owner");
        self.store.restore(&other.snapshot());
        Some(Attack::that_must_fail("another volume of the same owner", genuine, OTHER_VOLUME))
    }

    /// The host changes a field of the header that no policy names.
    pub(crate) fn rewrite_header(&mut self) -> Option<Attack> {
        let genuine = self.store.snapshot();
        let mut found = false;
        let lies_about_key = self.rng.bool();
        for at in [0, 2] {
            let page = genuine.block(at);
            let Ok(mut header) = Header::decode_as(page, self.plan.create.shape) else { continue };
            if lies_about_key {
                // A key of the host's own, for what the volume is to believe is old.
                header.generation += 1;
                header.rekeying = match header.rekeying {
                    Some(_) => None,
                    None => Some(Rekeying {
                        boundary: self.rng.u32(1..50),
                        superblock: seal::sha256(&[genuine.block(4 + self.rng.u64(..4))]),
                        salt: [1; 32],
                        sealed: [2; 32],
                        tag: [3; 16],
                    }),
                };
            } else {
                match header.provision {
                    Provision::Full => header.provision = Provision::Thin,
                    Provision::Thin => header.generation += 1,
                }
            }
            let mut changed = header.encode_unsigned();
            header::put_digest(&mut changed, genuine.block(at + 1));
            header::put_mac(&mut changed, header::mac(page).ok()?);
            self.store.tamper(|image| image.set(at, &changed));
            found = true;
        }
        if self.is_anchored() && self.copies_in_force(&self.store.snapshot()).next().is_some() {
            // Of a copy that the power had torn, the genuine one may come of it: one number more, and the rest was there.
            self.store.restore(&genuine);
            return None;
        }
        say!(self, "the host changes the header");
        let kinds = if self.is_anchored() { NOT_ANCHORED } else { NOT_SIGNED };
        found.then(|| Attack::that_must_fail("a changed header", genuine, kinds))
    }

    /// Somebody without the key writes to the anchor.
    pub(crate) fn forge_stamp(&mut self) -> Option<Attack> {
        let held = self.anchor.held()?;
        let mut forged = Stamp { claims: held.claims + 1, ..held.clone() };
        forged.mac[self.rng.usize(..32)] ^= 1;
        say!(self, "somebody without the key puts a stamp into the anchor");
        put_stamp(&self.anchor, &held, &forged);
        let genuine = self.store.snapshot();
        let mut attack = Attack::that_must_fail("a forged stamp", genuine, OTHER_STAMP);
        attack.stamps = Some((forged, held));
        Some(attack)
    }

    /// The genuine stamp comes back.
    pub(crate) fn restore_stamp(&mut self, stamps: &(Stamp, Stamp)) {
        put_stamp(&self.anchor, &stamps.0, &stamps.1);
        self.anchor.hold(self.plan.slow_anchor || self.plan.mischief.anchor);
    }

    /// Header and key slots from before a credential was removed, for whoever still has that credential.
    pub(crate) fn put_old_slots_back(&mut self) -> Option<Attack> {
        if !self.is_anchored() || self.keys.before_removal.is_empty() {
            return None;
        }
        let at = self.rng.usize(..self.keys.before_removal.len());
        let genuine = self.store.snapshot();
        let (old, key) = &self.keys.before_removal[at];
        say!(self, "the host puts old key slots back, for whoever has key {key}");
        self.keys.revoked = Some(*key);
        for block in 0..4 {
            self.store.replay_block(old, block);
        }
        let now = self.store.snapshot();
        // A removal that was cut short, and done again, has left beside the old pair what is in force now.
        let removed = self.copies_in_force(&now).next().is_some();
        let kinds = match self.has_grown_since(&now) {
            true => OLD_HEADER,
            false if removed => NO_SLOT,
            false => NOT_ANCHORED,
        };
        Some(Attack::that_must_fail("a removed key", genuine, kinds))
    }

    /// The host takes away the end of the disk.
    pub(crate) fn shrink(&mut self) -> Attack {
        let genuine = self.store.snapshot();
        let blocks = self.rng.u64(8..self.geometry.physical_blocks);
        say!(self, "the disk has {blocks} blocks now");
        self.store.truncate(blocks);
        Attack::that_must_fail("a disk that is too small", genuine, TOO_SMALL)
    }

    /// The host forgets the records that the anchor does not cover, and nothing else. That is its right, and nothing else may suffer.
    pub(crate) fn drop_suffix(&mut self) -> Option<Attack> {
        let anchored = self.anchor.held()?.generation;
        let genuine = self.store.snapshot();
        let journal = self.geometry.journal_start()..self.geometry.bitmap_start();
        let beyond = |image: &Image, block: u64| {
            RecordHeader::decode(image.block(block)).is_ok_and(|record| record.generation > anchored)
        };
        let blocks: Vec<u64> = journal.filter(|block| beyond(&genuine, *block)).collect();
        if blocks.is_empty() {
            return None;
        }
        say!(self, "the host drops the records behind generation {anchored}: blocks {blocks:?}");
        self.coverage.suffixes += 1;
        for block in blocks {
            self.store.tamper(|image| image.set(block, &[0; BLOCK_SIZE]));
        }
        Some(Attack::that_must_succeed(
            "a journal without the records that the anchor does not cover",
            genuine,
        ))
    }
}
