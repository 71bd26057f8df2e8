//! Header: what the disk says about the volume. A claim, until MAC, policy and stamp agree with it.

use super::bytes::{Reader, Writer};
use super::protections::{Freshness, Provision, SuiteCode, check_protections};
use super::rekeying::{REKEYING_SIZE, Rekeying};
use super::{BLOCK_SIZE, Malformed, Page};
use crate::geometry::{Claim, Geometry, MAX_GROWTHS, Shape};

/// First bytes of a header.
pub const MAGIC: &[u8; 8] = b"cvmioVOL";
/// The version of the format.
pub const VERSION: u32 = 1;
/// Bytes of the header that its MAC covers: the MAC follows them.
pub const SIGNED: usize = 4064;
/// Bytes of the MAC.
pub const MAC_SIZE: usize = 32;
/// Where the digest of header and key slots stands: in the last sector, the MAC's.
const DIGEST: std::ops::Range<usize> = SIGNED - DIGEST_SIZE..SIGNED;
const DIGEST_SIZE: usize = 32;

const WHAT: &str = "header";
const GROWTH_SIZE: usize = 16;
/// Reserved bytes behind the growths, and behind what a change of key says.
const RESERVED: [usize; 2] = [760, 2632];

/// The header, without its digest and its MAC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Raised by every change of header or key slots; from 1.
    pub generation: u32,
    /// Volume id.
    pub volume: [u8; 16],
    /// Cipher of data blocks.
    pub suite: SuiteCode,
    /// Whether the host cannot read the data.
    pub confidentiality: bool,
    /// Whether the host cannot change the data unnoticed.
    pub integrity: bool,
    /// Whether, and how soon, the host cannot put old data back unnoticed.
    pub freshness: Freshness,
    /// Whether the space for all logical blocks is there.
    pub provision: Provision,
    /// Sizes and places.
    pub geometry: Geometry,
    /// The change of key that is under way.
    pub rekeying: Option<Rekeying>,
}

impl Header {
    /// Lays the header out, with zeros in place of digest and MAC.
    pub fn encode_unsigned(&self) -> Page {
        let geometry = &self.geometry;
        let mut sizes = geometry.sizes();
        let (logical, physical) = sizes.next().unwrap_or_default();
        let writer = Writer::<BLOCK_SIZE>::new()
            .put(MAGIC)
            .put(&VERSION.to_le_bytes())
            .put(&self.generation.to_le_bytes())
            .put(&self.volume)
            .put(&[self.suite.code()])
            .put(&[u8::from(self.confidentiality) | u8::from(self.integrity) << 1])
            .put(&[self.freshness.code(), self.provision.code()])
            .skip(4)
            .put(&logical.to_le_bytes())
            .put(&physical.to_le_bytes())
            .put(&[geometry.fan_out_bits, geometry.salt_bits, geometry.bitmap_bits])
            .skip(1)
            .put(&geometry.segment_blocks.to_le_bytes())
            .put(&geometry.segments.to_le_bytes())
            .put(&geometry.unit_blocks.to_le_bytes())
            .put(&geometry.growths().to_le_bytes());
        let growths = sizes.fold(writer, |writer, (logical, physical)| {
            writer.put(&logical.to_le_bytes()).put(&physical.to_le_bytes())
        });
        let left = (MAX_GROWTHS - geometry.growths()) * GROWTH_SIZE;
        growths
            .skip(left + RESERVED[0])
            .put(&Rekeying::encode(self.rekeying.as_ref()))
            .skip(RESERVED[1] + DIGEST_SIZE + MAC_SIZE)
            .end()
    }

    /// Reads a header of the standard shape. Digest and MAC are the caller's to check, and the policy to compare.
    ///
    /// # Errors
    /// When `page` is not one block, or a field is unknown, out of bounds or in contradiction to another.
    pub fn decode(page: &[u8]) -> Result<Self, Malformed> {
        Self::decode_as(page, Shape::STANDARD)
    }

    /// Reads a header of some shape, which the caller knows and does not take from the disk.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_as(page: &[u8], shape: Shape) -> Result<Self, Malformed> {
        let mut reader = Reader::new(WHAT, page);
        reader.magic(MAGIC)?;
        reader.version(VERSION)?;
        let generation = reader.u32("generation")?;
        if generation == 0 {
            return Err(reader.malformed("generation", "generations count from 1"));
        }
        let volume = reader.array("volume id")?;
        let suite = known(&mut reader, "suite", SuiteCode::from_code)?;
        let protections = known(&mut reader, "protections", |bits| (bits < 4).then_some(bits))?;
        let freshness = known(&mut reader, "freshness", Freshness::from_code)?;
        let provision = known(&mut reader, "provision", Provision::from_code)?;
        reader.zeros(4, "reserved")?;
        let claim = claim(&mut reader)?;
        reader.zeros(RESERVED[0], "reserved")?;
        let rekeying = Rekeying::decode(&reader.array::<REKEYING_SIZE>("re-keying")?)?;
        reader.zeros(RESERVED[1], "reserved")?;
        reader.array::<DIGEST_SIZE>("digest")?;
        reader.array::<MAC_SIZE>("MAC")?;
        reader.end()?;

