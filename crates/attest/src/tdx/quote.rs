//! A quote: what the TDX module says about a guest, signed by a quoting enclave, whose key is signed by one of Intel's.
//!
//! ```text
//! header    version 2 | key type 2 | TEE type 4 | 4 | vendor 16 | 20
//! (body     type 2 | size 4, in version 5)
//! body      584 (TDX 1.0) or 648 (TDX 1.5)
//! size of the rest 4
//! signature 64 | attestation key 64 | type 2 = 6 | size 4
//!           QE report 384 | its signature 64 | size 2, QE authentication data | type 2 = 5 | size 4, PCK chain (PEM)
//! ```
//! Source: Intel, "TDX DCAP Quoting Library API", appendix on the quote's format, versions 4 and 5.

use serde::Serialize;

use crate::reason::Check;
use crate::{Hex, ReportData};

/// Largest quote that is read, in bytes.
pub const MAX_QUOTE: usize = 64 * 1024;
const HEADER: usize = 48;
const TDX: u32 = 0x81;
/// ECDSA on P-256 with SHA-256.
const ECDSA_P256: u16 = 2;
/// Intel's quoting enclaves.
const INTEL: [u8; 16] = 0x939a_7233_f79c_4ca9_940a_0db3_957f_0607_u128.to_be_bytes();
const BODY_1_0: usize = 584;
const BODY_1_5: usize = 648;

/// What a quote says about a guest. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// Version of the quote, 4 or 5.
    pub version: u16,
    /// Security versions of the TDX module and its parts.
    pub tee_tcb_svn: Hex<16>,
    /// Digest of the TDX module.
    pub mr_seam: Hex<48>,
    /// Digest of the module's signer; zeros are Intel.
    pub mr_signer_seam: Hex<48>,
    /// Attributes of the module.
    pub seam_attributes: Hex<8>,
    /// Attributes of the guest.
    pub td_attributes: Hex<8>,
    /// Extended processor features that the guest may use.
    pub xfam: Hex<8>,
    /// The launch measurement.
    pub mr_td: Hex<48>,
    /// What the host gave at launch.
    pub mr_config_id: Hex<48>,
    /// The guest's owner, as the host said at launch.
    pub mr_owner: Hex<48>,
    /// The owner's configuration, as the host said at launch.
    pub mr_owner_config: Hex<48>,
    /// The runtime registers.
    pub rtmr: [Hex<48>; 4],
    /// What the guest had signed.
    pub report_data: ReportData,
    /// Digest of the service guests that are bound to this one; TDX 1.5.
    pub mr_service_td: Option<Hex<48>>,
}

/// A quote, taken apart.
#[derive(Debug)]
pub(crate) struct Quote<'a> {
    pub(crate) report: Report,
    pub(crate) vendor: [u8; 16],
    /// What the attestation key has signed: header and body.
    pub(crate) signed: &'a [u8],
    pub(crate) signature: [u8; 64],
    pub(crate) attestation_key: [u8; 64],
    pub(crate) qe_report: [u8; 384],
    pub(crate) qe_signature: [u8; 64],
    pub(crate) qe_authentication: &'a [u8],
    pub(crate) pck_chain: &'a [u8],
    /// What is behind the quote.
    pub(crate) behind: &'a [u8],
}

/// The bytes that are left.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn bytes(&mut self, count: usize, field: &str) -> Result<&'a [u8], (Check, String)> {
        let (head, tail) = self.0.split_at_checked(count).ok_or_else(|| {
            (
                Check::Format,
                format!("it ends within the {field}: {} bytes where {count} are named", self.0.len()),
            )
        })?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], (Check, String)> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N, field)?);
        Ok(array)
    }

    fn u16(&mut self, field: &str) -> Result<u16, (Check, String)> {
        self.array(field).map(u16::from_le_bytes)
    }

    /// A part with its size of four bytes before it.
    fn part(&mut self, field: &str) -> Result<&'a [u8], (Check, String)> {
        let size = self.array(field).map(u32::from_le_bytes)?;
        self.bytes(usize::try_from(size).unwrap_or(usize::MAX), field)
    }

    fn end(&self, field: &str) -> Result<(), (Check, String)> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err((Check::Format, format!("{} bytes are left in the {field}", self.0.len())))
    }
}

