//! A secret for the holder of one key pair, as JSON Web Encryption has it: `ECDH-ES+A256KW` on P-256, and `A256GCM` (RFC 7518, sections 4.6 and
//! 5.3). The text around it, base64 and JSON, is the caller's.
//!
//! The sender agrees on a key-encryption key with the recipient's public key, by a key pair that is made for one message. That key wraps a fresh
//! content key (RFC 3394), and the content key seals the secret.

use aws_lc_rs::agreement::{ECDH_P256, PrivateKey, UnparsedPublicKey, agree};
use aws_lc_rs::digest;
use aws_lc_rs::key_wrap::{AES_256, AesKek, KeyWrap};

use crate::cipher::gcm::Gcm;
use crate::{Corrupt, Random, Secret, SecretBytes, TAG_SIZE, heap};

pub use crate::tpm::{NoPoint, Point};

/// The name of the key agreement in a header.
pub const ALGORITHM: &str = "ECDH-ES+A256KW";
/// The name of the cipher in a header.
pub const ENCRYPTION: &str = "A256GCM";
/// Bytes of a wrapped content key.
pub const WRAPPED_SIZE: usize = 40;
/// Bytes of an initialisation vector.
pub const IV_SIZE: usize = 12;

/// Bytes of a coordinate.
const SIZE: usize = 32;

/// A sealed secret, without the header that it is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The content key, wrapped.
    pub wrapped_key: [u8; WRAPPED_SIZE],
    /// The initialisation vector.
    pub iv: [u8; IV_SIZE],
    /// The secret, encrypted: as many bytes as it has.
    pub ciphertext: Vec<u8>,
    /// The tag.
    pub tag: [u8; TAG_SIZE],
}

/// A key pair on P-256 that lives in this process only.
pub struct KeyPair {
    private: PrivateKey,
    public: Point,
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyPair").finish_non_exhaustive()
    }
}

impl KeyPair {
    /// Makes a new one, with the cipher library's randomness.
    ///
    /// # Panics
    /// If the library has no randomness: then nothing here could go on.
    #[must_use]
    pub fn generate() -> KeyPair {
        heap::take_over();
        let private = PrivateKey::generate(&ECDH_P256).expect("the library makes a key");
        let public = private.compute_public_key().expect("a private key has a public one");
        let public = point_of(public.as_ref()).expect("a point of P-256 has two coordinates of 32 bytes");
        KeyPair { private, public }
    }

    /// The public key: x and y, big-endian.
    #[must_use]
    pub fn public(&self) -> Point {
        self.public
    }

    /// The key that this pair and the holder of `peer` share.
    fn agree(&self, peer: &Point) -> Result<Secret<32>, NoPoint> {
        let uncompressed = [&[4][..], &peer[0], &peer[1]].concat();
        let peer = UnparsedPublicKey::new(&ECDH_P256, &uncompressed);
        agree(&self.private, peer, NoPoint, |shared| {
            Ok(concat_kdf(shared, ALGORITHM.as_bytes(), b"", b"", 256))
        })
    }

    /// Opens what was sealed for this pair. `sender` is the point of the header, `ad` the header as its text came.
    ///
    /// # Errors
    /// [`Corrupt`] if it was sealed for another pair, or anything of it was changed.
    pub fn open(&self, sender: &Point, ad: &[u8], sealed: &Sealed) -> Result<SecretBytes, Corrupt> {
        let shared = self.agree(sender).map_err(|NoPoint| Corrupt)?;
        let kek = AesKek::new(&AES_256, shared.expose()).map_err(|_| Corrupt)?;
        let mut unwrapped = Ok(());
        let key = Secret::<32>::build(|key| {
            unwrapped = kek.unwrap(&sealed.wrapped_key, key).map(drop);
        });
        unwrapped.map_err(|_| Corrupt)?;
        let mut opened = Ok(());
        let secret = SecretBytes::build(sealed.ciphertext.len(), |out| {
            opened = Gcm::new(&key).open(sealed.iv, ad, &sealed.ciphertext, &sealed.tag, out);
        });
        opened.map(|()| secret)
    }
}

/// The sender of one message.
#[derive(Debug)]
pub struct Sender {
    ephemeral: KeyPair,
    shared: Secret<32>,
}

impl Sender {
    /// Agrees on a key with the holder of `recipient`.
    ///
    /// # Errors
    /// [`NoPoint`] if it is not on the curve.
    pub fn new(recipient: &Point) -> Result<Sender, NoPoint> {
        let ephemeral = KeyPair::generate();
        let shared = ephemeral.agree(recipient)?;
        Ok(Sender { ephemeral, shared })
    }

