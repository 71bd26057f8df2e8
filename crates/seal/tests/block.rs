//! Blocks in every suite and mode: what is sealed opens, and nothing else does.

use memory::{BLOCK_SIZE, Buffer};
use proptest::collection::vec;
use proptest::prelude::*;
use seal::{BlockKey, Corrupt, DataMode, EpochKeys, NONCE_LIMIT, Suite, TAG_SIZE, VolumeKey};

/// Every legal combination, with the shortest block that it takes.
const CASES: [(Suite, DataMode, usize); 8] = [
    (Suite::Aes256Gcm, DataMode::Aead, 1),
    (Suite::Aegis128x2, DataMode::Aead, 1),
    (Suite::Aegis256x2, DataMode::Aead, 1),
    (Suite::Aes256Xts, DataMode::Xts, 16),
    (Suite::Aes256Gcm, DataMode::Gmac, 1),
    (Suite::Aes256Gcm, DataMode::Plain, 1),
    (Suite::Aegis128x2, DataMode::Plain, 1),
    (Suite::Aegis256x2, DataMode::Plain, 1),
];

fn volume_key() -> VolumeKey {
    VolumeKey::from_bytes([0x42; 32])
}

fn epoch(case: usize) -> (EpochKeys, DataMode, usize) {
    let (suite, mode, least) = CASES[case];
    (volume_key().epoch(mode, suite, &[7; 32]), mode, least)
}

/// Every authenticated key of epochs with all suites.
fn authenticated_keys() -> Vec<BlockKey> {
    let mut keys = Vec::new();
    for case in 0..CASES.len() {
        let (epoch, mode, _) = epoch(case);
        keys.extend([epoch.node, epoch.journal]);
        if mode.integrity() {
            keys.push(epoch.data);
        }
    }
    keys.extend(Suite::ALL.map(|suite| volume_key().one_time(suite, "superblock", &[7; 32])));
    keys
}

fn seal(key: &BlockKey, nonce: u64, ad: &[u8], plaintext: &[u8]) -> (Vec<u8>, [u8; TAG_SIZE]) {
    let mut out = vec![0; plaintext.len()];
    let tag = key.seal(nonce, ad, plaintext, &mut out);
    (out, tag)
}

fn open(
    key: &BlockKey,
    nonce: u64,
    ad: &[u8],
    ciphertext: &[u8],
    tag: &[u8; TAG_SIZE],
) -> Result<Vec<u8>, Corrupt> {
    let mut out = vec![0xEE; ciphertext.len()];
    let result = key.open(nonce, ad, ciphertext, tag, &mut out);
    if result.is_err() {
        assert!(out.iter().all(|byte| *byte == 0), "plaintext was let out in spite of the failure");
    }
    result.map(|()| out)
}

/// A private and a shared buffer with room for `length` bytes behind [`GAP`] others.
fn buffers(length: usize) -> [Buffer; 2] {
    let buffer = || Buffer::private_zeroed((GAP + length).div_ceil(BLOCK_SIZE));
    [buffer(), buffer().into_shared()]
}

const GAP: usize = 100;

/// What a volume does, in both kinds of buffers.
fn seal_into(key: &BlockKey, nonce: u64, ad: &[u8], plaintext: &[u8]) -> (Vec<u8>, [u8; TAG_SIZE]) {
    let results = buffers(plaintext.len()).map(|mut buffer| {
        let mut shown = None;
        let keep = |tag: &[u8; TAG_SIZE], sealed: &[u8]| shown = Some((sealed.to_vec(), *tag));
        let tag = key.seal_into(nonce, ad, plaintext, buffer.target(GAP..GAP + plaintext.len()), keep);
        let mut out = vec![0; buffer.len()];
        buffer.copy_to(0, &mut out);
        let sealed = out.drain(GAP..GAP + plaintext.len()).collect();
        assert!(out.iter().all(|byte| *byte == 0), "bytes beside the target were written");
        assert_eq!(shown.as_ref(), Some(&(sealed, tag)), "what was shown is what was sealed");
        shown.unwrap()
    });
    assert_eq!(results[0], results[1], "private and shared");
    results.into_iter().next().unwrap()
}

