//! All slots of a volume.

use super::codec::{Label, Slot};
use super::{AREA_SIZE, Argon2Params, Credential, Kind, SLOT_COUNT, SLOT_SIZE, SlotError, SlotLimits, wrap};
use crate::{Random, VolumeKey};

/// The key slots of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeySlots([Option<Slot>; SLOT_COUNT]);

/// What a slot says about itself. Only unlocking it proves that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotInfo {
    /// The slot's index, below [`SLOT_COUNT`].
    pub index: usize,
    /// What opens it.
    pub kind: Kind,
    /// The name that it was given.
    pub label: String,
}

impl KeySlots {
    /// All slots empty.
    pub fn new() -> KeySlots {
        KeySlots::default()
    }

    /// The slots in `bytes`, which anybody may have written.
    ///
    /// # Errors
    /// [`SlotError::Malformed`].
    pub fn decode(bytes: &[u8; AREA_SIZE]) -> Result<KeySlots, SlotError> {
        let mut slots = KeySlots::new();
        let (parts, _) = bytes.as_chunks::<SLOT_SIZE>();
        for (index, part) in parts.iter().enumerate() {
            slots.0[index] = Slot::decode(part, index)?;
        }
        Ok(slots)
    }

    /// The slots as bytes.
    pub fn encode(&self) -> [u8; AREA_SIZE] {
        let mut bytes = [0; AREA_SIZE];
        let (parts, _) = bytes.as_chunks_mut::<SLOT_SIZE>();
        for (part, slot) in parts.iter_mut().zip(&self.0) {
            if let Some(slot) = slot {
                *part = slot.encode();
            }
        }
        bytes
    }

    /// Wraps `key` for `credential` in the first empty slot and returns its index. `params` count for
    /// passphrases only.
    ///
    /// # Errors
    /// [`SlotError::Full`], [`SlotError::Label`], [`SlotError::Weak`], [`SlotError::Cost`] if the default
    /// limits would refuse to open the slot again, [`SlotError::OutOfMemory`].
    pub fn add(
        &mut self,
        volume_id: &[u8; 16],
        key: &VolumeKey,
        credential: Credential,
        label: &str,
        params: Argon2Params,
        random: &dyn Random,
    ) -> Result<usize, SlotError> {
        let index = self.0.iter().position(Option::is_none).ok_or(SlotError::Full)?;
        let label = Label::new(label).ok_or(SlotError::Label)?;
        self.0[index] = Some(wrap::wrap(volume_id, index, key, &credential, label, params, random)?);
        Ok(index)
    }

    /// Empties a slot. Who copied its bytes before can still open them with the credential.
    ///
    /// # Errors
    /// [`SlotError::Empty`]; [`SlotError::Last`] if no other slot is left.
    pub fn remove(&mut self, index: usize) -> Result<(), SlotError> {
        if !self.0.get(index).is_some_and(Option::is_some) {
            return Err(SlotError::Empty { slot: index });
        }
        if self.0.iter().flatten().count() == 1 {
            return Err(SlotError::Last);
        }
        self.0[index] = None;
        Ok(())
    }

    /// The volume key, from the first slot that `credential` opens. A passphrase is tried on each
    /// passphrase slot, at that slot's cost.
    ///
    /// # Errors
    /// If no slot opens: [`SlotError::Tampered`], [`SlotError::Cost`] or [`SlotError::OutOfMemory`] of the
    /// first slot that could not be tried to the end, else [`SlotError::WrongCredential`].
    pub fn unlock(
        &self,
        volume_id: &[u8; 16],
        credential: &Credential,
        limits: &SlotLimits,
    ) -> Result<VolumeKey, SlotError> {
        // One spoilt slot must not keep the others from opening.
        let mut first_error = None;
        for (index, slot) in self.0.iter().enumerate() {
            let Some(slot) = slot else { continue };
            match wrap::unwrap(volume_id, index, slot, credential, limits) {
                Ok(Some(key)) => return Ok(key),
                Ok(None) => {}
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or(SlotError::WrongCredential))
    }

    /// The first slot that `credential` opens. A passphrase is tried on each passphrase slot, at that slot's cost; one that cannot be tried counts
    /// as not opened.
    #[must_use]
    pub fn opened_by(
        &self,
        volume_id: &[u8; 16],
        credential: &Credential,
        limits: &SlotLimits,
    ) -> Option<usize> {
        let slots = self.0.iter().enumerate();
        let opens = |index: usize, slot: &Slot| {
            matches!(wrap::unwrap(volume_id, index, slot, credential, limits), Ok(Some(_)))
        };
        slots
            .filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
            .find(|(index, slot)| opens(*index, slot))
            .map(|(index, _)| index)
    }

    /// The slots of a volume whose key is `new` from now on: each one that one of `credentials` opens to `old` keeps its place, kind, cost
    /// and label. The others are empty: what opens them is not known.
    ///
    /// # Errors
    /// As [`unlock`](Self::unlock), for the first credential that opens no slot.
    pub fn rewrap(
        &self,
        volume_id: &[u8; 16],
        old: &VolumeKey,
        new: &VolumeKey,
        credentials: &[&Credential],
        limits: &SlotLimits,
        random: &dyn Random,
    ) -> Result<KeySlots, SlotError> {
        let mut rewrapped = KeySlots::new();
        for credential in credentials {
            let mut error = None;
            let mut opened = false;
            for (index, slot) in self.0.iter().enumerate() {
                let Some(slot) = slot else { continue };
                match wrap::unwrap(volume_id, index, slot, credential, limits) {
                    Ok(Some(key)) if key == *old => {
                        let label = slot.label.clone();
                        let params = match slot.kind {
                            Kind::Passphrase(params) => params,
                            Kind::KeyFile | Kind::Released => Argon2Params::default(),
                        };
                        let slot = wrap::wrap(volume_id, index, new, credential, label, params, random)?;
                        rewrapped.0[index] = Some(slot);
                        opened = true;
                    }
                    Ok(_) => {}
                    Err(failed) => error = error.or(Some(failed)),
                }
            }
            if !opened {
                return Err(error.unwrap_or(SlotError::WrongCredential));
            }
        }
        Ok(rewrapped)
    }

    /// The occupied slots, in order.
    pub fn list(&self) -> Vec<SlotInfo> {
        let occupied = self.0.iter().enumerate().filter_map(|(index, slot)| Some((index, slot.as_ref()?)));
        let info = |(index, slot): (usize, &Slot)| SlotInfo {
            index,
            kind: slot.kind,
            label: slot.label.as_str().to_owned(),
        };
        occupied.map(info).collect()
    }
}
