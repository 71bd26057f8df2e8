//! Wrapping and unwrapping the volume key.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use zeroize::Zeroize;

use super::codec::{Kind, Label, Slot};
use super::{Argon2Params, Cost, Credential, MIN_KEY_FILE_SIZE, SlotError, SlotLimits};
use crate::cipher::gcm::Gcm;
use crate::kdf::{hkdf_sha256, label};
use crate::{Random, Secret, TAG_SIZE, VolumeKey};

/// What a credential makes of a slot.
struct Unlocked {
    wrapping: Gcm,
    commitment: Secret<32>,
}

/// Whether the costs are within Argon2id's minimums and `limits`. Without this the host could have the
/// guest allocate all its memory, or compute for a year.
pub(super) fn check_costs(
    params: &Argon2Params,
    limits: &SlotLimits,
    slot: Option<usize>,
) -> Result<(), SlotError> {
    let check = |cost, asked, least, most| {
        let error = SlotError::Cost { slot, cost, asked, least, most };
        if (least..=most).contains(&asked) { Ok(()) } else { Err(error) }
    };
    check(Cost::Lanes, params.lanes, 1, limits.lanes.min(Params::MAX_P_COST))?;
    check(Cost::Passes, params.passes, 1, limits.passes)?;
    check(Cost::Memory, params.memory_kib, params.lanes.saturating_mul(8), limits.memory_kib)
}

/// A new slot for `credential` at `index`.
pub(super) fn wrap(
    volume: &[u8; 16],
    index: usize,
    key: &VolumeKey,
    credential: &Credential,
    label: Label,
    params: Argon2Params,
    random: &dyn Random,
) -> Result<Slot, SlotError> {
    let kind = match credential {
        Credential::Passphrase(passphrase) if passphrase.is_empty() => return Err(SlotError::Weak),
        Credential::KeyFile(content) | Credential::Released(content) if content.len() < MIN_KEY_FILE_SIZE => {
            return Err(SlotError::Weak);
        }
        Credential::Passphrase(_) => Kind::Passphrase(params),
        Credential::KeyFile(_) => Kind::KeyFile,
        Credential::Released(_) => Kind::Released,
    };
    if let Kind::Passphrase(params) = kind {
        check_costs(&params, &SlotLimits::default(), None)?;
    }
    let mut slot = Slot {
        kind,
        salt: [0; 32],
        commitment: [0; 32],
        nonce: [0; 12],
        wrapped: [0; 32],
        tag: [0; TAG_SIZE],
        label,
    };
    random.fill(&mut slot.salt);
    random.fill(&mut slot.nonce);
    let unlocked = unlock(&slot, credential, volume, index)?.expect("the kind was made from the credential");
    slot.commitment = *unlocked.commitment.expose();
    let ad = slot.associated_data(volume, index);
    slot.tag = unlocked.wrapping.seal(slot.nonce, &ad, key.expose(), &mut slot.wrapped);
    Ok(slot)
}

/// The volume key in `slot`, or `None` if the slot is not for `credential`.
pub(super) fn unwrap(
    volume: &[u8; 16],
    index: usize,
    slot: &Slot,
    credential: &Credential,
    limits: &SlotLimits,
) -> Result<Option<VolumeKey>, SlotError> {
    if let (Kind::Passphrase(params), Credential::Passphrase(_)) = (&slot.kind, credential) {
        check_costs(params, limits, Some(index))?;
    }
    let Some(unlocked) = unlock(slot, credential, volume, index)? else { return Ok(None) };
    if verify_slices_are_equal(unlocked.commitment.expose(), &slot.commitment).is_err() {
        return Ok(None);
    }
    let ad = slot.associated_data(volume, index);
    let mut result = Ok(());
    let key = Secret::build(|key| {
        result = unlocked.wrapping.open(slot.nonce, &ad, &slot.wrapped, &slot.tag, key);
    });
    match result {
        Ok(()) => Ok(Some(VolumeKey::from_secret(key))),
        Err(_) => Err(SlotError::Tampered { slot: index }),
    }
}

