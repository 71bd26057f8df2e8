//! Key slots: what opens, what does not, and what bytes of the host's can do.

use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use seal::slot::{
    AREA_SIZE, Argon2Params, Cost, Credential, KeySlots, Kind, LABEL_SIZE, SLOT_COUNT, SLOT_SIZE, SlotError,
    SlotLimits,
};
use seal::{Random, SecretBytes, VolumeKey};

const VOLUME: [u8; 16] = [0xA5; 16];
/// The cheapest there is.
const CHEAP: Argon2Params = Argon2Params { memory_kib: 8, passes: 1, lanes: 1 };

/// Bytes that look different each time and are the same in each run.
struct Counter(AtomicU64);

impl Random for Counter {
    fn fill(&self, bytes: &mut [u8]) {
        let count = self.0.fetch_add(1, Ordering::Relaxed);
        let stream = (0_u64..).flat_map(|i| seal::sha256(&[&count.to_le_bytes(), &i.to_le_bytes()]));
        bytes.iter_mut().zip(stream).for_each(|(byte, random)| *byte = random);
    }
}

fn random() -> Counter {
    Counter(AtomicU64::new(0))
}

fn passphrase(text: &str) -> Credential {
    Credential::Passphrase(SecretBytes::from_slice(text.as_bytes()))
}

fn key_file(byte: u8) -> Credential {
    Credential::KeyFile(SecretBytes::from_slice(&[byte; 64]))
}

fn volume_key() -> VolumeKey {
    VolumeKey::from_bytes([0x33; 32])
}

/// Slot 0: passphrase "first". Slot 1: a key file. Slot 2: passphrase "third".
fn slots() -> KeySlots {
    let mut slots = KeySlots::new();
    let random = random();
    let mut add = |credential, label| slots.add(&VOLUME, &volume_key(), credential, label, CHEAP, &random);
    assert_eq!(add(passphrase("first"), "the first"), Ok(0));
    assert_eq!(add(key_file(1), "Schlüsseldatei"), Ok(1));
    assert_eq!(add(passphrase("third"), ""), Ok(2));
    slots
}

fn unlock(slots: &KeySlots, credential: &Credential) -> Result<VolumeKey, SlotError> {
    slots.unlock(&VOLUME, credential, &SlotLimits::default())
}

/// The slots after `change` to their bytes.
fn changed(change: impl FnOnce(&mut [u8; AREA_SIZE])) -> Result<KeySlots, SlotError> {
    let mut bytes = slots().encode();
    change(&mut bytes);
    KeySlots::decode(&bytes)
}

#[test]
fn each_credential_opens_its_slot_and_no_other_does() {
    let slots = KeySlots::decode(&slots().encode()).unwrap();
    for credential in [passphrase("first"), passphrase("third"), key_file(1)] {
        assert_eq!(unlock(&slots, &credential), Ok(volume_key()), "{credential:?}");
    }
    // The content of a key file as a passphrase is another credential.
    let content = Credential::Passphrase(SecretBytes::from_slice(&[1; 64]));
    for credential in [passphrase("fifth"), passphrase(""), key_file(2), content] {
        assert_eq!(unlock(&slots, &credential), Err(SlotError::WrongCredential), "{credential:?}");
    }
    assert_eq!(unlock(&KeySlots::new(), &passphrase("first")), Err(SlotError::WrongCredential));
}

