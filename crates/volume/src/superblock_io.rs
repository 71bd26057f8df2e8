//! Reading and writing superblocks: self-salted, each in its own slot.

use memory::BLOCK_SIZE;
use seal::{Suite, VolumeKey};

use crate::commit::Committed;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::ad::superblock_ad;
use crate::format::header::Header;
use crate::format::protections::Freshness;
use crate::format::superblock::{Leg, Superblock, assemble, split};
use crate::geometry::{SUPERBLOCK_SLOTS, SUPERBLOCK_START};
use crate::io::Io;
use crate::keys::Keyring;
use crate::mutation::{Mutation, mutated};

const KEY_LABEL: &str = "superblock";

/// Seals a superblock for its slot.
pub(crate) fn seal_superblock(
    key: &VolumeKey,
    suite: Suite,
    volume: &[u8; 16],
    slot: u8,
    salt: &[u8; 32],
    superblock: &Superblock,
) -> Result<[u8; BLOCK_SIZE]> {
    let payload = superblock.encode()?;
    let mut sealed = payload;
    let tag =
        key.one_time(suite, KEY_LABEL, salt).seal(0, &superblock_ad(volume, slot), &payload, &mut sealed);
    Ok(assemble(salt, &sealed, &tag))
}

/// Opens what stands in a slot; `None` if it is not a superblock of this volume, whatever else it is.
pub(crate) fn open_superblock(
    key: &VolumeKey,
    suite: Suite,
    volume: &[u8; 16],
    slot: u8,
    page: &[u8],
) -> Option<Superblock> {
    let (salt, sealed, tag) = split(page).ok()?;
    let mut payload = *sealed;
    key.one_time(suite, KEY_LABEL, salt)
        .open(0, &superblock_ad(volume, slot), sealed, tag, &mut payload)
        .ok()?;
    Superblock::decode(&payload).ok()
}

/// A superblock that opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) slot: u8,
    pub(crate) superblock: Superblock,
    /// SHA-256 of its block.
    pub(crate) digest: [u8; 32],
}

/// What the slots hold.
pub(crate) struct Slots {
    pub(crate) found: Vec<Found>,
    /// A slot that the store could not read.
    pub(crate) unreadable: Option<Error>,
}

/// Reads all slots; what opens of them. Under the old key only the one superblock counts that the header names.
///
/// To the anchor a slot that cannot be read is like a torn one: it says whether what the others hold is all. Where nothing says so, the
/// error of the store is one of this function.
pub(crate) async fn read_superblocks(io: &Io, keys: &Keyring, header: &Header) -> Result<Slots> {
    let (old, volume) = (keys.old(), &header.volume);
    let (pages, unreadable) = read_slots(io, header).await?;
    let mut found = Vec::new();
    for (slot, page) in pages {
        let digest = seal::sha256(&[&page]);
        let superblock = open_superblock(&keys.key, keys.suite, volume, slot, &page).or_else(|| {
            let old = old.as_ref().filter(|old| old.superblock == digest)?;
            open_superblock(&old.key, keys.suite, volume, slot, &page)
        });
        found.extend(superblock.map(|superblock| Found { slot, superblock, digest }));
    }
    Ok(Slots { found, unreadable })
}

/// The slots that can be read, and why others cannot.
async fn read_slots(io: &Io, header: &Header) -> Result<(Vec<(u8, [u8; BLOCK_SIZE])>, Option<Error>)> {
    let page = |buffer: &memory::Buffer, at: usize| {
        let mut page = [0; BLOCK_SIZE];
        buffer.copy_to(at * BLOCK_SIZE, &mut page);
        page
    };
    match io.read(SUPERBLOCK_START, usize::from(SUPERBLOCK_SLOTS)).await {
        Ok(all) => {
            return Ok(((0..SUPERBLOCK_SLOTS).map(|slot| (slot, page(&all, slot.into()))).collect(), None));
        }
        Err(error) if header.freshness == Freshness::Off => return Err(error),
        Err(_) => {}
    }
    let (mut pages, mut unreadable) = (Vec::new(), None);
    for slot in 0..SUPERBLOCK_SLOTS {
        match io.read(SUPERBLOCK_START + u64::from(slot), 1).await {
            Ok(buffer) => pages.push((slot, page(&buffer, 0))),
            Err(error) => drop(unreadable.get_or_insert(error)),
        }
    }
    Ok((pages, unreadable))
}

