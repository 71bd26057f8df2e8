//! What makes a stream's chunks one stream: keys, numbers, and the links between legs.

use memory::BLOCK_SIZE;
use seal::slot::KeySlots;
use seal::{BlockKey, Corrupt, TAG_SIZE, VolumeKey};

use crate::format::header;
use crate::format::stream::{Frame, SALT_SIZE, START, StreamHeader};

/// Where a stream stands: what the next frame is bound to.
pub(super) struct Chain {
    key: VolumeKey,
    leg: Option<BlockKey>,
    /// Binds header, key slots and all legs up to this one; at first the digest of the first two blocks.
    link: [u8; 32],
    /// The same without a leg that has no chunk yet: until it has one, another may begin in its place.
    settled: [u8; 32],
    /// Tag of the last chunk; zeros before the first.
    tag: [u8; TAG_SIZE],
    /// Number of the next chunk.
    pub(super) number: u64,
    /// The block that the next chunk begins with.
    pub(super) at: u64,
}

impl Chain {
    pub(super) fn new(key: VolumeKey, start: &[u8; START]) -> Self {
        let link = seal::sha256(&[b"cvmio stream", start]);
        Self { key, leg: None, link, settled: link, tag: [0; TAG_SIZE], number: 0, at: 0 }
    }

    /// Begins a leg, in place of the one before if that has no chunk.
    pub(super) fn begin(&mut self, salt: &[u8; SALT_SIZE]) {
        let number = self.number.to_le_bytes();
        self.link = seal::sha256(&[b"cvmio stream leg", &self.settled, &self.tag, &number, salt]);
        self.leg = Some(self.key.stream(salt));
    }

    /// Seals the next chunk; its tag. A leg must have begun.
    pub(super) fn seal(&self, frame: Frame, payload: &[u8], out: &mut [u8]) -> [u8; TAG_SIZE] {
        let (nonce, ad) = self.bound(frame);
        let leg = self.leg.as_ref().expect("who writes begins a leg first");
        leg.seal(nonce, &ad, payload, out)
    }

    /// Opens the next chunk.
    pub(super) fn open(
        &self,
        frame: Frame,
        sealed: &[u8],
        tag: &[u8; TAG_SIZE],
        out: &mut [u8],
    ) -> Result<(), Corrupt> {
        let (nonce, ad) = self.bound(frame);
        self.leg.as_ref().ok_or(Corrupt)?.open(nonce, &ad, sealed, tag, out)
    }

    /// The next chunk was written, or has opened and is as it must be: it goes to block `end`.
    pub(super) fn advance(&mut self, tag: [u8; TAG_SIZE], end: u64) {
        self.number += 1;
        self.at = end;
        self.tag = tag;
        self.settled = self.link;
    }

    fn bound(&self, frame: Frame) -> (u64, Vec<u8>) {
        let last = matches!(frame, Frame::Chunk { last: true, .. });
        (2 * self.number + u64::from(last), [&self.link[..], &frame.encode()].concat())
    }
}

/// Header and key slots, signed.
pub(super) fn sign(header: &StreamHeader, slots: &KeySlots, key: &VolumeKey) -> Box<[u8; START]> {
    let mut start = Box::new([0; START]);
    let (page, area) = start.split_at_mut(BLOCK_SIZE);
    page.copy_from_slice(&header.encode_unsigned());
    area.copy_from_slice(&slots.encode());
    let (signed, area) = signed_parts(&start);
    let mac = key.mac("stream").sign(&[signed, area]);
    start[header::SIGNED..BLOCK_SIZE].copy_from_slice(&mac);
    start
}

/// Whether the MAC of header and key slots holds.
pub(super) fn holds(start: &[u8; START], key: &VolumeKey) -> bool {
    let (signed, area) = signed_parts(start);
    let mac = start[header::SIGNED..BLOCK_SIZE].first_chunk();
    mac.is_some_and(|mac| key.mac("stream").verify(&[signed, area], mac))
}

fn signed_parts(start: &[u8; START]) -> (&[u8], &[u8]) {
    (&start[..header::SIGNED], &start[BLOCK_SIZE..])
}
