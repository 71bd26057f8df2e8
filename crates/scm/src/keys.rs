//! The keys of a region, and the one place where pages are sealed and opened.
//!
//! Invariant: a (key, nonce) pair never repeats. Each [`Keys`], so each opening of a region, begins an epoch with a fresh random salt, and
//! counts its nonces from zero in memory. Nothing that lies on the medium chooses a nonce, so neither a crash nor an old copy of the region
//! that is put back makes one repeat.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use seal::{BlockKey, MacKey, Random, SALT_SIZE, Suite, VolumeKey};

use crate::Error;

use crate::entry::{EPOCH_LIMIT, Entry};
use crate::geometry::Geometry;
use crate::header::Header;
use crate::mutation::{Mutation, mutated};
use crate::progress::{State, encode_state};
use crate::unlock::Unlocked;

/// Keys of epochs that are kept ready. They follow from the salts in the table.
const READY: usize = 256;

pub(crate) struct Keys {
    volume: VolumeKey,
    suite: Suite,
    id: [u8; 16],
    page_size: u64,
    random: Arc<dyn Random>,
    header: MacKey,
    entry: MacKey,
    root: MacKey,
    log: MacKey,
    epoch: RwLock<Epoch>,
    ready: Mutex<HashMap<[u8; SALT_SIZE], Arc<BlockKey>>>,
}

struct Epoch {
    salt: [u8; SALT_SIZE],
    key: Arc<BlockKey>,
    next: AtomicU64,
}

impl Epoch {
    fn begin(volume: &VolumeKey, suite: Suite, random: &dyn Random) -> Epoch {
        let mut salt = [0; SALT_SIZE];
        if !mutated(Mutation::EpochTwice) {
            random.fill(&mut salt);
        }
        Epoch { salt, key: Arc::new(volume.pages(suite, &salt)), next: AtomicU64::new(0) }
    }
}

/// The header's MAC, which is needed before anything else is known to be true.
pub(crate) fn header_mac(volume: &VolumeKey) -> MacKey {
    volume.mac("scm header")
}

impl Keys {
    pub(crate) fn new(
        volume: VolumeKey,
        suite: Suite,
        id: [u8; 16],
        geometry: &Geometry,
        random: Arc<dyn Random>,
    ) -> Keys {
        Keys {
            header: header_mac(&volume),
            entry: volume.mac("scm entry"),
            root: volume.mac("scm root"),
            log: volume.mac("scm log"),
            epoch: RwLock::new(Epoch::begin(&volume, suite, &*random)),
            ready: Mutex::default(),
            page_size: geometry.page_size(),
            volume,
            suite,
            id,
            random,
        }
    }

    /// The keys of a region whose headers are proven: all copies say the same of what keys depend on.
    pub(crate) fn of(volume: VolumeKey, headers: &[Unlocked], random: Arc<dyn Random>) -> Keys {
        let Header { suite, id, geometry, .. } = &headers[0].header;
        Keys::new(volume, *suite, *id, geometry, random)
    }

    pub(crate) fn random(&self) -> &dyn Random {
        &*self.random
    }

    pub(crate) fn sign_header(&self, signed: &[u8]) -> [u8; 32] {
        self.header.sign(&[signed])
    }

    /// What a sealed page is bound to: region, page, page size.
    fn associated_data(&self, page: u64) -> [u8; 32] {
        let mut data = [0; 32];
        data[..16].copy_from_slice(&self.id);
        data[16..24].copy_from_slice(&page.to_le_bytes());
        data[24..].copy_from_slice(&self.page_size.to_le_bytes());
        data
    }

    /// Seals a page under a nonce that was never used.
    pub(crate) fn seal(&self, page: u64, plaintext: &[u8], out: &mut [u8]) -> Entry {
        loop {
            let epoch = self.epoch.read().unwrap_or_else(PoisonError::into_inner);
            let nonce = if mutated(Mutation::NonceTwice) {
                epoch.next.load(Ordering::Relaxed)
            } else {
                epoch.next.fetch_add(1, Ordering::Relaxed)
            };
            if nonce < EPOCH_LIMIT {
                let tag = epoch.key.seal(nonce, &self.associated_data(page), plaintext, out);
                return Entry { salt: epoch.salt, nonce, unverified: false, tag };
            }
            drop(epoch);
            let mut epoch = self.epoch.write().unwrap_or_else(PoisonError::into_inner);
            if epoch.next.load(Ordering::Relaxed) >= EPOCH_LIMIT {
                let salt = epoch.salt;
                *epoch = Epoch::begin(&self.volume, self.suite, &*self.random);
                if mutated(Mutation::SaltKept) {
                    (epoch.salt, epoch.key) = (salt, Arc::new(self.volume.pages(self.suite, &salt)));
                }
            }
        }
    }

    /// Leaves out nonces of this epoch, so that none below this one is used any more. Only upwards, so none is used twice.
    pub(crate) fn skip_nonces(&self, until: u64) {
        let epoch = self.epoch.read().unwrap_or_else(PoisonError::into_inner);
        epoch.next.fetch_max(until, Ordering::Relaxed);
    }

