//! An image of virtual firmware (OVMF), and the tables in it that a VMM reads.

use crate::Hex;

use super::{MeasureError, PAGE, State};

/// Largest image that is read, in bytes.
const MAX_IMAGE: usize = 64 * 1024 * 1024;
/// Largest section, in bytes.
const MAX_SECTION: u32 = 64 * 1024 * 1024;
const MAX_SECTIONS: u32 = 64;
const FOUR_GIB: u64 = 1 << 32;
/// Bytes between the end of the table of the image and the end of the image.
const BEHIND_TABLE: usize = 32;
/// Bytes of an entry's end: its size and its name.
const ENTRY: usize = 18;

const TABLE: u128 = 0x96b5_82de_1fb2_45f7_baea_a366_c55a_082d;
const HASH_TABLE: u128 = 0x7255_371f_3a3b_4b04_927b_1da6_efa8_d454;
const RESET: u128 = 0x00f7_71de_1a7e_4fcb_890e_68c7_7e2f_b44e;
const METADATA: u128 = 0xdc88_6566_984a_4798_a75e_5585_a7bf_67cc;

/// What a page that the image asks for is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SectionKind {
    Memory,
    Secrets,
    Cpuid,
    Caa,
    KernelHashes,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Section {
    pub(super) address: u32,
    pub(super) size: u32,
    pub(super) kind: SectionKind,
}

/// An image of virtual firmware.
#[derive(Debug, Clone)]
pub struct Firmware {
    digest: Hex<48>,
    reset: u32,
    hash_table: Option<u64>,
    sections: Vec<Section>,
}

/// The bytes of a GUID in memory: the first three parts are little-endian.
pub(super) fn guid(name: u128) -> [u8; 16] {
    let [a, b, c, d, e, f, g, h, rest @ ..] = name.to_be_bytes();
    let mut bytes = [d, c, b, a, f, e, h, g, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes[8..].copy_from_slice(&rest);
    bytes
}

fn wrong(what: impl Into<String>) -> MeasureError {
    MeasureError::Firmware(what.into())
}

fn number(bytes: Option<&[u8]>) -> Option<u32> {
    Some(u32::from_le_bytes(bytes?.try_into().ok()?))
}

impl Firmware {
    /// Reads an image.
    ///
    /// # Errors
    /// If it lacks the tables of an image for SEV-SNP.
    pub fn parse(image: &[u8]) -> Result<Self, MeasureError> {
        if image.is_empty() || image.len() > MAX_IMAGE || image.len() % PAGE != 0 {
            return Err(wrong(format!("{} bytes are no whole number of pages, or too many", image.len())));
        }
        let table = table(image)?;
        let entry = |name| table.iter().find(|(found, _)| *found == guid(name)).map(|(_, content)| *content);
        let reset = number(entry(RESET).and_then(|content| content.get(..4)));
        let reset = reset.ok_or_else(|| wrong("it does not say where processors start"))?;
        let hash_table = number(entry(HASH_TABLE).and_then(|content| content.get(..4)));
        let metadata = number(entry(METADATA).and_then(|content| content.get(..4)));
        let metadata =
            metadata.ok_or_else(|| wrong("it has no metadata of SEV, so it is no build for SEV-SNP"))?;
        let mut digest = State(Hex([0; 48]));
        digest.pages(FOUR_GIB - image.len() as u64, image);
        Ok(Self {
            digest: digest.0,
            reset,
            // Builds without kernel hashes have the entry with zeros.
            hash_table: hash_table.filter(|address| *address != 0).map(u64::from),
            sections: sections(image, metadata)?,
        })
    }

    /// The same image, of which only the end is at hand and the digest of the whole is known.
    #[must_use]
    pub fn with_digest(mut self, digest: Hex<48>) -> Self {
        self.digest = digest;
        self
    }

    /// The measurement of the image alone.
    #[must_use]
    pub fn digest(&self) -> Hex<48> {
        self.digest
    }

    /// Whether kernel, initrd and command line can be measured with it.
    #[must_use]
    pub fn has_kernel_hashes(&self) -> bool {
        self.hash_table.is_some()
            && self.sections.iter().any(|section| section.kind == SectionKind::KernelHashes)
    }

    pub(super) fn hash_table_address(&self) -> Option<u64> {
        self.hash_table
    }

    pub(super) fn reset(&self) -> u32 {
        self.reset
    }

    pub(super) fn sections(&self) -> &[Section] {
        &self.sections
    }
}

type Entry<'a> = ([u8; 16], &'a [u8]);

