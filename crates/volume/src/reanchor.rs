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
use seal::MacKey;
use seal::slot::Credential;

use crate::attach::{AttachOptions, draw_session};
use crate::core::Environment;
use crate::create::SavePolicy;
use crate::error::{Error, Kind, Result};
use crate::io::Driven;
use crate::migrate::{Move, check_new_anchor};
use crate::policy::Policy;
use crate::survey::{Choice, Looking, StateName, stamp_of};
use crate::witness::Witness;

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

/// That the owner has said which state counts; nothing else can say so.
pub(crate) struct OwnersWord(());

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
            let word = OwnersWord(());
            let of_old = old.map(|old| Witness::of_owner(&word, old, looked.stamp.clone()));
            match order.anchor {
                Some(new) => {
                    let held = new.read().await?;
                    check_new_anchor(new.as_ref(), held.as_ref(), &stamp, &looked.stamp_key)?;
                    let to = Witness::of_owner(&word, Arc::clone(&new), held);
                    // One that was left before has nothing to be told.
                    let from =
                        of_old.filter(|old| old.held().is_some_and(|held| held.state != State::Terminal));
                    let moving = Move { from, to, address: new.address(), stamp, key: &looked.stamp_key };
                    moving.run(policy, order.anchor_options, order.save).await
                }
                None => stay(of_old, stamp, &looked.stamp_key).await.map(|()| policy),
            }
        }
        .boxed_local()
    })
}

async fn stay(anchor: Option<Witness>, stamp: Stamp, key: &MacKey) -> Result<()> {
    let Some(anchor) = anchor else {
        return Err(Error::new(Kind::Usage, "the anchor is lost; name the one that takes its place"));
    };
    if anchor.held().is_some_and(|old| old.state == State::Terminal) {
        return Err(Error::new(
            Kind::Usage,
            "the volume has moved away from this anchor, which cannot be used any more; use the policy that names the new one, or name the new anchor to end a move that was cut short",
        ));
    }
    anchor.advance(key, stamp).await.map(drop)
}
