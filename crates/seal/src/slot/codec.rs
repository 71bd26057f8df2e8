//! A slot as bytes. Integers are little-endian, reserved bytes are zero.
//!
//! | offset | bytes | content |
//! | --- | --- | --- |
//! | 0 | 1 | kind: 0 empty, 1 passphrase, 2 key file, 3 released to an attested guest |
//! | 1 | 7 | reserved |
//! | 8 | 4 | Argon2id memory in KiB (0 unless a passphrase) |
//! | 12 | 4 | Argon2id passes (0 unless a passphrase) |
//! | 16 | 4 | Argon2id lanes (0 unless a passphrase) |
//! | 20 | 4 | reserved |
//! | 24 | 32 | salt |
//! | 56 | 32 | commitment to the key-encryption key |
//! | 88 | 12 | nonce |
//! | 100 | 32 | wrapped volume key |
//! | 132 | 16 | tag |
//! | 148 | 64 | label, UTF-8, padded with zeros |
//! | 212 | 44 | reserved |
//!
//! An empty slot is all zero.

use super::{Argon2Params, LABEL_SIZE, SLOT_SIZE, SlotError};
use crate::TAG_SIZE;

/// The kind of credential that opens a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A passphrase, and what it costs.
    Passphrase(Argon2Params),
    /// A key file.
    KeyFile,
    /// A secret that an owner's service releases to an attested guest.
    Released,
}

/// An occupied slot. Its costs are unchecked claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub kind: Kind,
    pub salt: [u8; 32],
    pub commitment: [u8; 32],
    pub nonce: [u8; 12],
    pub wrapped: [u8; 32],
    pub tag: [u8; TAG_SIZE],
    pub label: Label,
}

const PARAMS: usize = 8;
const SALT: usize = 24;
const COMMITMENT: usize = 56;
const NONCE: usize = 88;
const WRAPPED: usize = 100;
const TAG: usize = 132;
const LABEL: usize = 148;
const END: usize = LABEL + LABEL_SIZE;

impl Slot {
    pub fn encode(&self) -> [u8; SLOT_SIZE] {
        let mut bytes = [0; SLOT_SIZE];
        match self.kind {
            Kind::Passphrase(params) => {
                bytes[0] = 1;
                put(&mut bytes, PARAMS, &params.memory_kib.to_le_bytes());
                put(&mut bytes, PARAMS + 4, &params.passes.to_le_bytes());
                put(&mut bytes, PARAMS + 8, &params.lanes.to_le_bytes());
            }
            Kind::KeyFile => bytes[0] = 2,
            Kind::Released => bytes[0] = 3,
        }
        put(&mut bytes, SALT, &self.salt);
        put(&mut bytes, COMMITMENT, &self.commitment);
        put(&mut bytes, NONCE, &self.nonce);
        put(&mut bytes, WRAPPED, &self.wrapped);
        put(&mut bytes, TAG, &self.tag);
        put(&mut bytes, LABEL, self.label.as_str().as_bytes());
        bytes
    }

    /// The slot in `bytes`, or `None` if it is empty. `index` is for the error only.
    pub fn decode(bytes: &[u8; SLOT_SIZE], index: usize) -> Result<Option<Slot>, SlotError> {
        let malformed = |what| SlotError::Malformed { slot: index, what };
        let params = Argon2Params {
            memory_kib: u32::from_le_bytes(get(bytes, PARAMS)),
            passes: u32::from_le_bytes(get(bytes, PARAMS + 4)),
            lanes: u32::from_le_bytes(get(bytes, PARAMS + 8)),
        };
        let kind = match bytes[0] {
            0 if *bytes == [0; SLOT_SIZE] => return Ok(None),
            0 => return Err(malformed("it is marked empty but holds data")),
            1 => Kind::Passphrase(params),
            2 if bytes[PARAMS..PARAMS + 12] == [0; 12] => Kind::KeyFile,
            3 if bytes[PARAMS..PARAMS + 12] == [0; 12] => Kind::Released,
            2 | 3 => return Err(malformed("only a passphrase has costs")),
            _ => return Err(malformed("its kind is unknown")),
        };
        if [&bytes[1..PARAMS], &bytes[PARAMS + 12..SALT], &bytes[END..]]
            .concat()
            .iter()
            .any(|byte| *byte != 0)
        {
            return Err(malformed("reserved bytes are not zero"));
        }
        let label = Label::decode(&get(bytes, LABEL)).ok_or(malformed("its label is not printable UTF-8"))?;
        Ok(Some(Slot {
            kind,
            salt: get(bytes, SALT),
            commitment: get(bytes, COMMITMENT),
            nonce: get(bytes, NONCE),
            wrapped: get(bytes, WRAPPED),
            tag: get(bytes, TAG),
            label,
        }))
    }

    /// What the wrapping is bound to: all of the slot but nonce, wrapped key and tag, and where it belongs.
    pub fn associated_data(&self, volume: &[u8; 16], index: usize) -> Vec<u8> {
        let bytes = self.encode();
        let index = u8::try_from(index).expect("there are 16 slots");
        [&volume[..], &[index], &bytes[..NONCE], &bytes[LABEL..]].concat()
    }
}

/// A name for a slot: at most [`LABEL_SIZE`] bytes of UTF-8 without control characters, since it is printed
/// on terminals and the host may have written it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Label(String);

impl Label {
    pub fn new(text: &str) -> Option<Label> {
        let fits = text.len() <= LABEL_SIZE && !text.chars().any(char::is_control);
        fits.then(|| Label(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn decode(bytes: &[u8; LABEL_SIZE]) -> Option<Label> {
        let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Label::new(std::str::from_utf8(&bytes[..len]).ok()?)
    }
}

fn put(bytes: &mut [u8; SLOT_SIZE], offset: usize, part: &[u8]) {
    bytes[offset..offset + part.len()].copy_from_slice(part);
}

fn get<const N: usize>(bytes: &[u8; SLOT_SIZE], offset: usize) -> [u8; N] {
    bytes[offset..offset + N].try_into().expect("the range has N bytes")
}
