//! Creating a volume: header, key slots, policy, anchor, first superblock, in an order that a crash may cut anywhere.

mod first_use;

use std::sync::Arc;

use anchor::{Stamp, State};
use futures::FutureExt;
use memory::BLOCK_SIZE;
use seal::slot::{Argon2Params, Credential, KeySlots};
use seal::{DataMode, VolumeKey};

use crate::core::Environment;
use crate::error::{Error, Kind, Remedy, Result};
use crate::format::entry::Entry;
use crate::format::header::{self, Header};
use crate::format::probe::{self, PROBE_SIZE, Probe};
use crate::format::protections::{Freshness, Provision, SuiteCode, check_protections};
use crate::format::superblock::{Leg, Superblock};
use crate::geometry::{Geometry, SUPERBLOCK_START, Shape};
use crate::io::{Driven, Io};
use crate::journal::genesis;
use crate::mutation::{Mutation, mutated};
use crate::open_header::suite_of;
use crate::policy::Policy;
use crate::superblock_io::seal_superblock;
use crate::untold::take_first_places;
use crate::witness::Witness;

pub use first_use::create_by_policy;

/// What to create.
#[derive(Debug, Clone)]
pub struct CreateOptions {
    /// Cipher of data blocks.
    pub suite: SuiteCode,
    /// Whether the host must not read the data.
    pub confidentiality: bool,
    /// Whether the host must not change the data unnoticed.
    pub integrity: bool,
    /// How soon the host cannot put old data back unnoticed.
    pub freshness: Freshness,
    /// Whether the space for all logical blocks is there.
    pub provision: Provision,
    /// Logical blocks; `None` for as many as the store fully provisions.
    pub logical_blocks: Option<u64>,
    /// Go on although something is on the store.
    pub force: bool,
    /// Only the simulator has another than the standard.
    pub shape: Shape,
    /// Cost of the passphrase.
    pub argon2: Argon2Params,
    /// Name of the first key slot.
    pub label: String,
    /// What the anchor needs beside its address; for the policy.
    pub anchor_options: anchor::Options,
}

impl CreateOptions {
    /// The geometry on a store of this many blocks.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the sizes do not fit.
    pub fn geometry(&self, store_blocks: u64) -> Result<Geometry> {
        let geometry = match (self.logical_blocks, self.provision) {
            (Some(logical), Provision::Thin) => Geometry::thin(logical, store_blocks, self.shape),
            (Some(logical), Provision::Full) => Geometry::for_logical(logical, self.shape),
            (None, _) => Geometry::for_physical(store_blocks, self.shape),
        };
        let geometry = geometry.map_err(|error| Error::new(Kind::Usage, error.to_string()))?;
        if geometry.physical_blocks > store_blocks {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "{} logical blocks with full provisioning need a store of {} blocks, this one has {store_blocks}; choose a smaller size, or thin provisioning",
                    geometry.logical_blocks, geometry.physical_blocks
                ),
            ));
        }
        Ok(geometry)
    }
}

/// Stores the policy durably; called once, after the header is durable and before the anchor is claimed.
pub type SavePolicy = Box<dyn FnOnce(&Policy) -> Result<()>>;

/// Creates a volume. The anchor, if the freshness level needs one, must never have been claimed.
///
/// # Errors
/// In the job: [`Kind::Usage`] when the store is not blank, has not the space for full provisioning, or the options contradict each other,
/// [`Kind::Anchor`], [`Kind::Io`].
pub fn create(
    environment: Environment,
    options: CreateOptions,
    credential: Credential,
    save: SavePolicy,
) -> Result<Driven<Result<Policy>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 16, move |io| {
        let creating = Creating { environment, options, known: None, io };
        async move { creating.run(credential, save).await }.boxed_local()
    })
}

/// The same for a volume whose id its owner has noted before: a creation with this id that was cut short is done again.
///
/// # Errors
/// As [`create`]; [`Kind::Stale`] when the store is blank but the anchor vouches for a volume.
pub fn create_as(
    environment: Environment,
    options: CreateOptions,
    volume: [u8; 16],
    credential: Credential,
) -> Result<Driven<Result<Policy>>> {
    let store = Arc::clone(&environment.store);
    Driven::new(store.as_ref(), 16, move |io| {
        let creating = Creating { environment, options, known: Some(volume), io };
        async move { creating.run(credential, Box::new(|_| Ok(()))).await }.boxed_local()
    })
}