    /// The point for the header.
    #[must_use]
    pub fn point(&self) -> Point {
        self.ephemeral.public()
    }

    /// Seals the secret, bound to `ad`: the header's text.
    ///
    /// # Panics
    /// Never: the sizes are right.
    #[must_use]
    pub fn seal(self, ad: &[u8], secret: &[u8], random: &dyn Random) -> Sealed {
        let key = Secret::<32>::generate(random);
        let mut sealed = Sealed {
            wrapped_key: [0; WRAPPED_SIZE],
            iv: [0; IV_SIZE],
            ciphertext: vec![0; secret.len()],
            tag: [0; TAG_SIZE],
        };
        let kek = AesKek::new(&AES_256, self.shared.expose()).expect("AES-256 takes 32 bytes");
        kek.wrap(key.expose(), &mut sealed.wrapped_key).expect("32 bytes become 40");
        random.fill(&mut sealed.iv);
        sealed.tag = Gcm::new(&key).seal(sealed.iv, ad, secret, &mut sealed.ciphertext);
        sealed
    }
}

fn point_of(uncompressed: &[u8]) -> Option<Point> {
    let rest = uncompressed.strip_prefix(&[4])?;
    Some([rest.get(..SIZE)?.try_into().ok()?, rest.get(SIZE..)?.try_into().ok()?])
}

/// The concatenation key derivation function of SP 800-56A with SHA-256, as RFC 7518, section 4.6.2, uses it: at most one block.
fn concat_kdf(shared: &[u8], algorithm: &[u8], from: &[u8], to: &[u8], bits: u32) -> Secret<32> {
    let length = |part: &[u8]| u32::try_from(part.len()).expect("names are short").to_be_bytes();
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(&1_u32.to_be_bytes());
    context.update(shared);
    for part in [algorithm, from, to] {
        context.update(&length(part));
        context.update(part);
    }
    context.update(&bits.to_be_bytes());
    let block = context.finish();
    Secret::build(|bytes| bytes.copy_from_slice(block.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemRandom;
    use crate::cipher::vectors::hex;

    /// RFC 7518, appendix C: the shared secret, and the first 16 bytes that are derived from it.
    #[test]
    fn the_key_of_rfc_7518() {
        let shared = [
            158, 86, 217, 29, 129, 113, 53, 211, 114, 131, 66, 131, 191, 132, 38, 156, 251, 49, 110, 163,
            218, 128, 106, 72, 246, 218, 167, 121, 140, 254, 144, 196,
        ];
        let key = concat_kdf(&shared, b"A128GCM", b"Alice", b"Bob", 128);
        assert_eq!(key.expose()[..16], hex("56aa8deaf8236d205c2228cd71a7101a"));
    }

    #[test]
    fn a_secret_opens_for_its_recipient_under_its_header_and_for_nobody_else() {
        let (ours, other) = (KeyPair::generate(), KeyPair::generate());
        let seal = || {
            let sender = Sender::new(&ours.public()).unwrap();
            (sender.point(), sender.seal(b"header", b"the volume's key", &SystemRandom))
        };
        let (point, sealed) = seal();
        assert_eq!(ours.open(&point, b"header", &sealed).unwrap().expose(), b"the volume's key");
        assert!(ours.open(&point, b"heades", &sealed).is_err());
        assert!(other.open(&point, b"header", &sealed).is_err());
        assert!(ours.open(&other.public(), b"header", &sealed).is_err());
        assert!(ours.open(&[[0; 32]; 2], b"header", &sealed).is_err(), "no point of the curve");
        let changes: [fn(&mut Sealed); 5] = [
            |sealed| sealed.wrapped_key[39] ^= 1,
            |sealed| sealed.iv[0] ^= 1,
            |sealed| sealed.ciphertext[0] ^= 1,
            |sealed| sealed.tag[15] ^= 1,
            |sealed| sealed.ciphertext.truncate(3),
        ];
        for change in changes {
            let mut changed = sealed.clone();
            change(&mut changed);
            assert!(ours.open(&point, b"header", &changed).is_err());
        }
        let (again, sealed_again) = seal();
        assert_ne!((again, sealed_again), (point, sealed), "each message has keys of its own");
        assert!(Sender::new(&[[1; 32]; 2]).is_err());
    }
}
