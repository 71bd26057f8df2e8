//! What stands on a store, for people who look into trouble: read, never written, and never a secret.

use std::sync::Arc;

use futures::FutureExt;
use memory::BLOCK_SIZE;
use seal::slot::{Credential, KeySlots, Kind as SlotKind, SlotInfo};
use serde::{Deserialize, Serialize};

use crate::attach::{AttachOptions, keyring};
use crate::core::Environment;
use crate::error::{Error, Kind, Result};
use crate::format::entry::Entry;
use crate::format::header::{self, Header};
use crate::format::superblock::{Leg, Superblock};
use crate::geometry::Shape;
use crate::io::{Driven, Io};
use crate::open_header::open_header;
use crate::policy::Policy;
use crate::superblock_io::read_superblocks;

/// What a store holds, as far as it can be read.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Dump {
    /// The store's name.
    pub store: String,
    /// Its size in blocks.
    pub store_blocks: u64,
    /// Both copies of header and key slots. Anybody may have written them, unless `verified` is set.
    pub copies: Vec<CopyDump>,
    /// What the anchor holds, if there is one.
    pub stamp: Option<StampDump>,
    /// The superblocks that open; `None` without a credential.
    pub superblocks: Option<Vec<SuperblockDump>>,
}

/// One copy of the pair (header, key slots).
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CopyDump {
    /// First block of the copy.
    pub block: u64,
    /// SHA-256 over both blocks, hex.
    pub digest: String,
    /// Whether the anchor vouches for it; `None` without an anchor.
    pub anchored: Option<bool>,
    /// Whether header and key slots were written together, and to the end; `None` where nothing says it. Without an anchor, one that was not
    /// does not count.
    pub whole: Option<bool>,
    /// Whether its MAC was checked and holds.
    pub verified: bool,
    /// The header, or why it is none.
    pub header: Read<HeaderDump>,
    /// The key slots, or why there are none.
    pub slots: Read<Vec<SlotDump>>,
}

/// Something that was read, or why not.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Read<T> {
    /// It is well-formed.
    Ok(T),
    /// It is not; says why.
    Malformed(String),
}

/// A header's fields. Sizes are in blocks.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names are those of docs/disk-format.md, section Header")]
pub struct HeaderDump {
    pub generation: u32,
    pub volume: String,
    pub suite: String,
    pub confidentiality: bool,
    pub integrity: bool,
    pub freshness: String,
    pub provision: String,
    pub logical_blocks: u64,
    pub physical_blocks: u64,
    pub segment_blocks: u32,
    pub segments: u32,
    pub unit_blocks: u32,
    pub bitmap_start: u64,
    pub data_start: u64,
    /// Logical and physical blocks at creation and behind each growth.
    pub sizes: Vec<(u64, u64)>,
}

/// An occupied key slot, without anything that helps to open it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SlotDump {
    /// Its index.
    pub index: usize,
    /// `passphrase` or `key-file`.
    pub kind: String,
    /// Its name.
    pub label: String,
    /// Argon2id's memory, KiB.
    pub memory_kib: Option<u32>,
    /// Argon2id's passes.
    pub passes: Option<u32>,
    /// Argon2id's lanes.
    pub lanes: Option<u32>,
}

/// The anchor's stamp.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names are those of docs/disk-format.md, section Stamp")]
pub struct StampDump {
    pub state: String,
    pub volume: String,
    pub generation: u64,
    pub claims: u64,
    pub session: String,
    pub head: String,
    pub header_digest: String,
}

/// A superblock that opened.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names are those of docs/disk-format.md, section Superblock")]
pub struct SuperblockDump {
    pub slot: u8,
    pub generation: u64,
    pub head: String,
    pub session: String,
    pub claims: u64,
    pub epoch: u32,
    pub next_epoch: u32,
    pub map: Option<EntryDump>,
    pub salts: Option<EntryDump>,
    pub bitmap: Option<EntryDump>,
    pub mapped_blocks: u64,
    pub publication: u64,
    pub pair: u8,
    pub legs: Vec<LegDump>,
    pub units: Vec<u32>,
    pub growths: u8,
}

