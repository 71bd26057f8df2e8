//! What is measured, and how often, from the command line.

use std::path::PathBuf;

use clap::Args;

use crate::error::{Error, Result};
use crate::session::Planned;
use crate::target::{Spec, Variation, Volume, one_less};

/// What is measured, where, and how often.
#[derive(Args, Debug, Clone)]
pub struct TargetArgs {
    /// What is measured; once for each. A directory (a file is made in it), an existing file or block device, an NBD address, tmpfs,
    /// cvmio[:SETTING=VALUE,...], nbdkit, nbdkit-luks, qemu, qemu-luks, dm-crypt, dm-integrity [default: the directory of --dir, and cvmio]
    #[arg(long = "target", value_name = "TARGET")]
    pub targets: Vec<Spec>,
    /// Measure each cvmio target with all values of these settings, as in suite=aes-256-gcm,aegis-128x2,level=strict,off
    #[arg(long, value_name = "SETTING=VALUE,...", conflicts_with = "one_less")]
    pub vary: Option<Variation>,
    /// Measure each cvmio target with all protections, and with one taken away at a time
    #[arg(long)]
    pub one_less: bool,
    /// Directory for files, which are removed; choose it on the disk that is to be measured
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Bytes of each target that are used, as 512M or 4G
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    pub size: u64,
    /// How often each target has its turn at each case
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub turns: u32,
    /// The target that the others are compared with [default: the first]
    #[arg(long, value_name = "TARGET")]
    pub baseline: Option<String>,
    /// Do not measure the baseline against itself
    #[arg(long)]
    pub no_control: bool,
    /// Overwrite this file, device or NBD export although it holds data
    #[arg(long, value_name = "TARGET")]
    pub destroy_data: Vec<String>,
    /// Where the run file goes [default: one named by the time]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// A size in bytes, with K, M, G or T for powers of 1024.
///
/// # Errors
/// When it is none, or less than 1 MiB.
pub fn parse_size(text: &str) -> std::result::Result<u64, String> {
    let wrong = || format!("`{text}` is no size; one is 512M or 4G");
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let bytes =
        digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)).ok_or_else(wrong)?;
    // Sizes that a volume cannot have are found out by the volume.
    if bytes < 1 << 20 { Err(format!("{text}: at least 1M is needed")) } else { Ok(bytes - bytes % 4096) }
}

impl TargetArgs {
    /// The targets with their names, and which is the baseline.
    ///
    /// # Errors
    /// When the baseline is none of them.
    pub fn plan(&self) -> Result<(Vec<Planned>, String)> {
        let mut specs = self.targets.clone();
        if specs.is_empty() {
            specs = vec![Spec::Path(self.dir.clone()), Spec::Cvmio(Volume::default())];
        }
        let varied = self.vary.is_some() || self.one_less;
        if varied && !specs.iter().any(|spec| matches!(spec, Spec::Cvmio(_))) {
            return Err(Error::usage("only cvmio targets have settings to vary; add --target cvmio"));
        }
        let specs = specs.iter().flat_map(|spec| match spec {
            Spec::Cvmio(volume) => {
                let all = match &self.vary {
                    Some(variation) => variation.of(volume),
                    None if self.one_less => one_less(volume),
                    None => vec![volume.clone()],
                };
                all.into_iter().map(Spec::Cvmio).collect()
            }
            other => vec![other.clone()],
        });
        let mut planned: Vec<Planned> = Vec::new();
        for spec in specs {
            let same = planned.iter().filter(|other| other.spec.name() == spec.name()).count();
            let name = if same == 0 { spec.name() } else { format!("{} ({})", spec.name(), same + 1) };
            planned.push(Planned { name, spec });
        }
        let baseline = self.baseline(&planned)?;
        Ok((planned, baseline))
    }

    fn baseline(&self, planned: &[Planned]) -> Result<String> {
        let Some(wanted) = &self.baseline else {
            return planned
                .first()
                .map(|first| first.name.clone())
                .ok_or_else(|| Error::usage("there is no target"));
        };
        let fits = |one: &&Planned| one.name == *wanted || one.spec.to_string() == *wanted;
        planned.iter().find(fits).map(|one| one.name.clone()).ok_or_else(|| {
            let names: Vec<&str> = planned.iter().map(|one| one.name.as_str()).collect();
            Error::usage(format!(
                "there is no target `{wanted}` for --baseline; there are {}",
                names.join(", ")
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        args: TargetArgs,
    }

    fn plan(line: &str) -> Result<(Vec<String>, String)> {
        let args = Line::try_parse_from(line.split_whitespace()).unwrap().args;
        let (planned, baseline) = args.plan()?;
        Ok((planned.into_iter().map(|one| one.name).collect(), baseline))
    }

    #[test]
    fn a_matrix_is_one_command() {
        let (names, baseline) = plan("--target tmpfs --target cvmio --vary level=strict,off").unwrap();
        assert_eq!(names, ["tmpfs", "cvmio level=strict", "cvmio level=off"]);
        assert_eq!(baseline, "tmpfs");
        let (names, baseline) =
            plan("--target tmpfs --target tmpfs --target cvmio --baseline cvmio").unwrap();
        assert_eq!(names, ["tmpfs", "tmpfs (2)", "cvmio"]);
        assert_eq!(baseline, "cvmio");
        assert_eq!(plan("--target cvmio --one-less").unwrap().0.len(), 4);
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused() {
        assert!(plan("--target tmpfs --baseline qemu").unwrap_err().to_string().contains("there are tmpfs"));
        assert!(plan("--target tmpfs --one-less").is_err());
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("16M").unwrap(), 16 << 20);
        assert_eq!(parse_size("1048577").unwrap(), 1 << 20);
        for bad in ["", "G", "1X", "4K", "99999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
