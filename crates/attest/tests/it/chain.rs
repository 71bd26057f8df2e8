//! Chains and reports that no chip has made: of the form of AMD's, with keys of our own.

use std::sync::LazyLock;

use attest::snp::Family;
use attest::{Context, Evidence, Expected, Hex, Policy, Roots, Verdict, verify};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PSS_SHA384, RsaKeyPair,
};

use crate::der::{bits, extension, name, number, oid, sequence, time, tlv};

/// 2026-01-01, within the validity of everything here.
pub const TIME: u64 = 1_767_225_600;
pub const ARC: &str = "1.3.6.1.4.1.3704.1";

fn rsa() -> RsaKeyPair {
    RsaKeyPair::generate(KeySize::Rsa2048).unwrap()
}

static ROOT: LazyLock<RsaKeyPair> = LazyLock::new(rsa);
static AUTHORITY: LazyLock<RsaKeyPair> = LazyLock::new(rsa);
static CHIP: LazyLock<EcdsaKeyPair> =
    LazyLock::new(|| EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap());

pub fn public_key(pair: &RsaKeyPair) -> Vec<u8> {
    let der: PublicKeyX509Der<'_> = pair.public_key().as_der().unwrap();
    der.as_ref().to_vec()
}

fn pss() -> Vec<u8> {
    let hash = sequence(&[oid("2.16.840.1.101.3.4.2.2")]);
    let mask = sequence(&[oid("1.2.840.113549.1.1.8"), hash.clone()]);
    let parameters = sequence(&[tlv(0xa0, &hash), tlv(0xa1, &mask), tlv(0xa2, &number(48))]);
    sequence(&[oid("1.2.840.113549.1.1.10"), parameters])
}

/// The sequence of what is signed, the algorithm, and the signature.
fn signed(content: &[u8], key: &RsaKeyPair) -> Vec<u8> {
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&RSA_PSS_SHA384, &SystemRandom::new(), content, &mut signature).unwrap();
    sequence(&[content.to_vec(), pss(), bits(&signature)])
}

/// A certificate to be.
#[derive(Clone)]
pub struct Draft {
    pub serial: u64,
    pub issuer: String,
    pub subject: String,
    pub from: String,
    pub until: String,
    pub key: Vec<u8>,
    pub extensions: Vec<Vec<u8>>,
}

impl Draft {
    fn authority(issuer: &str, subject: &str, serial: u64, key: &RsaKeyPair) -> Self {
        let constraints = extension("2.5.29.19", true, &sequence(&[tlv(0x01, &[0xff])]));
        let usage = extension("2.5.29.15", true, &tlv(0x03, &[1, 0x06]));
        Self {
            serial,
            issuer: issuer.to_string(),
            subject: subject.to_string(),
            from: "20200101000000Z".to_string(),
            until: "20450101000000Z".to_string(),
            key: public_key(key),
            extensions: vec![constraints, usage],
        }
    }

    pub fn sign(&self, key: &RsaKeyPair) -> Vec<u8> {
        let content = sequence(&[
            tlv(0xa0, &number(2)),
            number(self.serial),
            pss(),
            name(&self.issuer),
            sequence(&[time(&self.from), time(&self.until)]),
            name(&self.subject),
            self.key.clone(),
            tlv(0xa3, &sequence(&self.extensions)),
        ]);
        signed(&content, key)
    }

    /// Puts another content into one of AMD's extensions.
    pub fn with(&mut self, id: &str, content: &[u8]) -> &mut Self {
        let id = format!("{ARC}.{id}");
        self.without(&id);
        self.extensions.push(extension(&id, false, content));
        self
    }

    pub fn without(&mut self, id: &str) -> &mut Self {
        let id = oid(id);
        self.extensions.retain(|one| !one.windows(id.len()).any(|part| part == id));
        self
    }
}

