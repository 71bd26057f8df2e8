//! AEAD suites, key derivation, nonces and key slots: the only crate that touches a cipher.
