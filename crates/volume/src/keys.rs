//! The session's epoch, the nonces in it, and the keys of earlier epochs.
//!
//! While a change of key is under way there are two volume keys, and the number of an epoch says which one it is under: those before the
//! boundary are under the old key, all others under the new one. Nobody tries both.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use seal::{DataMode, EpochKeys, Suite, VolumeKey};

use crate::error::{Error, Kind, Result};
use crate::mutation::{Mutation, mutated};

/// Seals under one key after which a new epoch begins.
pub(crate) const EPOCH_SEALS: u64 = 1 << 36;
/// Epoch numbers have 24 bits; 0 is none.
pub(crate) const EPOCHS: u32 = 1 << 24;

/// An epoch that this session seals in.
pub(crate) struct Epoch {
    pub(crate) number: u32,
    pub(crate) salt: [u8; 32],
    pub(crate) keys: EpochKeys,
    data: AtomicU64,
    node: AtomicU64,
    journal: AtomicU64,
}

/// Which of an epoch's keys.
#[derive(Clone, Copy)]
pub(crate) enum Use {
    Data,
    Node,
    Journal,
}

impl Epoch {
    /// `count` nonces that nobody else gets; the first of them. `None` when the epoch is used up.
    pub(crate) fn nonces(&self, purpose: Use, count: u64) -> Option<u64> {
        let counter = match purpose {
            Use::Data => &self.data,
            Use::Node => &self.node,
            Use::Journal => &self.journal,
        };
        let first = counter.fetch_add(count - u64::from(mutated(Mutation::NonceTwice)), Ordering::Relaxed);
        (first + count <= EPOCH_SEALS).then_some(first)
    }

    /// Whether it is time to begin the next one; well before `nonces` refuses.
    pub(crate) fn worn(&self) -> bool {
        let most = [&self.data, &self.node, &self.journal]
            .map(|counter| counter.load(Ordering::Relaxed))
            .into_iter()
            .max();
        most.is_some_and(|seals| seals > EPOCH_SEALS - (EPOCH_SEALS >> 4))
    }
}

/// The key that the volume had before, while something may still be sealed under it.
pub(crate) struct OldKey {
    pub(crate) key: VolumeKey,
    /// The first epoch under the new key.
    pub(crate) boundary: u32,
    /// SHA-256 of the one superblock under the old key that counts.
    pub(crate) superblock: [u8; 32],
}

/// All keys that the volume key gives.
pub(crate) struct Keyring {
    pub(crate) key: VolumeKey,
    pub(crate) suite: Suite,
    pub(crate) mode: DataMode,
    old: RwLock<Option<Arc<OldKey>>>,
    current: RwLock<Option<Arc<Epoch>>>,
    known: RwLock<HashMap<u32, Arc<EpochKeys>>>,
}

impl Keyring {
    pub(crate) fn new(key: VolumeKey, suite: Suite, mode: DataMode, old: Option<OldKey>) -> Self {
        let old = RwLock::new(old.map(Arc::new));
        Self { key, suite, mode, old, current: RwLock::new(None), known: RwLock::default() }
    }

    /// The keys of the epoch with this number, under the volume key that it has.
    pub(crate) fn derive(&self, number: u32, salt: &[u8; 32]) -> EpochKeys {
        match self.old() {
            Some(old) if number < old.boundary || mutated(Mutation::OldKeyGoesOn) => {
                old.key.epoch(self.mode, self.suite, salt)
            }
            _ => self.key.epoch(self.mode, self.suite, salt),
        }
    }

    /// The old key, while a change of key is under way.
    pub(crate) fn old(&self) -> Option<Arc<OldKey>> {
        self.old.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether what this epoch sealed opens under the old key.
    pub(crate) fn is_old(&self, number: u32) -> bool {
        self.boundary().is_some_and(|boundary| number < boundary)
    }

    /// The first epoch under the new key, while a change of key is under way.
    pub(crate) fn boundary(&self) -> Option<u32> {
        self.old.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(|old| old.boundary)
    }

    /// The change of key has ended: from now on the old key opens nothing here.
    pub(crate) fn drop_old(&self) {
        let Some(old) = self.old.write().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.retain(|number, _| *number >= old.boundary);
    }

    /// Makes the epoch the one that new seals use.
    pub(crate) fn begin(&self, number: u32, salt: [u8; 32]) {
        self.learn(number, &salt);
        let epoch = Epoch {
            number,
            salt,
            keys: self.derive(number, &salt),
            data: AtomicU64::new(0),
            node: AtomicU64::new(0),
            journal: AtomicU64::new(0),
        };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(epoch));
    }

    pub(crate) fn current(&self) -> Result<Arc<Epoch>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.clone().ok_or_else(|| Error::new(Kind::Usage, "this volume is attached for reading only"))
    }

    /// Nonces of the current epoch.
    pub(crate) fn nonces(&self, purpose: Use, count: u64) -> Result<(Arc<Epoch>, u64)> {
        let epoch = self.current()?;
        let first = epoch.nonces(purpose, count).ok_or_else(|| {
            Error::new(
                Kind::Usage,
                "this session's key epoch is used up; detach the volume and attach it again",
            )
        })?;
        Ok((epoch, first))
    }

    /// The keys of an epoch, if they are in memory.
    pub(crate) fn known(&self, number: u32) -> Option<Arc<EpochKeys>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    /// Forgets the keys of earlier epochs. What was learned from a history that turned out not to count must go: another may have given
    /// the same numbers to other salts.
    pub(crate) fn forget(&self) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn learn(&self, number: u32, salt: &[u8; 32]) -> Arc<EpochKeys> {
        let keys = Arc::new(self.derive(number, salt));
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::clone(&keys));
        keys
    }
}