/// A revocation list of a key.
pub fn revocation_list(issuer: &str, key: &RsaKeyPair, until: &str, revoked: &[u64]) -> Vec<u8> {
    let entries: Vec<Vec<u8>> =
        revoked.iter().map(|serial| sequence(&[number(*serial), time("20250101000000Z")])).collect();
    let entries = if entries.is_empty() { Vec::new() } else { sequence(&entries) };
    let content = sequence(&[number(1), pss(), name(issuer), time("20250601000000Z"), time(until), entries]);
    signed(&content, key)
}

/// All that a verifier is given, each part to be changed by a test before it is made.
pub struct Case {
    pub report: Vec<u8>,
    pub leaf: Draft,
    pub authority: Draft,
    pub root: Draft,
    pub lists: Vec<Vec<u8>>,
    pub policy: Policy,
    pub report_data: Expected,
    pub time: u64,
    pub family: Family,
}

pub const CHIP_ID: [u8; 64] = [7; 64];
pub const REPORT_DATA: [u8; 64] = [9; 64];

fn levels(leaf: &mut Draft, levels: &[(&str, u8)]) {
    for (id, level) in levels {
        leaf.with(id, &number(u64::from(*level)));
    }
}

impl Case {
    /// A chain and a report that pass, of a Genoa chip.
    pub fn new() -> Self {
        let policy = "version = 1\n[snp]\nfamilies = ['genoa']\nmeasurements = ['MEASUREMENT']\n\
                      minimum-tcb.genoa = { bootloader = 9, tee = 1, snp = 20, microcode = 70 }\n"
            .replace("MEASUREMENT", &"05".repeat(48));
        let mut leaf = Draft {
            serial: 0,
            issuer: "SEV-Genoa".to_string(),
            subject: "SEV-VCEK".to_string(),
            from: "20250101000000Z".to_string(),
            until: "20320101000000Z".to_string(),
            key: sequence(&[
                sequence(&[oid("1.2.840.10045.2.1"), oid("1.3.132.0.34")]),
                bits(CHIP.public_key().as_ref()),
            ]),
            extensions: Vec::new(),
        };
        leaf.with("1", &number(1)).with("2", &tlv(0x16, b"Genoa-B1")).with("4", &CHIP_ID);
        levels(&mut leaf, &[("3.1", 10), ("3.2", 1), ("3.3", 23), ("3.8", 84)]);
        Self {
            report: good_report(),
            leaf,
            authority: Draft::authority("ARK-Genoa", "SEV-Genoa", 0x1_0001, &AUTHORITY),
            root: Draft::authority("ARK-Genoa", "ARK-Genoa", 0x1_0000, &ROOT),
            lists: vec![revocation_list("ARK-Genoa", &ROOT, "20260601000000Z", &[])],
            policy: Policy::parse(&policy).unwrap(),
            report_data: Expected::Exactly(Hex(REPORT_DATA)),
            time: TIME,
            family: Family::Genoa,
        }
    }

    /// The same with a key of a cloud provider, and the chip's id hidden.
    pub fn vlek() -> Self {
        let mut case = Self::new();
        case.leaf.subject = "SEV-VLEK".to_string();
        case.leaf.issuer = "SEV-VLEK-Genoa".to_string();
        case.leaf.without(&format!("{ARC}.4")).with("5", &tlv(0x16, b"CN=cloud"));
        case.authority.subject = "SEV-VLEK-Genoa".to_string();
        case.put(0x48, &4_u32.to_le_bytes()).put(0x1a0, &[0; 64]);
        case.snp().signing_keys = vec![attest::snp::SigningKey::Vlek];
        case
    }

