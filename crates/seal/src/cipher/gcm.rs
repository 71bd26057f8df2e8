//! AES-256-GCM and AES-256-GMAC (NIST SP 800-38D) by aws-lc.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::stage::with_stage;
use crate::{Corrupt, Secret, TAG_SIZE, heap};

/// Bytes of a nonce.
pub(crate) const NONCE_SIZE: usize = 12;

/// A prepared key. Its key schedule lies in aws-lc's heap, which is ours.
#[derive(Debug)]
pub(crate) struct Gcm(LessSafeKey);

impl Gcm {
    pub(crate) fn new(key: &Secret<32>) -> Gcm {
        heap::take_over();
        let key = UnboundKey::new(&AES_256_GCM, key.expose()).expect("AES-256 takes 32 bytes");
        Gcm(LessSafeKey::new(key))
    }

    pub(crate) fn seal(
        &self,
        nonce: [u8; NONCE_SIZE],
        ad: &[u8],
        plaintext: &[u8],
        out: &mut [u8],
    ) -> [u8; TAG_SIZE] {
        let mut tag = [0; TAG_SIZE];
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0
            .seal_out_of_place_scatter(nonce, Aad::from(ad), plaintext, out, &[], &mut tag)
            .expect("lengths match and are below 64 GiB");
        tag
    }

    pub(crate) fn open(
        &self,
        nonce: [u8; NONCE_SIZE],
        ad: &[u8],
        ciphertext: &[u8],
        tag: &[u8; TAG_SIZE],
        out: &mut [u8],
    ) -> Result<(), Corrupt> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0.open_separate_gather(nonce, Aad::from(ad), ciphertext, tag, out).map_err(|_| Corrupt)
    }

    /// The tag of `ad` and `data`, neither encrypted. What is authenticated begins with the length of
    /// `ad` (8 bytes, little-endian), so that no byte can pass from the one to the other.
    pub(crate) fn authenticate(&self, nonce: [u8; NONCE_SIZE], ad: &[u8], data: &[u8]) -> [u8; TAG_SIZE] {
        with_joined(ad, data, |all| self.seal(nonce, all, &[], &mut []))
    }

    /// Whether `tag` is the tag of `ad` and `data`.
    pub(crate) fn verify(
        &self,
        nonce: [u8; NONCE_SIZE],
        ad: &[u8],
        data: &[u8],
        tag: &[u8; TAG_SIZE],
    ) -> Result<(), Corrupt> {
        with_joined(ad, data, |all| self.open(nonce, all, &[], tag, &mut []))
    }
}

/// GCM takes associated data in one piece only.
fn with_joined<T>(ad: &[u8], data: &[u8], use_it: impl FnOnce(&[u8]) -> T) -> T {
    with_stage(8 + ad.len() + data.len(), |all| {
        all[..8].copy_from_slice(&(ad.len() as u64).to_le_bytes());
        all[8..8 + ad.len()].copy_from_slice(ad);
        all[8 + ad.len()..].copy_from_slice(data);
        use_it(all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cipher::vectors::{array, hex};

    const KEY: &str = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
    const NONCE: &str = "cafebabefacedbaddecaf888";
    const PLAINTEXT: &str = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c9595\
                             6809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255";
    const CIPHERTEXT: &str = "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e4859\
                              0dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad";
    const AD: &str = "feedfacedeadbeeffeedfacedeadbeefabaddad2";

    fn check(key: &Gcm, nonce: &str, ad: &str, plaintext: &str, ciphertext: &str, tag: &str) {
        let (nonce, ad, plaintext) = (array(nonce), hex(ad), hex(plaintext));
        let mut out = vec![0; plaintext.len()];
        let found = key.seal(nonce, &ad, &plaintext, &mut out);
        assert_eq!(out, hex(ciphertext));
        assert_eq!(found, array(tag));
        let mut back = vec![0; out.len()];
        key.open(nonce, &ad, &out, &found, &mut back).unwrap();
        assert_eq!(back, plaintext);
    }

    /// McGrew and Viega, "The Galois/Counter Mode of Operation", test cases 13 to 16.
    #[test]
    fn gcm_specification() {
        let zero = Gcm::new(&Secret::from_bytes([0; 32]));
        let zero_nonce = "00".repeat(12);
        check(&zero, &zero_nonce, "", "", "", "530f8afbc74536b9a963b4f1c4cb738b");
        let zeros = "00".repeat(16);
        let ciphertext = "cea7403d4d606b6e074ec5d3baf39d18";
        check(&zero, &zero_nonce, "", &zeros, ciphertext, "d0d1c8a799996bf0265b98b5d48ab919");
        let key = Gcm::new(&Secret::from_bytes(array(KEY)));
        check(&key, NONCE, "", PLAINTEXT, CIPHERTEXT, "b094dac5d93471bdec1a502270e3cc6c");
        let tag = "76fc6ece0f4e1768cddf8853bb2d551b";
        check(&key, NONCE, AD, &PLAINTEXT[..120], &CIPHERTEXT[..120], tag);
    }

    #[test]
    fn gmac_is_gcm_over_associated_data_only() {
        let key = Gcm::new(&Secret::from_bytes(array(KEY)));
        let tag = key.authenticate(array(NONCE), b"ad", b"data");
        let joined = b"\x02\0\0\0\0\0\0\0addata";
        assert_eq!(tag, key.seal(array(NONCE), joined, &[], &mut []));
        assert_eq!(key.verify(array(NONCE), b"ad", b"data", &tag), Ok(()));
        assert_eq!(key.verify(array(NONCE), b"add", b"ata", &tag), Err(Corrupt));
    }
}
