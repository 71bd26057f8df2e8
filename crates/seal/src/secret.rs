//! Secrets in memory: locked, left out of dumps, zeroised, never printed, compared in constant time.

use std::fmt;
use std::io::{self, Read};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use zeroize::Zeroize;

use crate::Random;
use crate::locked::Locked;

/// `N` secret bytes.
pub struct Secret<const N: usize>(Locked);

impl<const N: usize> Secret<N> {
    /// Takes `bytes`. The caller's own copies stay the caller's to zeroise.
    pub fn from_bytes(mut bytes: [u8; N]) -> Secret<N> {
        let secret = Secret::build(|memory| memory.copy_from_slice(&bytes));
        bytes.zeroize();
        secret
    }

    /// Fresh random bytes.
    pub fn generate(random: &dyn Random) -> Secret<N> {
        Secret::build(|memory| random.fill(memory))
    }

    /// Lets `write` fill the secret in place, so that no copy of it is left on the stack.
    pub(crate) fn build(write: impl FnOnce(&mut [u8])) -> Secret<N> {
        let mut memory = Locked::zeroed(N);
        write(memory.bytes_mut());
        Secret(memory)
    }

    /// The bytes. Don't copy them to where they outlive the secret.
    pub fn expose(&self) -> &[u8; N] {
        self.0.bytes().try_into().expect("allocated with N bytes")
    }
}

impl<const N: usize> PartialEq for Secret<N> {
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(self.0.bytes(), other.0.bytes()).is_ok()
    }
}

impl<const N: usize> Eq for Secret<N> {}

impl<const N: usize> fmt::Debug for Secret<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Secret bytes whose number is known only at run time: a passphrase, the content of a key file.
pub struct SecretBytes(Locked);

impl SecretBytes {
    /// Copies `bytes`. The caller's own copies stay the caller's to zeroise.
    pub fn from_slice(bytes: &[u8]) -> SecretBytes {
        let mut memory = Locked::zeroed(bytes.len());
        memory.bytes_mut().copy_from_slice(bytes);
        SecretBytes(memory)
    }

    /// Takes `bytes` and zeroises the vector's own memory.
    pub fn from_vec(mut bytes: Vec<u8>) -> SecretBytes {
        let secret = SecretBytes::from_slice(&bytes);
        bytes.zeroize();
        secret
    }

    /// Reads `source` to its end, at most `limit` bytes, straight into locked memory. Hand in the file
    /// itself: a buffered reader keeps a copy.
    ///
    /// # Errors
    /// Those of `source`, and [`io::ErrorKind::FileTooLarge`] if there are more than `limit` bytes.
    pub fn read_from(source: &mut impl Read, limit: usize) -> io::Result<SecretBytes> {
        let mut memory = Locked::zeroed(limit + 1);
        let mut len = 0;
        loop {
            match source.read(&mut memory.bytes_mut()[len..]) {
                Ok(0) if len > limit => {
                    let message = format!("the secret is longer than {limit} bytes");
                    return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
                }
                Ok(0) => break,
                Ok(count) => len += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        memory.truncate(len);
        Ok(SecretBytes(memory))
    }

    /// Lets `write` fill `len` bytes in place, so that no copy of them is left elsewhere.
    pub(crate) fn build(len: usize, write: impl FnOnce(&mut [u8])) -> SecretBytes {
        let mut memory = Locked::zeroed(len);
        write(memory.bytes_mut());
        SecretBytes(memory)
    }

    /// The bytes. Don't copy them to where they outlive the secret.
    pub fn expose(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The number of bytes, which is no secret.
    pub fn len(&self) -> usize {
        self.0.bytes().len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the bytes from `len` on: the line feed after a passphrase, say.
    ///
    /// # Panics
    /// If there are fewer than `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }
}

impl PartialEq for SecretBytes {
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(self.0.bytes(), other.0.bytes()).is_ok()
    }
}

impl Eq for SecretBytes {}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_keep_their_bytes_and_compare_by_them() {
        let a = Secret::from_bytes([1, 2, 3]);
        assert_eq!(a.expose(), &[1, 2, 3]);
        assert_eq!(a, Secret::from_bytes([1, 2, 3]));
        assert_ne!(a, Secret::from_bytes([1, 2, 4]));
        let text = SecretBytes::from_vec(b"open sesame".to_vec());
        assert_eq!(text.expose(), b"open sesame");
        assert_ne!(text, SecretBytes::from_slice(b"open sesam"));
        assert!(SecretBytes::from_slice(b"").is_empty());
    }

    #[test]
    fn secrets_are_not_printed() {
        assert_eq!(format!("{:?}", Secret::from_bytes([7; 32])), "Secret(..)");
        assert_eq!(format!("{:?}", SecretBytes::from_slice(b"hush")), "SecretBytes(..)");
    }

    #[test]
    fn read_from_takes_up_to_the_limit_and_no_more() {
        let content = [9; 100];
        assert_eq!(SecretBytes::read_from(&mut &content[..], 100).unwrap().expose(), content);
        assert_eq!(SecretBytes::read_from(&mut &content[..], 5000).unwrap().expose(), content);
        let error = SecretBytes::read_from(&mut &content[..], 99).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
