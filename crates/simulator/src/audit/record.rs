//! Journal records, and the data blocks that they name.

use std::sync::Arc;

use memory::BLOCK_SIZE;
use seal::EpochKeys;
use volume::format::entry::Entry;
use volume::format::item::{Item, items};
use volume::format::record::{RECORD_HEADER, RecordHeader};

use super::Inner;
use super::nodes::Roots;
use crate::content::{Content, parse};

/// What a nonce was used for.
#[derive(PartialEq, Eq, Clone, Copy)]
pub(super) struct Sealed {
    pub(super) logical: u64,
    pub(super) physical: u64,
    pub(super) tag: [u8; 16],
}

impl Inner {
    /// Checks a journal record that is being written.
    pub(super) fn record(&mut self, desk: usize, bytes: &[u8]) -> Result<(), String> {
        let head: &[u8; RECORD_HEADER] =
            bytes.first_chunk().ok_or_else(|| "it is shorter than its header".to_string())?;
        let header = RecordHeader::decode(head).map_err(|error| error.to_string())?;
        let sealed = header.sealed(bytes).map_err(|error| error.to_string())?;
        let mut payload = vec![0; sealed.len()];
        let heads = self.heads.get(&(header.generation - 1)).cloned().unwrap_or_default();
        let continued = self.possible(desk).into_iter().find_map(|key| {
            let keys = self.keys(key, &header.salt)?;
            let before = heads.iter().find(|before| {
                // All of the header but the tag, and the head before it.
                let ad = [&head[..RECORD_HEADER - 16], *before].concat();
                keys.journal.open(header.nonce, &ad, sealed, &header.tag, &mut payload).is_ok()
            });
            before.map(|before| (key, keys, *before))
        });
        let (key, keys, before) =
            continued.ok_or_else(|| "it continues no chain that was ever written".to_string())?;
        self.desks[desk].key = key;
        let after = seal::sha256(&[b"cvmio head", &before, head]);
        self.heads.entry(header.generation).or_default().push(after);
        let whole = Sealed { logical: header.generation, physical: 0, tag: header.tag };
        self.use_nonce(&header.salt, "journal", header.nonce, whole)?;
        for item in items(&payload) {
            match item.map_err(|error| error.to_string())? {
                Item::Write { logical, entry } if entry.epoch == header.epoch => {
                    self.entry(desk, &header.salt, &keys, logical, &entry)?;
                }
                Item::Root { tree, growths, entry } => {
                    let (epoch, salt, keys) = (header.epoch, header.salt, Arc::clone(&keys));
                    let Some(geometry) = self.book.as_ref().map(|book| book.geometry.as_of(growths.into()))
                    else {
                        continue;
                    };
                    self.tree(
                        &Roots { desk, key, epoch, salt, keys, geometry, durable: false },
                        tree,
                        &entry,
                    )?;
                }
                Item::Reserve(units) => self.desks[desk].reserve(header.generation, units.as_slice()),
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn use_nonce(
        &mut self,
        salt: &[u8; 32],
        purpose: &'static str,
        nonce: u64,
        sealed: Sealed,
    ) -> Result<(), String> {
        match self.nonces.insert((*salt, purpose, nonce), sealed) {
            Some(before) if before != sealed => {
                Err(format!("nonce {nonce} of its {purpose} key was used twice"))
            }
            _ => Ok(()),
        }
    }

    /// Checks a block that a record names.
    fn entry(
        &mut self,
        desk: usize,
        salt: &[u8; 32],
        keys: &EpochKeys,
        logical: u64,
        entry: &Entry,
    ) -> Result<(), String> {
        let named = format!("it names block {} as logical block {logical}", entry.physical);
        let sealed = Sealed { logical, physical: entry.physical, tag: entry.tag };
        self.use_nonce(salt, "data", entry.nonce, sealed)?;
        let Some(book) = &self.book else { return Ok(()) };
        let succeeded = desk + 1 < self.desks.len();
        let desk = &mut self.desks[desk];
        let durable = desk.durable;
        let written = desk
            .blocks
            .remove(&entry.physical)
            .ok_or_else(|| format!("{named}, which its guest did not write"))?;
        let stored = written.stored.ok_or_else(|| format!("{named}, which is not on the store yet"))?;
        if !book.integrity && stored > durable {
            return Err(format!("{named}, which is not durable, and nobody could tell later"));
        }
        let mut ad = [0; 32];
        ad[..16].copy_from_slice(&book.volume);
        ad[16] = 1;
        ad[24..].copy_from_slice(&logical.to_le_bytes());
        let mut page = [0; BLOCK_SIZE];
        let ciphertext = &written.content[written.offset..written.offset + BLOCK_SIZE];
        keys.data
            .open(entry.nonce, &ad, ciphertext, &entry.tag, &mut page)
            .map_err(|_| format!("{named}, and it does not open as that"))?;
        match parse(&page) {
            Content::Written { block, .. } if block == logical => Ok(()),
            // A guest that was believed dead seals anew what its successor has written to the blocks that it still reads.
            _ if (book.tampering || succeeded) && !book.integrity => Ok(()),
            other => Err(format!("{named}, and it holds {other:?}")),
        }
    }
}
