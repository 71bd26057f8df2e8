//! Moving a volume to another anchor, which changes nothing about which state counts.
//!
//! Invariants:
//! 1. Nothing is written to the store, and nothing is made or moved before the store was found to stand where the old anchor says.
//! 2. There are no two anchors at any moment: the old one gets its terminal stamp first, then the new one is claimed, then the policy names
//!    it. Cut in between, nothing attaches until it is done again.
//! 3. Done again, it is the terminal stamp that the store must stand at, and the anchor that this one names where the move goes.
//! 4. An anchor of another volume, or one that a volume lives by, is not written.

use std::sync::Arc;

use anchor::{Anchor, Created, Stamp, State};
use futures::FutureExt;
use seal::MacKey;
use seal::slot::Credential;

use crate::attach::{AttachOptions, Attaching, draw_session};
use crate::core::Environment;
use crate::create::SavePolicy;
use crate::error::{Error, Kind, Result};
use crate::io::Driven;
use crate::key_slots::check_released;
use crate::mutation::{Mutation, mutated};
use crate::open_header::{Vouching, check_stamp_mac, check_stamp_volume, open_pair};
use crate::policy::Policy;
use crate::replay::State as Place;
use crate::survey::{StateName, stamp_of};
use crate::witness::{Looker, Witness};

/// What the owner wants.
pub struct Migration {
    /// The address of the new anchor.
    pub to: String,
    /// Opens the new anchor, or makes it. Called when the store was found to be what the old one vouches for.
    pub open: Box<dyn FnOnce() -> Result<Created>>,
    /// What the new anchor needs beside its address.
    pub anchor_options: anchor::Options,
    /// Stores the new policy durably.
    pub save: SavePolicy,
    /// Go on although the last session did not detach; if it still runs, it is fenced.
    pub force: bool,
}

/// How a volume has moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The policy from now on.
    pub policy: Policy,
    /// The state that both anchors vouched for.
    pub state: StateName,
    /// What the owner should know about an anchor of the new kind, a sentence each.
    pub notes: Vec<String>,
}

/// Moves a volume that nobody has attached from the environment's anchor to another one. One that was cut short is ended.
///
/// # Errors
/// In the job: as [`attach`](crate::attach) for everything that is checked; [`Kind::Usage`] without `force` when a session may be running, and
/// when a move to another anchor was begun; [`Kind::Fenced`] when a session moved the old anchor meanwhile; [`Kind::Anchor`] when an anchor
/// cannot be moved, or the new one is not free; and what `open` and `save` say. After an error it can be done again.
pub fn migrate(
    environment: Environment,
    policy: Policy,
    credential: Arc<Credential>,
    order: Migration,
    options: AttachOptions,
) -> Result<Driven<Result<Migrated>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 64, move |io| {
        let attaching = Attaching::looking(environment, policy, options, io);
        async move { Migrating { attaching }.run(&credential, order).await }.boxed_local()
    })
}

struct Migrating {
    attaching: Attaching,
}

impl Migrating {
    async fn run(&self, credential: &Credential, order: Migration) -> Result<Migrated> {
        let Attaching { environment, policy, options, io, .. } = &self.attaching;
        let old = self.old_stamp().await?;
        let cut_short = old.state == State::Terminal;
        if cut_short && old.moved_to != Stamp::hint_of(&order.to) {
            return Err(went_elsewhere(&old));
        }
        let opened =
            open_pair(io, environment, policy, credential, options, Some(old), Vouching::Demanded).await?;
        if !cut_short {
            check_released(opened.stamp.as_ref(), order.force)?;
        }
        let looker = if cut_short { Looker::SecondMigration } else { Looker::Migration };
        let stood = self.attaching.stand(opened, looker).await?;
        let Some(witness) = stood.look.witness else { return Err(no_anchor()) };
        let replayed = &stood.look.replayed;
        // What is accepted becomes durable before anything vouches for it.
        io.flush().await?;
        let place = Place { generation: replayed.generation, head: replayed.head };
        // Not one more: the next claim must be the odd one out of those that were alive (see the superblock's slots).
        let claims = witness.held().map_or(0, |held| held.claims).max(replayed.superblock.claims);
        let session = draw_session(environment)?;
        let stamp = stamp_of(&policy.volume, place, session, claims, stood.digest);
        let Created { anchor: new, notes, .. } = (order.open)()?;
        let held = new.read().await?;
        check_new_anchor(new.as_ref(), held.as_ref(), &stamp, &stood.stamp_key)?;
        let to = witness.for_another(Arc::clone(&new), held);
        let from = (!cut_short).then_some(witness);
        let moving = Move { from, to, address: new.address(), stamp, key: &stood.stamp_key };
        let policy = moving.run(policy.clone(), order.anchor_options, order.save).await?;
        Ok(Migrated { policy, state: StateName::of(place.generation, &place.head), notes })
    }