fn open_from(
    key: &BlockKey,
    nonce: u64,
    ad: &[u8],
    ciphertext: &[u8],
    tag: &[u8; TAG_SIZE],
) -> Result<Vec<u8>, Corrupt> {
    let results = buffers(ciphertext.len()).map(|mut buffer| {
        buffer.copy_from(GAP, ciphertext);
        let mut out = vec![0xEE; ciphertext.len()];
        let mut shown = None;
        let source = buffer.source(GAP..GAP + ciphertext.len());
        let result = key.open_from(nonce, ad, source, tag, &mut out, |sealed| shown = Some(sealed.to_vec()));
        assert_eq!(shown, result.is_ok().then(|| ciphertext.to_vec()), "only what has opened is shown");
        if result.is_err() {
            assert!(out.iter().all(|byte| *byte == 0), "plaintext was let out in spite of the failure");
        }
        result.map(|()| out)
    });
    assert_eq!(results[0], results[1], "private and shared");
    results.into_iter().next().unwrap()
}

fn flip(bytes: &[u8], bit: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[bit / 8] ^= 1 << (bit % 8);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn round_trip(
        case in 0..CASES.len(),
        nonce in 0..NONCE_LIMIT,
        ad in vec(any::<u8>(), 0..100),
        plaintext in vec(any::<u8>(), 16..9000),
        cut in 0..16_usize,
    ) {
        let (keys, mode, least) = epoch(case);
        // Short blocks are rare in 16..9000: make some.
        let plaintext = if cut >= least { &plaintext[..cut] } else { &plaintext[..] };
        for (key, encrypts) in [(&keys.data, mode.confidentiality()), (&keys.node, true), (&keys.journal, true)] {
            let (ciphertext, tag) = seal(key, nonce, &ad, plaintext);
            prop_assert_eq!(open(key, nonce, &ad, &ciphertext, &tag).unwrap(), plaintext);
            prop_assert_eq!(open_from(key, nonce, &ad, &ciphertext, &tag).unwrap(), plaintext);
            prop_assert_eq!(&seal_into(key, nonce, &ad, plaintext), &(ciphertext.clone(), tag));
            // Eight bytes are the same by chance once in 2^64.
            prop_assert!(plaintext.len() < 8 || (ciphertext == plaintext) != encrypts);
        }
        let (_, tag) = seal(&keys.data, nonce, &ad, plaintext);
        prop_assert_eq!(tag == [0; TAG_SIZE], !mode.integrity());
    }

    #[test]
    fn a_flipped_bit_anywhere_does_not_open(
        nonce in 0..NONCE_LIMIT,
        ad in vec(any::<u8>(), 1..64),
        plaintext in vec(any::<u8>(), 1..9000),
        bit in any::<prop::sample::Index>(),
    ) {
        for key in authenticated_keys() {
            let (ciphertext, tag) = seal(&key, nonce, &ad, &plaintext);
            let spoilt = flip(&ciphertext, bit.index(ciphertext.len() * 8));
            prop_assert_eq!(open(&key, nonce, &ad, &spoilt, &tag), Err(Corrupt));
            prop_assert_eq!(open_from(&key, nonce, &ad, &spoilt, &tag), Err(Corrupt));
            let spoilt = flip(&tag, bit.index(TAG_SIZE * 8)).try_into().unwrap();
            prop_assert_eq!(open(&key, nonce, &ad, &ciphertext, &spoilt), Err(Corrupt));
            prop_assert_eq!(open_from(&key, nonce, &ad, &ciphertext, &spoilt), Err(Corrupt));
            let spoilt = flip(&ad, bit.index(ad.len() * 8));
            prop_assert_eq!(open(&key, nonce, &spoilt, &ciphertext, &tag), Err(Corrupt));
            let spoilt = nonce ^ (1 << bit.index(48));
            prop_assert_eq!(open(&key, spoilt, &ad, &ciphertext, &tag), Err(Corrupt));
        }
    }
}

#[test]
fn every_single_bit_of_a_small_block_counts() {
    let (ad, plaintext, nonce) = ([0x5A; 24], [0xC3; 75], 0x1234_5678_9ABC);
    for key in authenticated_keys() {
        let (ciphertext, tag) = seal(&key, nonce, &ad, &plaintext);
        for bit in 0..ciphertext.len() * 8 {
            assert_eq!(open(&key, nonce, &ad, &flip(&ciphertext, bit), &tag), Err(Corrupt), "{key:?} {bit}");
        }
        for bit in 0..TAG_SIZE * 8 {
            let tag = flip(&tag, bit).try_into().unwrap();
            assert_eq!(open(&key, nonce, &ad, &ciphertext, &tag), Err(Corrupt), "{key:?} {bit}");
        }
        for bit in 0..ad.len() * 8 {
            assert_eq!(open(&key, nonce, &flip(&ad, bit), &ciphertext, &tag), Err(Corrupt), "{key:?} {bit}");
        }
        // Bits 48 and up make nonces that can't be.
        for bit in 0..64 {
            assert_eq!(open(&key, nonce ^ (1 << bit), &ad, &ciphertext, &tag), Err(Corrupt), "{key:?} {bit}");
        }
        assert!(open(&key, nonce, &ad, &ciphertext, &tag).is_ok());
    }
}

