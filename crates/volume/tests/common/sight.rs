//! What a volume key opens of what is on a store, in words of its own, from `docs/disk-format.md`.

use anchor::Stamp;
use memory::BLOCK_SIZE;
use seal::slot::{Credential, KeySlots, SlotLimits};
use seal::{BlockKey, DataMode, EpochKeys, VolumeKey};
use volume::format::ad::{Tree, data_ad, node_ad, salt_node_ad, superblock_ad};
use volume::format::entry::{Entry, entry_at};
use volume::format::header::{self, Header};
use volume::format::superblock::{self, PAYLOAD, Superblock};
use volume::geometry::Shape;

use super::medium::Image;

/// An image, and its header as it says of itself.
pub struct Sight<'a> {
    pub image: &'a Image,
    pub header: Header,
    /// The block of this copy.
    pub at: usize,
}

/// Something that a superblock reaches.
pub struct Reached {
    pub what: String,
    pub entry: Entry,
    ad: [u8; 32],
    /// The salt that its key is made with, and the label's kind.
    salt: [u8; 32],
    data: bool,
    self_salted: bool,
}

impl<'a> Sight<'a> {
    /// The newest copy that is whole, and the volume key that a credential opens there. It is the one in force once a change of it has ended.
    pub fn newest(image: &'a Image, shape: Shape, credential: &Credential) -> Option<(Self, VolumeKey)> {
        let whole = |at: usize| {
            let sight = Self { image, header: Header::decode_as(&image[at], shape).ok()?, at };
            let key = sight.key(credential)?;
            sight.holds(&key).then_some((sight, key))
        };
        [0, 2].into_iter().filter_map(whole).max_by_key(|(sight, _)| sight.header.generation)
    }

    /// The volume key that a credential opens, of the slots beside this copy.
    pub fn key(&self, credential: &Credential) -> Option<VolumeKey> {
        let area = self.image[self.at + 1].as_slice().try_into().expect("a block");
        let slots = KeySlots::decode(area).expect("key slots");
        slots.unlock(&self.header.volume, credential, &SlotLimits::default()).ok()
    }

    /// Whether this copy's MAC holds.
    pub fn holds(&self, key: &VolumeKey) -> bool {
        self.holds_at(self.at, key)
    }

    /// Whether the MAC of the copy in block `at` holds.
    pub fn holds_at(&self, at: usize, key: &VolumeKey) -> bool {
        let page = &self.image[at];
        let (signed, mac) =
            (header::signed_part(page).expect("a block"), header::mac(page).expect("a block"));
        key.mac("header").verify(&[signed], mac)
    }

    /// The superblocks that open, with their slots.
    pub fn superblocks(&self, key: &VolumeKey) -> Vec<(u8, Superblock)> {
        let open = |slot: u8| {
            let (salt, sealed, tag) = superblock::split(&self.image[4 + usize::from(slot)]).ok()?;
            let mut payload = [0; PAYLOAD];
            let ad = superblock_ad(&self.header.volume, slot);
            self.one_time(key, "superblock", salt).open(0, &ad, sealed, tag, &mut payload).ok()?;
            Some((slot, Superblock::decode(&payload).expect("a superblock")))
        };
        (0..4).filter_map(open).collect()
    }

    /// The newest of the superblocks that open, and its slot.
    pub fn newest_superblock(&self, key: &VolumeKey) -> (u8, Superblock) {
        let found = self.superblocks(key).into_iter();
        found.max_by_key(|(_, it)| (it.claims, it.publication)).expect("a superblock")
    }

    fn one_time(&self, key: &VolumeKey, kind: &'static str, salt: &[u8; 32]) -> BlockKey {
        key.one_time(self.header.suite.suite(), kind, salt)
    }

    fn epoch(&self, key: &VolumeKey, salt: &[u8; 32]) -> EpochKeys {
        let Header { suite, confidentiality, integrity, .. } = self.header;
        let mode = DataMode::new(suite.suite(), confidentiality, integrity).expect("a legal combination");
        key.epoch(mode, suite.suite(), salt)
    }

