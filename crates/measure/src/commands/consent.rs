//! What the words of a run file may do that were typed by somebody else: nothing that harms, unless it is said again.

use std::path::Path;

use clap::Args;

use super::{AppsArgs, TargetArgs};
use crate::error::{Error, Result};
use crate::scm::ScmArgs;
use crate::target::{Guests, Spec};

/// What is said again.
#[derive(Args, Debug, Clone, Default)]
pub struct ConsentArgs {
    /// Overwrite this file, device or NBD export although it holds data, as the run file's command wants to
    #[arg(long, value_name = "TARGET")]
    pub destroy_data: Vec<String>,
    /// Use this program, library, project or anchor that the run file's command names
    #[arg(long, value_name = "WORD")]
    pub allow: Vec<String>,
}

/// The same, with the file that it is about.
#[derive(Debug, Clone)]
pub struct Consent {
    /// Targets that may be overwritten.
    pub destroy: Vec<String>,
    allow: Vec<String>,
    file: String,
}

/// Something that a command names and that has an effect beyond its targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// What is done with it.
    what: &'static str,
    word: String,
}

impl Consent {
    /// What the user says about a run file.
    pub fn of(args: &ConsentArgs, file: &Path) -> Self {
        Self {
            destroy: args.destroy_data.clone(),
            allow: args.allow.clone(),
            file: file.display().to_string(),
        }
    }

    /// # Errors
    /// When something was not said again.
    pub fn check(&self, asked: &[Asked]) -> Result<()> {
        match asked.iter().find(|asked| !self.allow.contains(&asked.word)) {
            None => Ok(()),
            Some(Asked { what, word }) => Err(Error::usage(format!(
                "the command of {} {what} {word}; if that is wanted, say --allow '{word}'",
                self.file
            ))),
        }
    }
}

fn asked(what: &'static str, word: impl Into<String>) -> Asked {
    Asked { what, word: word.into() }
}

/// Of targets and guests: QEMU, if it is not the usual one, and anchors that lie elsewhere than beside the volume.
pub fn of_targets(args: &TargetArgs) -> Vec<Asked> {
    let usual = Guests::default().qemu;
    let qemu = Some(&args.guests.qemu).filter(|qemu| **qemu != usual);
    let mut all: Vec<Asked> = qemu.map(|qemu| asked("runs the program", qemu)).into_iter().collect();
    // A plan that makes no sense is refused elsewhere.
    let planned = args.plan().map(|(planned, _)| planned).unwrap_or_default();
    for target in planned {
        if let Spec::Cvmio(volume) = target.spec {
            all.extend(volume.anchor.map(|anchor| asked("makes the anchor", anchor)));
        }
    }
    all
}

/// Of applications: the project too, since what `make` runs there is anything.
pub fn of_apps(args: &AppsArgs) -> Vec<Asked> {
    let project = args.sizes.project.iter().map(|project| asked("runs make in", project.to_string_lossy()));
    of_targets(&args.targets).into_iter().chain(project).collect()
}

/// Of page encryption: the library that fio loads.
pub fn of_library(args: &ScmArgs) -> Vec<Asked> {
    args.library.iter().map(|library| asked("has fio load the library", library.to_string_lossy())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{Measure, Words};
    use clap::Parser;

    fn asked_by(line: &str) -> Vec<String> {
        let asked = match Words::try_parse_from(line.split(' ')).unwrap().measure {
            Measure::Fio(args) => of_targets(&args.targets),
            Measure::Apps(args) => of_apps(&args),
            Measure::Scm(args) => of_library(&args),
            _ => panic!("{line}"),
        };
        asked.into_iter().map(|asked| asked.word).collect()
    }

    #[test]
    fn what_has_an_effect_elsewhere_is_asked_anew() {
        assert_eq!(asked_by("fio --target /srv --target cvmio --destroy-data /srv"), [""; 0]);
        assert_eq!(asked_by("fio --target vm --qemu ./evil"), ["./evil"]);
        assert_eq!(asked_by("fio --target cvmio:anchor=file:/etc/x"), ["file:/etc/x"]);
        assert_eq!(asked_by("fio --target cvmio --vary anchor=file:/a,file:/b"), ["file:/a", "file:/b"]);
        assert_eq!(asked_by("apps --target tmpfs --apps compile --project /p --qemu q"), ["q", "/p"]);
        assert_eq!(asked_by("scm --library ./evil.so"), ["./evil.so"]);
        let args = ConsentArgs { destroy_data: Vec::new(), allow: vec!["q".into()] };
        let consent = Consent::of(&args, Path::new("x.json"));
        consent.check(&[asked("runs the program", "q")]).unwrap();
        let said = consent.check(&[asked("runs the program", "r")]).unwrap_err().to_string();
        assert!(said.contains("x.json") && said.contains("--allow 'r'"), "{said}");
    }
}
