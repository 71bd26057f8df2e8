//! The volume key and the keys derived from it.
//!
//! Every derivation is HKDF-SHA-256 with the volume key as its secret, and an info that names the use
//! (`docs/disk-format.md`). So a key serves one suite, one mode and one purpose, and no other.

use crate::kdf::{hkdf_sha256, label};
use crate::{BlockKey, Corrupt, DataMode, KEY_SIZE, MacKey, Random, SALT_SIZE, Secret, Suite, TAG_SIZE};

/// What the key is for that seals an old volume key.
const OLD_KEY: &str = "old volume key";

/// The key of a volume. Nothing is sealed with it; all other keys are derived from it.
#[derive(Debug, PartialEq, Eq)]
pub struct VolumeKey(Secret<KEY_SIZE>);

impl VolumeKey {
    /// A fresh key.
    pub fn generate(random: &dyn Random) -> VolumeKey {
        VolumeKey(Secret::generate(random))
    }

    /// The key with these bytes.
    pub fn from_bytes(bytes: [u8; KEY_SIZE]) -> VolumeKey {
        VolumeKey(Secret::from_bytes(bytes))
    }

    pub(crate) fn from_secret(secret: Secret<KEY_SIZE>) -> VolumeKey {
        VolumeKey(secret)
    }

    pub(crate) fn expose(&self) -> &[u8; KEY_SIZE] {
        self.0.expose()
    }

    /// The keys of the epoch that `salt` began. The salt must be random and used for one epoch only, else
    /// nonces repeat.
    ///
    /// Any `mode` goes with any `suite`, and protects data just as the mode says; but make it with
    /// [`DataMode::new`], which refuses what makes no sense.
    pub fn epoch(&self, mode: DataMode, suite: Suite, salt: &[u8; SALT_SIZE]) -> EpochKeys {
        let data = label("epoch", Some(suite), &["data", mode.name()]);
        let node = label("epoch", Some(suite), &["node"]);
        let journal = label("epoch", Some(suite), &["journal"]);
        EpochKeys {
            data: match mode {
                DataMode::Aead => self.aead(suite, salt, &data),
                DataMode::Xts => BlockKey::xts(&self.derive(salt, &data)),
                DataMode::Gmac => BlockKey::gmac(&self.derive(salt, &data)),
                DataMode::Plain => BlockKey::plain(),
            },
            node: self.aead(suite, salt, &node),
            journal: self.aead(suite, salt, &journal),
        }
    }

    /// The key of one block that carries its own random `salt` (superblock, node of the salt table), to be
    /// used once, with nonce 0. Always authenticated; `aes-256-xts` stands for `aes-256-gcm` here.
    /// `kind` holds no zero byte.
    pub fn one_time(&self, suite: Suite, kind: &'static str, salt: &[u8; SALT_SIZE]) -> BlockKey {
        self.aead(suite, salt, &label("one-time", Some(suite), &[kind]))
    }

    /// The key of one leg of a stream, begun by a fresh random `salt`, so that no two legs repeat a nonce. AES-256-GCM, whatever the
    /// volume's suite.
    pub fn stream(&self, salt: &[u8; SALT_SIZE]) -> BlockKey {
        let suite = Suite::Aes256Gcm;
        self.aead(suite, salt, &label("stream", Some(suite), &["chunk"]))
    }

    /// The key for pages of storage-class memory in the epoch that `salt` began. The salt must be random and used for one epoch only, else
    /// nonces repeat. Always authenticated; `aes-256-xts` stands for `aes-256-gcm` here.
    pub fn pages(&self, suite: Suite, salt: &[u8; SALT_SIZE]) -> BlockKey {
        self.aead(suite, salt, &label("scm", Some(suite), &["page"]))
    }

    /// Seals another volume key under this one: the one that it takes the place of. `salt` must be random and used once.
    pub fn seal_old(
        &self,
        suite: Suite,
        salt: &[u8; SALT_SIZE],
        ad: &[u8],
        old: &VolumeKey,
    ) -> ([u8; KEY_SIZE], [u8; TAG_SIZE]) {
        let mut sealed = [0; KEY_SIZE];
        let tag = self.one_time(suite, OLD_KEY, salt).seal(0, ad, old.expose(), &mut sealed);
        (sealed, tag)
    }

    /// What [`seal_old`](Self::seal_old) sealed.
    ///
    /// # Errors
    /// [`Corrupt`] if anything differs from what was sealed.
    pub fn open_old(
        &self,
        suite: Suite,
        salt: &[u8; SALT_SIZE],
        ad: &[u8],
        sealed: &[u8; KEY_SIZE],
        tag: &[u8; TAG_SIZE],
    ) -> Result<VolumeKey, Corrupt> {
        let mut result = Ok(());
        let key =
            Secret::build(|key| result = self.one_time(suite, OLD_KEY, salt).open(0, ad, sealed, tag, key));
        result.map(|()| VolumeKey(key))
    }

    /// The HMAC key for `purpose`: the header's MAC, the stamp's. `purpose` holds no zero byte.
    pub fn mac(&self, purpose: &'static str) -> MacKey {
        MacKey::new(&self.derive(&[], &label("mac", None, &[purpose])))
    }

    fn aead(&self, suite: Suite, salt: &[u8], label: &[u8]) -> BlockKey {
        match suite {
            Suite::Aes256Gcm | Suite::Aes256Xts => BlockKey::gcm(&self.derive(salt, label)),
            Suite::Aegis128x2 => BlockKey::aegis128x2(self.derive(salt, label)),
            Suite::Aegis256x2 => BlockKey::aegis256x2(self.derive(salt, label)),
        }
    }

    fn derive<const N: usize>(&self, salt: &[u8], label: &[u8]) -> Secret<N> {
        hkdf_sha256(salt, self.0.expose(), &[label])
    }
}

/// The keys of one epoch. Nonces are counted for each key by itself.
#[derive(Debug)]
pub struct EpochKeys {
    /// Seals data blocks, as the mode says.
    pub data: BlockKey,
    /// Seals nodes of the map and of free space; always an AEAD.
    pub node: BlockKey,
    /// Seals journal commits; always an AEAD.
    pub journal: BlockKey,
}
