//! TLS for clients that come over a network which the host can listen to.

use crate::Error;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
        let provider = Arc::new(aws_lc_rs::default_provider());
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| unusable(&self.key, &error))?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| Error::Usage(format!("no TLS: {error}")))?;
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| unfit(path, &error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| unfit(path, &error))?;
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

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(|error| unusable(path, &error))?;
    if all.is_empty() {
        return Err(Error::Usage(format!("{} holds no certificate in PEM form", path.display())));
    }
    Ok(all)
}

fn unusable(path: &Path, error: &pem::Error) -> Error {
    Error::Usage(match error {
        pem::Error::Io(error) => format!("{}: {error}", path.display()),
        pem::Error::NoItemsFound => format!("{} holds nothing of this kind in PEM form", path.display()),
        error => format!("{} is no PEM file: {error:?}", path.display()),
    })
}

fn unfit(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::Usage(format!("{} holds no certificates of authorities: {error}", path.display()))
}
