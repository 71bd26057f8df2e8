//! The keys of a salted session with a TPM 2.0 (TPM 2.0 Library, Part 1: sections 11.4.10 "Key Derivation Function", 19.6 "Session-Based
//! Authorizations" and 21 "Session-based encryption"; Part 1 Annex C for the elliptic curve).
//!
//! The session's secret is agreed with a key that only the TPM has, so who carries the messages learns nothing of it. Fixed choices:
//! P-256, SHA-256, AES-128-CFB.

use aws_lc_rs::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use aws_lc_rs::cipher::{AES_128, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext};
use aws_lc_rs::{cipher, constant_time, digest, hmac, rand};

use crate::{Secret, SecretBytes, heap};

/// Bytes of a coordinate of P-256, of a nonce, of a digest.
const SIZE: usize = 32;

/// A point of P-256: x and y, big-endian.
pub type Point = [[u8; SIZE]; 2];

/// The bytes are no point of P-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoPoint;

/// A secret that this side and the holder of a private key share, before it has become a session's key.
#[derive(Debug)]
pub struct Salt(Secret<SIZE>);

/// Agrees on a salt with the holder of `key`, by a key pair that is made for this and then gone. The point goes to the TPM as the
/// encrypted salt.
///
/// # Errors
/// [`NoPoint`] if `key` is not on the curve.
pub fn salt_for(key: &Point) -> Result<(Salt, Point), NoPoint> {
    heap::take_over();
    let random = rand::SystemRandom::new();
    let own = EphemeralPrivateKey::generate(&ECDH_P256, &random).map_err(|_| NoPoint)?;
    let public = own.compute_public_key().map_err(|_| NoPoint)?;
    let point = point_of(public.as_ref()).ok_or(NoPoint)?;
    let uncompressed = [&[4][..], &key[0], &key[1]].concat();
    let peer = UnparsedPublicKey::new(&ECDH_P256, &uncompressed);
    let salt = agree_ephemeral(own, peer, NoPoint, |shared| Ok(kdfe(shared, &point[0], &key[0])))?;
    Ok((Salt(salt), point))
}

fn point_of(uncompressed: &[u8]) -> Option<Point> {
    let rest = uncompressed.strip_prefix(&[4])?;
    Some([rest.get(..SIZE)?.try_into().ok()?, rest.get(SIZE..)?.try_into().ok()?])
}

/// KDFe with SHA-256 and the label `SECRET`: one block of SP 800-56A's concatenation function.
fn kdfe(shared: &[u8], ours: &[u8], theirs: &[u8]) -> Secret<SIZE> {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in [&1_u32.to_be_bytes()[..], shared, b"SECRET\0", ours, theirs] {
        context.update(part);
    }
    let block = context.finish();
    Secret::build(|bytes| bytes.copy_from_slice(block.as_ref()))
}

/// KDFa with HMAC-SHA-256 for 256 bits: one block of SP 800-108 in counter mode.
fn kdfa(key: &[u8], label: &[u8], newer: &[u8], older: &[u8]) -> Secret<SIZE> {
    let parts = [&1_u32.to_be_bytes()[..], label, &[0], newer, older, &256_u32.to_be_bytes()];
    let block = sign(key, &parts);
    Secret::build(|bytes| bytes.copy_from_slice(block.as_ref()))
}

fn sign(key: &[u8], parts: &[&[u8]]) -> hmac::Tag {
    heap::take_over();
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    for part in parts {
        context.update(part);
    }
    context.sign()
}

impl Salt {
    /// The session's key, from the nonces with which it was started. No authorisation value is in it: the session is not bound.
    #[must_use]
    pub fn into_session(self, nonce_tpm: &[u8], nonce_caller: &[u8]) -> SessionKey {
        SessionKey(kdfa(self.0.expose(), b"ATH", nonce_tpm, nonce_caller))
    }
}

/// The key of a session: it authorises commands, proves answers and encrypts a parameter of each.
#[derive(Debug)]
pub struct SessionKey(Secret<SIZE>);

/// The nonces of a message: the one that its sender has just made, and the other's last.
#[derive(Debug, Clone, Copy)]
pub struct Nonces<'a> {
    /// The sender's.
    pub newer: &'a [u8],
    /// The receiver's.
    pub older: &'a [u8],
}

impl SessionKey {
    /// The session's key followed by the authorisation value of what the command uses, in locked memory.
    fn with(&self, auth: &[u8]) -> SecretBytes {
        let mut both = zeroize::Zeroizing::new(Vec::with_capacity(SIZE + auth.len()));
        both.extend_from_slice(self.0.expose());
        both.extend_from_slice(auth);
        SecretBytes::from_slice(&both)
    }

    /// The HMAC of the parts, taken as one.
    #[must_use]
    pub fn sign(&self, auth: &[u8], parts: &[&[u8]]) -> [u8; SIZE] {
        sign(self.with(auth).expose(), parts).as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes")
    }

