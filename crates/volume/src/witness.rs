//! Whether a store stands where its anchor says, and the evidence without which no anchor moves.
//!
//! Invariants:
//! 1. An anchor moves through a [`Witness`] and no other way: `Anchor::advance` is called here, and `clippy.toml` refuses it elsewhere.
//! 2. A witness comes from a look at the store, from a volume that was made just now, or from the owner, who has said which state counts.
//!    A move gives the next one.
//! 3. One function looks, for every command: [`Attaching::stand`], with [`Attaching::look`] to look again.

use std::sync::Arc;

use anchor::{Anchor, Error as AnchorError, Stamp, State};
use seal::MacKey;
use seal::slot::KeySlots;

use crate::attach::{Attaching, Reading, keyring};
use crate::create::NewVolume;
use crate::error::{Error, Kind, Result};
use crate::format::header::Header;
use crate::keys::Keyring;
use crate::mutation::{Mutation, mutated};
use crate::open_header::{Opened, Pair, check_anchored};
use crate::reanchor::OwnersWord;
use crate::replay::{Replay, Replayed, Standing, standing_error};
use crate::superblock_io::{Slots, candidates, read_superblocks};

/// How often it is tried to be faster than a session that has a journal to write between its moves.
const OVERTAKES: u32 = 64;

/// Who looks. The look is the same for all of them; only the simulator breaks it for one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looker {
    Attach,
    Keys,
    Growth,
    Rekey,
    Restore,
    Migration,
    /// A migration that was cut short behind the old anchor's terminal stamp.
    SecondMigration,
}

impl Looker {
    fn looks_away(self) -> bool {
        match self {
            Self::Attach => false,
            Self::Keys => mutated(Mutation::KeysUnlooked),
            Self::Growth => mutated(Mutation::GrowthUnlooked),
            Self::Rekey => mutated(Mutation::RekeyUnlooked),
            Self::Restore => mutated(Mutation::RestoreUnlooked),
            Self::Migration => mutated(Mutation::MigrationUnlooked),
            Self::SecondMigration => mutated(Mutation::SecondMigrationUnlooked),
        }
    }
}

/// A volume that was opened, and whose store stands where the anchor says.
pub(crate) struct Stood {
    pub(crate) header: Header,
    pub(crate) slots: KeySlots,
    pub(crate) pair: Box<Pair>,
    pub(crate) digest: [u8; 32],
    pub(crate) keys: Keyring,
    pub(crate) stamp: Option<Stamp>,
    pub(crate) stamp_key: MacKey,
    pub(crate) look: Look,
}

/// What a look found.
pub(crate) struct Look {
    /// The state that counts.
    pub(crate) replayed: Replayed,
    /// What stood in the superblock slots.
    pub(crate) superblocks: Slots,
    /// `None` without an anchor.
    pub(crate) witness: Option<Witness>,
}

impl Attaching {
    /// Opens the keys of a header, and looks whether the store stands where the stamp says that it was opened by. A writer that went on
    /// between the looks at anchor and store is [`Kind::Fenced`].
    pub(crate) async fn stand(&self, opened: Opened, looker: Looker) -> Result<Stood> {
        check_anchored(&self.environment, &opened.header)?;
        let Opened { header, slots, pair, digest, key, stamp, stamp_key } = opened;
        let keys = keyring(&header, key)?;
        let look = match self.look(&header, &keys, stamp.as_ref(), looker).await {
            Err(_) if looker != Looker::Attach && self.has_moved(stamp.as_ref()).await? => {
                return Err(AnchorError::Conflict(None).into());
            }
            found => found?,
        };
        Ok(Stood { header, slots, pair, digest, keys, stamp, stamp_key, look })
    }

