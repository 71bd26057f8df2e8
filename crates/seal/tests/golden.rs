//! The formats as they were: whatever is on some disk must open for ever. If this test fails, a derivation
//! or a layout has changed, and every volume out there is lost.

use std::fmt::Write;

use seal::slot::{Argon2Params, Credential, KeySlots, SlotLimits};
use seal::{BlockKey, DataMode, Random, SecretBytes, Suite, VolumeKey};

const GOLDEN: &str = include_str!("vectors/golden.hex");
const VOLUME: [u8; 16] = *b"golden volume id";
const SALT: [u8; 32] = [0x5A; 32];

/// 0x01, 0x02, ... again in each call.
struct Counting;

impl Random for Counting {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.iter_mut().zip(1..).for_each(|(byte, count)| *byte = count);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes all");
        text
    })
}

fn golden(name: &str) -> Vec<u8> {
    let line = GOLDEN.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let digits = line.unwrap_or_else(|| panic!("no vector `{name}`")).as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn volume_key() -> VolumeKey {
    let mut bytes = [0; 32];
    bytes.iter_mut().zip(0xC0..).for_each(|(byte, count)| *byte = count);
    VolumeKey::from_bytes(bytes)
}

/// Ciphertext and tag of a fixed block.
fn sealed(key: &BlockKey) -> String {
    let mut out = [0; 40];
    let tag =
        key.seal(0x0605_0403_0201, b"associated data", b"forty bytes of a block that never change", &mut out);
    hex(&[&out[..], &tag].concat())
}

fn slots() -> KeySlots {
    let mut slots = KeySlots::new();
    let params = Argon2Params { memory_kib: 32, passes: 2, lanes: 2 };
    let passphrase = Credential::Passphrase(SecretBytes::from_slice(b"correct horse"));
    let key_file = Credential::KeyFile(SecretBytes::from_slice(&[0x11; 48]));
    slots.add(&VOLUME, &volume_key(), passphrase, "passphrase", params, &Counting).unwrap();
    slots.add(&VOLUME, &volume_key(), key_file, "key file", params, &Counting).unwrap();
    slots
}

/// All vectors as this version makes them.
fn found() -> String {
    let key = volume_key();
    let mut text = String::new();
    let mut add = |name: &str, value: String| writeln!(text, "{name}: {value}").expect("a String takes all");
    for suite in Suite::ALL {
        for (mode, name) in [
            (DataMode::Aead, "aead"),
            (DataMode::Xts, "xts"),
            (DataMode::Gmac, "gmac"),
            (DataMode::Plain, "plain"),
        ] {
            if DataMode::new(suite, mode.confidentiality(), mode.integrity()).is_ok() {
                add(&format!("{suite} {name} data"), sealed(&key.epoch(mode, suite, &SALT).data));
            }
        }
        let epoch = key.epoch(DataMode::Plain, suite, &SALT);
        add(&format!("{suite} node"), sealed(&epoch.node));
        add(&format!("{suite} journal"), sealed(&epoch.journal));
        add(&format!("{suite} one-time"), sealed(&key.one_time(suite, "superblock", &SALT)));
    }
    add("mac", hex(&key.mac("header").sign(&[b"header bytes"])));
    add("slots", hex(&slots().encode()[..512]));
    text
}

#[test]
fn formats_are_as_they_were() {
    let found = found();
    assert!(found == GOLDEN, "the format changed; this version makes:\n{found}");
}

#[test]
fn the_slots_of_old_open() {
    let mut bytes = [0; 4096];
    bytes[..512].copy_from_slice(&golden("slots"));
    let slots = KeySlots::decode(&bytes).unwrap();
    let passphrase = Credential::Passphrase(SecretBytes::from_slice(b"correct horse"));
    let key_file = Credential::KeyFile(SecretBytes::from_slice(&[0x11; 48]));
    for credential in [passphrase, key_file] {
        assert_eq!(slots.unlock(&VOLUME, &credential, &SlotLimits::default()), Ok(volume_key()));
    }
}