/// One secret for two volumes, or in two slots, opens each of them by a key of its own.
#[test]
fn a_released_secret_is_a_credential_of_its_own_kind_bound_to_volume_and_slot() {
    let secret = [9; 64];
    let released = || Credential::Released(SecretBytes::from_slice(&secret));
    let mut slots = KeySlots::new();
    let random = random();
    for _ in 0..2 {
        slots.add(&VOLUME, &volume_key(), released(), "released", CHEAP, &random).unwrap();
    }
    let bytes = slots.encode();
    assert_eq!((bytes[0], bytes[SLOT_SIZE]), (3, 3));
    let slots = KeySlots::decode(&bytes).unwrap();
    assert_eq!(slots.list()[0].kind, Kind::Released);
    assert_eq!(unlock(&slots, &released()), Ok(volume_key()));
    let others = [
        Credential::KeyFile(SecretBytes::from_slice(&secret)),
        Credential::Passphrase(SecretBytes::from_slice(&secret)),
        Credential::Released(SecretBytes::from_slice(&[8; 64])),
    ];
    for other in others {
        assert_eq!(unlock(&slots, &other), Err(SlotError::WrongCredential), "{other:?}");
    }
    // A slot that is moved to another place, or to another volume, does not even have the key: its commitment is another.
    let mut moved = [0; seal::slot::AREA_SIZE];
    moved[SLOT_SIZE * 5..SLOT_SIZE * 6].copy_from_slice(&bytes[..SLOT_SIZE]);
    let moved = KeySlots::decode(&moved).unwrap();
    assert_eq!(unlock(&moved, &released()), Err(SlotError::WrongCredential));
    let limits = SlotLimits::default();
    assert_eq!(slots.unlock(&[0xee; 16], &released(), &limits), Err(SlotError::WrongCredential));
    // Nothing in such a slot says what it costs, and a secret that can be guessed is none.
    let costly = changed(|bytes| {
        bytes[..SLOT_SIZE].copy_from_slice(&slots.encode()[..SLOT_SIZE]);
        bytes[8] = 1;
    });
    assert!(matches!(costly, Err(SlotError::Malformed { slot: 0, .. })), "{costly:?}");
    let short = Credential::Released(SecretBytes::from_slice(&[1; 31]));
    let mut more = KeySlots::new();
    assert_eq!(more.add(&VOLUME, &volume_key(), short, "", CHEAP, &random), Err(SlotError::Weak));
}

