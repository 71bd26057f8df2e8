//! A small authority: certificates for the service and for its clients, so that nothing else is needed to begin.

use crate::error::Error;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// Days that the authority is good for.
const AUTHORITY_DAYS: i64 = 3650;
/// Days that a certificate is good for.
const CERTIFICATE_DAYS: i64 = 825;

/// The authority in a state directory.
pub struct Authority {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// Where a client's files were put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The authority of the service's certificate.
    pub authority: PathBuf,
    /// The client's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Authority {
    /// Makes an authority in `directory`, and with it a certificate for the service under each of `hosts` (names or IP addresses).
    ///
    /// # Errors
    /// If a file is there already, or can't be written.
    pub fn make(directory: &Path, hosts: &[String]) -> Result<Authority, Error> {
        make_directory(directory)?;
        let key = KeyPair::generate().map_err(Error::Certificate)?;
        let params = authority_params()?;
        let certificate = params.self_signed(&key).map_err(Error::Certificate)?;
        write(&directory.join("authority.key"), &key.serialize_pem(), 0o600)?;
        write(&directory.join("authority.pem"), &certificate.pem(), 0o644)?;
        let authority = Authority { directory: directory.to_owned(), issuer: Issuer::new(params, key) };
        authority.issue(
            "cvmio-owner",
            hosts,
            ExtendedKeyUsagePurpose::ServerAuth,
            &directory.join("server.pem"),
            &directory.join("server.key"),
        )?;
        Ok(authority)
    }

    /// The authority that [`Authority::make`] made in `directory`.
    ///
    /// # Errors
    /// If there is none.
    pub fn open(directory: &Path) -> Result<Authority, Error> {
        let path = directory.join("authority.key");
        let pem = fs::read_to_string(&path).map_err(|error| Error::Io("read", path, error))?;
        let key = KeyPair::from_pem(&pem).map_err(Error::Certificate)?;
        Ok(Authority { directory: directory.to_owned(), issuer: Issuer::new(authority_params()?, key) })
    }

    /// Makes a key and a certificate for a client, and puts them into `directory` beside the authority's certificate: all that a client needs.
    ///
    /// # Errors
    /// If a file is there already, or can't be written.
    pub fn make_client(&self, name: &str, directory: &Path) -> Result<Credentials, Error> {
        make_directory(directory)?;
        let made = Credentials {
            authority: directory.join("ca.pem"),
            certificate: directory.join("client.pem"),
            key: directory.join("client.key"),
        };
        let path = self.directory.join("authority.pem");
        let authority = fs::read_to_string(&path).map_err(|error| Error::Io("read", path, error))?;
        self.issue(name, &[], ExtendedKeyUsagePurpose::ClientAuth, &made.certificate, &made.key)?;
        write(&made.authority, &authority, 0o644)?;
        Ok(made)
    }

    fn issue(
        &self,
        name: &str,
        hosts: &[String],
        usage: ExtendedKeyUsagePurpose,
        certificate: &Path,
        key_path: &Path,
    ) -> Result<(), Error> {
        let mut params = CertificateParams::new(hosts.to_vec()).map_err(Error::Certificate)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let now = OffsetDateTime::now_utc();
        // Clocks differ: a guest's may be a little behind.
        params.not_before = now - Duration::hours(1);
        params.not_after = now + Duration::days(CERTIFICATE_DAYS);
        let key = KeyPair::generate().map_err(Error::Certificate)?;
        let signed = params.signed_by(&key, &self.issuer).map_err(Error::Certificate)?;
        write(key_path, &key.serialize_pem(), 0o600)?;
        write(certificate, &signed.pem(), 0o644)
    }
}

fn authority_params() -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(Vec::new()).map_err(Error::Certificate)?;
    params.distinguished_name.push(DnType::CommonName, "cvmio-owner authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::hours(1);
    params.not_after = now + Duration::days(AUTHORITY_DAYS);
    Ok(params)
}

fn make_directory(directory: &Path) -> Result<(), Error> {
    if directory.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| Error::Io("make", directory.to_owned(), error))
}

/// A new file; one that is there is never overwritten, since it may be the only copy of a key.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .map_err(|error| Error::Io("write", path.to_owned(), error))
}
