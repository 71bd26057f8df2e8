//! The commands whose work other programs do: each is started in place of this one, as git starts `git-foo`.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};
use daemon::failure::Failure;
use programs::find::{self, Other};

/// Their place in the help, behind `volume`.
const FIRST: usize = 1;

/// All of them, in the order of the help.
pub const ALL: [Other; 4] = [
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
    ALL.into_iter().zip(FIRST..).fold(grammar, |grammar, (other, place)| {
        let rest = Arg::new("rest")
            .num_args(..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true)
            .action(ArgAction::Append);
        let below = Command::new(other.word).about(other.about).disable_help_flag(true).arg(rest.hide(true));
        grammar.subcommand(below.display_order(place))
    })
}

/// Whether a command is one of them.
pub fn is_one(command: &Command) -> bool {
    ALL.iter().any(|other| other.word == command.get_name())
}

/// Has those that are installed do something, each program once.
///
/// # Errors
/// The first one that fails.
pub fn each(mut act: impl FnMut(&std::path::Path) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut names: Vec<&str> = ALL.iter().map(|other| other.program).collect();
    names.dedup();
    names.into_iter().filter_map(find::find).try_for_each(|program| act(&program))
}
