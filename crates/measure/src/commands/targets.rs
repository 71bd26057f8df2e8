//! What is measured, and how often, from the command line.

use std::path::PathBuf;

use clap::Args;

use crate::error::{Error, Result};
use crate::outfile::OutArgs;
use crate::session::Planned;
use crate::target::{Guests, Spec, Variation, Vm, Volume, one_less};

/// What is measured, where, and how often.
#[derive(Args, Debug, Clone)]
pub struct TargetArgs {
    /// What is measured; once for each. A directory (a file is made in it), an existing file or block device, an NBD address, tmpfs,
    /// cvmio[:SETTING=VALUE,...], nbdkit, nbdkit-luks, qemu, qemu-luks, dm-crypt, dm-integrity, vm[:SETTING=VALUE,...] [default: bench fio and
    /// apps take the directory of --dir, and cvmio; bench vm the papers' matrix; bench breakdown vm, and with iothread=on, and with bounce=on]
    #[arg(long = "target", value_name = "TARGET")]
    pub targets: Vec<Spec>,
    /// Measure each cvmio or vm target with all values of these settings, as in suite=aes-256-gcm,aegis-128x2,level=strict,off or
    /// disk=virtio-blk,nvme,bounce=off,on
    #[arg(long, value_name = "SETTING=VALUE,...", conflicts_with = "one_less")]
    pub vary: Option<Variation>,
    /// Measure each cvmio target with all protections, and with one taken away at a time
    #[arg(long)]
    pub one_less: bool,
    /// Directory for files, which are removed; choose it on the disk that is to be measured
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
    /// Bytes of each target that are used, as 512M or 4G
    #[arg(long, default_value = "1G", value_parser = crate::size::parse)]
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
    #[command(flatten)]
    #[expect(missing_docs, reason = "it has its own")]
    pub out: OutArgs,
    /// Print what would be measured, by which commands and for how long, and make nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it has its own")]
    pub guests: Guests,
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
        let volumes = self.one_less || self.vary.as_ref().is_some_and(Variation::concerns::<Volume>);
        if volumes && !specs.iter().any(|spec| matches!(spec, Spec::Cvmio(_))) {
            return Err(Error::usage("only cvmio targets have these settings to vary; add --target cvmio"));
        }
        let machines = self.vary.as_ref().is_some_and(Variation::concerns::<Vm>);
        if machines && !specs.iter().any(|spec| matches!(spec, Spec::Vm(_))) {
            return Err(Error::usage("only vm targets have these settings to vary; add --target vm"));
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
            Spec::Vm(vm) => {
                let all = self.vary.as_ref().map_or_else(|| vec![vm.clone()], |variation| variation.of(vm));
                all.into_iter().map(Spec::Vm).collect()
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
        let (names, _) = plan("--target vm --target tmpfs --vary disk=virtio-blk,nvme,cache=on,off").unwrap();
        assert_eq!(names, ["vm cache=on", "vm", "vm disk=nvme,cache=on", "vm disk=nvme", "tmpfs"]);
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused() {
        assert!(plan("--target tmpfs --baseline qemu").unwrap_err().to_string().contains("there are tmpfs"));
        assert!(plan("--target tmpfs --one-less").is_err());
        assert!(plan("--target cvmio --vary disk=nvme").unwrap_err().to_string().contains("--target vm"));
        assert!(plan("--target vm --vary level=off").unwrap_err().to_string().contains("--target cvmio"));
    }
}