    /// What the old anchor holds. A terminal stamp is what a move that was cut short has left.
    async fn old_stamp(&self) -> Result<Stamp> {
        let Attaching { environment, policy, .. } = &self.attaching;
        let Some(anchor) = &environment.anchor else { return Err(no_anchor()) };
        let stamp = anchor.read().await?.ok_or_else(|| {
            Error::new(
                Kind::Usage,
                "the anchor was never claimed, so there is nothing to move; name it in the policy",
            )
        })?;
        check_stamp_volume(&stamp, policy, anchor.as_ref())?;
        Ok(stamp)
    }
}

fn no_anchor() -> Error {
    Error::new(Kind::Usage, "the volume has no anchor that it could leave; nothing was changed")
}

fn went_elsewhere(old: &Stamp) -> Error {
    let end = old.moved_to().unwrap_or_default();
    Error::new(
        Kind::Usage,
        format!(
            "a move to another anchor was begun (its address ends in `{end}`), and there is none back: end it there, and move on from there; if that anchor is lost, choose the state that counts with a reanchoring to a new one. Nothing was changed"
        ),
    )
}

/// The new anchor may hold what a move that was cut short left there, and nothing else.
pub(crate) fn check_new_anchor(
    new: &dyn Anchor,
    held: Option<&Stamp>,
    stamp: &Stamp,
    key: &MacKey,
) -> Result<()> {
    let left_behind = |held: &Stamp| {
        held.volume == stamp.volume
            && held.generation == stamp.generation
            && held.head == stamp.head
            && held.header_digest == stamp.header_digest
            && held.state == State::Released
            && check_stamp_mac(held, key).is_ok()
    };
    if held.is_none_or(left_behind) || mutated(Mutation::TakenAnchorTaken) {
        return Ok(());
    }
    Err(Error::new(
        Kind::Anchor,
        format!("the anchor {} belongs to a volume already; name a new one", new.address()),
    ))
}

/// The steps of a move to another anchor.
pub(crate) struct Move<'a> {
    /// The old anchor, if it still has to be told.
    pub(crate) from: Option<Witness>,
    pub(crate) to: Witness,
    /// The new anchor's.
    pub(crate) address: String,
    pub(crate) stamp: Stamp,
    pub(crate) key: &'a MacKey,
}

impl Move<'_> {
    pub(crate) async fn run(
        self,
        policy: Policy,
        anchor_options: anchor::Options,
        save: SavePolicy,
    ) -> Result<Policy> {
        if !mutated(Mutation::NewAnchorFirst) {
            self.end_old().await?;
        }
        self.to.advance(self.key, self.stamp.clone()).await?;
        if mutated(Mutation::NewAnchorFirst) {
            self.end_old().await?;
        }
        let policy = Policy { anchor: Some(self.address), anchor_options, ..policy };
        save(&policy)?;
        Ok(policy)
    }

    /// From here on the old anchor lets nobody attach, and fences whoever is.
    async fn end_old(&self) -> Result<()> {
        let Some(from) = self.from.as_ref().filter(|_| !mutated(Mutation::OldAnchorGoesOn)) else {
            return Ok(());
        };
        let moved_to = Stamp::hint_of(&self.address);
        from.advance(self.key, Stamp { state: State::Terminal, moved_to, ..self.stamp.clone() })
            .await
            .map(drop)
    }
}