#[test]
fn slots_tell_what_they_are() {
    let list = KeySlots::decode(&slots().encode()).unwrap().list();
    let found: Vec<_> = list.iter().map(|slot| (slot.index, slot.kind, slot.label.as_str())).collect();
    let expected = [
        (0, Kind::Passphrase(CHEAP), "the first"),
        (1, Kind::KeyFile, "Schlüsseldatei"),
        (2, Kind::Passphrase(CHEAP), ""),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_removed_slot_is_gone_and_the_last_one_stays() {
    let mut slots = slots();
    slots.remove(0).unwrap();
    assert_eq!(slots.encode()[..SLOT_SIZE], [0; SLOT_SIZE]);
    assert_eq!(unlock(&slots, &passphrase("first")), Err(SlotError::WrongCredential));
    assert_eq!(unlock(&slots, &passphrase("third")), Ok(volume_key()));
    assert_eq!(slots.remove(0), Err(SlotError::Empty { slot: 0 }));
    assert_eq!(slots.remove(SLOT_COUNT), Err(SlotError::Empty { slot: SLOT_COUNT }));
    slots.remove(2).unwrap();
    assert_eq!(slots.remove(1), Err(SlotError::Last));
    assert_eq!(unlock(&slots, &key_file(1)), Ok(volume_key()));
    // The freed place is taken again.
    let added = slots.add(&VOLUME, &volume_key(), passphrase("new"), "", CHEAP, &random());
    assert_eq!(added, Ok(0));
}

#[test]
fn sixteen_slots_and_no_more() {
    let mut slots = KeySlots::new();
    let random = random();
    for index in 0..SLOT_COUNT {
        let credential = key_file(u8::try_from(index).unwrap());
        assert_eq!(slots.add(&VOLUME, &volume_key(), credential, "", CHEAP, &random), Ok(index));
    }
    let more = slots.add(&VOLUME, &volume_key(), key_file(99), "", CHEAP, &random);
    assert_eq!(more, Err(SlotError::Full));
    assert_eq!(unlock(&slots, &key_file(15)), Ok(volume_key()));
}

#[test]
fn what_protects_nothing_is_refused() {
    let mut slots = KeySlots::new();
    let random = random();
    let mut add = |credential, label: &str, params| {
        slots.add(&VOLUME, &volume_key(), credential, label, params, &random).unwrap_err()
    };
    let short = Credential::KeyFile(SecretBytes::from_slice(&[1; 31]));
    assert_eq!(add(passphrase(""), "", CHEAP), SlotError::Weak);
    assert_eq!(add(short, "", CHEAP), SlotError::Weak);
    assert_eq!(add(passphrase("x"), &"l".repeat(LABEL_SIZE + 1), CHEAP), SlotError::Label);
    assert_eq!(add(passphrase("x"), "bell\x07", CHEAP), SlotError::Label);
    let costly = Argon2Params { passes: 65, ..CHEAP };
    let error = SlotError::Cost { slot: None, cost: Cost::Passes, asked: 65, least: 1, most: 64 };
    assert_eq!(add(passphrase("x"), "", costly), error);
    assert_eq!(slots, KeySlots::new());
}

#[test]
fn a_slot_opens_for_its_volume_and_in_its_place_only() {
    let slots = slots();
    for credential in [passphrase("first"), key_file(1)] {
        let found = slots.unlock(&[0xA6; 16], &credential, &SlotLimits::default());
        assert!(matches!(found, Err(SlotError::Tampered { .. })), "{found:?}");
    }
    let moved = changed(|bytes| {
        bytes.copy_within(..SLOT_SIZE, 5 * SLOT_SIZE);
        bytes[..SLOT_SIZE].fill(0);
    });
    assert_eq!(unlock(&moved.unwrap(), &passphrase("first")), Err(SlotError::Tampered { slot: 5 }));
}

#[test]
fn a_spoilt_slot_does_not_keep_another_from_opening() {
    let mut slots = KeySlots::new();
    let random = random();
    for _ in 0..2 {
        slots.add(&VOLUME, &volume_key(), passphrase("same"), "", CHEAP, &random).unwrap();
    }
    let mut bytes = slots.encode();
    bytes[100] ^= 1;
    assert_eq!(unlock(&KeySlots::decode(&bytes).unwrap(), &passphrase("same")), Ok(volume_key()));
    bytes[SLOT_SIZE + 100] ^= 1;
    let spoilt = KeySlots::decode(&bytes).unwrap();
    assert_eq!(unlock(&spoilt, &passphrase("same")), Err(SlotError::Tampered { slot: 0 }));
}

#[test]
fn every_single_bit_of_a_slot_counts() {
    for (index, credential) in [(0, passphrase("first")), (1, key_file(1))] {
        for bit in 0..SLOT_SIZE * 8 {
            let spoilt = changed(|bytes| bytes[index * SLOT_SIZE + bit / 8] ^= 1 << (bit % 8));
            let limits = SlotLimits { memory_kib: 1024, passes: 4, lanes: 4 };
            let result = spoilt.and_then(|slots| slots.unlock(&VOLUME, &credential, &limits));
            assert!(result.is_err(), "bit {bit} of slot {index} makes no difference");
        }
    }
}

#[test]
fn costs_are_capped_before_they_are_paid() {
    let limits = SlotLimits { memory_kib: 64 << 10, passes: 3, lanes: 2 };
    let with = |offset: usize, value: u32| {
        let slots = changed(|bytes| bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes())).unwrap();
        slots.unlock(&VOLUME, &passphrase("first"), &limits).unwrap_err()
    };
    let refused = |cost, asked, least, most| SlotError::Cost { slot: Some(0), cost, asked, least, most };
    assert_eq!(with(8, u32::MAX), refused(Cost::Memory, u32::MAX, 8, 64 << 10));
    assert_eq!(with(8, (64 << 10) + 1), refused(Cost::Memory, (64 << 10) + 1, 8, 64 << 10));
    assert_eq!(with(8, 7), refused(Cost::Memory, 7, 8, 64 << 10));
    assert_eq!(with(8, 0), refused(Cost::Memory, 0, 8, 64 << 10));
    assert_eq!(with(12, u32::MAX), refused(Cost::Passes, u32::MAX, 1, 3));
    assert_eq!(with(12, 0), refused(Cost::Passes, 0, 1, 3));
    assert_eq!(with(16, u32::MAX), refused(Cost::Lanes, u32::MAX, 1, 2));
    assert_eq!(with(16, 0), refused(Cost::Lanes, 0, 1, 2));
    // Within the limits it is paid, and leads to another key.
    assert_eq!(with(8, 9), SlotError::WrongCredential);
}

#[test]
fn malformed_slots_are_told() {
    let what = |offset: usize, byte: u8| match changed(|bytes| bytes[offset] = byte) {
        Err(SlotError::Malformed { slot, what }) => (slot, what),
        other => panic!("byte {offset} = {byte:#x}: {other:?}"),
    };
    assert_eq!(what(0, 0), (0, "it is marked empty but holds data"));
    assert_eq!(what(15 * SLOT_SIZE + 255, 1), (15, "it is marked empty but holds data"));
    assert_eq!(what(0, 4), (0, "its kind is unknown"));
    assert_eq!(what(SLOT_SIZE + 8, 1), (1, "only a passphrase has costs"));
    for reserved in (1..8).chain(20..24).chain(212..256) {
        assert_eq!(what(reserved, 1), (0, "reserved bytes are not zero"));
    }
    for byte in [0x00, 0x1B, 0xFF] {
        assert_eq!(what(150, byte), (0, "its label is not printable UTF-8"));
    }
}

#[test]
fn the_same_credential_never_makes_the_same_slot() {
    let random = random();
    let mut slots = KeySlots::new();
    for _ in 0..2 {
        slots.add(&VOLUME, &volume_key(), key_file(1), "", CHEAP, &random).unwrap();
    }
    let bytes = slots.encode();
    for part in [24..56, 56..88, 88..100, 100..132, 132..148] {
        assert_ne!(bytes[part.clone()], bytes[SLOT_SIZE..][part.clone()], "{part:?}");
    }
}

/// Areas that come near to being right: a few bytes of good ones changed, and slots of few distinct bytes.
fn areas() -> impl Strategy<Value = Vec<u8>> {
    let noise = proptest::collection::vec(any::<u8>(), AREA_SIZE);
    let sparse = proptest::collection::vec(prop_oneof![9 => Just(0_u8), 1 => any::<u8>()], AREA_SIZE);
    let changes = proptest::collection::vec((0..3 * SLOT_SIZE, any::<u8>()), 1..4);
    let near = changes.prop_map(|changes| {
        let mut bytes = slots().encode().to_vec();
        changes.into_iter().for_each(|(offset, byte)| bytes[offset] = byte);
        bytes
    });
    prop_oneof![noise, sparse, near]
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in areas()) {
        let bytes: &[u8; AREA_SIZE] = bytes.as_slice().try_into().unwrap();
        if let Ok(slots) = KeySlots::decode(bytes) {
            prop_assert_eq!(&slots.encode(), bytes, "two encodings of the same slots");
            let limits = SlotLimits { memory_kib: 64, passes: 2, lanes: 2 };
            for credential in [passphrase("first"), key_file(1)] {
                match slots.unlock(&VOLUME, &credential, &limits) {
                    Ok(key) => prop_assert_eq!(key, volume_key()),
                    Err(error) => prop_assert!(!error.to_string().is_empty()),
                }
            }
            slots.list().iter().for_each(|slot| assert!(!slot.label.contains('\0')));
        }
    }
}

