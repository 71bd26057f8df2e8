//! Opening the header: from four blocks that the host offers to a volume key, with every field checked on the way.

use anchor::{Anchor, Stamp, State};
use memory::BLOCK_SIZE;
use seal::slot::{Credential, KeySlots};
use seal::{MacKey, Suite, VolumeKey};

use crate::attach::AttachOptions;
use crate::core::Environment;
use crate::error::{Error, Kind, Result};
use crate::format::header::{self, Header};
use crate::format::probe::{PROBE_SIZE, Probe};
use crate::format::protections::Freshness;
use crate::io::Io;
use crate::mutation::{Mutation, mutated};
use crate::policy::Policy;

/// Where the two copies of the pair (header, key slots) stand.
pub(crate) const COPIES: [u64; 2] = [0, 2];

/// Header and key slots, as they stand on the store.
pub(crate) type Pair = [u8; 2 * BLOCK_SIZE];

/// A header pair that was checked against the policy, and opened.
pub(crate) struct Opened {
    pub(crate) header: Header,
    pub(crate) slots: KeySlots,
    pub(crate) pair: Box<Pair>,
    pub(crate) digest: [u8; 32],
    pub(crate) key: VolumeKey,
    pub(crate) stamp: Option<Stamp>,
    pub(crate) stamp_key: MacKey,
}

/// What the stamp has to say about the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vouching {
    /// Only the pair that it names is opened.
    Demanded,
    /// The one that it names comes first, but the owner may take another.
    Preferred,
}

/// Reads both header pairs, chooses the one in force, checks it against policy and anchor, and opens it.
pub(crate) async fn open_header(
    io: &Io,
    environment: &Environment,
    policy: &Policy,
    credential: &Credential,
    options: &AttachOptions,
) -> Result<Opened> {
    let stamp = read_stamp(environment, policy).await?;
    open_pair(io, environment, policy, credential, options, stamp, Vouching::Demanded).await
}

/// The same for a stamp that has been read.
pub(crate) async fn open_pair(
    io: &Io,
    environment: &Environment,
    policy: &Policy,
    credential: &Credential,
    options: &AttachOptions,
    stamp: Option<Stamp>,
    vouching: Vouching,
) -> Result<Opened> {
    check_header_fits(environment)?;
    let Offered { pairs, refused, unreadable } =
        read_pairs(io, policy, options, stamp.as_ref(), vouching).await?;
    if pairs.is_empty() {
        if let Some(error) = unreadable {
            return Err(error);
        }
        return Err(match refused {
            Some(error) => blank_or(io, environment, error).await,
            None => Error::new(Kind::Corrupt, "there is no header").on(&environment.store.name()),
        });
    }
    check_store(environment, &pairs[0].header)?;
    let (mut locked, mut foreign) = (None, None);
    for Checked { header, slots, digest, pair, .. } in pairs {
        let key = match unlock(&header, &slots, &pair, credential, options) {
            Ok(key) => key,
            Err(error) => {
                locked.get_or_insert(error);
                // Where no anchor says which one counts, it is the newest that is whole: for everybody, and not the newest that this
                // credential opens, or two users could each go on with a state of his own.
                if policy.freshness == Freshness::Off && whole(&pair) == Some(true) {
                    break;
                }
                continue;
            }
        };
        let stamp_key = key.mac("stamp");
        if let Some(Err(error)) = stamp.as_ref().map(|stamp| check_stamp_mac(stamp, &stamp_key)) {
            // Perhaps of a change of key that never began; the other copy may be the one that counts.
            foreign.get_or_insert(error);
            continue;
        }
        return Ok(Opened { header, slots, pair, digest, key, stamp, stamp_key });
    }
    if let Some(error) = foreign {
        return Err(error);
    }
    let error = match (locked, refused) {
        // A copy that was torn while the other one was in force already: what is wrong with that one says more.
        (Some(torn), Some(other)) if torn.kind() == Kind::Corrupt && other.kind() == Kind::Policy => other,
        (locked, _) => locked.unwrap_or_else(|| Error::new(Kind::Locked, "no key slot opens")),
    };
    Err(error.on(&environment.store.name()))
}

/// A pair that the policy accepts.
struct Checked {
    header: Header,
    slots: KeySlots,
    digest: [u8; 32],
    pair: Box<Pair>,
    /// The stamp names it, or there is none.
    vouched: bool,
}

/// What the store offers.
struct Offered {
    /// Whichever may be opened, the one in force first.
    pairs: Vec<Checked>,
    /// Why another may not; what is wrong with the one in force says more than what is wrong with another.
    refused: Option<Error>,
    unreadable: Option<Error>,
}