/// `None` if the slot is of another kind than the credential.
fn unlock(
    slot: &Slot,
    credential: &Credential,
    volume: &[u8; 16],
    index: usize,
) -> Result<Option<Unlocked>, SlotError> {
    let kek: Secret<32> = match (&slot.kind, credential) {
        (Kind::Passphrase(params), Credential::Passphrase(passphrase)) => {
            argon2id(passphrase.expose(), &slot.salt, params, available_kib())?
        }
        (Kind::KeyFile, Credential::KeyFile(content)) => {
            hkdf_sha256(&slot.salt, content.expose(), &[&label("slot", None, &["key file"])])
        }
        (Kind::Released, Credential::Released(secret)) => {
            let index = u8::try_from(index).expect("there are 16 slots");
            let place = [&volume[..], &[index]].concat();
            hkdf_sha256(&slot.salt, secret.expose(), &[&label("slot", None, &["released"]), &place])
        }
        _ => return Ok(None),
    };
    let wrapping = hkdf_sha256(&slot.salt, kek.expose(), &[&label("slot", None, &["wrapping"])]);
    let commitment = hkdf_sha256(&slot.salt, kek.expose(), &[&label("slot", None, &["commitment"])]);
    Ok(Some(Unlocked { wrapping: Gcm::new(&wrapping), commitment }))
}

/// KiB that this machine can give without swapping; `None` if it does not say.
fn available_kib() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    rest.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Argon2id of version 0x13. The costs have been checked.
///
/// Linux promises memory that it does not have, and then kills who uses it. So a slot that asks for more than the `available` KiB is
/// refused before anything is taken.
fn argon2id(
    passphrase: &[u8],
    salt: &[u8],
    params: &Argon2Params,
    available: Option<u64>,
) -> Result<Secret<32>, SlotError> {
    let refused = || SlotError::OutOfMemory { memory_kib: params.memory_kib };
    let costs = Params::new(params.memory_kib, params.passes, params.lanes, Some(32))
        .expect("the costs have been checked");
    if available.is_some_and(|available| u64::from(params.memory_kib) > available) {
        return Err(refused());
    }
    let mut memory: Vec<Block> = Vec::new();
    memory.try_reserve_exact(costs.block_count()).map_err(|_| refused())?;
    memory.resize(costs.block_count(), Block::new());
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, costs);
    let mut result = Ok(());
    let key = Secret::build(|key| {
        result = argon2.hash_password_into_with_memory(passphrase, salt, key, &mut memory[..]);
    });
    memory.iter_mut().for_each(Zeroize::zeroize);
    // What is left to fail is a passphrase of 4 GiB.
    result.map(|()| key).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cipher::vectors::hex;

    /// From the reference implementation's own tests (`phc-winner-argon2`): "password", "somesalt".
    #[test]
    fn argon2id_reference() {
        let check = |memory_kib, passes, lanes, expected| {
            let params = Argon2Params { memory_kib, passes, lanes };
            let key = argon2id(b"password", b"somesalt", &params, None).unwrap();
            assert_eq!(key.expose().to_vec(), hex(expected));
        };
        check(256, 2, 1, "9dfeb910e80bad0311fee20f9c0e2b12c17987b4cac90c2ef54d5b3021c68bfe");
        check(256, 2, 2, "6d093c501fd5999645e0ea3bf620d7b8be7fd2db59c20d9fff9539da2bf57037");
    }

    #[test]
    fn memory_that_the_machine_lacks_is_not_asked_for() {
        let params = Argon2Params { memory_kib: 256, passes: 1, lanes: 1 };
        let with = |available| argon2id(b"password", b"somesalt", &params, available).map(drop);
        assert_eq!(with(Some(255)), Err(SlotError::OutOfMemory { memory_kib: 256 }));
        assert_eq!(with(Some(256)), Ok(()));
        assert!(available_kib().is_some_and(|kib| kib > 1 << 10), "{:?}", available_kib());
    }
}
