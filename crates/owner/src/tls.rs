//! The service's side of TLS.

use crate::error::Error;
use crate::log::ClientId;
use anchor_owner::wire::PROTOCOL;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tls_files::{authorities, certificates, private_key, provider};

/// The PEM files of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The service's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of clients.
    pub clients: PathBuf,
}

impl Files {
    /// Reads the files. TLS 1.3 only, with a certificate of each client at each connection, without resumption and early data.
    pub(crate) fn load(&self) -> Result<Arc<ServerConfig>, Error> {
        let unfit = |error: &dyn std::fmt::Display| Error::Tls(error.to_string());
        let roots = Arc::new(authorities(&self.clients)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|error| unfit(&error))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unfit(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates(&self.certificate)?, private_key(&self.key)?)
            .map_err(|error| {
                let files = format!("{} and {}", self.certificate.display(), self.key.display());
                Error::Tls(format!("{files} are no certificate with its key: {error}"))
            })?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // A resumed session would keep a client in whose certificate has expired since.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(Arc::new(config))
    }
}

/// The identity of a client: SHA-256 of the public key in its certificate, so that a renewed certificate for the same key is the same client.
///
/// # Errors
/// If the bytes are no certificate.
pub(crate) fn client_of(certificate: &CertificateDer<'_>) -> Result<ClientId, Error> {
    let parsed = ParsedCertificate::try_from(certificate).map_err(|error| Error::Tls(error.to_string()))?;
    Ok(seal::sha256(&[parsed.subject_public_key_info().as_ref()]))
}

/// The client whose certificate is the first one in this PEM file, as 64 hexadecimal digits.
///
/// # Errors
/// If the file has no certificate.
pub fn fingerprint(path: &Path) -> Result<String, Error> {
    let certificate = certificates(path)?.swap_remove(0);
    Ok(hex::encode(client_of(&certificate)?))
}