        let (confidentiality, integrity) = (protections & 1 != 0, protections & 2 != 0);
        check_protections(suite, confidentiality, integrity, freshness)
            .map_err(|(field, message)| Malformed { what: WHAT, field, message })?;
        let geometry = Geometry::from_header(&claim, shape)?;
        if provision == Provision::Full && !geometry.fully_provisioned() {
            let message = "it is full, but the physical blocks are too few for that".into();
            return Err(Malformed { what: WHAT, field: "provision", message });
        }
        Ok(Self {
            generation,
            volume,
            suite,
            confidentiality,
            integrity,
            freshness,
            provision,
            geometry,
            rekeying,
        })
    }
}

/// The bytes of a header that its MAC covers.
///
/// # Errors
/// When `page` is not one block.
pub fn signed_part(page: &[u8]) -> Result<&[u8], Malformed> {
    split(page).map(|(signed, _)| signed)
}

/// A header's MAC.
///
/// # Errors
/// When `page` is not one block.
pub fn mac(page: &[u8]) -> Result<&[u8; MAC_SIZE], Malformed> {
    split(page).map(|(_, mac)| mac)
}

/// Enters a header's MAC.
pub fn put_mac(page: &mut Page, mac: &[u8; MAC_SIZE]) {
    page[SIGNED..].copy_from_slice(mac);
}

/// Enters the digest of a header and the key slots beside it. It comes before the MAC, which covers it.
pub fn put_digest(page: &mut Page, slots: &[u8]) {
    let digest = digest(page, slots);
    page[DIGEST].copy_from_slice(&digest);
}

/// Whether a header and the key slots beside it were written together, and to the end: what a write that was cut short leaves is told from
/// a pair that counts without any key, since one that opens some slots and not others would make it depend on who asks. `None` where the
/// header has no digest. Against damage only: a host can make one.
pub fn is_whole(page: &Page, slots: &[u8]) -> Option<bool> {
    let found = &page[DIGEST];
    (found != [0; DIGEST_SIZE]).then(|| found == digest(page, slots))
}

fn digest(page: &Page, slots: &[u8]) -> [u8; DIGEST_SIZE] {
    seal::sha256(&[&page[..DIGEST.start], slots])
}

fn split(page: &[u8]) -> Result<(&[u8], &[u8; MAC_SIZE]), Malformed> {
    match page.split_last_chunk() {
        Some((signed, mac)) if signed.len() == SIGNED => Ok((signed, mac)),
        _ => Err(Malformed {
            what: WHAT,
            field: "length",
            message: format!("{} bytes instead of {BLOCK_SIZE}", page.len()),
        }),
    }
}

fn known<T>(
    reader: &mut Reader<'_>,
    field: &'static str,
    meaning: impl Fn(u8) -> Option<T>,
) -> Result<T, Malformed> {
    let code = reader.u8(field)?;
    meaning(code).ok_or_else(|| reader.malformed(field, format!("{code} has no meaning")))
}

fn claim(reader: &mut Reader<'_>) -> Result<Claim, Malformed> {
    let (logical_blocks, physical_blocks) = (reader.u64("logical blocks")?, reader.u64("physical blocks")?);
    let (fan_out_bits, salt_bits) = (reader.u8("map fan-out")?, reader.u8("salt-table fan-out")?);
    let bitmap_bits = reader.u8("bitmap leaf bits")?;
    reader.zeros(1, "reserved")?;
    let (segment_blocks, segments) = (reader.u32("segment blocks")?, reader.u32("segments")?);
    let unit_blocks = reader.u32("unit blocks")?;
    let count = reader.u64("growths")?;
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count <= MAX_GROWTHS)
        .ok_or_else(|| reader.malformed("growths", format!("{count} is more than {MAX_GROWTHS}")))?;
    let sizes = (0..count).map(|_| Ok((reader.u64("growths")?, reader.u64("growths")?)));
    let growths = sizes.collect::<Result<_, _>>()?;
    reader.zeros((MAX_GROWTHS - count) * GROWTH_SIZE, "growths")?;
    Ok(Claim {
        logical_blocks,
        physical_blocks,
        fan_out_bits,
        salt_bits,
        bitmap_bits,
        segment_blocks,
        segments,
        unit_blocks,
        growths,
    })
}