    /// The same of a Turin chip.
    pub fn turin() -> Self {
        let mut case = Self::new();
        case.family = Family::Turin;
        case.leaf.issuer = "SEV-Turin".to_string();
        (case.authority.issuer, case.authority.subject) = ("ARK-Turin".to_string(), "SEV-Turin".to_string());
        (case.root.issuer, case.root.subject) = ("ARK-Turin".to_string(), "ARK-Turin".to_string());
        case.leaf.with("2", &tlv(0x16, b"Turin")).with("4", &[7; 8]).with("3.9", &number(1));
        let tcb = [1, 10, 1, 23, 0, 0, 0, 84];
        for at in [0x38, 0x180, 0x1e0, 0x1f0] {
            case.put(at, &tcb);
        }
        case.put(0x188, &[0x1a, 0x02, 0x01]).put(0x1a8, &[0; 56]);
        case.lists = vec![revocation_list("ARK-Turin", &ROOT, "20260601000000Z", &[])];
        let minimum = case.snp().minimum_tcb.remove(&Family::Genoa).unwrap();
        case.snp().families = vec![Family::Turin];
        case.snp().minimum_tcb.insert(Family::Turin, attest::snp::Tcb { fmc: 1, ..minimum });
        case
    }

    pub fn snp(&mut self) -> &mut attest::snp::Policy {
        self.policy.snp.as_mut().unwrap()
    }

    /// Puts bytes into the report, before it is signed.
    pub fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.report[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub fn signed_report(&self) -> Vec<u8> {
        let mut report = self.report.clone();
        let signature = CHIP.sign(&SystemRandom::new(), &report[..0x2a0]).unwrap();
        for (number, at) in signature.as_ref().chunks_exact(48).zip([0x2a0, 0x2a0 + 72]) {
            let number: Vec<u8> = number.iter().rev().copied().collect();
            report[at..at + 48].copy_from_slice(&number);
        }
        report
    }

    pub fn certificates(&self) -> Vec<Vec<u8>> {
        vec![self.leaf.sign(&AUTHORITY), self.authority.sign(&ROOT), self.root.sign(&ROOT)]
    }

    pub fn roots(&self) -> Roots {
        let key = digest(&SHA256, &public_key(&ROOT));
        Roots::none().with_amd(self.family, key.as_ref().try_into().unwrap())
    }

    /// What becomes of a report and certificates, under all the rest.
    pub fn judge(&self, report: Vec<u8>, certificates: Vec<Vec<u8>>) -> Verdict {
        let roots = self.roots();
        let mut context = Context::new(self.time, &roots, self.report_data);
        context.revocation_lists = &self.lists;
        verify(&Evidence::Snp { report, certificates }, &self.policy, &context)
    }

    pub fn verdict(&self) -> Verdict {
        self.judge(self.signed_report(), self.certificates())
    }
}

/// The root's key, which nothing but these tests trusts.
pub fn root_key() -> &'static RsaKeyPair {
    &ROOT
}

/// The key of the authority between root and chip.
pub fn authority_key() -> &'static RsaKeyPair {
    &AUTHORITY
}

/// A report of version 3 as a Genoa chip would make it, but for the signature.
fn good_report() -> Vec<u8> {
    let mut report = vec![0; 0x4a0];
    let mut put = |at: usize, bytes: &[u8]| report[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x00, &3_u32.to_le_bytes());
    put(0x04, &2_u32.to_le_bytes());
    put(0x08, &0x3_001f_u64.to_le_bytes());
    put(0x34, &1_u32.to_le_bytes());
    put(0x40, &0x25_u64.to_le_bytes());
    put(0x50, &REPORT_DATA);
    put(0x90, &[5; 48]);
    put(0xc0, &[3; 32]);
    put(0x140, &[6; 32]);
    put(0x160, &[0xff; 32]);
    for at in [0x38, 0x180, 0x1e0, 0x1f0] {
        put(at, &[10, 1, 0, 0, 0, 0, 23, 84]);
    }
    put(0x188, &[0x19, 0x11, 0x01]);
    put(0x1a0, &CHIP_ID);
    put(0x1e8, &[22, 55, 1]);
    put(0x1ec, &[22, 55, 1]);
    report
}
