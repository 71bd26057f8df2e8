//! Header backup: header and key slots in a file of the owner's, and the way back.
//!
//! Invariants:
//! 1. Nothing is written before the backup has passed all that an attach asks of a pair: the policy, the anchor's digest, a key slot, the
//!    header's MAC; and before the store, opened by it, was found to stand where the anchor says: it holds this volume, and no other data.
//! 2. With an anchor the pair in force is the one that the stamp names, and so is what is restored: a copy that has it is not written. At
//!    freshness `off` the pair in force is the newest that verifies; it is written last.
//! 3. On a store that does not stand there nothing is written, unless no header is left on it: then it gets the one that the anchor vouches for,
//!    so that its owner can look at it.
//! 4. So wherever it is cut short, either the pair that was in force is whole, or the restored one is; doing it again ends it.

use std::sync::Arc;

use anchor::Stamp;
use futures::FutureExt;
use memory::BLOCK_SIZE;
use seal::MacKey;
use seal::slot::{Credential, SlotInfo};

use crate::attach::{AttachOptions, Attaching};
use crate::core::Environment;
use crate::error::{Error, Kind, Result};
use crate::format::backup::HeaderBackup;
use crate::format::header::Header;
use crate::header_change::slots_of;
use crate::io::Driven;
use crate::mutation::{Mutation, mutated};
use crate::open_header::{
    COPIES, Opened, Pair, check_anchored, check_pair, check_stamp_mac, check_store, header_holds,
    open_header, read_pair, read_stamp, unlock, write_pair,
};
use crate::policy::Policy;
use crate::volume::Volume;
use crate::witness::{Look, Looker, Stood};

/// What a header backup holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderInfo {
    /// Volume id.
    pub volume: [u8; 16],
    /// The header's generation: raised by every change of header or key slots.
    pub generation: u32,
    /// The occupied key slots.
    pub slots: Vec<SlotInfo>,
}

/// A header backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackedUp {
    /// The file's content.
    pub bytes: Vec<u8>,
    /// What is in it.
    pub header: HeaderInfo,
}

/// What a restoration did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// What both copies hold now.
    pub header: HeaderInfo,
    /// Copies that were written: 0 when both were whole.
    pub copies: usize,
    /// Whether an anchor vouches for what was restored. If not, nobody knows whether it is the latest.
    pub anchored: bool,
    /// The generation of the header that stood there, if it was a newer one.
    pub newer: Option<u32>,
}

/// Copies the header and key slots in force.
///
/// # Errors
/// In the job: as [`attach`](crate::attach) for all that is checked.
pub fn backup_header(
    environment: Environment,
    policy: Policy,
    credential: Credential,
    options: AttachOptions,
) -> Result<Driven<Result<BackedUp>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 16, move |io| {
        async move {
            let opened = open_header(&io, &environment, &policy, &credential, &options).await?;
            check_anchored(&environment, &opened.header)?;
            let header = info(&opened.header, opened.slots.list());
            let backup = HeaderBackup { digest: opened.digest, pair: opened.pair };
            Ok(BackedUp { bytes: backup.encode().to_vec(), header })
        }
        .boxed_local()
    })
}

impl Volume {
    /// Copies the header and key slots in force, beside those who use the volume.
    ///
    /// # Errors
    /// [`Kind::Usage`] when it is attached for reading only, and why the session has failed: the anchor may vouch for another header then.
    pub fn header_backup(&self) -> Result<BackedUp> {
        let core = self.core();
        core.check_alive()?;
        let pair = core.in_force.get()?;
        let header = Header::decode_as(&pair[..BLOCK_SIZE], core.geometry.shape())?;
        let header = info(&header, slots_of(&pair)?.list());
        let backup = HeaderBackup { digest: seal::sha256(&[&*pair]), pair };
        Ok(BackedUp { bytes: backup.encode().to_vec(), header })
    }
}

