//! From the signing key to AMD's root: VCEK or VLEK, ASK or ASVK, ARK.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ECDSA_P384_SHA384_FIXED, UnparsedPublicKey};
use const_oid::ObjectIdentifier;
use der::Decode;

use crate::certificate::{Certificate, RevocationList};
use crate::findings::Findings;
use crate::reason::Check;
use crate::{Context, Hex};

use super::report::{REPORT_SIZE, SIGNED_SIZE, signature};
use super::{Family, Report, Revocation, SigningKey, Tcb};

const PRODUCT: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.2");
const HARDWARE_ID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.4");
const CSP_ID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.5");
const BOOTLOADER: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.3.1");
const TEE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.3.2");
const SNP: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.3.3");
const MICROCODE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.3.8");
const FMC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3704.1.3.9");

/// Most certificates that a verifier is given for one report.
const MAX_CERTIFICATES: usize = 64;

/// What the signing key's certificate says. Only as good as the reasons found so far: whoever uses it adds to them, and takes none away.
#[derive(Debug)]
pub(crate) struct Signer {
    /// By the root, if it is one that is pinned.
    pub(crate) family: Option<Family>,
    /// Such as `Milan-B0`, or `Milan`.
    pub(crate) product: String,
    pub(crate) levels: Tcb,
    /// Of a VCEK: its chip's id.
    pub(crate) hardware_id: Option<Vec<u8>>,
    /// Of a VLEK: its cloud provider.
    pub(crate) csp: Option<String>,
}

impl SigningKey {
    fn common_name(self) -> &'static str {
        match self {
            Self::Vcek => "SEV-VCEK",
            Self::Vlek => "SEV-VLEK",
        }
    }

    fn issuer(self, family: Family) -> String {
        match self {
            Self::Vcek => format!("SEV-{family}"),
            Self::Vlek => format!("SEV-VLEK-{family}"),
        }
    }
}

/// Judges who has signed a report.
pub(crate) fn judge(
    bytes: &[u8],
    report: &Report,
    beside: &[Vec<u8>],
    revocation: Revocation,
    context: &Context<'_>,
    findings: &mut Findings,
) -> Option<Signer> {
    let all = parse_all(beside, context, findings);
    let leaf = find_leaf(bytes, report, &all, findings)?;
    let issuer = find_issuer(leaf, &all, findings);
    let root = issuer.and_then(|issuer| find_issuer(issuer, &all, findings));
    let family = root.and_then(|root| find_family(root, context, findings));
    if let (Some(family), Some(issuer), Some(root)) = (family, issuer, root) {
        let names = [(issuer, report.signing_key.issuer(family)), (root, format!("ARK-{family}"))];
        for (certificate, expected) in names {
            let name = certificate.common_name();
            findings
                .require(name == expected, Check::Chain, || format!("found {name:?}, expected {expected:?}"));
        }
        check_revocation(&[leaf, issuer, root], revocation, context, findings);
    }
    for certificate in [Some(leaf), issuer, root].into_iter().flatten() {
        let (from, until) = certificate.validity();
        findings.require((from..=until).contains(&context.time), Check::Validity, || {
            let name = certificate.common_name();
            format!(
                "{name} is valid from {from} to {until}, and the time is {} (seconds since 1970)",
                context.time
            )
        });
    }
    match read_leaf(leaf, report.signing_key, family) {
        Ok(signer) => Some(signer),
        Err(detail) => {
            findings.no(Check::Certificate, format!("{}: {detail}", leaf.common_name()));
            None
        }
    }
}

fn parse_all(beside: &[Vec<u8>], context: &Context<'_>, findings: &mut Findings) -> Vec<Certificate> {
    let count = beside.len() + context.certificates.len();
    if count > MAX_CERTIFICATES {
        findings.no(Check::Chain, format!("{count} certificates, and at most {MAX_CERTIFICATES} are read"));
        return Vec::new();
    }
    let mut all = Vec::new();
    for (place, der) in beside.iter().chain(context.certificates).enumerate() {
        match Certificate::parse(der) {
            Ok(certificate) => all.push(certificate),
            Err(error) => {
                findings.no(Check::Certificate, format!("certificate {place} cannot be used: {error}"))
            }
        }
    }
    all
}

/// The certificate of the key that has signed the report.
fn find_leaf<'a>(
    bytes: &[u8],
    report: &Report,
    all: &'a [Certificate],
    findings: &mut Findings,
) -> Option<&'a Certificate> {
    let named = |kind: SigningKey| move |one: &&Certificate| one.common_name() == kind.common_name();
    let candidates: Vec<&Certificate> = all.iter().filter(named(report.signing_key)).collect();
    let Some(first) = candidates.first() else {
        let other = if report.signing_key == SigningKey::Vcek { SigningKey::Vlek } else { SigningKey::Vcek };
        if all.iter().any(|one| named(other)(&one)) {
            let detail = format!(
                "the report is signed by a {}, and the certificate is a {other}'s",
                report.signing_key
            );
            findings.no(Check::SigningKey, detail);
        } else {
            findings.no(Check::Chain, format!("no certificate of the {} is there", report.signing_key));
        }
        return None;
    };
    let signer = candidates.iter().find(|one| has_signed(one, bytes));
    findings.require(signer.is_some(), Check::Signature, || {
        format!("it is not by the key in the certificate of {}", first.common_name())
    });
    Some(signer.unwrap_or(first))
}

