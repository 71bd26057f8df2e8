//! AEGIS-128X2 and AEGIS-256X2 (draft-irtf-cfrg-aegis-aead) by libaegis, 128-bit tags.

use aegis::aegis128x2::{Aegis128X2, Aegis128X2Mac};
use aegis::aegis256x2::Aegis256X2;

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
                let cipher = $cipher::<TAG_SIZE>::new(self.0.expose(), &nonce);
                let mut state = cipher.encryptor(ad);
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
                let cipher = $cipher::<TAG_SIZE>::new(self.0.expose(), &nonce);
                let mut state = cipher.decryptor(ad, out);
                state.update(ciphertext).expect("lengths match");
                state.finalize(tag).map(|_| ()).map_err(|_| Corrupt)
            }
        }
    };
}

aegis!(Aegis128x2, Aegis128X2, 16);
aegis!(Aegis256x2, Aegis256X2, 32);
