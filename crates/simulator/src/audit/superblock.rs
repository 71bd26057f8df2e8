//! Superblocks, as they are written.

use memory::BLOCK_SIZE;
use volume::format::ad::Tree;
use volume::format::superblock::{PAYLOAD, Superblock};

use super::Inner;
use super::nodes::Roots;
use super::record::Sealed;

impl Inner {
    /// Checks a superblock that is being written to a slot: that it stands on a chain that was written, under a key of its own, and leaves
    /// out no unit that its guest is writing to.
    pub(super) fn superblock(&mut self, desk: usize, slot: u64, bytes: &[u8]) -> Result<(), String> {
        let Some(book) = &self.book else { return Ok(()) };
        let geometry = book.geometry;
        let (salt, sealed, tag) = bytes
            .get(8..40)
            .and_then(|salt| salt.try_into().ok())
            .zip(bytes.get(40..40 + PAYLOAD))
            .zip(bytes.get(40 + PAYLOAD..BLOCK_SIZE).and_then(|tag| tag.try_into().ok()))
            .map(|((salt, sealed), tag): ((&[u8; 32], _), &[u8; 16])| (salt, sealed, tag))
            .ok_or_else(|| "it is no whole block".to_string())?;
        let mut ad = [0; 32];
        ad[..16].copy_from_slice(&book.volume);
        ad[16] = 4;
        ad[24..].copy_from_slice(&slot.to_le_bytes());
        let mut payload = vec![0; PAYLOAD];
        let opened = self.possible(desk).into_iter().find(|key| {
            let key = self.volume_keys[*key].one_time(book.suite, "superblock", salt);
            key.open(0, &ad, sealed, tag, &mut payload).is_ok()
        });
        let key = opened.ok_or("it does not open as one")?;
        // Its key is of this salt alone, and is used once.
        let sealed = Sealed { logical: slot, physical: 0, tag: *tag };
        self.use_nonce(salt, "superblock", 0, sealed)?;
        let superblock = Superblock::decode(&payload).map_err(|error| error.to_string())?;
        let written = self.heads.get(&superblock.generation);
        if !written.is_some_and(|heads| heads.contains(&superblock.head)) {
            return Err(format!("it stands on no record {} that was ever written", superblock.generation));
        }
        self.desks[desk].list(&superblock.units, superblock.generation, &geometry)?;
        let Superblock { epoch, epoch_salt: salt, .. } = superblock;
        let Some(keys) = self.keys(key, &salt) else { return Ok(()) };
        let geometry = geometry.as_of(superblock.growths.into());
        let roots = Roots { desk, key, epoch, salt, keys, geometry, durable: true };
        self.tree(&roots, Tree::Map, &superblock.map)?;
        self.tree(&roots, Tree::Bitmap, &superblock.bitmap)?;
        self.tree(&roots, Tree::Salts, &superblock.salts)
    }
}