#[test]
fn what_is_wrapped_anew_opens_to_the_new_key_and_the_rest_is_empty() {
    let (old, new) = (volume_key(), VolumeKey::from_bytes([0x44; 32]));
    let rewrap = |credentials: &[&Credential]| {
        slots().rewrap(&VOLUME, &old, &new, credentials, &SlotLimits::default(), &random())
    };
    let rewrapped = rewrap(&[&key_file(1), &passphrase("third")]).unwrap();
    let listed: Vec<_> = slots().list().into_iter().filter(|slot| slot.index != 0).collect();
    assert_eq!(rewrapped.list(), listed, "place, kind, cost and label stay");
    for credential in [key_file(1), passphrase("third")] {
        assert!(unlock(&rewrapped, &credential) == Ok(VolumeKey::from_bytes([0x44; 32])));
    }
    assert_eq!(unlock(&rewrapped, &passphrase("first")), Err(SlotError::WrongCredential));
    assert_eq!(rewrap(&[&key_file(1), &key_file(2)]), Err(SlotError::WrongCredential));
    assert_eq!(
        slots().rewrap(&VOLUME, &new, &old, &[&key_file(1)], &SlotLimits::default(), &random()),
        Err(SlotError::WrongCredential),
        "a slot with another key is not this volume's"
    );
}

#[test]
fn the_old_key_comes_back_only_as_it_was_sealed() {
    let (old, new, suite) = (volume_key(), VolumeKey::from_bytes([0x44; 32]), seal::Suite::Aes256Gcm);
    let (sealed, tag) = new.seal_old(suite, &[1; 32], b"here", &old);
    assert!(new.open_old(suite, &[1; 32], b"here", &sealed, &tag) == Ok(volume_key()));
    assert!(new.open_old(suite, &[1; 32], b"elsewhere", &sealed, &tag).is_err());
    assert!(new.open_old(suite, &[2; 32], b"here", &sealed, &tag).is_err());
    assert!(old.open_old(suite, &[1; 32], b"here", &sealed, &tag).is_err());
}
