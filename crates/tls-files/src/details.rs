//! What a certificate says about itself, beside what TLS looks at: when it ends, and what is needed to renew it.

use crate::{FileError, certificates};
use rustls::pki_types::CertificateDer;
use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// A certificate, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// The first moment at which it is good.
    pub from: SystemTime,
    /// The last one.
    pub until: SystemTime,
    /// The common name of its subject.
    pub name: String,
    /// The names and addresses that it is for.
    pub hosts: Vec<String>,
    /// Its public key: a SubjectPublicKeyInfo in DER.
    pub key: Vec<u8>,
}

impl Details {
    /// Reads a certificate.
    ///
    /// # Errors
    /// Says why it can't be read.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Details, String> {
        let unreadable = |error: x509_cert::der::Error| error.to_string();
        let parsed = Certificate::from_der(certificate).map_err(unreadable)?;
        let body = parsed.tbs_certificate();
        let name = body.subject().common_name().map_err(unreadable)?;
        let names = body.get_extension::<SubjectAltName>().map_err(unreadable)?;
        let hosts = names.iter().flat_map(|(_, names)| names.0.iter()).filter_map(host).collect();
        Ok(Details {
            from: body.validity().not_before.to_system_time(),
            until: body.validity().not_after.to_system_time(),
            name: name.map(|name| name.value().into_owned()).unwrap_or_default(),
            hosts,
            key: body.subject_public_key_info().to_der().map_err(unreadable)?,
        })
    }

    /// Reads the first certificate in a file.
    ///
    /// # Errors
    /// If there is none, or it can't be read.
    pub fn in_file(path: &Path) -> Result<Details, FileError> {
        let first = certificates(path)?.swap_remove(0);
        Details::of(&first).map_err(|why| FileError::Unreadable(path.to_owned(), why))
    }
}

/// A name of a host, or its address; what else there may be is not for servers.
fn host(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_owned()),
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(|ip| ip.to_string())
        }
        _ => None,
    }
}

/// The earliest end among these certificates; `None` if there are none. One that can't be read has no end here: TLS refuses it.
#[must_use]
pub fn until<'a>(certificates: impl IntoIterator<Item = &'a CertificateDer<'a>>) -> Option<SystemTime> {
    certificates.into_iter().filter_map(|certificate| Some(Details::of(certificate).ok()?.until)).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use std::time::{Duration, UNIX_EPOCH};
    use time::OffsetDateTime;

    #[test]
    fn a_certificate_tells_its_days_its_names_and_its_key() {
        let hosts = ["owner.example", "127.0.0.1", "::1"].map(String::from);
        let mut params = CertificateParams::new(hosts.to_vec()).unwrap();
        params.distinguished_name.push(DnType::CommonName, "ledger");
        params.not_before = OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
        params.not_after = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        let key = KeyPair::generate().unwrap();
        let made = params.self_signed(&key).unwrap();
        let details = Details::of(made.der()).unwrap();
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!((details.from, details.until), (at(1_700_000_000), at(1_800_000_000)));
        assert_eq!((details.name.as_str(), details.hosts.as_slice()), ("ledger", &hosts[..]));
        assert_eq!(details.key, rcgen::PublicKeyData::subject_public_key_info(&key));
        assert_eq!(until([made.der()]), Some(at(1_800_000_000)));
        assert!(until([]).is_none() && Details::of(&CertificateDer::from(vec![1, 2, 3])).is_err());
    }
}