/// Puts header and key slots back from a backup, onto a volume that is not attached.
///
/// # Errors
/// In the job, before anything is written: [`Kind::Corrupt`] for a damaged backup, [`Kind::Policy`] for one of another volume,
/// [`Kind::Stale`] for one that the anchor does not vouch for, [`Kind::Usage`] for a store on which nothing is of this volume, and as
/// [`attach`](crate::attach). [`Kind::Io`] when writing failed; do it again then.
pub fn restore_header(
    environment: Environment,
    policy: Policy,
    credential: Credential,
    backup: Vec<u8>,
    options: AttachOptions,
) -> Result<Driven<Result<Restored>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 64, move |io| {
        let attaching = Attaching::looking(environment, policy, options, io);
        async move { Restoring { attaching }.run(&backup, &credential).await }.boxed_local()
    })
}

/// A copy of the pair: its generation, if an attach could take it, its place, and what stands there, if that can be read.
type Found = (Option<u32>, u64, Option<Box<Pair>>);

struct Restoring {
    attaching: Attaching,
}

impl Restoring {
    async fn run(&self, backup: &[u8], credential: &Credential) -> Result<Restored> {
        let HeaderBackup { digest, pair } = HeaderBackup::decode(backup).map_err(|error| {
            Error::new(
                Kind::Corrupt,
                format!("this is no header backup, or a damaged one ({error}). Nothing was written; use another backup"),
            )
        })?;
        if seal::sha256(&[&*pair]) != digest {
            return Err(Error::new(
                Kind::Corrupt,
                "the header backup is damaged: its digest does not hold. Nothing was written; use another backup",
            ));
        }
        let Attaching { environment, policy, options, .. } = &self.attaching;
        let of = Header::decode_as(&pair[..BLOCK_SIZE], options.shape)?.volume;
        if of != policy.volume && !mutated(Mutation::PolicyIgnored) {
            return Err(Error::new(
                Kind::Policy,
                format!(
                    "this is the header backup of the volume {}, and the policy is for the volume {}. Nothing was written; use the backup of this volume",
                    hex::encode(of),
                    hex::encode(policy.volume)
                ),
            ));
        }
        let (header, slots) = check_pair(&pair, policy, options)?;
        check_anchored(environment, &header)?;
        let stamp = read_stamp(environment, policy).await?;
        let vouched = |stamp: &Stamp| stamp.header_digest == digest || mutated(Mutation::OldBackupTaken);
        if !stamp.as_ref().is_none_or(vouched) {
            return Err(Error::new(
                Kind::Stale,
                format!(
                    "the header backup (generation {}) is not what the anchor vouches for: header or key slots were changed since, and it would bring removed slots back. Nothing was written; use the latest backup",
                    header.generation
                ),
            ));
        }
        check_store(environment, &header)?;
        let key = unlock(&header, &slots, &pair, credential, options)?;
        let stamp_key = key.mac("stamp");
        if let Some(stamp) = &stamp {
            check_stamp_mac(stamp, &stamp_key)?;
        }
        let holds = key.mac("header");
        let backup = pair.clone();
        let opened = Opened { header, slots, pair, digest, key, stamp, stamp_key };
        let stood = match self.attaching.stand(opened, Looker::Restore).await {
            Err(error) if matches!(error.kind(), Kind::Stale | Kind::Forked) => {
                return Err(self.leave_to_owner(error, &backup, &holds).await?);
            }
            stood => stood?,
        };
        let Stood { header, slots, pair, stamp, stamp_key, look, .. } = stood;
        if stamp.is_none() {
            self.check_not_rekeyed(&header, &holds).await?;
        }
        let found = self.copies(&holds).await;
        let newest = found.iter().filter_map(|(generation, ..)| *generation).max();
        let newer = newest.filter(|newest| *newest > header.generation);
        if let Look { witness: Some(witness), .. } = look
            && found.iter().any(|(.., copy)| self.is_of_a_change(copy.as_deref(), &pair))
        {
            // A change was cut short, or is going on: its move of the anchor must not arrive when its copy is gone.
            witness.take(&stamp_key).await?;
        }
        let copies = self.write(&pair, found).await?;
        Ok(Restored { copies, anchored: stamp.is_some(), newer, header: info(&header, slots.list()) })
    }

