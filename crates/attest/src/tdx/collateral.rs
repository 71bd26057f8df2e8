//! Intel's word on a platform and its quoting enclave: signed lists and revocation lists, judged by `dcap-qvl` with the cipher library of this
//! project.

use aws_lc_rs::digest::{SHA256, SHA384, digest};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use dcap_qvl::config::{Config, CryptoProvider};
use dcap_qvl::verify::QuoteVerifier;
use dcap_qvl::{QuoteClaims, QuoteCollateralV3};
use rustls_pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, alg_id};

/// Largest collateral that is read, in bytes.
const MAX_COLLATERAL: usize = 1024 * 1024;

/// What Intel says about a platform.
pub(crate) struct Standing {
    /// State of the TCB, in Intel's words.
    pub(crate) status: String,
    pub(crate) advisories: Vec<String>,
    pub(crate) fmspc: [u8; 6],
}

/// Judges a quote by collateral: PCK chain, revocation lists, TCB level, quoting enclave. A failure is a sentence.
pub(crate) fn judge(quote: &[u8], collateral: &[u8], root: &[u8], time: u64) -> Result<Standing, String> {
    if collateral.len() > MAX_COLLATERAL {
        return Err(format!("it has {} bytes, and at most {MAX_COLLATERAL} are read", collateral.len()));
    }
    let collateral: QuoteCollateralV3 =
        serde_json::from_slice(collateral).map_err(|error| format!("it is no collateral: {error}"))?;
    // Debugging is judged by its own check, which is made in any case.
    let verifier = QuoteVerifier::<AwsLc>::new_with_config(root.to_vec()).allow_debug(true);
    let claims = verifier.verify_with_policy(quote, collateral, time, &Everything);
    let claims = claims.map_err(|error| format!("{error:#}"))?;
    Ok(Standing {
        status: claims.tcb.status.to_string(),
        advisories: claims.tcb.advisory_ids,
        fmspc: claims.platform.pck.fmspc,
    })
}

/// Leaves every judgement of what was proven to our own policy.
struct Everything;

impl dcap_qvl::Policy for Everything {
    fn validate(&self, _: &QuoteClaims) -> anyhow::Result<()> {
        Ok(())
    }
}

struct AwsLc;

impl Config for AwsLc {
    type X509 = dcap_qvl::x509::X509CertBackend;
    type SigEncoder = dcap_qvl::signature::DerSigEncoder;
    type Crypto = AwsLc;
}

impl CryptoProvider for AwsLc {
    fn sig_algo() -> &'static dyn SignatureVerificationAlgorithm {
        &EcdsaP256
    }

    fn sha256(data: &[u8]) -> [u8; 32] {
        let mut out = [0; 32];
        out.copy_from_slice(digest(&SHA256, data).as_ref());
        out
    }

    fn sha384(data: &[u8]) -> [u8; 48] {
        let mut out = [0; 48];
        out.copy_from_slice(digest(&SHA384, data).as_ref());
        out
    }
}

#[derive(Debug)]
struct EcdsaP256;

impl SignatureVerificationAlgorithm for EcdsaP256 {
    fn verify_signature(&self, key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key);
        key.verify(message, signature).map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P256
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_SHA256
    }
}
