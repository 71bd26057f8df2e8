//! Which TDX machines the owner trusts: the table `[tdx]` of an evidence policy.

use serde::{Deserialize, Serialize};

use crate::Hex;
use crate::rules::{Features, PolicyError, not_empty};

/// Attributes of a guest by the names that a policy has for them.
pub(crate) const ATTRIBUTES: [(&str, u64); 9] = [
    ("icssd", 1 << 16),
    ("service-td-extension", 1 << 17),
    ("lass", 1 << 27),
    ("sept-ve-disable", 1 << 28),
    ("migratable", 1 << 29),
    ("pks", 1 << 30),
    ("key-locker", 1 << 31),
    ("provisioning-agent", 1 << 62),
    ("perfmon", 1 << 63),
];

/// One event that may be in a guest's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AcceptedEvent {
    /// The runtime register, 0 to 3.
    pub register: usize,
    /// What is extended.
    pub digest: Hex<48>,
    /// What it is, for people.
    #[serde(default)]
    pub meaning: String,
}

/// Which TDX machines the owner trusts. Debugging and service guests are always refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// Accepted launch measurements (MRTD).
    pub measurements: Vec<Hex<48>>,
    /// Accepted values of RTMR 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtmr0: Option<Vec<Hex<48>>>,
    /// Accepted values of RTMR 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtmr1: Option<Vec<Hex<48>>>,
    /// Accepted values of RTMR 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtmr2: Option<Vec<Hex<48>>>,
    /// Accepted values of RTMR 3; zeros if it is judged by nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtmr3: Option<Vec<Hex<48>>>,
    /// Events that may be in the log. Each event of the log must be among them, and the log must lead to the registers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<AcceptedEvent>>,
    /// Accepted states of the platform's TCB, in Intel's words.
    #[serde(default = "up_to_date")]
    pub tcb_statuses: Vec<String>,
    /// Advisories that may apply.
    #[serde(default)]
    pub accepted_advisories: Vec<String>,
    /// Accepted TDX modules (MRSEAM).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tdx_modules: Option<Vec<Hex<48>>>,
    /// The least security version of each part of the TDX module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_tee_tcb_svn: Option<Hex<16>>,
    /// Attributes. `sept-ve-disable` must be on unless it is refused here, and `migratable` off unless it is required here.
    #[serde(default)]
    pub attributes: Features,
    /// Accepted sets of extended features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xfams: Option<Vec<Hex<8>>>,
    /// Accepted values of MRCONFIGID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_ids: Option<Vec<Hex<48>>>,
    /// Accepted values of MROWNER.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owners: Option<Vec<Hex<48>>>,
    /// Accepted values of MROWNERCONFIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_configs: Option<Vec<Hex<48>>>,
    /// Accepted processor families (FMSPC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fmspcs: Option<Vec<Hex<6>>>,
    /// Refused processor families (FMSPC).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_fmspcs: Vec<Hex<6>>,
}

fn up_to_date() -> Vec<String> {
    vec!["UpToDate".to_string()]
}

/// All states in Intel's words.
const STATUSES: [&str; 9] = [
    "UpToDate",
    "SWHardeningNeeded",
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDate",
    "OutOfDateConfigurationNeeded",
    "TDRelaunchAdvised",
    "TDRelaunchAdvisedConfigurationNeeded",
    "Revoked",
];

impl Policy {
    /// Accepted values of a runtime register, if it is judged by its value.
    pub(crate) fn rtmr(&self, register: usize) -> Option<&Vec<Hex<48>>> {
        [&self.rtmr0, &self.rtmr1, &self.rtmr2, &self.rtmr3].get(register).and_then(|list| list.as_ref())
    }

    /// Refuses a policy that could accept nothing, and one that leaves something to chance.
    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        not_empty(&self.measurements, "tdx.measurements")?;
        not_empty(&self.tcb_statuses, "tdx.tcb-statuses")?;
        for (register, key) in ["tdx.rtmr0", "tdx.rtmr1", "tdx.rtmr2"].into_iter().enumerate() {
            if self.rtmr(register).is_none() && self.events.is_none() {
                let message = "is missing, and there is no `tdx.events` to judge that register by";
                return Err(PolicyError::value(key, message));
            }
        }
        let lists = [
            (self.rtmr0.as_ref().map(Vec::len), "tdx.rtmr0"),
            (self.rtmr1.as_ref().map(Vec::len), "tdx.rtmr1"),
            (self.rtmr2.as_ref().map(Vec::len), "tdx.rtmr2"),
            (self.rtmr3.as_ref().map(Vec::len), "tdx.rtmr3"),
            (self.tdx_modules.as_ref().map(Vec::len), "tdx.tdx-modules"),
            (self.xfams.as_ref().map(Vec::len), "tdx.xfams"),
            (self.config_ids.as_ref().map(Vec::len), "tdx.config-ids"),
            (self.owners.as_ref().map(Vec::len), "tdx.owners"),
            (self.owner_configs.as_ref().map(Vec::len), "tdx.owner-configs"),
            (self.fmspcs.as_ref().map(Vec::len), "tdx.fmspcs"),
        ];
        if let Some((_, key)) = lists.into_iter().find(|(length, _)| *length == Some(0)) {
            return not_empty::<u8>(&[], key);
        }
        if let Some(event) = self.events.iter().flatten().find(|event| event.register > 3) {
            let message = format!("names register {}; there are 0 to 3", event.register);
            return Err(PolicyError::value("tdx.events", message));
        }
        if let Some(unknown) = self.tcb_statuses.iter().find(|status| !STATUSES.contains(&status.as_str())) {
            let message = format!("names {unknown:?}; known are {}", STATUSES.join(", "));
            return Err(PolicyError::value("tdx.tcb-statuses", message));
        }
        self.attributes.check(&ATTRIBUTES, "tdx.attributes")
    }
}