/// Where a root stands.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names are those of docs/disk-format.md, section Entry")]
pub struct EntryDump {
    pub physical: u64,
    pub epoch: u32,
    pub nonce: u64,
}

/// A stretch of journal.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names are those of docs/disk-format.md, section Superblock")]
pub struct LegDump {
    pub segment: u32,
    pub block: u32,
    pub first: u64,
    /// `None` while the session writes it.
    pub last: Option<u64>,
}

/// Reads what stands on a store. Without a credential, only what the host can read too.
///
/// # Errors
/// In the job: [`Kind::Io`]; with a credential everything that opening the header can say. An unreadable anchor is no error here.
pub fn dump(
    environment: Environment,
    policy: Option<Policy>,
    credential: Option<Credential>,
    options: AttachOptions,
) -> Result<Driven<Result<Dump>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 16, move |io| {
        async move { run(&io, &environment, policy.as_ref(), credential.as_ref(), &options).await }
            .boxed_local()
    })
}

async fn run(
    io: &Io,
    environment: &Environment,
    policy: Option<&Policy>,
    credential: Option<&Credential>,
    options: &AttachOptions,
) -> Result<Dump> {
    let stamp = match &environment.anchor {
        Some(anchor) => anchor.read().await.ok().flatten(),
        None => None,
    };
    let vouched = stamp.as_ref().map(|stamp| stamp.header_digest);
    let mut copies = Vec::new();
    for block in [0, 2] {
        copies.push(copy(io, block, vouched, options.shape).await?);
    }
    let mut superblocks = None;
    if let (Some(policy), Some(credential)) = (policy, credential) {
        let opened = open_header(io, environment, policy, credential, options).await?;
        let digest = hex::encode(opened.digest);
        copies.iter_mut().filter(|copy| copy.digest == digest).for_each(|copy| copy.verified = true);
        let slots = read_superblocks(io, &keyring(&opened.header, opened.key)?, &opened.header).await?;
        superblocks =
            Some(slots.found.iter().map(|found| superblock_dump(found.slot, &found.superblock)).collect());
    }
    Ok(Dump {
        store: environment.store.name(),
        store_blocks: environment.store.blocks(),
        copies,
        stamp: stamp.map(|stamp| stamp_dump(&stamp)),
        superblocks,
    })
}

async fn copy(io: &Io, block: u64, vouched: Option<[u8; 32]>, shape: Shape) -> Result<CopyDump> {
    let buffer = io.read(block, 2).await?;
    let mut header = [0; BLOCK_SIZE];
    let mut area = [0; BLOCK_SIZE];
    buffer.copy_to(0, &mut header);
    buffer.copy_to(BLOCK_SIZE, &mut area);
    let digest = seal::sha256(&[&header, &area]);
    Ok(CopyDump {
        block,
        digest: hex::encode(digest),
        anchored: vouched.map(|vouched| vouched == digest),
        whole: header::is_whole(&header, &area),
        verified: false,
        header: match Header::decode_as(&header, shape) {
            Ok(header) => Read::Ok(header_dump(&header)),
            Err(error) => Read::Malformed(error.to_string()),
        },
        slots: match KeySlots::decode(&area) {
            Ok(slots) => Read::Ok(slots.list().into_iter().map(SlotDump::from).collect()),
            Err(error) => Read::Malformed(error.to_string()),
        },
    })
}

fn header_dump(header: &Header) -> HeaderDump {
    let geometry = &header.geometry;
    HeaderDump {
        generation: header.generation,
        volume: hex::encode(header.volume),
        suite: header.suite.to_string(),
        confidentiality: header.confidentiality,
        integrity: header.integrity,
        freshness: header.freshness.to_string(),
        provision: header.provision.to_string(),
        logical_blocks: geometry.logical_blocks,
        physical_blocks: geometry.physical_blocks,
        segment_blocks: geometry.segment_blocks,
        segments: geometry.segments,
        unit_blocks: geometry.unit_blocks,
        bitmap_start: geometry.bitmap_start(),
        data_start: geometry.data_start(),
        sizes: geometry.sizes().collect(),
    }
}