struct Creating {
    environment: Environment,
    options: CreateOptions,
    /// The volume's id, where a policy has named it before there was a volume.
    known: Option<[u8; 16]>,
    io: Io,
}

impl Creating {
    async fn run(&self, credential: Credential, save: SavePolicy) -> Result<Policy> {
        let options = &self.options;
        check_protections(options.suite, options.confidentiality, options.integrity, options.freshness)
            .map_err(|(field, message)| Error::new(Kind::Usage, format!("{field}: {message}")))?;
        self.check_blank().await?;
        self.check_anchor().await?;
        let random = self.environment.random.as_ref();
        let mut volume = [0; 16];
        match self.known {
            Some(known) => volume = known,
            None => random.fill(&mut volume),
        }
        let header = Header {
            rekeying: None,
            generation: 1,
            volume,
            suite: options.suite,
            confidentiality: options.confidentiality,
            integrity: options.integrity,
            freshness: options.freshness,
            provision: options.provision,
            geometry: options.geometry(self.environment.store.blocks())?,
        };
        DataMode::new(suite_of(&header), header.confidentiality, header.integrity)
            .map_err(|error| Error::new(Kind::Usage, error.to_string()))?;
        if header.provision == Provision::Full {
            // After all that can be refused, since it changes the store, and before anything that would stay if it fails.
            let taken = self.environment.store.allocate();
            taken.map_err(|error| Error::new(Kind::Usage, error.to_string()).or(Remedy::ThinVolume))?;
        } else {
            take_first_places(self.environment.store.as_ref(), &self.io, &header.geometry, random).await?;
        }
        let key = VolumeKey::generate(random);
        let mut slots = KeySlots::new();
        slots
            .add(&volume, &key, credential, &options.label, options.argon2, random)
            .map_err(|error| Error::new(Kind::Usage, error.to_string()))?;
        let digest = self.write_headers(&header, &slots, &key).await?;
        let address = self.environment.anchor.as_ref().map(|anchor| anchor.address());
        let policy = policy_of(&header, address, options.anchor_options.clone());
        save(&policy)?;
        if mutated(Mutation::ClaimBeforeSuperblock) {
            self.claim(&header, digest, &key).await?;
            self.write_superblock(&header, &key).await?;
            return Ok(policy);
        }
        self.write_superblock(&header, &key).await?;
        self.claim(&header, digest, &key).await?;
        Ok(policy)
    }

    /// What a store holds whose beginning is blank.
    async fn probe_elsewhere(&self) -> Result<Option<String>> {
        let block = BLOCK_SIZE as u64;
        let store = &self.environment.store;
        let whole = store.blocks() * block;
        let rest = store.rest()?;
        let size = whole + rest.len() as u64;
        for part in probe::parts(size) {
            let blocks = part.start / block..part.end.min(whole) / block;
            let count = usize::try_from(blocks.end.saturating_sub(blocks.start)).unwrap_or(0);
            let buffer = self.io.read(blocks.start, count).await?;
            let mut bytes = vec![0; buffer.len()];
            buffer.copy_to(0, &mut bytes);
            if part.end > whole {
                bytes.extend_from_slice(&rest);
            }
            if let Some(found) = probe::in_part(part.start, &bytes, size) {
                return Ok(Some(format!("{}, at byte {} of {size}", found.kind, found.at)));
            }
        }
        Ok(None)
    }

    async fn check_blank(&self) -> Result<()> {
        let blocks =
            (PROBE_SIZE / BLOCK_SIZE).min(usize::try_from(self.environment.store.blocks()).unwrap_or(0));
        let buffer = self.io.read(0, blocks).await?;
        let mut start = vec![0; blocks * BLOCK_SIZE];
        buffer.copy_to(0, &mut start);
        let name = self.environment.store.name();
        let found = match Probe::of(&start) {
            _ if self.options.force => return Ok(()),
            Probe::Blank => match self.probe_elsewhere().await? {
                Some(found) => found,
                None => return Ok(()),
            },
            Probe::Volume
                if self.known.is_some_and(|id| first_use::was_cut(&start, &id, self.options.shape)) =>
            {
                return Ok(());
            }
            Probe::Volume => "a cvmio volume".to_string(),
            Probe::Foreign(kind) => kind.to_string(),
        };
        Err(Error::new(
            Kind::Usage,
            format!(
                "{name} is not blank: it holds {found}. Nothing was written; choose another store, or overwrite it"
            ),
        )
        .or(Remedy::Force))
    }

