//! TLS for clients that come over a network which the host can listen to.

use crate::Error;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use std::path::PathBuf;
use std::sync::Arc;
use tls_files::{FileError, authorities, certificates, private_key, provider};

/// Where the server's certificate is, and whom it lets in. All are PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Authorities; a client must show a certificate of one of them. Without, every client is let in.
    pub clients: Option<PathBuf>,
}

impl Tls {
    /// Reads the files. TLS 1.3 only.
    pub(super) fn load(&self) -> Result<Arc<ServerConfig>, Error> {
        let unusable = |error: FileError| Error::Usage(error.to_string());
        let chain = certificates(&self.certificate).map_err(unusable)?;
        let key = private_key(&self.key).map_err(unusable)?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| Error::Usage(format!("no TLS: {error}")))?;
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(authorities(path).map_err(unusable)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                    .build()
                    .map_err(|error| {
                        Error::Usage(format!(
                            "{} holds no certificates of authorities: {error}",
                            path.display()
                        ))
                    })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, key).map_err(|error| {
            Error::Usage(format!(
                "{} and {} are no certificate with its key: {error}",
                self.certificate.display(),
                self.key.display()
            ))
        })?;
        Ok(Arc::new(config))
    }
}