/// Reads both header pairs, and checks them as far as that goes without a key.
async fn read_pairs(
    io: &Io,
    policy: &Policy,
    options: &AttachOptions,
    stamp: Option<&Stamp>,
    vouching: Vouching,
) -> Result<Offered> {
    let mut offered = Offered { pairs: Vec::new(), refused: None, unreadable: None };
    for first in COPIES {
        let pair = match read_pair(io, first).await {
            Ok(pair) => pair,
            // The anchor says whether the other one counts. Where nothing does, this one may be the newer.
            Err(error) if stamp.is_some() => {
                offered.unreadable.get_or_insert(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let digest = seal::sha256(&[&*pair]);
        let vouched = stamp.is_none_or(|stamp| stamp.header_digest == digest);
        let checked = check_pair(&pair, policy, options);
        let checked =
            if stamp.is_none() { checked.and_then(|pairs| check_whole(&pair, pairs)) } else { checked };
        match checked {
            Ok((header, slots))
                if vouched || vouching == Vouching::Preferred || mutated(Mutation::DigestNotCompared) =>
            {
                offered.pairs.push(Checked { header, slots, digest, pair, vouched });
            }
            Ok(_) => drop(offered.refused.get_or_insert_with(not_vouched)),
            Err(error) => offered.refuse(error, stamp.map(|_| vouched)),
        }
    }
    offered.pairs.sort_by_key(|pair| std::cmp::Reverse((pair.vouched, pair.header.generation)));
    Ok(offered)
}

impl Offered {
    /// Keeps the error that says most. `vouched`: what the stamp says of this pair, if there is one.
    fn refuse(&mut self, error: Error, vouched: Option<bool>) {
        let is_in_force = vouched == Some(true);
        // What was written in part says less than what the policy does not accept.
        let torn_before = self.refused.as_ref().is_some_and(|before| before.kind() == Kind::Corrupt);
        let says_more = vouched.is_none() && torn_before && error.kind() == Kind::Policy;
        if is_in_force || says_more || self.refused.is_none() {
            self.refused = Some(error);
        }
        if is_in_force {
            self.unreadable = None;
        }
    }
}

fn not_vouched() -> Error {
    Error::new(
        Kind::Stale,
        "the header or its key slots are not the ones that the anchor vouches for: they were changed, or an older copy was put back. Attach the current image",
    )
}

/// The anchor's stamp, if there is an anchor. Whether its MAC holds, only the volume key can say.
pub(crate) async fn read_stamp(environment: &Environment, policy: &Policy) -> Result<Option<Stamp>> {
    let Some(anchor) = &environment.anchor else { return Ok(None) };
    let stamp = anchor.read().await?.ok_or_else(|| {
        Error::new(Kind::Anchor, format!("the anchor {} was never claimed; either this is the wrong anchor, or the volume was never created to the end", anchor.address()))
    })?;
    check_stamp(&stamp, policy, anchor.as_ref())?;
    Ok(Some(stamp))
}

/// One copy of the pair, as it is.
pub(crate) async fn read_pair(io: &Io, at: u64) -> Result<Box<Pair>> {
    let buffer = io.read(at, 2).await?;
    let mut pair = Box::new([0; 2 * BLOCK_SIZE]);
    buffer.copy_to(0, pair.as_mut_slice());
    Ok(pair)
}

/// Writes one copy and makes it durable. Before that, the other one: it may have been found in the disk's cache only, written by somebody who
/// was killed before its flush, and if the power goes now, it is what must be left.
pub(crate) async fn write_pair(io: &Io, at: u64, pair: &Pair) -> Result<()> {
    if !mutated(Mutation::CachedCopyTrusted) {
        io.flush().await?;
    }
    let mut buffer = io.buffer(2);
    buffer.copy_from(0, pair);
    io.write(at, buffer).await?;
    io.flush().await
}

/// The volume key, if the credential opens a slot and the header's MAC holds under it.
pub(crate) fn unlock(
    header: &Header,
    slots: &KeySlots,
    pair: &Pair,
    credential: &Credential,
    options: &AttachOptions,
) -> Result<VolumeKey> {
    let key = slots
        .unlock(&header.volume, credential, &options.slot_limits)
        .map_err(|error| Error::new(Kind::Locked, error.to_string()))?;
    if !header_holds(pair, &key.mac("header"))? && !mutated(Mutation::HeaderUnverified) {
        return Err(Error::new(
            Kind::Corrupt,
            "the header was changed: its MAC does not hold. Restore the image from a backup",
        ));
    }
    Ok(key)
}

/// Where no stamp says which pair counts: one that was written to the end.
fn check_whole<T>(bytes: &Pair, checked: T) -> Result<T> {
    match whole(bytes) {
        Some(false) => Err(Error::new(
            Kind::Corrupt,
            "header and key slots do not belong together: they are damaged, or were written in part only. Restore them from a header backup",
        )),
        _ => Ok(checked),
    }
}

/// Whether a pair was written to the end, if it says so.
fn whole(pair: &Pair) -> Option<bool> {
    let (page, area) = pair.split_first_chunk()?;
    header::is_whole(page, area)
}

/// Whether a header's MAC holds.
pub(crate) fn header_holds(pair: &Pair, key: &MacKey) -> Result<bool> {
    let (page, _) = pair.split_at(BLOCK_SIZE);
    Ok(key.verify(&[header::signed_part(page)?], header::mac(page)?))
}

/// Whether the store has room for a header: without one there is nothing that could say how large the volume is.
fn check_header_fits(environment: &Environment) -> Result<()> {
    check_blocks(environment, COPIES[1] + 2, "a volume's header alone", "it was truncated, or is no volume")
}

/// Whether the store is as large as the volume.
pub(crate) fn check_store(environment: &Environment, header: &Header) -> Result<()> {
    check_blocks(environment, header.geometry.physical_blocks, "the volume", "it was truncated")
}

fn check_blocks(environment: &Environment, needs: u64, what: &str, why: &str) -> Result<()> {
    let has = environment.store.blocks();
    if has >= needs {
        return Ok(());
    }
    let name = environment.store.name();
    let message = format!("{name} has {has} blocks, {what} needs {needs}: {why}. Attach the whole image");
    Err(Error::new(Kind::Io, message))
}

/// Whether there is an anchor where the header says that there must be one.
pub(crate) fn check_anchored(environment: &Environment, header: &Header) -> Result<()> {
    if header.freshness == Freshness::Off || environment.anchor.is_some() {
        return Ok(());
    }
    Err(Error::new(
        Kind::Anchor,
        format!(
            "this volume is at freshness level {}, and no anchor was given; nothing was written",
            header.freshness
        ),
    ))
}

pub(crate) fn check_stamp_mac(stamp: &Stamp, key: &MacKey) -> Result<()> {
    if key.verify(&[&stamp.authenticated_bytes()], &stamp.mac) || mutated(Mutation::StampUnverified) {
        return Ok(());
    }
    Err(Error::new(
        Kind::Anchor,
        "the anchor's stamp was not made by this volume; check the anchor's address in the policy",
    ))
}

fn check_stamp(stamp: &Stamp, policy: &Policy, anchor: &dyn Anchor) -> Result<()> {
    check_stamp_volume(stamp, policy, anchor)?;
    if stamp.state == State::Terminal && !mutated(Mutation::LeftAnchorAttached) {
        // Whoever can write to an anchor can write this, too: it is told, and not opened.
        let hint = stamp.moved_to().map_or(String::new(), |end| format!(" (its address ends in `{end}`)"));
        return Err(Error::new(
            Kind::Anchor,
            format!(
                "this volume has moved to another anchor{hint}; use the policy that names the new one. A move that was cut short has to be done again (anchor migrate)"
            ),
        ));
    }
    Ok(())
}

/// Whether the stamp is this volume's, as far as it says.
pub(crate) fn check_stamp_volume(stamp: &Stamp, policy: &Policy, anchor: &dyn Anchor) -> Result<()> {
    if stamp.volume == policy.volume {
        return Ok(());
    }
    Err(Error::new(
        Kind::Anchor,
        format!(
            "the anchor {} belongs to another volume; check the anchor's address in the policy",
            anchor.address()
        ),
    ))
}

/// The pair as typed values, if the policy accepts what it says.
pub(crate) fn check_pair(
    bytes: &Pair,
    policy: &Policy,
    options: &AttachOptions,
) -> Result<(Header, KeySlots)> {
    let (page, area) = bytes.split_at(BLOCK_SIZE);
    let header = Header::decode_as(page, options.shape)?;
    if !mutated(Mutation::PolicyIgnored) {
        policy.check_header(&header).map_err(|error| Error::new(Kind::Policy, error.to_string()))?;
    }
    let area: &[u8; BLOCK_SIZE] =
        area.try_into().map_err(|_| Error::new(Kind::Corrupt, "the key-slot area is cut short"))?;
    let slots = KeySlots::decode(area).map_err(|error| Error::new(Kind::Corrupt, error.to_string()))?;
    // The last slot is never removed. "No slot opens with this" would have its owner look for another key.
    if slots.list().is_empty() {
        return Err(Error::new(
            Kind::Corrupt,
            "there is a header, and no key slot: they were written in part only, or are damaged. Restore them from a header backup",
        ));
    }
    Ok((header, slots))
}

/// What an owner does whose volume has lost its beginning. Not a new volume: that would write over what is left.
const LOST: &str = "check the path. If it is the right store, its beginning was lost: put the header back from a backup \
                    (`cvmio volume header restore`), and make no new volume there, which would write over what is left";

/// The error, with the store's name; says it plainly when what is there is no header at all.
async fn blank_or(io: &Io, environment: &Environment, error: Error) -> Error {
    let name = environment.store.name();
    let blocks = (PROBE_SIZE / BLOCK_SIZE).min(usize::try_from(environment.store.blocks()).unwrap_or(0));
    let Ok(buffer) = io.read(0, blocks).await else { return error.on(&name) };
    let mut start = vec![0; blocks * BLOCK_SIZE];
    buffer.copy_to(0, &mut start);
    match Probe::of(&start) {
        Probe::Volume => error.on(&name),
        Probe::Blank => {
            Error::new(Kind::Usage, format!("{name} is blank where a volume has its header; {LOST}"))
        }
        Probe::Foreign(kind) => Error::new(
            Kind::Usage,
            format!("{name} does not begin as a cvmio volume, it holds {kind}; {LOST}"),
        ),
    }
}

pub(crate) fn suite_of(header: &Header) -> Suite {
    header.suite.suite()
}
