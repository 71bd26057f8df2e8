//! Reanchoring: the owner says which state of a volume counts from now on, and which anchor vouches for it.
//!
//! Invariants:
//! 1. Nothing is written to the store. The one step that counts is a compare-and-swap of the anchor, so there is no half of it.
//! 2. Afterwards exactly one history continues: the stamp names a session that wrote nothing, so no record behind the chosen state counts, and
//!    no superblock that covers more.
//! 3. A session that is alive is fenced: the stamp that it would move is gone. For that the old anchor must be at hand; one that is lost
//!    fences nobody.
//! 4. A volume that moves has no two anchors at any moment: the old one gets its terminal stamp first, then the new one is claimed, then
//!    the policy names it. Cut in between, nothing attaches until it is done again.
//! 5. An anchor of another volume, or one that a volume lives by, is not written.

use std::sync::Arc;

use anchor::{Anchor, Stamp, State};
use futures::FutureExt;
use seal::slot::Credential;

use crate::anchoring::{advance, sign_stamp};
use crate::attach::{AttachOptions, draw_session};
use crate::core::Environment;
use crate::create::SavePolicy;
use crate::error::{Error, Kind, Result};
use crate::io::Driven;
use crate::mutation::{Mutation, mutated};
use crate::open_header::check_stamp_mac;
use crate::policy::Policy;
use crate::survey::{Choice, Looked, Looking, StateName, stamp_of};

/// What the owner wants.
pub struct Reanchor {
    /// The state that counts from now on, exactly as it was looked at.
    pub state: StateName,
    /// The anchor that the volume moves to; `None` if it stays.
    pub anchor: Option<Arc<dyn Anchor>>,
    /// What that one needs beside its address.
    pub anchor_options: anchor::Options,
    /// Stores the new policy durably. Called only if the anchor's address changes.
    pub save: SavePolicy,
}

/// Makes a state that the store offers ([`survey`](crate::survey())) the one that counts. The environment's anchor is the old one, `None`
/// if it is lost. The result is the policy from now on.
///
/// # Errors
/// In the job: as [`survey`](crate::survey()); [`Kind::Fenced`] when a session moved the anchor meanwhile; [`Kind::Anchor`] when an anchor
/// cannot be moved, or the new one is not free; and what `save` says. After an error it can be done again.
pub fn reanchor(
    environment: Environment,
    policy: Policy,
    credential: Arc<Credential>,
    order: Reanchor,
    options: AttachOptions,
) -> Result<Driven<Result<Policy>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 64, move |io| {
        async move {
            let old = environment.anchor.clone();
            let flushing = io.clone();
            let looking = Looking::new(environment.clone(), policy.clone(), options, io);
            let looked = looking.look(&credential, Choice::State(order.state)).await?;
            // What is accepted becomes durable before anything vouches for it.
            flushing.flush().await?;
            let session = draw_session(&environment)?;
            // Not one more: the next claim must be the odd one out of those that were alive (see the superblock's slots).
            let stamp = stamp_of(&policy.volume, looked.chosen, session, looked.claims, looked.header_digest);
            let stamp = sign_stamp(&looked.stamp_key, stamp);
            match order.anchor {
                Some(new) => {
                    Moving { looked, old, new, stamp }.run(policy, order.anchor_options, order.save).await
                }
                None => stay(old.as_deref(), looked.stamp.as_ref(), &stamp, policy).await,
            }
        }
        .boxed_local()
    })
}

async fn stay(
    anchor: Option<&dyn Anchor>,
    old: Option<&Stamp>,
    stamp: &Stamp,
    policy: Policy,
) -> Result<Policy> {
    let Some(anchor) = anchor else {
        return Err(Error::new(Kind::Usage, "the anchor is lost; name the one that takes its place"));
    };
    if old.is_some_and(|old| old.state == State::Terminal) {
        return Err(Error::new(
            Kind::Usage,
            "the volume has moved away from this anchor, which cannot be used any more; use the policy that names the new one, or name the new anchor to end a move that was cut short",
        ));
    }
    advance(anchor, old, stamp).await?;
    Ok(policy)
}

/// A move to another anchor.
struct Moving {
    looked: Looked,
    old: Option<Arc<dyn Anchor>>,
    new: Arc<dyn Anchor>,
    stamp: Stamp,
}

impl Moving {
    async fn run(self, policy: Policy, anchor_options: anchor::Options, save: SavePolicy) -> Result<Policy> {
        let held = self.new.read().await?;
        if let Some(held) = &held {
            self.check_left_behind(held)?;
        }
        if !mutated(Mutation::NewAnchorFirst) {
            self.end_old().await?;
        }
        advance(self.new.as_ref(), held.as_ref(), &self.stamp).await?;
        if mutated(Mutation::NewAnchorFirst) {
            self.end_old().await?;
        }
        let policy = Policy { anchor: Some(self.new.address()), anchor_options, ..policy };
        save(&policy)?;
        Ok(policy)
    }

    /// The new anchor may hold what a move that was cut short left there, and nothing else.
    fn check_left_behind(&self, held: &Stamp) -> Result<()> {
        let same = held.volume == self.stamp.volume
            && held.generation == self.stamp.generation
            && held.head == self.stamp.head
            && held.header_digest == self.stamp.header_digest
            && held.state == State::Released;
        let same = same && check_stamp_mac(held, &self.looked.stamp_key).is_ok();
        if same || mutated(Mutation::TakenAnchorTaken) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Anchor,
            format!("the anchor {} belongs to a volume already; name a new one", self.new.address()),
        ))
    }

    /// From here on the old anchor lets nobody attach, and fences whoever is.
    async fn end_old(&self) -> Result<()> {
        let (Some(anchor), Some(old)) = (&self.old, &self.looked.stamp) else { return Ok(()) };
        if old.state == State::Terminal || mutated(Mutation::OldAnchorGoesOn) {
            return Ok(());
        }
        let moved_to = Stamp::hint_of(&self.new.address());
        let last = Stamp { state: State::Terminal, moved_to, ..self.stamp.clone() };
        advance(anchor.as_ref(), Some(old), &sign_stamp(&self.looked.stamp_key, last)).await
    }
}
