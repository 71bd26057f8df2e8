//! The ciphers themselves, each behind the same few functions over private memory.

pub(crate) mod aegis;
pub(crate) mod gcm;
#[cfg(test)]
pub(crate) mod vectors;
pub(crate) mod xts;
