//! Changing what opens a volume that is not attached.
//!
//! Invariant: at every moment one copy of the pair (header, key slots) is whole and is the one that the anchor vouches for. So the copy in
//! force is never written: B gets the new pair first, then the anchor moves, then A follows. Nor is one that may come into force: a move to it,
//! of a session or of another change, can still be on its way to the anchor. So before anything is written, the anchor is taken. And a copy
//! counts as whole when the disk has made it durable, not when it reads so: each write of a copy begins with a flush (`write_pair`).

use std::fmt;
use std::sync::Arc;

use anchor::{Stamp, State};
use futures::FutureExt;
use seal::slot::{Argon2Params, Credential, KeySlots, SlotError, SlotInfo, SlotLimits};
use seal::{Random, VolumeKey};

use crate::attach::{AttachOptions, Attaching};
use crate::core::Environment;
use crate::create::sign_header;
use crate::error::{Error, Kind, Remedy, Result};
use crate::format::header::Header;
use crate::io::{Driven, Io};
use crate::mutation::{Mutation, mutated};
use crate::open_header::{COPIES, Pair, open_header, read_pair, write_pair};
use crate::policy::Policy;
use crate::witness::{Looker, Stood};

/// What to do to the key slots.
#[derive(Debug)]
pub enum KeyChange {
    /// Let another credential open the volume.
    Add {
        /// What shall open it.
        credential: Credential,
        /// Name of the slot.
        label: String,
        /// Cost, for a passphrase.
        argon2: Argon2Params,
    },
    /// Empty a slot. The last one must stay.
    Remove {
        /// Its index.
        slot: usize,
    },
}

/// What came of a change of the key slots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysChanged {
    /// The slots in force.
    pub slots: Vec<SlotInfo>,
    /// What its owner may not have meant.
    pub notice: Option<KeyNotice>,
}

/// A change that was made as it was asked for, and perhaps not meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyNotice {
    /// The new secret opened a slot already.
    OpensAlready {
        /// That slot.
        slot: usize,
    },
    /// What the change was made with opens no slot any more.
    OwnRemoved {
        /// The slot that was removed.
        slot: usize,
    },
}

impl fmt::Display for KeyNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpensAlready { slot } => write!(
                f,
                "the new secret opens slot {slot} as well: it is there twice, and to take it away both slots must be removed"
            ),
            Self::OwnRemoved { slot } => write!(
                f,
                "slot {slot} was the one that you have opened the volume with: what you gave opens nothing any more. Make sure that you have what opens one of the others"
            ),
        }
    }
}

impl KeyChange {
    /// `by` is what the change is made with.
    pub(crate) fn apply(
        self,
        slots: &mut KeySlots,
        volume: &[u8; 16],
        (key, by): (&VolumeKey, &Credential),
        limits: &SlotLimits,
        random: &dyn Random,
    ) -> Result<Option<KeyNotice>> {
        let refused = |error: SlotError| Error::new(Kind::Usage, error.to_string());
        match self {
            Self::Add { credential, label, argon2 } => {
                let already = slots.opened_by(volume, &credential, limits);
                slots.add(volume, key, credential, &label, argon2, random).map_err(refused)?;
                Ok(already.map(|slot| KeyNotice::OpensAlready { slot }))
            }
            Self::Remove { slot } => {
                slots.remove(slot).map_err(refused)?;
                let left = slots.opened_by(volume, by, limits);
                Ok(left.is_none().then_some(KeyNotice::OwnRemoved { slot }))
            }
        }
    }
}

/// Changes the key slots of a volume that nobody has attached. `force` goes on although the last session did not detach; if it still
/// runs, it is fenced.
///
/// # Errors
/// In the job: as [`attach`](crate::attach) for everything that is checked; [`Kind::Usage`] for a change that cannot be made, or without
/// `force` when a session may be running; [`Kind::Io`] and [`Kind::Anchor`], after which either the old or the new slots are in force.
pub fn change_keys(
    environment: Environment,
    policy: Policy,
    credential: Credential,
    change: KeyChange,
    force: bool,
    options: AttachOptions,
) -> Result<Driven<Result<KeysChanged>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 64, move |io| {
        let changing = Changing { attaching: Attaching::looking(environment, policy, options, io), force };
        async move { changing.run(&credential, change).await }.boxed_local()
    })
}