    async fn check_anchor(&self) -> Result<()> {
        let needed = self.options.freshness != Freshness::Off;
        match &self.environment.anchor {
            Some(_) if !needed => Err(Error::new(
                Kind::Usage,
                "freshness is off, so there is nothing to anchor; leave the anchor out",
            )),
            None if needed => {
                Err(Error::new(Kind::Usage, "freshness needs an anchor; name one, or choose freshness `off`"))
            }
            None => Ok(()),
            Some(anchor) => match anchor.read().await? {
                None => Ok(()),
                Some(_) if mutated(Mutation::BlankedStoreFormatted) => Ok(()),
                Some(_) if self.known.is_some() => {
                    Err(first_use::rolled_back(&self.environment.store.name(), &anchor.address()))
                }
                Some(_) => Err(Error::new(
                    Kind::Anchor,
                    format!("the anchor {} belongs to a volume already; name a new one", anchor.address()),
                )),
            },
        }
    }

    async fn write_headers(&self, header: &Header, slots: &KeySlots, key: &VolumeKey) -> Result<[u8; 32]> {
        let bytes = sign_header(header, slots, key)?;
        for first in [0, 2] {
            let mut buffer = self.io.buffer(2);
            buffer.copy_from(0, &bytes);
            self.io.write(first, buffer).await?;
        }
        self.io.flush().await?;
        Ok(seal::sha256(&[&bytes]))
    }

    async fn write_superblock(&self, header: &Header, key: &VolumeKey) -> Result<()> {
        let head = genesis(&header.volume);
        let superblock = Superblock {
            old_salts: Entry::ABSENT,
            generation: 0,
            head,
            session: [0; 16],
            claims: 0,
            epoch: 0,
            next_epoch: 1,
            epoch_salt: [0; 32],
            map: Entry::ABSENT,
            salts: Entry::ABSENT,
            bitmap: Entry::ABSENT,
            mapped: 0,
            publication: 0,
            pair: 0,
            legs: vec![Leg { segment: 0, block: 0, first: 1, last: Leg::OPEN, head }],
            next_segment: 0,
            units: Vec::new(),
            growths: 0,
        };
        let mut salt = [0; 32];
        self.environment.random.fill(&mut salt);
        // All four: with --force, none of an earlier volume's may stay.
        for slot in 0..crate::geometry::SUPERBLOCK_SLOTS {
            let mut buffer = self.io.buffer(1);
            let mut page = [0; BLOCK_SIZE];
            if slot == 0 {
                page = seal_superblock(key, suite_of(header), &header.volume, slot, &salt, &superblock)?;
            }
            buffer.copy_from(0, &page);
            self.io.write(SUPERBLOCK_START + u64::from(slot), buffer).await?;
        }
        self.io.flush().await
    }

    async fn claim(&self, header: &Header, digest: [u8; 32], key: &VolumeKey) -> Result<()> {
        let Some(anchor) = &self.environment.anchor else { return Ok(()) };
        let stamp = Stamp {
            volume: header.volume,
            generation: 0,
            head: genesis(&header.volume),
            session: [0; 16],
            claims: 0,
            header_digest: digest,
            state: State::Released,
            moved_to: [0; 32],
            mac: [0; 32],
        };
        let witness = Witness::of_new_volume(&NewVolume(()), Arc::clone(anchor));
        witness.advance(&key.mac("stamp"), stamp).await.map(drop)
    }
}

/// That a volume was made on the store just now; nothing else can say so.
pub(crate) struct NewVolume(());

/// The two blocks of a header pair.
pub(crate) fn sign_header(
    header: &Header,
    slots: &KeySlots,
    key: &VolumeKey,
) -> Result<[u8; 2 * BLOCK_SIZE]> {
    let mut page = header.encode_unsigned();
    let area = slots.encode();
    header::put_digest(&mut page, &area);
    let mac = key.mac("header").sign(&[header::signed_part(&page)?]);
    header::put_mac(&mut page, &mac);
    let mut bytes = [0; 2 * BLOCK_SIZE];
    bytes[..BLOCK_SIZE].copy_from_slice(&page);
    bytes[BLOCK_SIZE..].copy_from_slice(&area);
    Ok(bytes)
}

fn policy_of(header: &Header, anchor: Option<String>, anchor_options: anchor::Options) -> Policy {
    Policy {
        version: crate::policy::VERSION,
        volume: header.volume,
        suite: header.suite,
        confidentiality: header.confidentiality,
        integrity: header.integrity,
        freshness: header.freshness,
        size: header.geometry.logical_bytes(),
        anchor,
        format_if_blank: false,
        anchor_options,
    }
}
