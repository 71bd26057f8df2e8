//! A new volume key, while guests come and go.

use std::collections::BTreeSet;

use memory::BLOCK_SIZE;
use seal::VolumeKey;
use seal::slot::{KeySlots, SlotLimits};
use volume::format::header::{self, Header};
use volume::format::protections::Freshness;
use volume::{Kind, RekeyOrder, Rekeyed, ResealReport, begin_rekey};

use crate::keyring::numbered;
use crate::simulation::{Failure, Outcomes, Simulation, say};

impl Simulation {
    /// The volume key of the header in force, as far as that can be told from the disk and the anchor.
    pub(crate) fn key_in_force(&self) -> Option<(Header, VolumeKey)> {
        let image = self.store.snapshot();
        let open = |(page, area): (&[u8; BLOCK_SIZE], &[u8; BLOCK_SIZE])| {
            let header = Header::decode_as(page, self.plan.create.shape).ok()?;
            let slots = KeySlots::decode(area).ok()?;
            let key = slots.unlock(&header.volume, &numbered(0), &SlotLimits::default()).ok()?;
            let holds = key.mac("header").verify(&[header::signed_part(page).ok()?], header::mac(page).ok()?);
            holds.then_some((header, key))
        };
        self.copies_in_force(&image).filter_map(open).max_by_key(|(header, _)| header.generation)
    }

    /// The owner gives the volume a new key; while nobody has the volume, and perhaps not to the end.
    pub(crate) fn rekey(&mut self) -> Outcomes {
        let Some(policy) =
            self.policy.clone().filter(|_| self.plan.create.freshness != Freshness::Transaction)
        else {
            return Ok(());
        };
        let late_moves = self.anchor.pending() > 0;
        let before = self.key_in_force();
        let dies = self.once_in(3).then(|| self.rng.u32(..40));
        say!(self, "the owner gives the volume a new key");
        let session = self.store.attach();
        let environment = self.environment(&self.audit.watch(&session));
        let keep = self.keys.kept().into_iter().filter(|key| self.slot_of(*key).is_ok()).map(numbered);
        let order = RekeyOrder { keep: keep.collect(), remove_others: true, force: true };
        let job = begin_rekey(environment, policy, numbered(0), order, self.plan.attach)
            .map_err(|error| Failure(format!("a new key: {error}")))?;
        let ended = self.drive_or_die(&session, job, dies, ("giving a new key", 20_000))?;
        // The header alone does not say it: with the power, the end of an earlier change may have gone.
        let other = |now: &VolumeKey| before.as_ref().is_some_and(|(_, key)| key != now);
        let begun = self.key_in_force().is_some_and(|(header, key)| header.rekeying.is_some() && other(&key));
        if begun && let Some((_, key)) = before.filter(|(header, _)| header.rekeying.is_none()) {
            self.old_keys.push(key);
            if self.plan.create.freshness == Freshness::Off {
                // An older header brings its key back, and with that the superblock that lies there until a later session needs its place.
                self.before_growth = None;
            }
        }
        match ended {
            None => {
                say!(self, "the change of key is cut short; it has {}begun", if begun { "" } else { "not " });
                self.coverage.cut_rekeys += 1;
                Ok(())
            }
            Some(Ok(rekeyed)) => self.has_new_key(rekeyed),
            Some(Err(error)) => {
                say!(self, "the change of key fails: {error}");
                let late = late_moves && error.kind() == Kind::Fenced;
                let io = self.plan.mischief.errors && error.kind() == Kind::Io;
                if io || late { Ok(()) } else { self.expect(&error, "giving a new key") }
            }
        }
    }

    fn has_new_key(&mut self, rekeyed: Rekeyed) -> Outcomes {
        if rekeyed.under_way {
            return Ok(());
        }
        self.coverage.rekeys += 1;
        let labels: BTreeSet<String> = rekeyed.slots.into_iter().map(|slot| slot.label).collect();
        say!(self, "the volume has a new key; slots: {labels:?}");
        self.keys.believe(&labels);
        Ok(())
    }

    /// Moves the guest's re-sealing on.
    pub(crate) fn poll_reseal(&mut self) -> Outcomes {
        let Some(guest) = &mut self.guest else { return Ok(()) };
        let Some(ended) = guest.poll_reseal() else { return Ok(()) };
        let (name, failed, stopping) = (guest.name, guest.volume.failure().is_some(), guest.stopping);
        match ended {
            Ok(report) => self.resealed(name, stopping, &report),
            Err(error) => {
                say!(self, "guest {name}: the re-sealing ends: {error}");
                if failed || stopping || (self.is_thin() && error.kind() == Kind::NoSpace) {
                    return Ok(());
                }
                self.expect(&error, "the re-sealing")
            }
        }
    }

    fn resealed(&mut self, name: u64, stopping: bool, report: &ResealReport) -> Outcomes {
        say!(self, "guest {name} has sealed {} blocks anew: {report:?}", report.resealed);
        if report.ended {
            self.coverage.rekeys_ended += 1;
            return self.old_keys_open_nothing();
        }
        let damage = &report.damage;
        let explained = self.explains(damage.damaged_blocks, Kind::Corrupt)
            && self.explains(damage.unreadable_blocks, Kind::Io);
        if stopping || (damage.lost() > 0 && explained) {
            return Ok(());
        }
        Err(Failure(format!("the re-sealing gives up for no reason: {report:?}")))
    }

    /// The header in force is under no key that was ever given up, and says nothing of one.
    fn old_keys_open_nothing(&self) -> Outcomes {
        // An older image that was accepted has brought its key along.
        if self.tainted || self.plan.mischief.errors || self.coverage.rollbacks_accepted > 0 {
            return Ok(());
        }
        let Some((header, key)) = self.key_in_force() else {
            return Err(Failure("behind a change of key no header is in force".into()));
        };
        if header.rekeying.is_some() || self.old_keys.contains(&key) {
            return Err(Failure("an old key has been given up, and is in force".into()));
        }
        Ok(())
    }
}
