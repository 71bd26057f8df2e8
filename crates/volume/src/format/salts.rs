//! Salt-table node: 32 bytes of its own salt in the clear, then sealed bytes of which the first half is used.
//! Its tag is in the parent's entry; entries of an inner node are read with
//! [`entry_at`](super::entry::entry_at).

use super::{BLOCK_SIZE, Malformed, Page};

/// Bytes of a salt.
pub const SALT_SIZE: usize = 32;
/// Bytes of a salt-table node's sealed part.
pub const SALT_NODE_PAYLOAD: usize = BLOCK_SIZE - SALT_SIZE;
/// Bytes of the payload that may be other than zero.
const USED: usize = 2048;

/// Takes a node's block apart: its own salt, and the sealed payload.
///
/// # Errors
/// When `page` is not one block.
pub fn split(page: &[u8]) -> Result<(&[u8; SALT_SIZE], &[u8; SALT_NODE_PAYLOAD]), Malformed> {
    let parts = page.split_first_chunk().and_then(|(salt, sealed)| Some((salt, sealed.try_into().ok()?)));
    parts.ok_or_else(|| malformed("length", format!("{} bytes instead of {BLOCK_SIZE}", page.len())))
}

/// Puts a node's block together.
pub fn assemble(salt: &[u8; SALT_SIZE], sealed: &[u8; SALT_NODE_PAYLOAD]) -> Page {
    let mut page = [0; BLOCK_SIZE];
    page[..SALT_SIZE].copy_from_slice(salt);
    page[SALT_SIZE..].copy_from_slice(sealed);
    page
}

/// Checks an opened payload: the bytes that no salt or entry uses are zero.
///
/// # Errors
/// When they are not, or the length is wrong.
pub fn check(payload: &[u8]) -> Result<(), Malformed> {
    if payload.len() != SALT_NODE_PAYLOAD {
        return Err(malformed("length", format!("{} bytes instead of {SALT_NODE_PAYLOAD}", payload.len())));
    }
    if payload[USED..].iter().any(|&byte| byte != 0) {
        return Err(malformed("reserved", "the bytes behind the last salt or entry must be zero".into()));
    }
    Ok(())
}

/// Salt `index` (0 to 63) of an opened leaf; all zeros when that epoch never was.
///
/// # Errors
/// When a leaf has no such salt.
pub fn salt_at(payload: &[u8], index: usize) -> Result<[u8; SALT_SIZE], Malformed> {
    let start = index.saturating_mul(SALT_SIZE);
    let salt = payload.get(..USED).and_then(|used| used.get(start..)).and_then(|rest| rest.first_chunk());
    salt.copied().ok_or_else(|| malformed("index", format!("a leaf has no salt {index}")))
}

/// Writes salt `index` of a leaf.
///
/// # Panics
/// When a leaf has no such salt.
pub fn put_salt(payload: &mut [u8], index: usize, salt: &[u8; SALT_SIZE]) {
    payload[..USED][index * SALT_SIZE..][..SALT_SIZE].copy_from_slice(salt);
}

fn malformed(field: &'static str, message: String) -> Malformed {
    Malformed { what: "salt-table node", field, message }
}