impl From<SlotInfo> for SlotDump {
    fn from(info: SlotInfo) -> Self {
        let (kind, cost) = match info.kind {
            SlotKind::Passphrase(cost) => ("passphrase", Some(cost)),
            SlotKind::KeyFile => ("key-file", None),
            SlotKind::Released => ("released", None),
        };
        Self {
            index: info.index,
            kind: kind.into(),
            label: info.label,
            memory_kib: cost.map(|cost| cost.memory_kib),
            passes: cost.map(|cost| cost.passes),
            lanes: cost.map(|cost| cost.lanes),
        }
    }
}

fn stamp_dump(stamp: &anchor::Stamp) -> StampDump {
    StampDump {
        state: format!("{:?}", stamp.state).to_lowercase(),
        volume: hex::encode(stamp.volume),
        generation: stamp.generation,
        claims: stamp.claims,
        session: hex::encode(stamp.session),
        head: hex::encode(stamp.head),
        header_digest: hex::encode(stamp.header_digest),
    }
}

fn superblock_dump(slot: u8, superblock: &Superblock) -> SuperblockDump {
    let entry = |entry: &Entry| {
        let dump = EntryDump { physical: entry.physical, epoch: entry.epoch, nonce: entry.nonce };
        (!entry.is_absent()).then_some(dump)
    };
    let leg = |leg: &Leg| LegDump {
        segment: leg.segment,
        block: leg.block,
        first: leg.first,
        last: (!leg.is_open()).then_some(leg.last),
    };
    SuperblockDump {
        slot,
        generation: superblock.generation,
        head: hex::encode(superblock.head),
        session: hex::encode(superblock.session),
        claims: superblock.claims,
        epoch: superblock.epoch,
        next_epoch: superblock.next_epoch,
        map: entry(&superblock.map),
        salts: entry(&superblock.salts),
        bitmap: entry(&superblock.bitmap),
        mapped_blocks: superblock.mapped,
        publication: superblock.publication,
        pair: superblock.pair,
        legs: superblock.legs.iter().map(leg).collect(),
        units: superblock.units.clone(),
        growths: superblock.growths,
    }
}

impl Dump {
    /// What is wrong with the header, if neither copy of it is well-formed.
    fn no_header(&self) -> Option<&str> {
        let mut why = self.copies.iter().map(|copy| match &copy.header {
            Read::Ok(_) => None,
            Read::Malformed(why) => Some(why.as_str()),
        });
        let first = why.next().flatten()?;
        why.all(|why| why.is_some()).then_some(first)
    }

    /// The key slots in force: of the copy that the anchor vouches for, or else of the newest that is well-formed.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] or [`Kind::Stale`] when there is none.
    pub fn slots(&self) -> Result<&[SlotDump]> {
        let whole = |copy: &&CopyDump| copy.anchored != Some(false);
        let newest = self.copies.iter().filter(whole).filter_map(|copy| match (&copy.header, &copy.slots) {
            (Read::Ok(header), Read::Ok(slots)) => Some((header.generation, slots)),
            _ => None,
        });
        match newest.max_by_key(|(generation, _)| *generation) {
            Some((_, slots)) => Ok(slots),
            None if let Some(message) = self.no_header() => Err(Error::new(
                Kind::Corrupt,
                format!(
                    "{}: {message}; use the program that made it, or restore it from a backup",
                    self.store
                ),
            )),
            None if self.stamp.is_some() && self.copies.iter().all(|copy| copy.anchored == Some(false)) => {
                Err(Error::new(
                    Kind::Stale,
                    "neither copy of the header is the one that the anchor vouches for; attach the current image",
                ))
            }
            None => Err(Error::new(Kind::Corrupt, format!("{} has no readable header", self.store))),
        }
    }
}
