//! The certificate table that a host puts beside a report: 24-byte entries of a GUID, an offset and a length, and an entry of zeros at the end.
//!
//! Source: "Guest-Hypervisor Communication Block Standardization", publication 56421, section "SNP Extended Guest Request".

use std::fmt;

/// Largest table that is read, in bytes.
const MAX_TABLE: usize = 256 * 1024;
/// Bytes of an entry.
const ENTRY: usize = 24;
/// Most entries.
const MAX_ENTRIES: usize = 32;

/// GUIDs of the entries with a certificate: VCEK, VLEK, ASK or ASVK, ARK.
const KNOWN: [u128; 4] = [
    0x63da_758d_e664_4564_adc5_f4b9_3be8_accd,
    0xa807_4bc2_a25a_483e_aae6_39c0_45a0_b8a1,
    0x4ab7_b379_bbac_4fe4_a02f_05ae_f327_c782,
    0xc0b4_06a4_a803_4952_9743_3fb6_014c_d0ae,
];

/// Whether an entry has a certificate. Hosts write a GUID's bytes in the order of its text, or its first three parts little-endian.
fn is_known(name: [u8; 16]) -> bool {
    let [a, b, c, d, e, f, g, h, rest @ ..] = name;
    let mut turned = [d, c, b, a, f, e, h, g, 0, 0, 0, 0, 0, 0, 0, 0];
    turned[8..].copy_from_slice(&rest);
    KNOWN.contains(&u128::from_be_bytes(name)) || KNOWN.contains(&u128::from_be_bytes(turned))
}

/// Why bytes are no certificate table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableError {
    /// It is longer than is read; its size in bytes.
    TooLong(usize),
    /// It ends before its last entry, or has too many.
    NoEnd,
    /// An entry names bytes outside of the table; its place.
    Outside(usize),
    /// An entry is neither DER nor PEM; its place.
    NoCertificate(usize),
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(size) => {
                write!(f, "the certificate table has {size} bytes, and at most {MAX_TABLE} are read")
            }
            Self::NoEnd => f.write_str("the certificate table has no entry of zeros at its end"),
            Self::Outside(place) => {
                write!(f, "entry {place} of the certificate table names bytes outside of the table")
            }
            Self::NoCertificate(place) => {
                write!(f, "entry {place} of the certificate table is neither a DER nor a PEM certificate")
            }
        }
    }
}

impl std::error::Error for TableError {}

/// The certificates (DER) of a table. An empty table has none. Some hosts put PEM where the specification wants DER: both are read.
///
/// # Errors
/// If it is no such table. Whether a certificate can be used is not looked at.
pub fn certificates(table: &[u8]) -> Result<Vec<Vec<u8>>, TableError> {
    if table.len() > MAX_TABLE {
        return Err(TableError::TooLong(table.len()));
    }
    let mut found = Vec::new();
    if table.is_empty() {
        return Ok(found);
    }
    for (place, entry) in table.chunks_exact(ENTRY).enumerate().take(MAX_ENTRIES) {
        let Some((name, rest)) = entry.split_first_chunk::<16>() else { break };
        if entry.iter().all(|byte| *byte == 0) {
            return Ok(found);
        }
        let number = |bytes: &[u8]| {
            bytes.try_into().map(u32::from_le_bytes).ok().and_then(|n| usize::try_from(n).ok())
        };
        let (offset, length) = (number(&rest[..4]), number(&rest[4..]));
        let content =
            offset.zip(length).and_then(|(offset, length)| table.get(offset..offset.checked_add(length)?));
        let content = content.ok_or(TableError::Outside(place))?;
        if is_known(*name) {
            found.push(der(content).ok_or(TableError::NoCertificate(place))?);
        }
    }
    Err(TableError::NoEnd)
}

/// A certificate as DER, from DER or from PEM.
fn der(content: &[u8]) -> Option<Vec<u8>> {
    if content.first() == Some(&0x30) {
        return Some(content.to_vec());
    }
    let text = std::str::from_utf8(content).ok()?.trim_end_matches(['\0', '\n', '\r', ' ']);
    let certificates = crate::pem::certificates(text)?;
    certificates.into_iter().next()
}