    /// The store is not what the anchor vouches for. Where no header is left on it, its owner could not even look at which states it offers: it
    /// gets what the anchor vouches for, and no anchor moves for that. The error.
    async fn leave_to_owner(&self, error: Error, pair: &Pair, key: &MacKey) -> Result<Error> {
        let found = self.copies(key).await;
        let is_header = |copy: &Option<Box<Pair>>| {
            copy.as_deref() == Some(pair) || self.is_of_a_change(copy.as_deref(), pair)
        };
        if found.iter().any(|(.., copy)| is_header(copy)) {
            return Ok(error);
        }
        self.write(pair, found).await?;
        let sentence = "No header was left on it, and the backup's is there again, so that it can be looked at; nothing else was changed";
        Ok(error.with_sentence(sentence))
    }

    /// Without an anchor nothing else says that the volume has another key by now, under which this backup would be no use.
    async fn check_not_rekeyed(&self, header: &Header, key: &MacKey) -> Result<()> {
        let copies = [
            read_pair(&self.attaching.io, COPIES[0]).await.ok(),
            read_pair(&self.attaching.io, COPIES[1]).await.ok(),
        ];
        // Damage does not make two copies alike.
        let alike = copies[0] == copies[1];
        for copy in copies.iter().flatten() {
            let Ok((found, _)) = check_pair(copy, &self.attaching.policy, &self.attaching.options) else {
                continue;
            };
            let rekeyed = found.rekeying.is_some() || alike;
            if rekeyed && found.generation > header.generation && !header_holds(copy, key)? {
                return Err(Error::new(
                    Kind::Stale,
                    format!(
                        "the volume has a new key: its header (generation {}) is under that, and this backup (generation {}) is from before. Nothing was written; use a backup of the new header",
                        found.generation, header.generation
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Both copies, the newest last: until it is written it is in force.
    async fn copies(&self, key: &MacKey) -> Vec<Found> {
        let mut found = Vec::new();
        for at in COPIES {
            // What cannot be read is damaged like what does not verify; writing may mend it.
            let copy = read_pair(&self.attaching.io, at).await.ok();
            let generation = copy.as_deref().and_then(|copy| self.generation(copy, key));
            found.push((generation, at, copy));
        }
        found.sort_by_key(|(generation, ..)| *generation);
        found
    }

    /// Brings both copies to `pair`, in this order. Says how many were written.
    async fn write(&self, pair: &Pair, found: Vec<Found>) -> Result<usize> {
        let mut written = 0;
        for (_, at, copy) in found {
            if copy.as_deref() != Some(pair) {
                write_pair(&self.attaching.io, at, pair).await?;
                written += 1;
            }
        }
        Ok(written)
    }

    /// Whether a copy is another header of this volume, whatever it says: that of a change of key verifies under the new key only, that of a
    /// growth is not of the policy's size.
    fn is_of_a_change(&self, copy: Option<&Pair>, ours: &Pair) -> bool {
        copy.filter(|copy| *copy != ours).is_some_and(|copy| {
            Header::decode_as(&copy[..BLOCK_SIZE], self.attaching.options.shape)
                .is_ok_and(|header| header.volume == self.attaching.policy.volume)
        })
    }

    /// The generation of a copy that an attach could take.
    fn generation(&self, copy: &Pair, key: &MacKey) -> Option<u32> {
        let (header, _) = check_pair(copy, &self.attaching.policy, &self.attaching.options).ok()?;
        header_holds(copy, key).ok()?.then_some(header.generation)
    }
}

fn info(header: &Header, slots: Vec<SlotInfo>) -> HeaderInfo {
    HeaderInfo { volume: header.volume, generation: header.generation, slots }
}
