//! Whether firmware has room for the hashes of kernel, initramfs and command line.
//!
//! Without it QEMU either refuses, or boots a guest whose measurement says nothing about its kernel.
//!
//! Source: edk2, `OvmfPkg/ResetVector/Ia16/ResetVectorVtf0.asm` (the table of GUIDs that ends 32 bytes before the end of the firmware) and
//! `OvmfPkg/AmdSev` (the entry of the hash table: base and size, 4 bytes each, little-endian).

use std::path::Path;

use crate::Error;

/// 96b582de-1fb2-45f7-baea-a366c55a082d, which ends the table, as its bytes lie in the file.
const FOOTER: [u8; 16] =
    [0xde, 0x82, 0xb5, 0x96, 0xb2, 0x1f, 0xf7, 0x45, 0xba, 0xea, 0xa3, 0x66, 0xc5, 0x5a, 0x08, 0x2d];
/// 7255371f-3a3b-4b04-927b-1da6efa8d454, the entry of the hash table.
const HASHES: [u8; 16] =
    [0x1f, 0x37, 0x55, 0x72, 0x3b, 0x3a, 0x04, 0x4b, 0x92, 0x7b, 0x1d, 0xa6, 0xef, 0xa8, 0xd4, 0x54];
/// Bytes of what follows the table.
const BEHIND: usize = 32;
/// Bytes of an entry's end: its length, and its GUID.
const TAIL: usize = 18;

/// Whether these bytes, the firmware or its last pages, have a table for the hashes with a place in memory.
#[must_use]
pub fn has_hash_table(firmware: &[u8]) -> bool {
    entry(firmware, &HASHES)
        .is_some_and(|data| data.len() == 8 && data.chunks_exact(4).all(|word| word != [0; 4]))
}

/// The same for a file.
///
/// # Errors
/// If it cannot be read.
pub fn has_hash_table_in(path: &Path) -> Result<bool, Error> {
    let bytes = std::fs::read(path).map_err(|error| Error::Missing(path.into(), error))?;
    Ok(has_hash_table(&bytes))
}

/// The data of an entry of the table. Entries lie one before the other: data, length, GUID.
fn entry<'a>(firmware: &'a [u8], wanted: &[u8; 16]) -> Option<&'a [u8]> {
    let table = firmware.get(..firmware.len().checked_sub(BEHIND)?)?;
    let (data, guid) = last(table)?;
    if guid != FOOTER {
        return None;
    }
    let mut rest = data;
    while let Some((data, guid)) = last(rest) {
        if guid == wanted {
            return Some(data);
        }
        rest = &rest[..rest.len() - data.len() - TAIL];
    }
    None
}

/// The last entry of a table: its data and its GUID. For the footer the data are all other entries.
fn last(table: &[u8]) -> Option<(&[u8], &[u8])> {
    let (rest, guid) = table.split_at_checked(table.len().checked_sub(16)?)?;
    let (rest, length) = rest.split_at_checked(rest.len().checked_sub(2)?)?;
    let length = usize::from(u16::from_le_bytes(length.try_into().ok()?)).checked_sub(TAIL)?;
    let data = rest.get(rest.len().checked_sub(length)?..)?;
    Some((data, guid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry_of(data: &[u8], guid: [u8; 16]) -> Vec<u8> {
        let length = u16::try_from(data.len() + TAIL).unwrap();
        [data, &length.to_le_bytes(), &guid].concat()
    }

    fn firmware(hashes: &[u8]) -> Vec<u8> {
        let entries =
            [entry_of(&[1, 2, 3], [9; 16]), entry_of(hashes, HASHES), entry_of(&[], [8; 16])].concat();
        [&[0; 100], &entry_of(&entries, FOOTER)[..], &[0; BEHIND]].concat()
    }

    #[test]
    fn a_table_without_a_place_in_memory_is_none() {
        assert!(has_hash_table(&firmware(&[0, 0xf0, 0x80, 0, 0, 4, 0, 0])));
        assert!(!has_hash_table(&firmware(&[0; 8])), "as Debian's OVMF has it");
        assert!(!has_hash_table(&firmware(&[1; 7])));
        assert!(!has_hash_table(&[]) && !has_hash_table(&[0xff; 4096]));
    }

    #[test]
    fn no_length_leads_outside() {
        let whole = firmware(&[1; 8]);
        for cut in 0..whole.len() {
            let _ = has_hash_table(&whole[cut..]);
        }
        for place in 0..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 0xff;
            let _ = has_hash_table(&changed);
        }
    }
}
