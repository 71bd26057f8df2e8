//! The commands whose work other programs do: each is started in place of this one, as git starts `git-foo`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};

use clap::{Arg, ArgAction, Command};
use cli::find::{self, Other};
use cli::grammar::Grammar;

/// Their place in the help, behind `volume`.
const FIRST: usize = 1;

/// What stands for all that a program may be told.
pub const REST: &str = "rest";

/// All of them, in the order of the help.
pub const ALL: [Other; 9] = [
    Other {
        word: "bench",
        about: "Measure what protection costs on this machine",
        program: "cvmio-bench",
        passes_word: true,
    },
    Other {
        word: "demo",
        about: "Put a volume to work, then attack it in every way that its host could",
        program: "cvmio-bench",
        passes_word: true,
    },
    Other {
        word: "scm",
        about: "Page encryption of storage-class memory",
        program: "cvmio-scm",
        passes_word: false,
    },
    Other {
        word: "owner",
        about: "A service that keeps stamps for volumes",
        program: "cvmio-owner",
        passes_word: false,
    },
    Other {
        word: "attest",
        about: "Evidence that a chip gives about a confidential VM: made, judged and predicted",
        program: "cvmio-attest",
        passes_word: false,
    },
    Other {
        word: "host",
        about: "Disks for confidential guests, served from the host's side",
        program: "cvmio-host",
        passes_word: false,
    },
    Other {
        word: "run",
        about: "Run a container in an attested guest and bring its signed result back",
        program: "cvmio-job",
        passes_word: true,
    },
    Other {
        word: "job",
        about: "List, follow, fetch and end jobs that run",
        program: "cvmio-job",
        passes_word: true,
    },
    Other {
        word: "image",
        about: "Build the image that guests of jobs boot",
        program: "cvmio-job",
        passes_word: true,
    },
];

/// The command that another program is to carry out, with its arguments, if one was typed. `cvmio help WORD ...` asks for the help of one.
pub fn asked(words: &[OsString]) -> Option<(Other, Vec<OsString>)> {
    let find =
        |word: Option<&OsString>| ALL.into_iter().find(|other| word.is_some_and(|word| word == other.word));
    if let Some(other) = find(words.get(1)) {
        return Some((other, words[2..].to_vec()));
    }
    let asks_for_help = words.get(1).is_some_and(|word| word == "help");
    let other = find(words.get(2)).filter(|_| asks_for_help)?;
    Some((other, words[3..].iter().cloned().chain(["--help".into()]).collect()))
}

/// Lets the help list them. What stands behind their words is not this program's to understand.
pub fn listed(grammar: Command) -> Command {
    ALL.into_iter()
        .zip(FIRST..)
        .fold(grammar, |grammar, (other, place)| grammar.subcommand(unknown(other).display_order(place)))
}

/// The same for completions: with the words of those programs that are installed and say them.
pub fn spelled_out(grammar: Command) -> Command {
    ALL.into_iter().zip(FIRST..).fold(grammar, |grammar, (other, place)| {
        let below = find::find(other.program).and_then(|program| known(other, &program));
        grammar.subcommand(below.unwrap_or_else(|| unknown(other)).display_order(place))
    })
}

/// A command of which this program knows the word only.
pub fn unknown(other: Other) -> Command {
    let rest = Arg::new(REST)
        .num_args(..)
        .trailing_var_arg(true)
        .allow_hyphen_values(true)
        .action(ArgAction::Append);
    Command::new(other.word).about(other.about).disable_help_flag(true).arg(rest.hide(true))
}

/// What a program says that can be typed behind its word.
fn known(other: Other, program: &Path) -> Option<Command> {
    let said = process::Command::new(program).arg("grammar").stdin(Stdio::null()).output().ok()?;
    let grammar: Grammar = serde_json::from_slice(&said.stdout).ok()?;
    let below = match other.passes_word {
        true => grammar.commands.into_iter().find(|command| command.name == other.word)?,
        false => grammar.named(other.word),
    };
    Some(below.command().about(other.about))
}

/// Whether a command is one of them.
pub fn is_one(command: &Command) -> bool {
    ALL.iter().any(|other| other.word == command.get_name())
}

/// The programs that are installed, each once.
pub fn installed() -> Vec<PathBuf> {
    let mut names: Vec<&str> = ALL.iter().map(|other| other.program).collect();
    names.dedup();
    names.into_iter().filter_map(find::find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_for(line: &str) -> Option<(&'static str, Vec<OsString>)> {
        let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
        asked(&words).map(|(other, arguments)| (other.program, arguments))
    }

    #[test]
    fn words_behind_the_command_go_on_as_they_are() {
        let words = |line: &str| line.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(asked_for("cvmio scm --help"), Some(("cvmio-scm", words("--help"))));
        assert_eq!(asked_for("cvmio help scm"), Some(("cvmio-scm", words("--help"))));
        assert_eq!(
            asked_for("cvmio bench volume --dir /srv"),
            Some(("cvmio-bench", words("volume --dir /srv")))
        );
        assert_eq!(asked_for("cvmio help bench volume"), Some(("cvmio-bench", words("volume --help"))));
        assert_eq!(asked_for("cvmio owner"), Some(("cvmio-owner", Vec::new())));
        for ours in
            ["cvmio", "cvmio help", "cvmio volume create bench", "cvmio help volume", "cvmio -h bench"]
        {
            assert_eq!(asked_for(ours), None, "{ours}");
        }
    }

    #[test]
    fn a_program_that_says_no_words_is_offered_without_them() {
        let grammar = || Command::new("cvmio");
        let names = |grammar: Command| {
            grammar.get_subcommands().map(|one| one.get_name().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(spelled_out(grammar())), names(listed(grammar())));
        let bench = ALL[0];
        assert!(
            known(bench, Path::new("/bin/true")).is_none() && known(bench, Path::new("/nowhere")).is_none()
        );
    }
}
