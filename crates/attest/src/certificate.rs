//! Certificates and revocation lists: the parts that chains of chip vendors use, with signatures over the bytes as they came.

use aws_lc_rs::signature::{ECDSA_P384_SHA384_ASN1, RSA_PSS_2048_8192_SHA384, UnparsedPublicKey};
use const_oid::ObjectIdentifier;
use der::{Decode, Encode, Reader, SliceReader};
use x509_cert::crl::CertificateList;
use x509_cert::name::Name;

/// Largest certificate that is read, in bytes. AMD's have some 1700.
const MAX_CERTIFICATE: usize = 16 * 1024;
/// Largest revocation list that is read, in bytes.
const MAX_LIST: usize = 4 * 1024 * 1024;

const BASIC_CONSTRAINTS: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.19");
const KEY_USAGE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.15");
const RSASSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");
const ECDSA_WITH_SHA384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.3");
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

/// A certificate, and the bytes that it was read from.
#[derive(Debug, Clone)]
pub(crate) struct Certificate {
    parsed: x509_cert::Certificate,
    /// What the signature covers.
    signed: Vec<u8>,
    public_key: Vec<u8>,
}

impl Certificate {
    /// Reads one certificate, and nothing behind it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > MAX_CERTIFICATE {
            return Err(format!("it has {} bytes, and at most {MAX_CERTIFICATE} are read", bytes.len()));
        }
        let parsed = x509_cert::Certificate::from_der(bytes).map_err(|error| error.to_string())?;
        let signed = first_part(bytes).map_err(|error| error.to_string())?.to_vec();
        let inner = parsed.tbs_certificate();
        if inner.signature() != parsed.signature_algorithm() {
            return Err("it names two signature algorithms".to_string());
        }
        let key = inner.subject_public_key_info().to_der().map_err(|error| error.to_string())?;
        let certificate = Self { signed, public_key: key, parsed };
        certificate.check_extensions()?;
        Ok(certificate)
    }

    /// No extension twice, and none that is critical and not understood.
    fn check_extensions(&self) -> Result<(), String> {
        let all = self.parsed.tbs_certificate().extensions().map_or(&[][..], Vec::as_slice);
        for (place, extension) in all.iter().enumerate() {
            if all[..place].iter().any(|earlier| earlier.extn_id == extension.extn_id) {
                return Err(format!("it has the extension {} twice", extension.extn_id));
            }
            if extension.critical && ![BASIC_CONSTRAINTS, KEY_USAGE].contains(&extension.extn_id) {
                return Err(format!("it has the critical extension {}, which is unknown", extension.extn_id));
            }
        }
        Ok(())
    }

    /// The content of an extension.
    pub(crate) fn extension(&self, id: ObjectIdentifier) -> Option<&[u8]> {
        let all = self.parsed.tbs_certificate().extensions()?;
        all.iter().find(|extension| extension.extn_id == id).map(|extension| extension.extn_value.as_bytes())
    }

    pub(crate) fn subject(&self) -> &Name {
        self.parsed.tbs_certificate().subject()
    }

    pub(crate) fn issuer(&self) -> &Name {
        self.parsed.tbs_certificate().issuer()
    }

    /// The last common name of the subject, such as `SEV-Milan`.
    pub(crate) fn common_name(&self) -> String {
        let name = self.subject().to_string();
        let mut parts = name.split(',').filter_map(|part| part.trim().strip_prefix("CN="));
        parts.next_back().unwrap_or_default().to_string()
    }

    /// The public key as `SubjectPublicKeyInfo` (DER).
    pub(crate) fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// The key's bytes: a point, or an RSA key.
    pub(crate) fn key_bytes(&self) -> &[u8] {
        self.parsed.tbs_certificate().subject_public_key_info().subject_public_key.raw_bytes()
    }

    pub(crate) fn serial_number(&self) -> &[u8] {
        self.parsed.tbs_certificate().serial_number().as_bytes()
    }

    /// From when and until when it is valid, in seconds since 1970, both included.
    pub(crate) fn validity(&self) -> (u64, u64) {
        let validity = self.parsed.tbs_certificate().validity();
        (validity.not_before.to_unix_duration().as_secs(), validity.not_after.to_unix_duration().as_secs())
    }

    /// Whether it says that its key may sign certificates.
    pub(crate) fn is_authority(&self) -> bool {
        // BasicConstraints is a sequence whose first member is the boolean `cA`.
        let constraints = self.extension(BASIC_CONSTRAINTS);
        let is_authority = constraints.is_some_and(|value| {
            matches!(value, [0x30, _, 0x01, 0x01, 0xff, ..]) && der::AnyRef::from_der(value).is_ok()
        });
        // keyCertSign is the sixth bit of the string.
        let usage = self.extension(KEY_USAGE).and_then(|value| der::asn1::BitString::from_der(value).ok());
        let may_sign =
            usage.is_some_and(|usage| usage.raw_bytes().first().is_some_and(|bits| bits & 0x04 != 0));
        is_authority && may_sign
    }

    /// Whether `issuer`'s key has signed this certificate.
    pub(crate) fn is_signed_by(&self, issuer: &Certificate) -> bool {
        let algorithm = self.parsed.signature_algorithm().oid;
        let signature = self.parsed.signature().as_bytes().unwrap_or_default();
        issuer.has_signed(algorithm, &self.signed, signature)
    }

    /// Whether its key has made a signature.
    fn has_signed(&self, algorithm: ObjectIdentifier, message: &[u8], signature: &[u8]) -> bool {
        let kind = self.parsed.tbs_certificate().subject_public_key_info().algorithm.oid;
        let key = self.key_bytes();
        match (kind, algorithm) {
            (RSA, RSASSA_PSS) => {
                UnparsedPublicKey::new(&RSA_PSS_2048_8192_SHA384, key).verify(message, signature).is_ok()
            }
            (EC, ECDSA_WITH_SHA384) => {
                UnparsedPublicKey::new(&ECDSA_P384_SHA384_ASN1, key).verify(message, signature).is_ok()
            }
            _ => false,
        }
    }
}

