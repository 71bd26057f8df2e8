//! The numbers that the papers published, each with its table or section, to stand beside what is measured here.
//!
//! They are in `crates/report/papers/`. A set gives either values, or what the paper's text says of their ratio; where the text can be read in
//! two ways, `doubt` says how it was read.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::run::Metric;

const SOURCES: [&str; 4] = [
    include_str!("../papers/thesis.toml"),
    include_str!("../papers/amd.toml"),
    include_str!("../papers/in-memory.toml"),
    include_str!("../papers/scm.toml"),
];

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Paper {
    paper: String,
    #[serde(default)]
    set: Vec<Set>,
    #[serde(default)]
    statement: Vec<RawStatement>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Set {
    place: String,
    platform: String,
    about: String,
    metric: Metric,
    baseline: String,
    subject: String,
    unit: Option<String>,
    doubt: Option<String>,
    /// Both values, baseline first.
    #[serde(default)]
    values: BTreeMap<String, [f64; 2]>,
    /// Subject : baseline.
    #[serde(default)]
    ratio: BTreeMap<String, f64>,
    /// By how many percent the subject is worse.
    #[serde(default)]
    overhead: BTreeMap<String, f64>,
    /// By how many percent more the subject does.
    #[serde(default)]
    gain: BTreeMap<String, f64>,
    /// By how many percent longer the baseline takes.
    #[serde(default)]
    saving: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct RawStatement {
    place: String,
    about: String,
    text: String,
}

/// One published number.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// Which paper.
    pub paper: String,
    /// Its table, figure or section.
    pub place: String,
    /// What it was measured on.
    pub platform: String,
    /// What the comparison is about: `cvm`, `bounce-buffer`, `polling`, `host-cache`, `encryption`, `tmpfs`.
    pub about: String,
    /// A case, named as here.
    pub case: String,
    /// What its figures count.
    pub metric: Metric,
    /// What the subject is compared with, as the paper calls it.
    pub baseline: String,
    /// As the paper calls it.
    pub subject: String,
    /// Subject : baseline.
    pub ratio: f64,
    /// Baseline and subject in the metric's own unit, where the paper has them.
    pub values: Option<[f64; 2]>,
    /// As the paper says it.
    pub stated: String,
    /// What is doubtful about it, and how it was read.
    pub doubt: Option<String>,
}

/// A finding that a paper gives in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Which paper.
    pub paper: String,
    /// Its section or figure.
    pub place: String,
    /// As in [`Claim::about`].
    pub about: String,
    /// What it says, in our words.
    pub text: String,
}

fn papers() -> impl Iterator<Item = Paper> {
    // They are part of the program, and a test reads them: that one cannot be read does not happen.
    SOURCES.iter().filter_map(|source| toml::from_str(source).ok())
}

/// All published numbers.
pub fn claims() -> Vec<Claim> {
    papers()
        .flat_map(|paper| {
            let name = paper.paper;
            paper.set.into_iter().flat_map(move |set| of(&name, &set))
        })
        .collect()
}

/// All findings in words.
pub fn statements() -> Vec<Statement> {
    let of = |paper: Paper| {
        let name = paper.paper;
        paper.statement.into_iter().map(move |raw| Statement {
            paper: name.clone(),
            place: raw.place,
            about: raw.about,
            text: raw.text,
        })
    };
    papers().flat_map(of).collect()
}

fn of(paper: &str, set: &Set) -> Vec<Claim> {
    let claim = |case: &str, ratio: f64, values: Option<[f64; 2]>, stated: String| Claim {
        paper: paper.into(),
        place: set.place.clone(),
        platform: set.platform.clone(),
        about: set.about.clone(),
        case: case.into(),
        metric: set.metric,
        baseline: set.baseline.clone(),
        subject: set.subject.clone(),
        ratio,
        values,
        stated,
        doubt: set.doubt.clone(),
    };
    let worse = |percent: f64| {
        let factor = 1.0 + percent / 100.0;
        if set.metric.more_is_better() { factor.recip() } else { factor }
    };
    let unit = set.unit.as_deref().unwrap_or_default();
    let mut all = Vec::new();
    for (case, values) in &set.values {
        let [baseline, subject] = values;
        all.push(claim(
            case,
            subject / baseline,
            Some(*values),
            format!("{baseline:.0} and {subject:.0} {unit}"),
        ));
    }
    for (case, ratio) in &set.ratio {
        all.push(claim(case, *ratio, None, format!("a factor of {ratio}")));
    }
    for (case, percent) in &set.overhead {
        all.push(claim(case, worse(*percent), None, format!("{percent} % overhead")));
    }
    for (case, percent) in &set.gain {
        all.push(claim(case, 1.0 + percent / 100.0, None, format!("{percent} % gain")));
    }
    for (case, percent) in &set.saving {
        all.push(claim(case, (1.0 + percent / 100.0).recip(), None, format!("{percent} % faster")));
    }
    all
}