    /// Whether `mac` is the HMAC of the parts, in time that does not depend on its value.
    #[must_use]
    pub fn verify(&self, auth: &[u8], parts: &[&[u8]], mac: &[u8]) -> bool {
        constant_time::verify_slices_are_equal(&self.sign(auth, parts), mac).is_ok()
    }

    /// Encrypts a parameter in place.
    pub fn encrypt(&self, auth: &[u8], nonces: Nonces<'_>, data: &mut [u8]) {
        let (key, iv) = self.cipher(auth, nonces);
        let key = EncryptingKey::cfb128(key).expect("AES has this mode");
        key.less_safe_encrypt(data, EncryptionContext::Iv128(iv.into())).expect("CFB takes any length");
    }

    /// Decrypts a parameter in place.
    pub fn decrypt(&self, auth: &[u8], nonces: Nonces<'_>, data: &mut [u8]) {
        let (key, iv) = self.cipher(auth, nonces);
        let key = DecryptingKey::cfb128(key).expect("AES has this mode");
        key.decrypt(data, DecryptionContext::Iv128(iv.into())).expect("CFB takes any length");
    }

    /// Key and initialization vector for one message; the nonces make them new each time.
    fn cipher(&self, auth: &[u8], nonces: Nonces<'_>) -> (cipher::UnboundCipherKey, [u8; 16]) {
        let both = kdfa(self.with(auth).expose(), b"CFB", nonces.newer, nonces.older);
        let (key, iv) = both.expose().split_at(16);
        let key = cipher::UnboundCipherKey::new(&AES_128, key).expect("16 bytes are a key");
        (key, iv.try_into().expect("the other half"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cipher::vectors::hex;

    fn session() -> SessionKey {
        Salt(Secret::from_bytes([0x11; 32])).into_session(&[0x22; 32], &[0x33; 32])
    }

    /// These values were computed by a program of some lines over Python's hmac, hashlib and cryptography.
    #[test]
    fn derivations_agree_with_another_program() {
        let key = session();
        let expected = "89ce7c70f7dd5795dc8e5df545a5db329da890e5d723bdf66a363669ddf8c696";
        assert_eq!(key.0.expose().to_vec(), hex(expected));
        let expected = "65ee4f844924c07e309c42a52651137f91db771090eead45111d1f9937d8e8ce";
        assert_eq!(kdfe(&[0x44; 32], &[0x55; 32], &[0x66; 32]).expose().to_vec(), hex(expected));
        let expected = "3ba30cc8fcfac5b4bded0fcf069e2d5229159fa32a7afff536915cdd4b83cce1";
        assert_eq!(key.sign(b"pin", &[b"a", b"b"]).to_vec(), hex(expected));
        assert!(key.verify(b"pin", &[b"ab"], &hex(expected)));
        assert!(!key.verify(b"pin", &[b"ab"], &hex(expected)[..31]));
        assert!(!key.verify(b"pim", &[b"ab"], &hex(expected)));
    }

    #[test]
    fn a_parameter_of_any_length_is_encrypted_as_another_program_does() {
        let key = session();
        let nonces = Nonces { newer: &[0x77; 32], older: &[0x88; 32] };
        let mut data: Vec<u8> = (0..37).collect();
        key.encrypt(b"pin", nonces, &mut data);
        let expected = "7808da404a49b02bf720d28de1c257af866d2d4a5c85de2e87b2f76ffc2d013177595ee9bb";
        assert_eq!(data, hex(expected));
        key.decrypt(b"pin", nonces, &mut data);
        assert_eq!(data, (0..37).collect::<Vec<u8>>());
    }

    #[test]
    fn both_sides_agree_on_a_salt_and_no_other_key_does() {
        let random = rand::SystemRandom::new();
        let theirs = EphemeralPrivateKey::generate(&ECDH_P256, &random).unwrap();
        let public = point_of(theirs.compute_public_key().unwrap().as_ref()).unwrap();
        let (salt, point) = salt_for(&public).unwrap();
        let ours = [&[4][..], &point[0], &point[1]].concat();
        let peer = UnparsedPublicKey::new(&ECDH_P256, &ours);
        let same = agree_ephemeral(theirs, peer, (), |shared| Ok(kdfe(shared, &point[0], &public[0])));
        assert_eq!(same.unwrap(), salt.0);
        assert_ne!(salt_for(&public).unwrap().0.0, salt.0, "each salt is new");
    }

    #[test]
    fn what_is_no_point_is_refused() {
        assert_eq!(salt_for(&[[0; 32], [0; 32]]).err(), Some(NoPoint));
        assert_eq!(salt_for(&[[0xff; 32], [1; 32]]).err(), Some(NoPoint));
    }
}