/// A revocation list, and the bytes that it was read from.
#[derive(Debug, Clone)]
pub(crate) struct RevocationList {
    parsed: CertificateList,
    signed: Vec<u8>,
}

impl RevocationList {
    /// Reads one list, and nothing behind it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > MAX_LIST {
            return Err(format!("it has {} bytes, and at most {MAX_LIST} are read", bytes.len()));
        }
        let parsed = CertificateList::from_der(bytes).map_err(|error| error.to_string())?;
        let signed = first_part(bytes).map_err(|error| error.to_string())?.to_vec();
        if parsed.tbs_cert_list.signature != parsed.signature_algorithm {
            return Err("it names two signature algorithms".to_string());
        }
        let extensions = parsed.tbs_cert_list.crl_extensions.iter().flatten();
        if let Some(unknown) = extensions.into_iter().find(|extension| extension.critical) {
            // Such as the mark of a list that names only the changes since another one.
            return Err(format!("it has the critical extension {}, which is unknown", unknown.extn_id));
        }
        Ok(Self { parsed, signed })
    }

    pub(crate) fn issuer(&self) -> &Name {
        &self.parsed.tbs_cert_list.issuer
    }

    /// From when and until when it counts, in seconds since 1970. A list without an end counts for no moment but its beginning.
    pub(crate) fn validity(&self) -> (u64, u64) {
        let list = &self.parsed.tbs_cert_list;
        let from = list.this_update.to_unix_duration().as_secs();
        (from, list.next_update.map_or(from, |until| until.to_unix_duration().as_secs()))
    }

    pub(crate) fn is_signed_by(&self, issuer: &Certificate) -> bool {
        let signature = self.parsed.signature.as_bytes().unwrap_or_default();
        issuer.has_signed(self.parsed.signature_algorithm.oid, &self.signed, signature)
    }

    pub(crate) fn names(&self, serial_number: &[u8]) -> bool {
        let all = self.parsed.tbs_cert_list.revoked_certificates.iter().flatten();
        all.into_iter().any(|revoked| revoked.serial_number.as_bytes() == serial_number)
    }
}

/// Whether bytes (DER) are a revocation list.
#[must_use]
pub fn is_revocation_list(bytes: &[u8]) -> bool {
    RevocationList::parse(bytes).is_ok()
}

/// The first member of the outermost sequence, with its header: what is signed.
fn first_part(bytes: &[u8]) -> der::Result<&[u8]> {
    let mut reader = SliceReader::new(bytes)?;
    der::Header::decode(&mut reader)?;
    reader.tlv_bytes()
}