#[test]
fn lengths_are_authenticated() {
    for key in authenticated_keys() {
        let (ciphertext, tag) = seal(&key, 1, b"ad", &[0; 64]);
        assert_eq!(open(&key, 1, b"ad", &ciphertext[..63], &tag), Err(Corrupt), "{key:?}");
        assert_eq!(open(&key, 1, b"ad\0", &ciphertext, &tag), Err(Corrupt), "{key:?}");
        assert_eq!(open(&key, 1, b"ad", &[], &tag), Err(Corrupt), "{key:?}");
        assert_eq!(open_from(&key, 1, b"ad", &[], &tag), Err(Corrupt), "{key:?}");
    }
}

/// No two keys that differ in volume key, salt, suite, mode or purpose open each other's blocks. AES-256-GCM
/// under another label is the same cipher, so only the derivation keeps them apart.
#[test]
fn keys_of_different_uses_do_not_open_each_other() {
    let mut keys: Vec<(String, BlockKey)> = Vec::new();
    for byte in [1, 2] {
        let volume = VolumeKey::from_bytes([byte; 32]);
        for salt in [[3; 32], [4; 32]] {
            for (suite, mode, _) in CASES {
                let epoch = volume.epoch(mode, suite, &salt);
                let name = |role| format!("{byte} {} {suite} {mode:?} {role}", salt[0]);
                if mode.integrity() {
                    keys.push((name("data"), epoch.data));
                }
                // Node and journal keys depend on the suite, not on the mode of data.
                if matches!(mode, DataMode::Aead | DataMode::Xts) {
                    keys.push((name("node"), epoch.node));
                    keys.push((name("journal"), epoch.journal));
                }
            }
            for suite in Suite::ALL {
                for kind in ["superblock", "salt table"] {
                    let name = format!("{byte} {} {suite} {kind}", salt[0]);
                    keys.push((name, volume.one_time(suite, kind, &salt)));
                }
            }
        }
    }
    let plaintext = [9; 100];
    for (sealer_name, sealer) in &keys {
        let (ciphertext, tag) = seal(sealer, 0, b"", &plaintext);
        for (opener_name, opener) in &keys {
            let opened = open(opener, 0, b"", &ciphertext, &tag).is_ok();
            assert_eq!(opened, sealer_name == opener_name, "{sealer_name} by {opener_name}");
        }
    }
}

#[test]
fn unauthenticated_modes_differ_by_nonce_and_key_and_want_a_zero_tag() {
    let keys = volume_key().epoch(DataMode::Xts, Suite::Aes256Xts, &[1; 32]);
    let other = volume_key().epoch(DataMode::Xts, Suite::Aes256Xts, &[2; 32]);
    let plaintext = [0; 4096];
    let (ciphertext, tag) = seal(&keys.data, 0, b"", &plaintext);
    assert_ne!(seal(&keys.data, 1, b"", &plaintext).0, ciphertext);
    assert_ne!(seal(&other.data, 0, b"", &plaintext).0, ciphertext);
    assert_eq!(tag, [0; TAG_SIZE]);
    assert_eq!(open(&keys.data, 0, b"", &ciphertext, &[1; TAG_SIZE]), Err(Corrupt));
    assert_eq!(open(&keys.data, 0, b"", &ciphertext[..15], &tag), Err(Corrupt));
    let plain = volume_key().epoch(DataMode::Plain, Suite::Aes256Gcm, &[1; 32]);
    assert_eq!(open(&plain.data, 0, b"", &plaintext, &[1; TAG_SIZE]), Err(Corrupt));
    assert_eq!(open_from(&plain.data, 0, b"", &plaintext, &[1; TAG_SIZE]), Err(Corrupt));
}

#[test]
#[should_panic(expected = "nonces are used up")]
fn a_nonce_beyond_48_bits_is_not_sealed_with() {
    seal(&epoch(0).0.data, NONCE_LIMIT, b"", b"data");
}

#[test]
#[should_panic(expected = "0 bytes can't be sealed")]
fn nothing_is_not_sealed() {
    seal(&epoch(0).0.data, 0, b"", b"");
}

#[test]
fn keys_are_shared_by_threads() {
    fn check<T: Send + Sync>() {}
    check::<EpochKeys>();
    check::<VolumeKey>();
    check::<seal::MacKey>();
}
