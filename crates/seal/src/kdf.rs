//! HKDF-SHA-256 (RFC 5869), HMAC-SHA-256 (RFC 2104) and SHA-256, as aws-lc has them.

use aws_lc_rs::{constant_time, digest, hkdf, hmac};

use crate::{Random, Secret, Suite, heap};

/// SHA-256 of the parts, one after the other as if they were one.
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    heap::take_over();
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(part);
    }
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// `N` bytes of HKDF-SHA-256; the parts of `info` are taken as one.
pub(crate) fn hkdf_sha256<const N: usize>(salt: &[u8], secret: &[u8], info: &[&[u8]]) -> Secret<N> {
    struct Length(usize);
    impl hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    const { assert!(N <= 255 * 32, "the most that RFC 5869 allows") };
    heap::take_over();
    let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret);
    Secret::build(|key| {
        let expanded = extracted.expand(info, Length(N)).expect("N is within RFC 5869's limit");
        expanded.fill(key).expect("the buffer has N bytes");
    })
}

/// What a derived key is for. Every part is one of our own constants without a zero byte, so that no two
/// purposes have the same label.
pub(crate) fn label(kind: &str, suite: Option<Suite>, rest: &[&str]) -> Vec<u8> {
    let mut label = b"cvm-io 1".to_vec();
    let suite = suite.map_or("", Suite::name);
    for part in [kind, suite].iter().chain(rest) {
        debug_assert!(!part.contains('\0'));
        label.push(0);
        label.extend_from_slice(part.as_bytes());
    }
    label
}

/// An HMAC-SHA-256 key for one purpose.
#[derive(Debug)]
pub struct MacKey(hmac::Key);

impl MacKey {
    pub(crate) fn new(key: &Secret<32>) -> MacKey {
        heap::take_over();
        MacKey(hmac::Key::new(hmac::HMAC_SHA256, key.expose()))
    }

    /// A new one, which ends with this process.
    pub fn generate(random: &dyn Random) -> MacKey {
        MacKey::new(&Secret::generate(random))
    }

    /// The MAC of the parts, taken as one: where one ends must follow from the format.
    pub fn sign(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            context.update(part);
        }
        context.sign().as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes")
    }

    /// Whether `mac` is the MAC of the parts, in time that does not depend on either.
    #[must_use]
    pub fn verify(&self, parts: &[&[u8]], mac: &[u8; 32]) -> bool {
        constant_time::verify_slices_are_equal(&self.sign(parts), mac).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cipher::vectors::hex;

    #[test]
    fn sha256_of_fips_180_4() {
        let digest = hex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(sha256(&[b"a", b"", b"bc"]).to_vec(), digest);
    }

    #[test]
    fn hkdf_of_rfc_5869() {
        // Test case 1, and test case 3 with neither salt nor info.
        let secret = [0x0b; 22];
        let key: Secret<42> = hkdf_sha256(
            &hex("000102030405060708090a0b0c"),
            &secret,
            &[&hex("f0f1f2f3f4"), &hex("f5f6f7f8f9")],
        );
        let expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865";
        assert_eq!(key.expose().to_vec(), hex(expected));
        let key: Secret<42> = hkdf_sha256(&[], &secret, &[]);
        let expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8";
        assert_eq!(key.expose().to_vec(), hex(expected));
    }

    #[test]
    fn hmac_of_rfc_4231() {
        // Test case 1. Its key of 20 bytes is the same as one of 32 that ends in zeros (RFC 2104).
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let key = MacKey::new(&Secret::from_bytes(key));
        let mut mac = key.sign(&[b"Hi ", b"There"]);
        let expected = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
        assert_eq!(mac.to_vec(), hex(expected));
        assert!(key.verify(&[b"Hi There"], &mac));
        assert!(!key.verify(&[b"Hi Thera"], &mac));
        mac[31] ^= 1;
        assert!(!key.verify(&[b"Hi There"], &mac));
    }

    #[test]
    fn labels_do_not_run_into_each_other() {
        assert_ne!(label("a", None, &["b"]), label("a", None, &["", "b"]));
        assert_ne!(label("ab", None, &[]), label("a", None, &["b"]));
        assert_eq!(label("mac", Some(Suite::Aes256Gcm), &["x"]), b"cvm-io 1\0mac\0aes-256-gcm\0x");
    }
}