    /// Whether the store stands where the stamp says: its journal leads to exactly that state. [`Kind::Stale`] if it ends before that,
    /// [`Kind::Forked`] if it passes beside it.
    pub(crate) async fn look(
        &self,
        header: &Header,
        keys: &Keyring,
        stamp: Option<&Stamp>,
        looker: Looker,
    ) -> Result<Look> {
        let superblocks = read_superblocks(&self.io, keys, header).await?;
        let replayed = self.find(header, keys, stamp, &superblocks, looker).await?;
        self.check_follows(stamp, &replayed)?;
        let anchor = self.environment.anchor.as_ref().zip(stamp);
        let witness =
            anchor.map(|(anchor, held)| Witness { anchor: Arc::clone(anchor), held: Some(held.clone()) });
        Ok(Look { replayed, superblocks, witness })
    }

    async fn find(
        &self,
        header: &Header,
        keys: &Keyring,
        stamp: Option<&Stamp>,
        slots: &Slots,
        looker: Looker,
    ) -> Result<Replayed> {
        let (superblocks, unreadable) = candidates(header, slots)?;
        let mut failed = Vec::new();
        for superblock in superblocks {
            let pinned = self.read_only && self.options.reading != Reading::Latest;
            let replay = Replay { io: &self.io, header, keys, stamp, pinned };
            let replayed = replay.run(superblock).await?;
            if replayed.standing == Standing::Through {
                return Ok(replayed);
            }
            failed.push(replayed);
        }
        // The one that leads there may be in the slot that could not be read; nobody has put an old copy back, then.
        if let Some(error) = unreadable {
            return Err(error);
        }
        if looker.looks_away() && !failed.is_empty() {
            return Ok(failed.swap_remove(0));
        }
        if failed.is_empty() && looker == Looker::Restore {
            return Err(nothing_of_this(&self.environment.store.name()));
        }
        let generation = stamp.map_or(0, |stamp| stamp.generation);
        Err(standing_error(&failed, generation).on(&self.environment.store.name()))
    }

    /// Whether the anchor holds something else by now.
    pub(crate) async fn has_moved(&self, stamp: Option<&Stamp>) -> Result<bool> {
        let Some(anchor) = &self.environment.anchor else { return Ok(false) };
        Ok(anchor.read().await?.as_ref() != stamp)
    }
}

/// A header backup is for a store whose header is gone: it may be any other disk of this machine.
fn nothing_of_this(store: &str) -> Error {
    let message = format!(
        "nothing on {store} belongs to this volume: no superblock opens. Nothing was written; check the path"
    );
    Error::new(Kind::Usage, message)
}

/// Evidence that an anchor may be moved from what it holds.
#[derive(Clone)]
pub(crate) struct Witness {
    anchor: Arc<dyn Anchor>,
    held: Option<Stamp>,
}

impl Witness {
    /// For the anchor of a new volume, which nobody has claimed.
    pub(crate) fn of_new_volume(_made: &NewVolume, anchor: Arc<dyn Anchor>) -> Self {
        Self { anchor, held: None }
    }

    /// The owner has said which state counts, whatever this anchor says.
    pub(crate) fn of_owner(_word: &OwnersWord, anchor: Arc<dyn Anchor>, held: Option<Stamp>) -> Self {
        Self { anchor, held }
    }

    /// The same evidence for an anchor that the volume moves to.
    pub(crate) fn for_another(&self, anchor: Arc<dyn Anchor>, held: Option<Stamp>) -> Self {
        Self { anchor, held }
    }

    /// What the anchor held.
    pub(crate) fn held(&self) -> Option<&Stamp> {
        self.held.as_ref()
    }

    /// Signs a stamp, and moves the anchor to it: by compare-and-swap from what it held. The evidence for the next move.
    pub(crate) async fn advance(&self, key: &MacKey, new: Stamp) -> Result<Self> {
        if self.held.as_ref().is_some_and(|held| held.state == State::Terminal) {
            return Err(Error::new(
                Kind::Anchor,
                format!("the volume has left the anchor {}, which is not used again", self.anchor.address()),
            ));
        }
        let new = sign_stamp(key, new);
        swap(self.anchor.as_ref(), self.held.as_ref(), &new).await?;
        Ok(Self { anchor: Arc::clone(&self.anchor), held: Some(new) })
    }

