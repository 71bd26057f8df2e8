//! Certificates and keys from PEM files, for every client and server of this project that speaks TLS.
#![forbid(unsafe_code)]

mod details;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use details::{Details, until};

/// Why a file with a certificate or a key cannot be used.
#[derive(Debug)]
pub enum FileError {
    /// The file cannot be read as PEM; its path.
    Pem(PathBuf, pem::Error),
    /// The file has no certificate.
    Empty(PathBuf),
    /// TLS can't use what is in the file.
    Unfit(PathBuf, rustls::Error),
    /// What is in the file can't be read as a certificate, and why.
    Unreadable(PathBuf, String),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Pem(path, pem::Error::Io(error)) => write!(f, "{}: {error}", path.display()),
            FileError::Pem(path, pem::Error::NoItemsFound) => {
                write!(
                    f,
                    "{} holds no certificate or key of the kind that is needed in PEM form",
                    path.display()
                )
            }
            FileError::Pem(path, error) => write!(f, "{} is no PEM file: {error}", path.display()),
            FileError::Empty(path) => write!(f, "{} holds no certificate in PEM form", path.display()),
            FileError::Unreadable(path, why) => {
                write!(f, "{} has a certificate that can't be read: {why}", path.display())
            }
            FileError::Unfit(path, error) => write!(f, "{} cannot be used: {error}", path.display()),
        }
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FileError::Pem(_, error) => Some(error),
            FileError::Empty(_) | FileError::Unreadable(..) => None,
            FileError::Unfit(_, error) => Some(error),
        }
    }
}

/// The ciphers and the randomness that TLS uses here: aws-lc.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The certificates in a file, in their order.
///
/// # Errors
/// If there is none, or the file cannot be read.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let all: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<_, _>>)
        .map_err(|error| FileError::Pem(path.to_owned(), error))?;
    if all.is_empty() { Err(FileError::Empty(path.to_owned())) } else { Ok(all) }
}

/// The first private key in a file.
///
/// # Errors
/// If there is none, or the file cannot be read.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| FileError::Pem(path.to_owned(), error))
}

/// The authorities in a file.
///
/// # Errors
/// If there is none, or one of them cannot be used.
pub fn authorities(path: &Path) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| FileError::Unfit(path.to_owned(), error))?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_holds_nothing_usable_is_named_with_what_it_lacks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file.pem");
        let refusal = |content: &str| {
            std::fs::write(&path, content).unwrap();
            let said = [
                certificates(&path).err().map(|error| error.to_string()),
                private_key(&path).err().map(|error| error.to_string()),
                authorities(&path).err().map(|error| error.to_string()),
            ];
            said.map(Option::unwrap_or_default)
        };
        for why in refusal("hello") {
            assert!(why.contains("file.pem holds no certificate"), "{why}");
        }
        let cut = refusal("-----BEGIN CERTIFICATE-----\nAAAA\n");
        assert!(cut[0].contains("file.pem is no PEM file"), "{}", cut[0]);
        // DER that is no certificate.
        let nonsense = refusal("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        assert!(nonsense[2].contains("file.pem cannot be used"), "{}", nonsense[2]);
        let missing = certificates(Path::new("/nowhere/ca.pem")).unwrap_err().to_string();
        assert!(missing.starts_with("/nowhere/ca.pem: "), "{missing}");
    }
}
