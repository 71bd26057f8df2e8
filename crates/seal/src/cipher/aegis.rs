//! AEGIS-128X2 and AEGIS-256X2 (draft-irtf-cfrg-aegis-aead) by libaegis, 128-bit tags.

use std::mem::MaybeUninit;

use aegis::aegis128x2::{Aegis128X2, Aegis128X2Mac};
use aegis::aegis256x2::Aegis256X2;

use zeroize::Zeroize;

use crate::{Corrupt, Secret, TAG_SIZE};

/// The crate's pure-Rust back end writes plaintext to the destination before it encrypts there. This
/// function exists in the C back end only, so that a build with the other one (some dependency may turn
/// the feature `pure-rust` on) fails right here.
const _C_BACK_END_ONLY: fn(&mut Aegis128X2Mac<TAG_SIZE>) -> [u8; TAG_SIZE] =
    Aegis128X2Mac::finalize_and_reset;

macro_rules! aegis {
    ($name:ident, $cipher:ident, $size:literal) => {
        /// A key; AEGIS has no key schedule to prepare.
        #[derive(Debug)]
        pub(crate) struct $name(Secret<$size>);

        impl $name {
            pub(crate) fn new(key: Secret<$size>) -> $name {
                $name(key)
            }

            pub(crate) fn seal(
                &self,
                nonce: [u8; $size],
                ad: &[u8],
                plaintext: &[u8],
                out: &mut [u8],
            ) -> [u8; TAG_SIZE] {
                let mut cipher = MaybeUninit::new($cipher::<TAG_SIZE>::new(self.0.expose(), &nonce));
                // SAFETY: initialised in the line above.
                let mut state = unsafe { cipher.assume_init_ref() }.encryptor(ad);
                // It has a copy of the key, on a stack that is not locked.
                cipher.zeroize();
                state.update(plaintext, out);
                state.finalize()
            }

            pub(crate) fn open(
                &self,
                nonce: [u8; $size],
                ad: &[u8],
                ciphertext: &[u8],
                tag: &[u8; TAG_SIZE],
                out: &mut [u8],
            ) -> Result<(), Corrupt> {
                let mut cipher = MaybeUninit::new($cipher::<TAG_SIZE>::new(self.0.expose(), &nonce));
                // SAFETY: initialised in the line above.
                let mut state = unsafe { cipher.assume_init_ref() }.decryptor(ad, out);
                cipher.zeroize();
                state.update(ciphertext).expect("lengths match");
                state.finalize(tag).map(|_| ()).map_err(|_| Corrupt)
            }
        }
    };
}

aegis!(Aegis128x2, Aegis128X2, 16);
aegis!(Aegis256x2, Aegis256X2, 32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cipher::vectors::{array, hex};

    const AD: &str = "0102030401020304";

    /// 30 times 04 05 06 07, as in test vector 2 of both suites.
    fn message() -> Vec<u8> {
        [4, 5, 6, 7].repeat(30)
    }

    /// draft-irtf-cfrg-aegis-aead, "AEGIS-128X2 Test Vectors".
    #[test]
    fn aegis_128x2_draft() {
        let key = Aegis128x2::new(Secret::from_bytes(array("000102030405060708090a0b0c0d0e0f")));
        let nonce = array("101112131415161718191a1b1c1d1e1f");
        assert_eq!(key.seal(nonce, &[], &[], &mut []), array("63117dc57756e402819a82e13eca8379"));
        let mut out = [0; 120];
        let tag = key.seal(nonce, &hex(AD), &message(), &mut out);
        assert_eq!(tag, array("1aebc200804f405cab637f2adebb6d77"));
        let expected = "5795544301997f93621b278809d6331b3bfa6f18e90db12c4aa35965b5e98c5fc6fb4e54bcb6111842c2063725\
                        2eff747cb3a8f85b37de80919a589fe0f24872bc926360696739e05520647e390989e1eb5fd42f99678a0276a4\
                        98f8c454761c9d6aacb647ad56be62b29c22cd4b5761b38f43d5a5ee062f";
        assert_eq!(out.to_vec(), hex(expected));
        let mut back = [0; 120];
        key.open(nonce, &hex(AD), &out, &tag, &mut back).unwrap();
        assert_eq!(back.to_vec(), message());
    }

    /// draft-irtf-cfrg-aegis-aead, "AEGIS-256X2 Test Vectors".
    #[test]
    fn aegis_256x2_draft() {
        let key = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
        let key = Aegis256x2::new(Secret::from_bytes(array(key)));
        let nonce = array("101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f");
        assert_eq!(key.seal(nonce, &[], &[], &mut []), array("62cdbab084c83dacdb945bb446f049c8"));
        let mut out = [0; 120];
        let tag = key.seal(nonce, &hex(AD), &message(), &mut out);
        assert_eq!(tag, array("635d391828520bf1512763f0c8f5cdbd"));
        let expected = "72120c2ea8236180d67859001f4729077b7064c414384fe3a7b52f1571f4f8a7d0f01e18db4f3bc0adb150702e\
                        5d147a8d36522132761b994c1bd395589e2ccf0790dfe2a3d12d61cd666b2859827739db4037dd3124c7842445\
                        9376f6cac08e1a7223a2a43e398ce6385cd654a19f481cba3b8f25910b42";
        assert_eq!(out.to_vec(), hex(expected));
        let mut back = [0; 120];
        key.open(nonce, &hex(AD), &out, &tag, &mut back).unwrap();
        assert_eq!(back.to_vec(), message());
    }
}