    /// Makes the anchor hold a stamp that nobody else knew, and that vouches for nothing else: what was sent to it before comes too late from
    /// then on.
    pub(crate) async fn take(&self, key: &MacKey) -> Result<Self> {
        let Some(held) = &self.held else { return Ok(self.clone()) };
        self.advance(key, overtaking(held)).await
    }

    /// Stops a session that moves the anchor faster than we can read what it vouches for: a stamp that differs from the session's own in
    /// the number of claims, and in nothing else, makes its next move fail. Nothing is vouched for by it that was not before, and until
    /// somebody claims the volume the session's records still count.
    pub(crate) async fn stop_writer(&self, key: &MacKey) -> Result<()> {
        let Some(ours) = &self.held else { return Ok(()) };
        for _ in 0..OVERTAKES {
            let Some(held) = self.anchor.read().await? else { return Ok(()) };
            let known = key.verify(&[&held.authenticated_bytes()], &held.mac)
                && held.header_digest == ours.header_digest
                && held.state == State::Claimed;
            if !known {
                // Something else has happened; the next attempt finds out.
                return Ok(());
            }
            let late = Self { anchor: Arc::clone(&self.anchor), held: Some(held) };
            match late.take(key).await {
                Err(error) if error.kind() == Kind::Fenced => {}
                ended => return ended.map(drop),
            }
        }
        Ok(())
    }
}

/// What a session knows of its anchor.
pub(crate) enum Anchored {
    /// It has none, or none that it may move: here is what vouches for the state that it shows.
    Shown(Option<Stamp>),
    /// It has claimed the volume.
    Claimed(Witness),
}

impl Anchored {
    /// The stamp that vouches for the session's state.
    pub(crate) fn stamp(&self) -> Option<&Stamp> {
        match self {
            Self::Shown(stamp) => stamp.as_ref(),
            Self::Claimed(witness) => witness.held(),
        }
    }

    pub(crate) fn witness(&self) -> Option<&Witness> {
        match self {
            Self::Shown(_) => None,
            Self::Claimed(witness) => Some(witness),
        }
    }
}

/// Moves an anchor. When it is unknown whether it moved, asks it, and tries once more.
#[expect(clippy::disallowed_methods, reason = "the one place where a witness has been asked for")]
async fn swap(anchor: &dyn Anchor, old: Option<&Stamp>, new: &Stamp) -> Result<()> {
    let reason = match anchor.advance(old, new).await {
        Err(AnchorError::Io(reason)) => reason,
        other => return Ok(other?),
    };
    let now = anchor.read().await.map_err(|_| AnchorError::Io(reason))?;
    if now.as_ref() == Some(new) {
        return Ok(());
    }
    if now.as_ref() != old {
        return Err(AnchorError::Conflict(None).into());
    }
    match anchor.advance(old, new).await {
        // The first one was on its way still, and came before this one.
        Err(AnchorError::Conflict(_)) if anchor.read().await.is_ok_and(|now| now.as_ref() == Some(new)) => {
            Ok(())
        }
        other => Ok(other?),
    }
}

/// The same stamp, but for its number of claims: it vouches for nothing else, and whoever expects the one before moves the anchor no more. By
/// two, so that the claim that follows is odd to the session's own (see the superblock's slots).
fn overtaking(stamp: &Stamp) -> Stamp {
    Stamp { claims: stamp.claims + 2, ..stamp.clone() }
}

/// The stamp with its MAC.
fn sign_stamp(key: &MacKey, mut stamp: Stamp) -> Stamp {
    stamp.mac = [0; 32];
    stamp.mac = key.sign(&[&stamp.authenticated_bytes()]);
    stamp
}

#[cfg(test)]
mod tests;
