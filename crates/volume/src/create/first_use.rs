//! First use: a policy that was there before its volume, and says that a blank store may be made into it.
//!
//! A host that blanks a store must not get it formatted: that would be a rollback to nothing. So the anchor must never have been claimed,
//! and must be there to say so.

use futures::FutureExt;
use memory::BLOCK_SIZE;
use seal::slot::{Argon2Params, Credential};

use super::{CreateOptions, Creating};
use crate::core::Environment;
use crate::error::{Error, Kind, Result};
use crate::format::header::Header;
use crate::format::protections::Provision;
use crate::geometry::{SUPERBLOCK_SLOTS, SUPERBLOCK_START, Shape};
use crate::io::Driven;
use crate::policy::Policy;

/// Creates the volume that `policy` describes. The policy stays as it is.
///
/// # Errors
/// In the job, and then nothing was written: [`Kind::Usage`] when the policy does not allow it, or the store is not blank or
/// lacks the space; [`Kind::Stale`] when the store is blank but the anchor vouches for a volume; [`Kind::Anchor`], [`Kind::Io`].
pub fn create_by_policy(
    environment: Environment,
    policy: Policy,
    provision: Provision,
    credential: Credential,
    argon2: Argon2Params,
) -> Result<Driven<Result<()>>> {
    let store = std::sync::Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 16, move |io| {
        async move {
            let options = CreateOptions {
                suite: policy.suite,
                confidentiality: policy.confidentiality,
                integrity: policy.integrity,
                freshness: policy.freshness,
                provision,
                logical_blocks: Some(policy.size / BLOCK_SIZE as u64),
                force: false,
                shape: Shape::STANDARD,
                argon2,
                label: "first".into(),
                anchor_options: policy.anchor_options.clone(),
            };
            let creating = Creating { environment, options, known: Some(policy.volume), io };
            // Before it is asked what is allowed: a rollback is one under every policy.
            creating.check_blank().await?;
            creating.check_anchor().await?;
            check_allowed(&policy, &creating.environment)?;
            creating.run(credential, Box::new(|_| Ok(()))).await.map(drop)
        }
        .boxed_local()
    })
}

fn check_allowed(policy: &Policy, environment: &Environment) -> Result<()> {
    let usage = |message: String| Err(Error::new(Kind::Usage, message));
    let store = environment.store.name();
    if !policy.format_if_blank {
        return usage(format!(
            "there is no volume on {store}, and the policy does not allow to make one (format-if-blank); nothing was written. Attach the right store"
        ));
    }
    let address = environment.anchor.as_ref().map(|anchor| anchor.address());
    if address.is_none() || address != policy.anchor {
        return usage(format!(
            "there is no volume on {store}, and no anchor to say that there never was one; nothing was written. Create the volume by hand"
        ));
    }
    Ok(())
}

/// The host has blanked the store, or shows another one.
pub(super) fn rolled_back(store: &str, anchor: &str) -> Error {
    Error::new(
        Kind::Stale,
        format!(
            "{store} holds no volume, but the anchor {anchor} vouches for one: the store was blanked, or is another one. Nothing was \
             written; find the current image, and suspect the host"
        ),
    )
}

/// Whether these first blocks are what a creation of volume `id` leaves that was cut before it claimed the anchor: no session has ever
/// put a superblock of its own beside the first.
pub(super) fn was_cut(start: &[u8], id: &[u8; 16], shape: Shape) -> bool {
    let block = |number: u64| {
        let first = usize::try_from(number).ok()?.checked_mul(BLOCK_SIZE)?;
        start.get(first..first.checked_add(BLOCK_SIZE)?)
    };
    let is_ours = |copy| {
        block(copy)
            .and_then(|page| Header::decode_as(page, shape).ok())
            .is_some_and(|header| header.volume == *id)
    };
    let mut others = (1..u64::from(SUPERBLOCK_SLOTS)).map(|slot| block(SUPERBLOCK_START + slot));
    (is_ours(0) || is_ours(2))
        && others.all(|page| page.is_some_and(|page| page.iter().all(|&byte| byte == 0)))
}