    /// Opens a page.
    ///
    /// # Errors
    /// [`Error::CorruptPage`]; `out` is all zero then.
    pub(crate) fn open(
        &self,
        page: u64,
        entry: &Entry,
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<(), Error> {
        let key = self.key(&entry.salt);
        let opened = key.open(entry.nonce, &self.associated_data(page), ciphertext, &entry.tag, out);
        if mutated(Mutation::TagUnchecked) {
            return Ok(());
        }
        opened.map_err(|_| Error::CorruptPage { page })
    }

    fn key(&self, salt: &[u8; SALT_SIZE]) -> Arc<BlockKey> {
        let epoch = self.epoch.read().unwrap_or_else(PoisonError::into_inner);
        if epoch.salt == *salt {
            return Arc::clone(&epoch.key);
        }
        drop(epoch);
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = ready.get(salt) {
            return Arc::clone(key);
        }
        // The salts may be anybody's; memory for their keys is bounded.
        if ready.len() >= READY {
            ready.clear();
        }
        let key = Arc::new(self.volume.pages(self.suite, salt));
        ready.insert(*salt, Arc::clone(&key));
        key
    }

    /// What a page's state adds to the sum that a root vouches for: a pseudo-random number for an encrypted page, nothing for an open one.
    pub(crate) fn share(&self, page: u64, state: &State) -> Sum {
        match state {
            None => Sum::default(),
            Some(entry) => Sum(self.entry.sign(&[&page.to_le_bytes(), &entry.encode()])),
        }
    }

    /// The MAC of a root. In a region of version 1 roots belong to no session.
    pub(crate) fn sign_root(&self, session: Option<&[u8; 32]>, generation: u64, sum: &Sum) -> [u8; 32] {
        let session = session.filter(|_| !mutated(Mutation::RootOfAnySession));
        let session = session.map_or(&[][..], |session| session);
        self.root.sign(&[&generation.to_le_bytes(), &sum.0, session])
    }

    pub(crate) fn sign_log(
        &self,
        session: &[u8; 32],
        worker: u32,
        page: u64,
        old: &State,
        new: &State,
    ) -> [u8; 32] {
        let place = [&worker.to_le_bytes()[..], &page.to_le_bytes()].concat();
        self.log.sign(&[session, &place, &encode_state(old), &encode_state(new)])
    }

    pub(crate) fn verify_log(
        &self,
        session: &[u8; 32],
        worker: u32,
        page: u64,
        old: &State,
        new: &State,
        mac: &[u8; 32],
    ) -> bool {
        let place = [&worker.to_le_bytes()[..], &page.to_le_bytes()].concat();
        self.log.verify(&[session, &place, &encode_state(old), &encode_state(new)], mac)
            || mutated(Mutation::LogUnchecked)
    }
}

/// The exclusive or of all pages' [`share`](Keys::share)s: it changes with any page's state, and one page's change is one step.
///
/// It stays in private memory. The medium has only its MAC, so that whoever reads the medium learns nothing of the shares, from which they
/// could compute a set of old entries with the same sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sum([u8; 32]);

impl std::ops::BitXorAssign for Sum {
    fn bitxor_assign(&mut self, other: Sum) {
        self.0.iter_mut().zip(other.0).for_each(|(byte, other)| *byte ^= other);
    }
}

impl std::ops::BitXor for Sum {
    type Output = Sum;

    fn bitxor(mut self, other: Sum) -> Sum {
        self ^= other;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seal::SystemRandom;

    /// The root binds an entry to its page, too; this holds where there is no root to ask.
    #[test]
    fn a_sealed_page_opens_in_its_place_and_region_only() {
        let geometry = Geometry::new(4096, 4, 1, 4096).unwrap();
        let keys = |id| {
            let key = VolumeKey::from_bytes([1; 32]);
            Keys::new(key, Suite::Aes256Gcm, [id; 16], &geometry, Arc::new(SystemRandom))
        };
        let (ours, others) = (keys(1), keys(2));
        let (plain, mut sealed, mut opened) = ([7; 4096], [0; 4096], [0; 4096]);
        let entry = ours.seal(3, &plain, &mut sealed);
        assert!(ours.open(3, &entry, &sealed, &mut opened).is_ok());
        assert_eq!(opened, plain);
        assert!(ours.open(2, &entry, &sealed, &mut opened).is_err());
        assert!(others.open(3, &entry, &sealed, &mut opened).is_err());
        assert_eq!(opened, [0; 4096]);
    }

    /// Threads seal around the end of an epoch at once: there is one next epoch, and it begins with its first nonce.
    #[test]
    fn an_epoch_ends_for_all_threads_at_once() {
        let geometry = Geometry::new(64, 4, 1, 4096).unwrap();
        let key = VolumeKey::from_bytes([1; 32]);
        let keys = Keys::new(key, Suite::Aes256Gcm, [1; 16], &geometry, Arc::new(SystemRandom));
        let first = keys.epoch.read().unwrap().salt;
        keys.skip_nonces(EPOCH_LIMIT - 100);
        let seal = |thread: u8| -> Vec<_> {
            let one = |page: u8| {
                let (plain, mut sealed, mut opened) = ([thread ^ page; 64], [0; 64], [0; 64]);
                let entry = keys.seal(page.into(), &plain, &mut sealed);
                assert!(keys.open(page.into(), &entry, &sealed, &mut opened).is_ok() && opened == plain);
                (entry.salt == first, entry.salt, entry.nonce)
            };
            (0..100).map(one).collect()
        };
        let mut used: Vec<_> = std::thread::scope(|scope| {
            let seal = &seal;
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || seal(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        used.sort_unstable();
        let second = keys.epoch.read().unwrap().salt;
        let before = (EPOCH_LIMIT - 100..EPOCH_LIMIT).map(|nonce| (true, first, nonce));
        let behind = (0..300).map(|nonce| (false, second, nonce));
        assert!(used == behind.chain(before).collect::<Vec<_>>());
    }
}