fn has_signed(certificate: &Certificate, bytes: &[u8]) -> bool {
    let Ok(report) = <&[u8; REPORT_SIZE]>::try_from(bytes) else { return false };
    let key = UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, certificate.key_bytes());
    key.verify(&report[..SIGNED_SIZE], &signature(report)).is_ok()
}

/// The certificate of the authority that has signed another.
fn find_issuer<'a>(
    certificate: &Certificate,
    all: &'a [Certificate],
    findings: &mut Findings,
) -> Option<&'a Certificate> {
    let named: Vec<&Certificate> = all.iter().filter(|one| one.subject() == certificate.issuer()).collect();
    let found = named.iter().find(|one| one.is_authority() && certificate.is_signed_by(one));
    findings.require(found.is_some(), Check::Chain, || {
        let (name, issuer) = (certificate.common_name(), certificate.issuer());
        if named.is_empty() {
            format!("the certificate of {name} is issued by {issuer}, whose certificate is missing")
        } else {
            format!("the certificate of {name} is not signed by the key of its issuer, {issuer}")
        }
    });
    found.copied()
}

/// The family whose root this is.
fn find_family(root: &Certificate, context: &Context<'_>, findings: &mut Findings) -> Option<Family> {
    let mut key = Hex([0; 32]);
    key.0.copy_from_slice(digest(&SHA256, root.public_key()).as_ref());
    let family = context.roots.amd.iter().find(|(_, pinned)| *pinned == key).map(|(family, _)| *family);
    findings.require(family.is_some(), Check::Root, || {
        format!("{}, whose key has the SHA-256 {key}, is no root of AMD's", root.common_name())
    });
    findings.require(root.is_signed_by(root), Check::Root, || {
        format!("{} has not signed its own certificate", root.common_name())
    });
    family
}

/// No list names a certificate of the chain (the signing key's, its issuer's, the root's), and the root's list is there and current.
fn check_revocation(
    chain: &[&Certificate; 3],
    revocation: Revocation,
    context: &Context<'_>,
    findings: &mut Findings,
) {
    let mut is_current = false;
    for (place, der) in context.revocation_lists.iter().enumerate() {
        let list = match RevocationList::parse(der) {
            Ok(list) => list,
            Err(error) => {
                findings.no(Check::Revocation, format!("revocation list {place} cannot be used: {error}"));
                continue;
            }
        };
        // A list of another family's root has nothing to say here.
        for (depth, authority) in chain.iter().enumerate().skip(1) {
            if list.issuer() != authority.subject() {
                continue;
            }
            let name = authority.common_name();
            if !list.is_signed_by(authority) {
                findings
                    .no(Check::Revocation, format!("the revocation list of {name} is not signed by its key"));
                continue;
            }
            let revoked = chain
                .iter()
                .take(depth + 1)
                .filter(|below| below.issuer() == authority.subject() && list.names(below.serial_number()));
            for below in revoked {
                findings.no(Check::Revocation, format!("{name} has revoked {}", below.common_name()));
            }
            let (from, until) = list.validity();
            is_current |= depth == chain.len() - 1 && (from..=until).contains(&context.time);
        }
    }
    findings.require(is_current || revocation == Revocation::WhenGiven, Check::Revocation, || {
        let root = chain[chain.len() - 1].common_name();
        format!("no revocation list of {root} that is current at {} is there", context.time)
    });
}

/// What AMD's extensions say.
fn read_leaf(leaf: &Certificate, kind: SigningKey, family: Option<Family>) -> Result<Signer, String> {
    if leaf.is_authority() {
        return Err("it is an authority's".to_string());
    }
    let level = |id, name: &str| -> Result<u8, String> {
        let value = leaf.extension(id).ok_or_else(|| format!("it has no patch level of {name}"))?;
        u8::from_der(value)
            .map_err(|error| format!("its patch level of {name} is no number of a byte: {error}"))
    };
    let text = |id, name: &str| -> Result<String, String> {
        let value = leaf.extension(id).ok_or_else(|| format!("it has no {name}"))?;
        let text = der::asn1::Ia5StringRef::from_der(value);
        text.map(|text| text.to_string()).map_err(|error| format!("its {name} is no text: {error}"))
    };
    let fmc = if family == Some(Family::Turin) { level(FMC, "fmc")? } else { 0 };
    let levels = Tcb {
        fmc,
        bootloader: level(BOOTLOADER, "bootloader")?,
        tee: level(TEE, "tee")?,
        snp: level(SNP, "snp")?,
        microcode: level(MICROCODE, "microcode")?,
    };
    let (hardware_id, csp) = match kind {
        SigningKey::Vcek => {
            let id = leaf.extension(HARDWARE_ID).ok_or("it has no hardware id")?;
            (Some(id.to_vec()), None)
        }
        SigningKey::Vlek => (None, Some(text(CSP_ID, "csp id")?)),
    };
    Ok(Signer { family, product: text(PRODUCT, "product name")?, levels, hardware_id, csp })
}
