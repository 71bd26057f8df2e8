//! Which SNP machines the owner trusts: the table `[snp]` of an evidence policy.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Hex;
use crate::rules::{Features, PolicyError, not_empty};

use super::report::{GuestPolicy, PLATFORM_INFO};
use super::{Family, FirmwareVersion, SigningKey, Tcb};

/// Whether a revocation list of the root must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Revocation {
    /// It must, and be current.
    #[default]
    Required,
    /// Lists are judged if they are given.
    WhenGiven,
}

/// Which SNP machines the owner trusts. Debugging is always refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// Accepted chip families; leave one out whose root of trust is broken.
    pub families: Vec<Family>,
    /// Accepted launch measurements.
    pub measurements: Vec<Hex<48>>,
    /// For each accepted family, the least patch levels: of the reported, committed, current and launch TCB.
    pub minimum_tcb: BTreeMap<Family, Tcb>,
    /// Accepted privilege levels of the software that asked for the report.
    #[serde(default = "lowest")]
    pub vmpl: Vec<u32>,
    /// Accepted signing keys.
    #[serde(default = "own_key")]
    pub signing_keys: Vec<SigningKey>,
    /// Accepted cloud providers, as their VLEK names them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csp_ids: Option<Vec<String>>,
    /// Whether a revocation list of the root must be there.
    #[serde(default)]
    pub revocation: Revocation,
    /// Features of the guest's policy. A migration agent is refused unless `migration-agent` is required here.
    #[serde(default)]
    pub guest_policy: Features,
    /// Features of the machine.
    #[serde(default)]
    pub platform_info: Features,
    /// The least ABI version in the guest's policy, `major.minor`.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "abi")]
    pub minimum_abi: Option<(u8, u8)>,
    /// The least version of current and committed firmware, `major.minor.build`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "firmware")]
    pub minimum_firmware: Option<FirmwareVersion>,
    /// Bits of the mitigation vectors that must be set, at launch and now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mitigations: Option<u64>,
    /// The least security version of the guest.
    #[serde(default)]
    pub minimum_guest_svn: u32,
    /// Accepted host data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_data: Option<Vec<Hex<32>>>,
    /// Accepted family ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family_ids: Option<Vec<Hex<16>>>,
    /// Accepted image ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_ids: Option<Vec<Hex<16>>>,
    /// Accepted digests of id keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_keys: Option<Vec<Hex<48>>>,
    /// Accepted digests of author keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author_keys: Option<Vec<Hex<48>>>,
    /// Accepted chips. A report that hides its chip's id is then refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chip_ids: Option<Vec<Hex<64>>>,
    /// Refused chips. AMD gives every VCEK the serial number 0, so no revocation list can name one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_chip_ids: Vec<Hex<64>>,
}

fn lowest() -> Vec<u32> {
    vec![0]
}

fn own_key() -> Vec<SigningKey> {
    vec![SigningKey::Vcek]
}

/// Numbers with dots between them.
fn numbers<const N: usize>(text: &str) -> Option<[u8; N]> {
    let all: Option<Vec<u8>> = text.split('.').map(|part| part.parse().ok()).collect();
    all?.try_into().ok()
}

fn firmware<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FirmwareVersion>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let [major, minor, build] =
        numbers(&text).ok_or_else(|| serde::de::Error::custom("expected `major.minor.build`"))?;
    Ok(Some(FirmwareVersion { major, minor, build }))
}

/// ABI versions as `major.minor`.
mod abi {
    use super::{Deserialize, Deserializer, Serializer, numbers};

    /// Serde hands over a reference.
    #[allow(clippy::ref_option)]
    pub(super) fn serialize<S: Serializer>(
        value: &Option<(u8, u8)>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some((major, minor)) => serializer.collect_str(&format_args!("{major}.{minor}")),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<(u8, u8)>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let [major, minor] =
            numbers(&text).ok_or_else(|| serde::de::Error::custom("expected `major.minor`"))?;
        Ok(Some((major, minor)))
    }
}

impl Policy {
    /// Refuses a policy that could accept nothing, and one that leaves something to chance.
    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        not_empty(&self.families, "snp.families")?;
        not_empty(&self.measurements, "snp.measurements")?;
        not_empty(&self.vmpl, "snp.vmpl")?;
        not_empty(&self.signing_keys, "snp.signing-keys")?;
        for family in &self.families {
            if !self.minimum_tcb.contains_key(family) {
                let message = format!("has no entry for {family}, which `snp.families` accepts");
                return Err(PolicyError::value("snp.minimum-tcb", message));
            }
        }
        let lists = [
            (self.csp_ids.as_ref().map(Vec::len), "snp.csp-ids"),
            (self.host_data.as_ref().map(Vec::len), "snp.host-data"),
            (self.family_ids.as_ref().map(Vec::len), "snp.family-ids"),
            (self.image_ids.as_ref().map(Vec::len), "snp.image-ids"),
            (self.id_keys.as_ref().map(Vec::len), "snp.id-keys"),
            (self.author_keys.as_ref().map(Vec::len), "snp.author-keys"),
            (self.chip_ids.as_ref().map(Vec::len), "snp.chip-ids"),
        ];
        if let Some((_, key)) = lists.into_iter().find(|(length, _)| *length == Some(0)) {
            return not_empty::<u8>(&[], key);
        }
        self.guest_policy.check(&GuestPolicy::FEATURES, "snp.guest-policy")?;
        self.platform_info.check(&PLATFORM_INFO, "snp.platform-info")
    }
}