    /// The content of what a superblock reaches; `None` if it does not open.
    pub fn open(&self, key: &VolumeKey, it: &Reached) -> Option<Vec<u8>> {
        let sealed = &self.image[usize::try_from(it.entry.physical).expect("small")];
        let Entry { nonce, tag, .. } = it.entry;
        if it.self_salted {
            let salt: [u8; 32] = sealed[..32].try_into().expect("32 bytes");
            let mut page = vec![0; BLOCK_SIZE - 32];
            let key = self.one_time(key, "salt table", &salt);
            return key.open(0, &it.ad, &sealed[32..], &tag, &mut page).ok().map(|()| page);
        }
        let keys = self.epoch(key, &it.salt);
        let block_key = if it.data { &keys.data } else { &keys.node };
        let mut page = vec![0; BLOCK_SIZE];
        block_key.open(nonce, &it.ad, sealed, &tag, &mut page).ok().map(|()| page)
    }

    /// All that a superblock reaches, which must open under `key`.
    pub fn reached(&self, key: &VolumeKey, superblock: &Superblock) -> Vec<Reached> {
        let mut all = Vec::new();
        let mut salts = vec![[0; 32]];
        self.tree(key, Tree::Salts, superblock.salts, &mut salts, &mut all);
        let epoch = superblock.epoch as usize;
        salts.resize(salts.len().max(epoch + 1), [0; 32]);
        salts[epoch] = superblock.epoch_salt;
        self.tree(key, Tree::Map, superblock.map, &mut salts, &mut all);
        self.tree(key, Tree::Bitmap, superblock.bitmap, &mut salts, &mut all);
        all
    }

    fn tree(
        &self,
        key: &VolumeKey,
        tree: Tree,
        root: Entry,
        salts: &mut Vec<[u8; 32]>,
        all: &mut Vec<Reached>,
    ) {
        let levels = self.header.geometry.levels(tree);
        let mut nodes = vec![(levels - 1, 0_u64, root)];
        while let Some((level, index, entry)) = nodes.pop() {
            if entry.is_absent() {
                continue;
            }
            let self_salted = tree == Tree::Salts;
            let ad = if self_salted {
                salt_node_ad(&self.header.volume, level, index)
            } else {
                node_ad(&self.header.volume, tree, level, index)
            };
            let salt = salts[if self_salted { 0 } else { entry.epoch as usize }];
            let what = format!("node {index} of level {level}, {tree:?}");
            let it = Reached { what, entry, ad, salt, data: false, self_salted };
            let page = self.open(key, &it).unwrap_or_else(|| panic!("{} does not open", it.what));
            all.push(it);
            let bits =
                if self_salted { self.header.geometry.salt_bits } else { self.header.geometry.fan_out_bits };
            if level > 0 {
                let child = |slot: usize| {
                    let entry = entry_at(&page, slot).expect("an entry");
                    (level - 1, (index << bits) + slot as u64, entry)
                };
                nodes.extend((0..1 << bits).map(child));
            } else if self_salted {
                let first = usize::try_from(index).expect("small") << bits;
                salts.resize(salts.len().max(first + (1 << bits)), [0; 32]);
                for (slot, salt) in page.chunks_exact(32).take(1 << bits).enumerate() {
                    salts[first + slot].copy_from_slice(salt);
                }
            } else if tree == Tree::Map {
                for slot in 0..1 << bits {
                    let entry = entry_at(&page, slot).expect("an entry");
                    if !entry.is_absent() {
                        let logical = (index << bits) + slot as u64;
                        let (ad, salt) = (data_ad(&self.header.volume, logical), salts[entry.epoch as usize]);
                        let what = format!("logical block {logical}");
                        all.push(Reached { what, entry, ad, salt, data: true, self_salted: false });
                    }
                }
            }
        }
    }
}

impl Reached {
    pub fn is_data(&self) -> bool {
        self.data
    }
}

/// Whether a stamp is signed by a key.
pub fn signed(stamp: &Stamp, key: &VolumeKey) -> bool {
    key.mac("stamp").verify(&[&stamp.authenticated_bytes()], &stamp.mac)
}
