//! The side that makes evidence: a root, launches, and a guest's reports.

use std::fmt;

use aws_lc_rs::digest::{self, SHA384};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use zeroize::Zeroizing;

use crate::{Evidence, Hex, ReportData};

use super::{
    DEBUG, KEY_SIZE, LAUNCH_LABEL, LAUNCH_MAGIC, LAUNCH_SIZE, REPORT_LABEL, RootKey, SEAT_MAGIC,
    SIGNATURE_SIZE, VERSION, message,
};

/// Why a simulated platform cannot make what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedError {
    /// The bytes are no root's private key.
    NoRoot,
    /// The bytes are not what a launcher hands to a guest.
    NoSeat,
    /// The cipher library could not make a key or a signature.
    Cipher,
}

impl fmt::Display for SimulatedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRoot => "these bytes are no private key (PKCS #8, P-384) of a simulated platform's root",
            Self::NoSeat => {
                "these bytes are not what the launcher of a simulated platform hands to its guest"
            }
            Self::Cipher => "the cipher library could make no key or signature for the simulated platform",
        })
    }
}

impl std::error::Error for SimulatedError {}

impl From<Unspecified> for SimulatedError {
    fn from(_: Unspecified) -> Self {
        Self::Cipher
    }
}

fn signature(key: &EcdsaKeyPair, label: &str, bytes: &[u8]) -> Result<[u8; SIGNATURE_SIZE], SimulatedError> {
    let signature = key.sign(&SystemRandom::new(), &message(label, bytes))?;
    signature.as_ref().try_into().map_err(|_| SimulatedError::Cipher)
}

fn public_key(pair: &EcdsaKeyPair) -> Result<Hex<KEY_SIZE>, SimulatedError> {
    pair.public_key().as_ref().try_into().map(Hex).map_err(|_| SimulatedError::Cipher)
}

/// The measurement of named parts: what a guest boots, and whatever else its launcher fixes. The parts' order counts.
#[must_use]
pub fn measure(parts: &[(&str, &[u8])]) -> Hex<48> {
    let mut all = digest::Context::new(&SHA384);
    for (name, content) in parts {
        all.update(&(name.len() as u64).to_le_bytes());
        all.update(name.as_bytes());
        all.update(digest::digest(&SHA384, content).as_ref());
    }
    let mut measurement = Hex([0; 48]);
    measurement.0.copy_from_slice(all.finish().as_ref());
    measurement
}

/// What a launcher says about a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// What it boots; see [`measure`].
    pub measurement: Hex<48>,
    /// Data of the launcher's choice.
    pub host_data: Hex<32>,
    /// The machine's number.
    pub machine_id: Hex<32>,
    /// The version of what stands for firmware.
    pub tcb: u64,
    /// Whether the host may read the guest's memory.
    pub is_debug: bool,
}

/// A root with its private key.
pub struct Root {
    pair: EcdsaKeyPair,
    document: Zeroizing<Vec<u8>>,
}

impl Root {
    /// Makes a new one, with the cipher library's randomness.
    ///
    /// # Errors
    /// If the library fails.
    pub fn generate() -> Result<Self, SimulatedError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &SystemRandom::new())?;
        Self::read(document.as_ref())
    }

    /// Reads a private key (PKCS #8).
    ///
    /// # Errors
    /// If it is none of P-384.
    pub fn read(document: &[u8]) -> Result<Self, SimulatedError> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, document);
        let pair = pair.map_err(|_| SimulatedError::NoRoot)?;
        Ok(Self { pair, document: Zeroizing::new(document.to_vec()) })
    }

    /// The private key (PKCS #8).
    #[must_use]
    pub fn document(&self) -> &[u8] {
        &self.document
    }

    /// The public key, for verifiers.
    ///
    /// # Errors
    /// If the library fails.
    pub fn key(&self) -> Result<RootKey, SimulatedError> {
        public_key(&self.pair).map(RootKey)
    }

    /// Vouches for a guest. The launcher hands the result to it and to nobody else: whoever has it speaks for that guest.
    ///
    /// # Errors
    /// If the library fails.
    pub fn launch(&self, launch: &Launch) -> Result<Zeroizing<Vec<u8>>, SimulatedError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &SystemRandom::new())?;
        let guest = EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, document.as_ref());
        let guest = guest.map_err(|_| SimulatedError::Cipher)?;
        let flags = if launch.is_debug { DEBUG } else { 0 };
        let mut certificate = LAUNCH_MAGIC.to_vec();
        certificate.extend(VERSION.to_le_bytes());
        certificate.extend(flags.to_le_bytes());
        certificate.extend(launch.measurement.0);
        certificate.extend(launch.host_data.0);
        certificate.extend(launch.machine_id.0);
        certificate.extend(launch.tcb.to_le_bytes());
        certificate.extend(public_key(&guest)?.0);
        let signature = signature(&self.pair, LAUNCH_LABEL, &certificate)?;
        certificate.extend(signature);
        let mut seat = Zeroizing::new(Vec::with_capacity(8 + LAUNCH_SIZE + document.as_ref().len()));
        seat.extend(SEAT_MAGIC);
        seat.extend(certificate);
        seat.extend(document.as_ref());
        Ok(seat)
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Root").finish_non_exhaustive()
    }
}

/// The guest's side: makes reports.
pub struct Issuer {
    pair: EcdsaKeyPair,
    launch: [u8; LAUNCH_SIZE],
}

impl Issuer {
    /// Reads what the launcher handed over.
    ///
    /// # Errors
    /// If it is something else.
    pub fn read(seat: &[u8]) -> Result<Self, SimulatedError> {
        let rest = seat.strip_prefix(SEAT_MAGIC).ok_or(SimulatedError::NoSeat)?;
        let (launch, document) = rest.split_first_chunk::<LAUNCH_SIZE>().ok_or(SimulatedError::NoSeat)?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, document);
        Ok(Self { pair: pair.map_err(|_| SimulatedError::NoSeat)?, launch: *launch })
    }

    /// Evidence with this report data.
    ///
    /// # Errors
    /// If the library fails.
    pub fn evidence(&self, report_data: ReportData) -> Result<Evidence, SimulatedError> {
        let mut report = self.launch.to_vec();
        report.extend(report_data.0);
        let signature = signature(&self.pair, REPORT_LABEL, &report)?;
        report.extend(signature);
        Ok(Evidence::Simulated { report })
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer").finish_non_exhaustive()
    }
}
