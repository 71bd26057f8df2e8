//! Certificates and keys from PEM files, and what an error of TLS means for the person who must mend it.

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::{AlertDescription, CertificateError, RootCertStore};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a file with a certificate or a key can't be used.
#[derive(Debug)]
pub enum FileError {
    /// The file can't be read as PEM; its path.
    Pem(PathBuf, pem::Error),
    /// The file has no certificate.
    Empty(PathBuf),
    /// TLS can't use what is in the file.
    Unfit(PathBuf, rustls::Error),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Pem(path, pem::Error::Io(error)) => write!(f, "{}: {error}", path.display()),
            FileError::Pem(path, pem::Error::NoItemsFound) => {
                write!(f, "{} has no certificate or key of the kind that is needed", path.display())
            }
            FileError::Pem(path, error) => write!(f, "{} is not a PEM file: {error}", path.display()),
            FileError::Empty(path) => write!(f, "{} has no certificate", path.display()),
            FileError::Unfit(path, error) => write!(f, "{} can't be used: {error}", path.display()),
        }
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            FileError::Pem(_, error) => Some(error),
            FileError::Empty(_) => None,
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
/// If there is none, or the file can't be read.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let all: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<_, _>>)
        .map_err(|error| FileError::Pem(path.to_owned(), error))?;
    if all.is_empty() { Err(FileError::Empty(path.to_owned())) } else { Ok(all) }
}

/// The first private key in a file.
///
/// # Errors
/// If there is none, or the file can't be read.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| FileError::Pem(path.to_owned(), error))
}

/// The authorities in a file.
///
/// # Errors
/// If there is none, or one of them can't be used.
pub fn authorities(path: &Path) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| FileError::Unfit(path.to_owned(), error))?;
    }
    Ok(roots)
}

/// The error of TLS inside an I/O error, if it is one.
#[must_use]
pub fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// What an error of TLS means on the client's side, and what to do.
#[must_use]
pub fn meaning(error: &rustls::Error) -> &'static str {
    use CertificateError as Bad;
    use rustls::Error as Tls;
    match error {
        Tls::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "the service's certificate has expired; renew it, or correct this machine's clock"
        }
        Tls::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            "the service's certificate is not valid yet; correct this machine's clock"
        }
        Tls::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "the service's certificate does not come from an authority in ca-file; this is another server, or the wrong ca-file"
        }
        Tls::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "the service's certificate is for another host name; use a name that is in it"
        }
        Tls::InvalidCertificate(_) => "the service's certificate can't be used",
        Tls::AlertReceived(AlertDescription::CertificateExpired) => {
            "the service says that the certificate in cert-file has expired; renew it"
        }
        Tls::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "the service does not know the authority of the certificate in cert-file; use one that the service's owner made"
        }
        Tls::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateUnknown,
        ) => "the service refuses the certificate in cert-file",
        Tls::AlertReceived(AlertDescription::NoApplicationProtocol) | Tls::NoApplicationProtocol => {
            "the server speaks TLS, but it is no cvmio-owner of this version"
        }
        Tls::AlertReceived(AlertDescription::ProtocolVersion) | Tls::PeerIncompatible(_) => {
            "the server does not speak TLS 1.3"
        }
        Tls::InvalidMessage(_) => "the server does not speak TLS; check the port",
        _ => "TLS failed",
    }
}
