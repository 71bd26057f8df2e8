//! Changing header and key slots of an attached volume, by the session that has it.
//!
//! Invariants, besides that of [`key_slots`](crate::key_slots), which takes the anchor where this has it:
//! 1. One change at a time.
//! 2. What is changed is the pair that this session knows to be in force, never what stands on the store.
//! 3. A session that has failed changes nothing: if it failed in such a change, the anchor may vouch for copy B by now.

use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use memory::BLOCK_SIZE;
use seal::slot::{Credential, KeySlots, SlotInfo, SlotLimits};

use crate::commit::Want;
use crate::core::Core;
use crate::create::sign_header;
use crate::error::{Error, Kind, Result};
use crate::format::header::Header;
use crate::io::{Driven, Io};
use crate::key_slots::{KeyChange, KeysChanged, next_generation, put_in_force};
use crate::mutation::{Mutation, mutated};
use crate::open_header::{COPIES, Pair, header_holds, read_pair, write_pair};
use crate::volume::Volume;

/// Header and key slots, as they are in force.
pub(crate) struct InForce {
    pair: Mutex<Option<Box<Pair>>>,
    /// Whose turn it is to change them.
    turn: tokio::sync::Mutex<()>,
}

impl InForce {
    pub(crate) fn new(pair: Option<Box<Pair>>) -> Self {
        Self { pair: Mutex::new(pair), turn: tokio::sync::Mutex::new(()) }
    }

    fn pair(&self) -> MutexGuard<'_, Option<Box<Pair>>> {
        self.pair.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self) -> Result<Box<Pair>> {
        self.pair().clone().ok_or_else(|| {
            Error::new(
                Kind::Usage,
                "the volume is attached for reading only, so its key slots stay as they are; they are listed by the path of its store",
            )
        })
    }
}

pub(crate) fn slots_of(pair: &Pair) -> Result<KeySlots> {
    let area: &[u8; BLOCK_SIZE] = pair[BLOCK_SIZE..]
        .try_into()
        .map_err(|_| Error::new(Kind::Corrupt, "the key-slot area is cut short"))?;
    KeySlots::decode(area).map_err(|error| Error::new(Kind::Corrupt, error.to_string()))
}

impl Core {
    /// Puts a changed header in force: copy B, then the anchor with a commit, then copy A. `seen` is the pair whose slots the change was made for, if
    /// it depends on them. The slots that are in force then.
    pub(crate) async fn change_header(
        &self,
        io: &Io,
        seen: Option<&Pair>,
        change: impl FnOnce(&mut Header, &mut KeySlots) -> Result<()>,
    ) -> Result<KeySlots> {
        let _turn = self.in_force.turn.lock().await;
        self.check_alive()?;
        let in_force = self.in_force.get()?;
        if seen.is_some_and(|seen| seen[BLOCK_SIZE..] != in_force[BLOCK_SIZE..]) {
            return Err(Error::new(
                Kind::Usage,
                "somebody else has changed the key slots just now; do it again",
            ));
        }
        let mut slots = slots_of(&in_force)?;
        let mut header = Header::decode_as(&in_force[..BLOCK_SIZE], self.geometry.shape())?;
        change(&mut header, &mut slots)?;
        header.generation = next_generation(&header)?;
        let pair = Box::new(sign_header(&header, &slots, &self.keys.key)?);
        self.confirm_claim().await?;
        self.mend_copies(io).await?;
        // A flush that waits for the next commit is content with this one. But a transaction is not ours to commit.
        let data = !self.is_transactional() && !mutated(Mutation::HeaderWithoutData);
        let header = Some(seal::sha256(&[&*pair]));
        let want = Want { data, anchor: true, urgent: true, header, ..Want::default() };
        put_in_force(io, &pair, async {
            self.commit(io, want).await?;
            *self.in_force.pair() = Some(pair.clone());
            Ok(())
        })
        .await?;
        Ok(slots)
    }

    /// Makes both copies the pair in force. A session does so before it serves anybody: what a change that was cut short has left there never
    /// counts, but who has lost the anchor could not tell. And each change does, since it writes over one of them. When neither is
    /// whole, the copy that cannot be read is written last. It may be readable later, and must be left then if the power goes. If both can be read,
    /// or neither, B is written first.
    pub(crate) async fn mend_copies(&self, io: &Io) -> Result<()> {
        let in_force = self.in_force.get()?;
        let found = [read_pair(io, COPIES[0]).await, read_pair(io, COPIES[1]).await];
        let order = if found[1].is_err() && found[0].is_ok() { [0, 1] } else { [1, 0] };
        for copy in order {
            if !found[copy].as_ref().is_ok_and(|pair| *pair == in_force) {
                write_pair(io, COPIES[copy], &in_force).await?;
            }
        }
        Ok(())
    }

    async fn change_keys(
        &self,
        io: &Io,
        credential: &Credential,
        change: KeyChange,
        limits: &SlotLimits,
    ) -> Result<KeysChanged> {
        self.check_writable()?;
        // It takes seconds, in which nobody else may have to wait for his turn.
        let seen = self.in_force.get()?;
        let mut slots = slots_of(&seen)?;
        let key = slots
            .unlock(&self.header.volume, credential, limits)
            .map_err(|error| Error::new(Kind::Locked, error.to_string()))?;
        if !header_holds(&seen, &key.mac("header"))? {
            return Err(Error::new(Kind::Corrupt, "this slot opens to another key than the volume's"));
        }
        let by = (&key, credential);
        let notice = change.apply(&mut slots, &self.header.volume, by, limits, self.random.as_ref())?;
        let changed = self.change_header(io, Some(&seen), |_, now| {
            *now = slots;
            Ok(())
        });
        Ok(KeysChanged { slots: changed.await?.list(), notice })
    }
}

impl Volume {
    /// Changes the key slots, beside those who use the volume. `credential` must open one of them.
    ///
    /// # Errors
    /// [`Kind::Io`] when the store has no queue for it. In the job: [`Kind::Locked`] for a credential that opens none; [`Kind::Usage`] for a
    /// change that cannot be made, or when the volume is attached for reading only; [`Kind::Io`] and [`Kind::Anchor`], after which either the
    /// old or the new slots are in force.
    pub fn change_keys(
        &self,
        credential: Credential,
        change: KeyChange,
        limits: SlotLimits,
    ) -> Result<Driven<Result<KeysChanged>>> {
        let core = std::sync::Arc::clone(self.core());
        Driven::new(self.core().environment.store.as_ref(), 16, move |io| {
            async move { core.change_keys(&io, &credential, change, &limits).await }.boxed_local()
        })
    }

    /// The key slots in force.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the volume is attached for reading only.
    pub fn key_slots(&self) -> Result<Vec<SlotInfo>> {
        Ok(slots_of(&*self.core().in_force.get()?)?.list())
    }
}
