//! A small authority: certificates for the service and for its clients, so that nothing else is needed to begin.

use crate::error::Error;
use crate::private;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};
use tls_files::Details;

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
        private::check_key(&path)?;
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

    /// Gives the service's certificate another 825 days: the same key, and the same names unless `hosts` has others.
    ///
    /// # Errors
    /// If it is not there, or can't be written.
    pub fn renew_service(&self, hosts: &[String]) -> Result<Renewed, Error> {
        let path = self.directory.join("server.pem");
        let old = Details::in_file(&path)?;
        let hosts = if hosts.is_empty() { &old.hosts } else { hosts };
        self.renew(&path, &old, hosts, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Gives the certificate of a client in `path` another 825 days. The key stays, and so the client keeps its volumes.
    ///
    /// # Errors
    /// If it is not there, can't be written, or has a key of a kind that is not made here.
    pub fn renew_client(&self, path: &Path) -> Result<Renewed, Error> {
        self.renew(path, &Details::in_file(path)?, &[], ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Gives the authority's own certificate another ten years. Its key and its name stay, so what it has signed stays good.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn renew_authority(&self) -> Result<Renewed, Error> {
        let path = self.directory.join("authority.pem");
        let params = authority_params()?;
        let certificate = params.self_signed(self.issuer.key()).map_err(Error::Certificate)?;
        replace(&path, &certificate.pem())?;
        Renewed::of(&path)
    }

    fn renew(
        &self,
        path: &Path,
        old: &Details,
        hosts: &[String],
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Renewed, Error> {
        let key = Key::of(&old.key).ok_or_else(|| {
            Error::Usage(format!(
                "{} has a key of another kind than is made here (P-256); renew it where it was made",
                path.display()
            ))
        })?;
        let params = params(&old.name, hosts, usage)?;
        let signed = params.signed_by(&key, &self.issuer).map_err(Error::Certificate)?;
        replace(path, &signed.pem())?;
        Renewed::of(path)
    }

    fn issue(
        &self,
        name: &str,
        hosts: &[String],
        usage: ExtendedKeyUsagePurpose,
        certificate: &Path,
        key_path: &Path,
    ) -> Result<(), Error> {
        let params = params(name, hosts, usage)?;
        let key = KeyPair::generate().map_err(Error::Certificate)?;
        let signed = params.signed_by(&key, &self.issuer).map_err(Error::Certificate)?;
        write(key_path, &key.serialize_pem(), 0o600)?;
        write(certificate, &signed.pem(), 0o644)
    }
}

/// What a certificate of a service or a client is like.
fn params(name: &str, hosts: &[String], usage: ExtendedKeyUsagePurpose) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(hosts.to_vec()).map_err(Error::Certificate)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    let now = OffsetDateTime::now_utc();
    // Clocks differ: a guest's may be a little behind.
    params.not_before = now - Duration::hours(1);
    params.not_after = now + Duration::days(CERTIFICATE_DAYS);
    Ok(params)
}

/// A public key as rcgen wants it, of the one kind that it makes by itself: a point on P-256.
struct Key([u8; POINT]);

/// Bytes of an uncompressed point (SEC 1, section 2.3.3).
const POINT: usize = 65;

impl Key {
    /// From a SubjectPublicKeyInfo; `None` if it is of another kind.
    fn of(info: &[u8]) -> Option<Key> {
        let key = Key(*info.last_chunk()?);
        (key.subject_public_key_info() == info).then_some(key)
    }
}

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// A certificate that was renewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    /// Its file.
    pub path: PathBuf,
    /// The day on which it ends, as `2028-12-31`.
    pub until: String,
}

impl Renewed {
    fn of(path: &Path) -> Result<Renewed, Error> {
        let until = Details::in_file(path)?.until;
        Ok(Renewed { path: path.to_owned(), until: OffsetDateTime::from(until).date().to_string() })
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

/// Puts `text` in the place of a certificate. Whoever reads the file meanwhile finds the old one or the new one.
fn replace(path: &Path, text: &str) -> Result<(), Error> {
    let fail = |error| Error::Io("write", path.to_owned(), error);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.new"));
    // What an attempt before left is no certificate of anybody's.
    let _ = fs::remove_file(&beside);
    write(&beside, text, 0o644)?;
    fs::rename(&beside, path).map_err(fail)?;
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new("."));
    fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(fail)
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