impl<'a> Quote<'a> {
    /// Takes a quote apart. No signature is looked at.
    ///
    /// # Errors
    /// The check that says no, and why.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, (Check, String)> {
        if bytes.len() > MAX_QUOTE {
            return Err((Check::Format, format!("{} bytes, and at most {MAX_QUOTE} are read", bytes.len())));
        }
        let mut rest = Rest(bytes);
        let mut header = Rest(rest.bytes(HEADER, "header")?);
        let version = header.u16("version")?;
        if ![4, 5].contains(&version) {
            return Err((Check::Version, format!("version {version}; versions 4 and 5 are understood")));
        }
        let key_type = header.u16("key type")?;
        if key_type != ECDSA_P256 {
            let detail = format!("found {key_type}, expected {ECDSA_P256} (ECDSA on P-256 with SHA-256)");
            return Err((Check::SignatureAlgorithm, detail));
        }
        let tee = header.array("TEE type").map(u32::from_le_bytes)?;
        if tee != TDX {
            return Err((
                Check::Format,
                format!("TEE type {tee:#x}, expected {TDX:#x}: this quote is not of TDX"),
            ));
        }
        header.bytes(4, "header")?;
        let vendor = header.array("vendor")?;
        let size = if version == 4 { BODY_1_0 } else { body_size(&mut rest)? };
        let report = read_body(version, rest.bytes(size, "body")?)?;
        let signed_size = bytes.len() - rest.0.len();
        let mut part = Rest(rest.part("signature data")?);
        let behind = rest.0;
        let (signature, attestation_key) = (part.array("signature")?, part.array("attestation key")?);
        let mut enclave = Rest(certification(&mut part, 6, "quoting enclave's report")?);
        part.end("signature data")?;
        let (qe_report, qe_signature) =
            (enclave.array("QE report")?, enclave.array("QE report's signature")?);
        let size = enclave.u16("QE authentication data")?;
        let qe_authentication = enclave.bytes(usize::from(size), "QE authentication data")?;
        let pck_chain = certification(&mut enclave, 5, "PCK chain")?;
        enclave.end("quoting enclave's report")?;
        let signed = &bytes[..signed_size];
        Ok(Self {
            report,
            vendor,
            signed,
            signature,
            attestation_key,
            qe_report,
            qe_signature,
            qe_authentication,
            pck_chain,
            behind,
        })
    }

    pub(crate) fn is_of_intel(&self) -> bool {
        self.vendor == INTEL
    }
}

/// The size of a body of version 5, which names its type and size.
fn body_size(rest: &mut Rest<'_>) -> Result<usize, (Check, String)> {
    let kind = rest.u16("body type")?;
    let size = rest.array("body size").map(u32::from_le_bytes)?;
    let expected = match kind {
        2 => BODY_1_0,
        3 => BODY_1_5,
        _ => {
            return Err((
                Check::Version,
                format!("body type {kind}; 2 (TDX 1.0) and 3 (TDX 1.5) are understood"),
            ));
        }
    };
    if usize::try_from(size) != Ok(expected) {
        return Err((Check::Format, format!("a body of type {kind} has {expected} bytes, not {size}")));
    }
    Ok(expected)
}

/// A part that is named by a type, with its size before it.
fn certification<'a>(rest: &mut Rest<'a>, expected: u16, field: &str) -> Result<&'a [u8], (Check, String)> {
    let kind = rest.u16(field)?;
    if kind != expected {
        return Err((
            Check::Format,
            format!("certification data of type {kind} where {expected} ({field}) must be"),
        ));
    }
    rest.part(field)
}

fn read_body(version: u16, body: &[u8]) -> Result<Report, (Check, String)> {
    let mut rest = Rest(body);
    let hex48 = |rest: &mut Rest<'_>| rest.array("body").map(Hex);
    Ok(Report {
        version,
        tee_tcb_svn: rest.array("body").map(Hex)?,
        mr_seam: hex48(&mut rest)?,
        mr_signer_seam: hex48(&mut rest)?,
        seam_attributes: rest.array("body").map(Hex)?,
        td_attributes: rest.array("body").map(Hex)?,
        xfam: rest.array("body").map(Hex)?,
        mr_td: hex48(&mut rest)?,
        mr_config_id: hex48(&mut rest)?,
        mr_owner: hex48(&mut rest)?,
        mr_owner_config: hex48(&mut rest)?,
        rtmr: [hex48(&mut rest)?, hex48(&mut rest)?, hex48(&mut rest)?, hex48(&mut rest)?],
        report_data: rest.array("body").map(Hex)?,
        mr_service_td: if body.len() == BODY_1_5 {
            rest.bytes(16, "body")?;
            Some(rest.array("body").map(Hex)?)
        } else {
            None
        },
    })
}