/// Puts a new pair in force by the step that makes it count, which the copy in force must outlive: B, that step, A.
pub(crate) async fn put_in_force(io: &Io, pair: &Pair, step: impl Future<Output = Result<()>>) -> Result<()> {
    write_pair(io, COPIES[1], pair).await?;
    if mutated(Mutation::BothCopiesFirst) {
        write_pair(io, COPIES[0], pair).await?;
    }
    step.await?;
    write_pair(io, COPIES[0], pair).await
}

/// The generation of what takes this header's place.
pub(crate) fn next_generation(header: &Header) -> Result<u32> {
    header.generation.checked_add(1).ok_or_else(|| {
        Error::new(Kind::Usage, "header and key slots were changed four billion times; make a new volume")
    })
}

/// A change of header and key slots, whatever it changes in them.
pub(crate) struct Changing {
    pub(crate) attaching: Attaching,
    pub(crate) force: bool,
}

impl Changing {
    async fn run(&self, credential: &Credential, change: KeyChange) -> Result<KeysChanged> {
        let Attaching { environment, policy, options, io, .. } = &self.attaching;
        let opened = open_header(io, environment, policy, credential, options).await?;
        self.check_released(opened.stamp.as_ref())?;
        let mut stood = self.attaching.stand(opened, Looker::Keys).await?;
        // First what may be refused: to take the anchor would end a session for nothing.
        let key = (&stood.keys.key, credential);
        let (volume, random) = (&stood.header.volume, environment.random.as_ref());
        let notice = change.apply(&mut stood.slots, volume, key, &options.slot_limits, random)?;
        self.equalize(&mut stood).await?;
        self.put(&mut stood).await?;
        Ok(KeysChanged { slots: stood.slots.list(), notice })
    }

    /// Puts what was changed in force, as a new generation. Both copies must be the one in force until then.
    pub(crate) async fn put(&self, stood: &mut Stood) -> Result<()> {
        stood.header.generation = next_generation(&stood.header)?;
        let pair = sign_header(&stood.header, &stood.slots, &stood.keys.key)?;
        put_in_force(&self.attaching.io, &pair, move_anchor(stood, seal::sha256(&[&pair]))).await
    }

    pub(crate) fn check_released(&self, stamp: Option<&Stamp>) -> Result<()> {
        check_released(stamp, self.force)
    }

    /// Takes the anchor, and makes both copies the one in force: an earlier change may have been cut short, and B is written next.
    pub(crate) async fn equalize(&self, stood: &mut Stood) -> Result<()> {
        if let Some(witness) = &stood.look.witness {
            let taken = witness.take(&stood.stamp_key).await?;
            stood.stamp = taken.held().cloned();
            stood.look.witness = Some(taken);
        }
        let io = &self.attaching.io;
        // One that cannot be read is like one that is not in force; writing may mend it.
        let copies = [read_pair(io, COPIES[0]).await, read_pair(io, COPIES[1]).await];
        let in_force = |pair: &Pair| seal::sha256(&[pair]) == stood.digest;
        let Some(current) = copies.iter().flatten().find(|pair| in_force(pair)) else {
            copies.into_iter().collect::<Result<Vec<_>>>()?;
            return Err(Error::new(
                Kind::Corrupt,
                "the header changed while it was read; the host may be tampering with it",
            ));
        };
        for (at, pair) in COPIES.into_iter().zip(&copies) {
            if !pair.as_ref().is_ok_and(|pair| in_force(pair)) {
                write_pair(io, at, current).await?;
            }
        }
        Ok(())
    }
}

/// Refuses, unless forced, while a session may be running.
pub(crate) fn check_released(stamp: Option<&Stamp>, force: bool) -> Result<()> {
    match stamp {
        Some(stamp) if stamp.state != State::Released && !force => Err(Error::new(
            Kind::Usage,
            "the volume was not detached, so a session may still be running; detach it, attach and detach it if that session crashed, or go on all the same and end that session's writing",
        )
        .or(Remedy::Force)),
        _ => Ok(()),
    }
}

async fn move_anchor(stood: &Stood, header_digest: [u8; 32]) -> Result<()> {
    let Some(witness) = &stood.look.witness else { return Ok(()) };
    let Some(old) = witness.held() else { return Ok(()) };
    witness.advance(&stood.stamp_key, Stamp { header_digest, ..old.clone() }).await.map(drop)
}