/// The superblocks that fit the volume, newest first, and why one could not be read.
pub(crate) fn candidates(header: &Header, slots: &Slots) -> Result<(Vec<Superblock>, Option<Error>)> {
    let mut superblocks: Vec<Superblock> = slots.found.iter().map(|found| found.superblock.clone()).collect();
    check_growths(header, &superblocks)?;
    superblocks.retain(|superblock| superblock.check(&header.geometry).is_ok());
    superblocks.sort_by_key(|superblock| {
        std::cmp::Reverse((superblock.generation, superblock.claims, superblock.publication))
    });
    Ok((superblocks, slots.unreadable.clone()))
}

/// Whether the header is as new as all superblocks: one from before a growth would have places taken for free that are not.
pub(crate) fn check_growths(header: &Header, superblocks: &[Superblock]) -> Result<()> {
    let most = superblocks.iter().map(|superblock| usize::from(superblock.growths)).max().unwrap_or(0);
    if most <= header.geometry.growths() || mutated(Mutation::GrowthForgotten) {
        return Ok(());
    }
    Err(Error::new(
        Kind::Stale,
        format!(
            "the header is of when the volume had grown {} times, and it has grown {most} times since it was created: an older copy was put back. Attach the current image",
            header.geometry.growths()
        ),
    ))
}

impl Core {
    /// Writes the next superblock of this session and makes it durable. It covers an anchored generation, `closed` lead to it.
    pub(crate) async fn publish(&self, io: &Io, covered: &Committed, closed: Vec<Leg>) -> Result<Vec<u32>> {
        let Committed { generation, head, leg, next_segment } = *covered;
        let mut legs = closed;
        legs.push(leg);
        let roots = *self.roots();
        let epoch = self.keys.current()?;
        let publication = self.publications.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
        let units = self.space.reserved(crate::format::superblock::MAX_UNITS);
        let superblock = Superblock {
            old_salts: roots.old_salts,
            generation,
            head,
            session: self.session,
            claims: self.claims,
            epoch: epoch.number,
            next_epoch: u32::try_from(self.next_epoch.load(std::sync::atomic::Ordering::SeqCst))
                .unwrap_or(u32::MAX),
            epoch_salt: epoch.salt,
            map: roots.map,
            salts: roots.salts,
            bitmap: roots.bitmap,
            mapped: roots.mapped,
            publication,
            pair: self.pair,
            legs,
            next_segment,
            units: units.clone(),
            growths: roots.growths,
        };
        // The two slots of the pair in turn, beginning with the one that the claim's number selects: a predecessor that
        // started from the same superblock, and may still be about to write its first, then has the other one.
        let turn = (self.claims + publication) % 2 == 1 && !mutated(Mutation::SuperblockInPlace);
        let slot = 2 * self.pair + u8::from(turn);
        let mut salt = [0; 32];
        self.random.fill(&mut salt);
        let page =
            seal_superblock(&self.keys.key, self.keys.suite, &self.header.volume, slot, &salt, &superblock)?;
        let mut buffer = io.buffer(1);
        buffer.copy_from(0, &page);
        io.write(SUPERBLOCK_START + u64::from(slot), buffer).await?;
        io.flush().await?;
        self.counters.superblock_writes.add(1);
        Ok(units)
    }

    /// The error for a session that must not write.
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.commit.closed() {
            Some(reason) => Err(reason),
            None => Ok(()),
        }
    }

    /// The same, for a session that never could.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(Kind::Usage, "this volume is attached for reading only"));
        }
        self.check_alive()
    }

    /// Refuses when this session has been told to stop.
    pub(crate) fn stopped() -> Error {
        Error::new(Kind::Usage, "the volume is being detached; attach it again to use it")
    }
}
