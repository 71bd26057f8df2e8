//! The keys of a volume's latest epoch, derived in words of their own from `docs/disk-format.md`: `seal` does not give them away.

use seal::sha256;
use volume::format::header::Header;
use volume::format::record::{RECORD_HEADER, RecordHeader};

/// Data (if there is one), node and journal key of the epoch that the latest journal record was sealed in.
pub fn epoch_keys(disk: &[u8], volume_key: &[u8; 32]) -> Vec<(&'static str, Vec<u8>)> {
    let Header { suite, confidentiality, integrity, .. } = Header::decode(&disk[..4096]).unwrap();
    let records =
        disk.chunks_exact(4096).filter_map(|block| RecordHeader::decode(&block[..RECORD_HEADER]).ok());
    let salt = records.max_by_key(|record| record.generation).expect("the session has committed").salt;
    let aead = if suite.name() == "aegis-128x2" { 16 } else { 32 };
    let key = |length: usize, use_of: &str| {
        let label = format!("cvm-io 1\0epoch\0{suite}\0{use_of}");
        hkdf(&salt, volume_key, label.as_bytes(), length)
    };
    let data = match (confidentiality, integrity) {
        (true, true) => Some(key(aead, "data\0aead")),
        (true, false) => Some(key(64, "data\0xts")),
        (false, true) => Some(key(32, "data\0gmac")),
        (false, false) => None,
    };
    let named = data.map(|data| ("data", data)).into_iter();
    named.chain([("node", key(aead, "node")), ("journal", key(aead, "journal"))]).collect()
}

/// RFC 5869, with SHA-256.
fn hkdf(salt: &[u8], secret: &[u8], info: &[u8], length: usize) -> Vec<u8> {
    let extracted = hmac(salt, &[secret]);
    let mut out: Vec<u8> = Vec::new();
    let mut last = Vec::new();
    for count in 1..=u8::MAX {
        if out.len() >= length {
            break;
        }
        last = hmac(&extracted, &[&last, info, &[count]]).to_vec();
        out.extend(&last);
    }
    out.truncate(length);
    out
}

/// RFC 2104, with SHA-256 and a key of at most 64 bytes.
fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let padded = |pad: u8| {
        let mut block = [pad; 64];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = padded(0x36);
    let message: Vec<&[u8]> = std::iter::once(&inner[..]).chain(parts.iter().copied()).collect();
    sha256(&[&padded(0x5c), &sha256(&message)])
}
