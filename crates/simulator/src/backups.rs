//! The owner's header backup: made, and put back when the host has destroyed what stands on the disk.

use memory::BLOCK_SIZE;
use testkit::hostile::{Faults, Image};
use volume::format::backup::HeaderBackup;
use volume::format::header::Header;
use volume::format::protections::Freshness;
use volume::{Error, Kind, Restored, backup_header, restore_header};

use crate::keyring::numbered;
use crate::simulation::{Failure, Outcomes, Simulation, say};

/// How often a restoration is tried before something must be wrong.
const ATTEMPTS: u32 = 20;
/// What a backup is refused with that is not of the header in force.
const OLD_BACKUP: &[Kind] = &[Kind::Stale, Kind::Policy];

impl Simulation {
    /// While nobody has the volume.
    pub(crate) fn perhaps_restore_header(&mut self) -> Outcomes {
        if !self.plan.backups || !self.is_idle() || self.guests == 0 || !self.once_in(2) {
            return Ok(());
        }
        match self.header_backup.clone() {
            Some(backup) if self.rng.bool() => self.lose_header(&backup),
            _ => self.back_header_up(),
        }
    }

    fn back_header_up(&mut self) -> Outcomes {
        let Some(policy) = self.policy.clone() else { return Ok(()) };
        let session = self.store.attach();
        let environment = self.environment(&self.audit.watch(&session));
        let job = backup_header(environment, policy, numbered(0), self.plan.attach)
            .map_err(|error| Failure(format!("backing the header up: {error}")))?;
        match self.drive_or_die(&session, job, None, ("backing the header up", 1000))? {
            Some(Ok(backup)) => {
                say!(self, "the owner backs the header up: generation {}", backup.header.generation);
                self.coverage.header_backups += 1;
                self.header_backup = Some(
                    HeaderBackup::decode(&backup.bytes)
                        .map_err(|error| Failure(format!("a header backup does not read: {error}")))?,
                );
                Ok(())
            }
            Some(Err(error)) => self.expect(&error, "backing the header up"),
            None => Ok(()),
        }
    }

    /// The host destroys header and key slots, and the owner puts the backup back.
    fn lose_header(&mut self, backup: &HeaderBackup) -> Outcomes {
        let before = self.store.snapshot();
        // A move that is still on its way may put the other copy in force, which nobody could bring back then.
        let late = self.anchor.pending() > 0;
        let in_force = self.is_in_force(backup, &before);
        if self.plan.create.freshness == Freshness::Off && !in_force {
            // It would be taken, and its key slots with it.
            return Ok(());
        }
        self.destroy_header(&before, late);
        for attempt in 0..ATTEMPTS {
            if attempt == 6 {
                self.store.set_faults(Faults::default());
            }
            let dies = (attempt < 4 && self.once_in(2)).then(|| self.rng.u32(..40));
            match self.restore_once(backup, dies)? {
                Some(Ok(restored)) => {
                    self.begin_faults();
                    return self.restored(backup, &restored, in_force || late);
                }
                Some(Err(error)) if OLD_BACKUP.contains(&error.kind()) && (!in_force || late) => {
                    say!(self, "the header backup is refused: {error}");
                    self.coverage.old_header_backups += 1;
                    self.begin_faults();
                    self.store.restore(&before);
                    return Ok(());
                }
                Some(Err(error)) if late && error.kind() == Kind::Fenced => {}
                Some(Err(error)) => self.expect(&error, "restoring the header")?,
                None => {
                    say!(self, "the restoration is cut short");
                    self.coverage.cut_restorations += 1;
                }
            }
        }
        Err(Failure(format!("{ATTEMPTS} restorations in a row did not succeed")))
    }

    /// Whether a backup is of the pair that an attach would take from this image.
    fn is_in_force(&self, backup: &HeaderBackup, image: &Image) -> bool {
        let copies = self.copies_in_force(image).filter_map(|(page, slots)| {
            let header = Header::decode_as(page, self.plan.create.shape).ok()?;
            Some((header.generation, seal::sha256(&[page, slots])))
        });
        match self.anchor.held() {
            Some(stamp) => stamp.header_digest == backup.digest,
            None => copies.max().is_some_and(|(_, digest)| digest == backup.digest),
        }
    }

    /// A session has begun: no other header than the one that counts is left.
    pub(crate) fn check_copies(&self) -> Outcomes {
        let image = self.store.snapshot();
        let same = (0..2).all(|at| image.block(at) == image.block(at + 2));
        // Nobody knows what a disk that lies has kept, or what a guest that lives is about to write.
        let unknown = self.plan.mischief.lies || self.zombie.is_some();
        if unknown || (same && self.copies_in_force(&image).count() == 2) {
            return Ok(());
        }
        Err(Failure("a session has begun, and the two copies of header and key slots differ".into()))
    }

    /// Garbage over one copy or both.
    fn destroy_header(&mut self, before: &Image, late: bool) {
        let in_force: Vec<_> = self.copies_in_force(before).map(|(header, _)| *header).collect();
        let both = self.rng.bool();
        for at in [0, 2] {
            let spared = if late { !in_force.contains(before.block(at)) } else { !both && self.rng.bool() };
            if spared {
                continue;
            }
            say!(self, "the host destroys the copy of the header at block {at}");
            let block = at + self.rng.u64(..2);
            let mut garbage = [0; BLOCK_SIZE];
            self.rng.fill(&mut garbage);
            self.store.tamper(|image| image.set(block, &garbage));
        }
    }

    fn restore_once(
        &mut self,
        backup: &HeaderBackup,
        dies: Option<u32>,
    ) -> Result<Option<Result<Restored, Error>>, Failure> {
        let Some(policy) = self.policy.clone() else { return Err(Failure("there is no policy".into())) };
        let session = self.store.attach();
        let environment = self.environment(&self.audit.watch(&session));
        let bytes = backup.encode().to_vec();
        let job = restore_header(environment, policy, numbered(0), bytes, self.plan.attach)
            .map_err(|error| Failure(format!("restoring the header: {error}")))?;
        self.drive_or_die(&session, job, dies, ("restoring the header", 20_000))
    }

    /// Both copies are the backup's, and the anchor vouches for it.
    fn restored(&mut self, backup: &HeaderBackup, restored: &Restored, lawful: bool) -> Outcomes {
        say!(self, "the header is restored: {} copies were written", restored.copies);
        if !lawful || self.anchor.held().is_some_and(|stamp| stamp.header_digest != backup.digest) {
            return Err(Failure("an old header backup was restored".into()));
        }
        let image = self.store.snapshot();
        let is_there = |at| [*image.block(at), *image.block(at + 1)].concat() == *backup.pair;
        if !(is_there(0) && is_there(2)) {
            return Err(Failure("a header backup was restored, and the disk does not hold it".into()));
        }
        self.coverage.headers_restored += 1;
        Ok(())
    }
}
