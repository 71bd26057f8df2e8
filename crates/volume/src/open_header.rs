//! Opening the header: from four blocks that the host offers to a volume key, with every field checked on the way.

use anchor::{Stamp, State};
use seal::slot::{Credential, KeySlots};
use seal::{MacKey, Suite, VolumeKey};
use store::BLOCK_SIZE;

use crate::attach::AttachOptions;
use crate::core::Environment;
use crate::error::{Error, Kind, Result};
use crate::format::header::{self, Header};
use crate::format::probe::{PROBE_SIZE, Probe};
use crate::io::Io;
use crate::mutation::{Mutation, mutated};
use crate::policy::Policy;

/// A header pair that was checked against the policy, and opened.
pub(crate) struct Opened {
    pub(crate) header: Header,
    pub(crate) slots: KeySlots,
    pub(crate) digest: [u8; 32],
    pub(crate) key: VolumeKey,
    pub(crate) stamp: Option<Stamp>,
    pub(crate) stamp_key: MacKey,
}

/// Reads both header pairs, chooses the one in force, checks it against policy and anchor, and opens it.
pub(crate) async fn open_header(
    io: &Io,
    environment: &Environment,
    policy: &Policy,
    credential: &Credential,
    options: &AttachOptions,
) -> Result<Opened> {
    let stamp = match &environment.anchor {
        Some(anchor) => Some(anchor.read().await?.ok_or_else(|| {
            Error::new(Kind::Anchor, format!("the anchor {} was never claimed; either this is the wrong anchor, or the volume was never created to the end", anchor.address()))
        })?),
        None => None,
    };
    if let Some(stamp) = &stamp {
        check_stamp(stamp, policy)?;
    }
    let mut pairs = Vec::new();
    let mut refused = None;
    for first in [0, 2] {
        let buffer = io.read(first, 2).await?;
        let mut bytes = [0; 2 * BLOCK_SIZE];
        buffer.copy_to(0, &mut bytes);
        match check_pair(&bytes, policy, options) {
            Ok((header, slots)) => {
                let digest = seal::sha256(&[&bytes]);
                if mutated(Mutation::DigestNotCompared)
                    || stamp.as_ref().is_none_or(|stamp| stamp.header_digest == digest)
                {
                    pairs.push((header, slots, digest, bytes));
                } else {
                    refused.get_or_insert_with(|| {
                        Error::new(
                            Kind::Stale,
                            "the header or its key slots are not the ones that the anchor vouches for: they were changed, or an older copy was put back. Attach the current image",
                        )
                    });
                }
            }
            Err(error) => drop(refused.get_or_insert(error)),
        }
    }
    pairs.sort_by_key(|(header, ..)| std::cmp::Reverse(header.generation));
    if pairs.is_empty() {
        return Err(match refused {
            Some(error) => blank_or(io, environment, error).await,
            None => Error::new(Kind::Corrupt, "this store has no header"),
        });
    }
    if environment.store.blocks() < pairs[0].0.geometry.physical_blocks {
        return Err(Error::new(
            Kind::Io,
            format!(
                "{} has {} blocks, the volume needs {}: it was truncated. Attach the whole image",
                environment.store.name(),
                environment.store.blocks(),
                pairs[0].0.geometry.physical_blocks
            ),
        ));
    }
    let mut locked = None;
    for (header, slots, digest, bytes) in pairs {
        let key = match slots.unlock(&header.volume, credential, &options.slot_limits) {
            Ok(key) => key,
            Err(error) => {
                locked.get_or_insert_with(|| Error::new(Kind::Locked, error.to_string()));
                continue;
            }
        };
        let (page, _) = bytes.split_at(BLOCK_SIZE);
        if !key.mac("header").verify(&[header::signed_part(page)?], header::mac(page)?)
            && !mutated(Mutation::HeaderUnverified)
        {
            locked.get_or_insert_with(|| {
                Error::new(
                    Kind::Corrupt,
                    "the header was changed: its MAC does not hold. Restore the image from a backup",
                )
            });
            continue;
        }
        let stamp_key = key.mac("stamp");
        if let Some(stamp) = &stamp
            && !stamp_key.verify(&[&stamp.authenticated_bytes()], &stamp.mac)
            && !mutated(Mutation::StampUnverified)
        {
            return Err(Error::new(
                Kind::Anchor,
                "the anchor's stamp was not made by this volume; check the anchor's address in the policy",
            ));
        }
        return Ok(Opened { header, slots, digest, key, stamp, stamp_key });
    }
    Err(locked.unwrap_or_else(|| Error::new(Kind::Locked, "no key slot opens")))
}

fn check_stamp(stamp: &Stamp, policy: &Policy) -> Result<()> {
    if stamp.volume != policy.volume {
        return Err(Error::new(
            Kind::Anchor,
            "the anchor belongs to another volume; check the anchor's address in the policy",
        ));
    }
    if stamp.state == State::Terminal {
        return Err(Error::new(
            Kind::Anchor,
            "this volume has moved to another anchor; use the policy that names the new one",
        ));
    }
    Ok(())
}

fn check_pair(
    bytes: &[u8; 2 * BLOCK_SIZE],
    policy: &Policy,
    options: &AttachOptions,
) -> Result<(Header, KeySlots)> {
    let (header, area) = bytes.split_at(BLOCK_SIZE);
    let header = Header::decode_as(header, options.shape)?;
    if !mutated(Mutation::PolicyIgnored) {
        policy.check_header(&header).map_err(|error| Error::new(Kind::Policy, error.to_string()))?;
    }
    let area: &[u8; BLOCK_SIZE] =
        area.try_into().map_err(|_| Error::new(Kind::Corrupt, "the key-slot area is cut short"))?;
    let slots = KeySlots::decode(area).map_err(|error| Error::new(Kind::Corrupt, error.to_string()))?;
    Ok((header, slots))
}

/// Says it plainly when what is there is no volume at all.
async fn blank_or(io: &Io, environment: &Environment, error: Error) -> Error {
    let blocks = (PROBE_SIZE / BLOCK_SIZE).min(usize::try_from(environment.store.blocks()).unwrap_or(0));
    let Ok(buffer) = io.read(0, blocks).await else { return error };
    let mut start = vec![0; blocks * BLOCK_SIZE];
    buffer.copy_to(0, &mut start);
    let name = environment.store.name();
    match Probe::of(&start) {
        Probe::Volume => error,
        Probe::Blank => Error::new(
            Kind::Usage,
            format!("{name} is blank: there is no volume on it. Create one, or check the path"),
        ),
        Probe::Foreign(kind) => {
            Error::new(Kind::Usage, format!("{name} is not a cvmio volume, it holds {kind}. Check the path"))
        }
    }
}

pub(crate) fn suite_of(header: &Header) -> Suite {
    header.suite.suite()
}
