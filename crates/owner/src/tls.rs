//! The service's side of TLS.

use crate::error::Error;
use crate::keeper::Report;
use crate::log::ClientId;
use crate::private;
use anchor_owner::wire::PROTOCOL;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tls_files::{Details, authorities, certificates, private_key, provider};

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
        private::check_key(&self.key)?;
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

impl Files {
    /// What is to be said of certificates that end within 60 days.
    pub(crate) fn notices(&self) -> Vec<String> {
        let all = [&self.certificate, &self.clients];
        let notice = |path: &&PathBuf| {
            let details = Details::in_file(path).ok()?;
            let when = anchor::certificate_notice(details.until, SystemTime::now())?;
            Some(format!("the certificate {} {when}; renew it: `cvmio-owner renew`", path.display()))
        };
        all.iter().filter_map(notice).collect()
    }

    /// By what it is seen that a file was replaced.
    fn marks(&self) -> Marks {
        [&self.certificate, &self.key, &self.clients].map(|path| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
        })
    }
}

type Marks = [Option<(u64, u64, i64, i64)>; 3];

/// The files of a service that runs: read anew when they were replaced, so that nobody is turned away for a certificate that was renewed.
pub(crate) struct Live {
    files: Files,
    known: Mutex<(Marks, Arc<ServerConfig>)>,
    report: Report,
}

impl Live {
    /// Reads the files.
    pub(crate) fn open(files: Files, report: Report) -> Result<Live, Error> {
        let known = Mutex::new((files.marks(), files.load()?));
        Ok(Live { files, known, report })
    }

    /// What the next connection is to be served with. Files that can't be used are reported once, and what was read before stays.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let marks = self.files.marks();
        if known.0 != marks {
            known.0 = marks;
            match self.files.load() {
                Ok(config) => {
                    known.1 = config;
                    (self.report)("certificates were replaced, and are in use");
                }
                Err(error) => (self.report)(&format!(
                    "certificates were replaced, and can't be used, so the ones before stay in use: {error}"
                )),
            }
        }
        Arc::clone(&known.1)
    }

    /// As [`Files::notices`].
    pub(crate) fn notices(&self) -> Vec<String> {
        self.files.notices()
    }
}

/// Clients whose certificates are about to end, each with the time when that was last said.
#[derive(Default)]
pub(crate) struct Ending(Mutex<HashMap<ClientId, Instant>>);

/// Most clients that are remembered.
const MAX_ENDING: usize = 4096;
/// How often it is said of one client.
const DAY: Duration = Duration::from_hours(24);

impl Ending {
    /// What is to be said of a client that has shown this certificate, at most once a day.
    pub(crate) fn note(&self, client: ClientId, certificate: &CertificateDer<'_>) -> Option<String> {
        let details = Details::of(certificate).ok()?;
        let when = anchor::certificate_notice(details.until, SystemTime::now())?;
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.get(&client).is_some_and(|last| last.elapsed() < DAY) {
            return None;
        }
        if said.len() >= MAX_ENDING {
            said.clear();
        }
        said.insert(client, Instant::now());
        Some(format!(
            "the certificate of the client {:?} ({}) {when}; renew it: `cvmio-owner renew` takes its file",
            details.name,
            hex::encode(client)
        ))
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