/// What the papers' comparisons of two targets like these are about, by their specifications.
pub fn about(baseline: &str, spec: &str) -> Option<&'static str> {
    if let (Some(base), Some(of)) = (settings(baseline), settings(spec)) {
        let differs: Vec<&str> = base.symmetric_difference(&of).copied().collect();
        return match differs.as_slice() {
            // The papers say what interrupts cost over polling, not what polling gains.
            ["completion=poll"] if base.contains("completion=poll") => Some("polling"),
            ["bounce=on"] if of.contains("bounce=on") => Some("bounce-buffer"),
            ["protect=dm-crypt" | "protect=dm-integrity" | "protect=cvmio"] if base.is_empty() => {
                Some("encryption")
            }
            ["kind=snp" | "kind=tdx"] if of.len() > base.len() => Some("cvm"),
            _ => None,
        };
    }
    match spec.split([':', ',']).next()? {
        "cvmio" | "nbdkit-luks" | "qemu-luks" | "dm-crypt" | "dm-integrity" => Some("encryption"),
        // The papers hold it against an encrypted disk, and once against a bare one: these are two questions.
        "tmpfs" if protects(baseline) => Some("tmpfs-encrypted"),
        "tmpfs" => Some("tmpfs"),
        _ => None,
    }
}

/// Whether a target is a volume of ours, by its specification.
pub fn is_cvmio(spec: &str) -> bool {
    spec == "cvmio" || spec.starts_with("cvmio:") || machine_with(spec, "protect=cvmio")
}

/// Whether a target protects its data, in whatever way.
pub fn protects(spec: &str) -> bool {
    let others = ["nbdkit-luks", "qemu-luks", "dm-crypt", "dm-integrity"];
    is_cvmio(spec) || others.contains(&spec) || machine_with(spec, "protect=dm-")
}

fn machine_with(spec: &str, setting: &str) -> bool {
    let settings = spec.strip_prefix("vm:").unwrap_or_default();
    settings.split(',').any(|one| one.starts_with(setting))
}

/// The settings of a virtual machine that are not the usual ones; nothing if it is none.
fn settings(spec: &str) -> Option<BTreeSet<&str>> {
    match spec.split_once(':') {
        None if spec == "vm" => Some(BTreeSet::new()),
        Some(("vm", settings)) => Some(settings.split(',').collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(place: &str, platform: &str, case: &str) -> Claim {
        let fits = |claim: &Claim| {
            claim.place.starts_with(place) && claim.platform.contains(platform) && claim.case == case
        };
        claims().into_iter().find(fits).unwrap()
    }

    #[test]
    fn every_paper_is_there() {
        assert_eq!(papers().count(), SOURCES.len());
        for claim in claims() {
            assert!(claim.ratio.is_finite() && claim.ratio > 0.0, "{claim:?}");
        }
        assert!(statements().iter().any(|statement| statement.about == "scm"));
    }

    #[test]
    fn ratios_are_the_papers() {
        // The last column of the AMD report's tables.
        let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(near(find("table 3", "virtio-scsi", "bandwidth-read").ratio, 0.276944));
        assert!(near(find("table 4", "NVMe", "iops-mixread").ratio, 0.957797));
        assert!(near(find("table 5", "virtio-blk", "latency-randread").ratio, 1.209520));
    }

    #[test]
    fn percentages_become_ratios_by_their_metric() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(find("5.1, RQ1", "SEV-SNP", "latency-write").ratio, 1.52));
        // An overhead of a bandwidth makes it smaller, and that is doubtful.
        let read = find("5.1, RQ4", "SEV-SNP", "bandwidth-read");
        assert!(near(read.ratio, 1.0 / 2.89) && read.doubt.is_some());
        assert!(near(find("5.1; figure 3", "4 KiB", "in-memory-write-4k").ratio, 71.0));
    }

    #[test]
    fn machines_are_compared_by_the_setting_in_which_they_differ() {
        assert_eq!(about("vm:completion=poll", "vm"), Some("polling"));
        assert_eq!(about("vm", "vm:completion=poll"), None);
        assert_eq!(about("vm:disk=nvme", "vm:disk=nvme,bounce=on"), Some("bounce-buffer"));
        assert_eq!(about("vm", "vm:protect=dm-crypt"), Some("encryption"));
        assert_eq!(about("vm", "vm:disk=nvme,protect=dm-crypt"), None);
        assert_eq!(
            (about("vm", "vm:kind=snp"), about("/srv", "qemu-luks")),
            (Some("cvm"), Some("encryption"))
        );
    }

    #[test]
    fn memory_is_held_against_what_the_paper_holds_it_against() {
        for (baseline, theirs) in [("/srv", "std"), ("dm-crypt", "FDE"), ("cvmio", "FDE")] {
            let about = about(baseline, "tmpfs").unwrap();
            let claims: Vec<Claim> = claims().into_iter().filter(|claim| claim.about == about).collect();
            assert!(!claims.is_empty() && claims.iter().all(|claim| claim.baseline == theirs), "{baseline}");
        }
    }

    #[test]
    fn doubtful_units_are_marked() {
        let doubt = |claim: &Claim| claim.place != "table 3" || claim.doubt.is_some();
        assert!(claims().iter().all(doubt));
    }
}