/// The table at the image's end, read backwards: each entry is its content, its size (2 bytes, whole), its name.
fn table(image: &[u8]) -> Result<Vec<Entry<'_>>, MeasureError> {
    let no_table = || wrong("it has no table of OVMF at its end");
    let end = image.len().checked_sub(BEHIND_TABLE).ok_or_else(no_table)?;
    let (name, size, at) = entry_end(&image[..end]).ok_or_else(no_table)?;
    if name != guid(TABLE) {
        return Err(no_table());
    }
    let start = end.checked_sub(size).ok_or_else(no_table)?;
    let mut rest = image.get(start..at).ok_or_else(no_table)?;
    let mut found = Vec::new();
    while rest.len() >= ENTRY {
        let (name, size, at) = entry_end(rest).ok_or_else(no_table)?;
        let start = rest.len().checked_sub(size).filter(|_| size >= ENTRY);
        let start = start.ok_or_else(|| wrong("an entry of its table leads out of the table"))?;
        found.push((name, &rest[start..at]));
        rest = &rest[..start];
    }
    Ok(found)
}

/// Name, whole size, and where the content ends, of the entry at the end of some bytes.
fn entry_end(bytes: &[u8]) -> Option<([u8; 16], usize, usize)> {
    let (before, name) = bytes.split_last_chunk::<16>()?;
    let (content, size) = before.split_last_chunk::<2>()?;
    Some((*name, usize::from(u16::from_le_bytes(*size)), content.len()))
}

/// The sections of the metadata, which stand `from_end` bytes before the image's end.
fn sections(image: &[u8], from_end: u32) -> Result<Vec<Section>, MeasureError> {
    let outside = || wrong("its metadata leads out of the image");
    let start =
        usize::try_from(from_end).ok().and_then(|back| image.len().checked_sub(back)).ok_or_else(outside)?;
    let metadata = &image[start..];
    if metadata.get(..4) != Some(b"ASEV") || number(metadata.get(8..12)) != Some(1) {
        return Err(wrong("its metadata of SEV is not of version 1"));
    }
    let count = number(metadata.get(12..16)).filter(|count| *count <= MAX_SECTIONS).ok_or_else(outside)?;
    let all = metadata[16..].chunks_exact(12).take(usize::try_from(count).unwrap_or(usize::MAX));
    let sections: Vec<Section> = all
        .map(|section| {
            let part = |at: usize| number(section.get(at..at + 4)).ok_or_else(outside);
            let kind = match part(8)? {
                1 => SectionKind::Memory,
                2 => SectionKind::Secrets,
                3 => SectionKind::Cpuid,
                4 => SectionKind::Caa,
                0x10 => SectionKind::KernelHashes,
                other => return Err(wrong(format!("a section of kind {other} is not known"))),
            };
            Ok(Section { address: part(0)?, size: part(4)?, kind })
        })
        .collect::<Result<_, _>>()?;
    if sections.len() != usize::try_from(count).unwrap_or(usize::MAX) {
        return Err(outside());
    }
    if let Some(large) = sections.iter().find(|section| section.size > MAX_SECTION) {
        return Err(wrong(format!("a section of {} bytes is too large", large.size)));
    }
    Ok(sections)
}
