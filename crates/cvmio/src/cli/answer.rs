//! How a command that was typed is to be answered: for people, or for programs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use super::{Cli, Command};
use crate::failure::Failure;

/// Commands whose answer is JSON, asked for or not.
const ALWAYS: [&str; 2] = ["activate", "deactivate"];

/// A command, and how to answer it.
pub struct Asked {
    pub command: Command,
    pub json: bool,
}

/// Why there is no command.
pub struct Unclear {
    pub error: clap::Error,
    /// The same for a program, if one seems to ask.
    pub json: Option<Failure>,
}

/// Takes what was typed, the program's name included.
///
/// # Errors
/// When that is no command, or one that clap itself answers, such as `--help`.
pub fn parse(words: &[OsString]) -> Result<Asked, Unclear> {
    let matches = Cli::command().try_get_matches_from(words);
    let parsed = matches.and_then(|matches| {
        let json = wants_json(&matches);
        Ok(Asked { command: Cli::from_arg_matches(&matches)?.command, json })
    });
    parsed.map_err(|error| {
        let json = (error.use_stderr() && seems_json(words)).then(|| Failure::usage(first_words(&error)));
        Unclear { error, json }
    })
}

/// Of the command itself, which stands below the others.
fn wants_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((name, _)) if ALWAYS.contains(&name) => true,
        // Standard output has the stream, and takes nothing else.
        Some(("export", export))
            if export.get_one::<PathBuf>("to").is_some_and(|to| to == Path::new("-")) =>
        {
            false
        }
        Some((_, below)) => wants_json(below),
        None => matches.try_get_one::<bool>("json").ok().flatten().is_some_and(|json| *json),
    }
}

/// Of what is no command one can only guess.
fn seems_json(words: &[OsString]) -> bool {
    let always = words.get(2).is_some_and(|word| ALWAYS.iter().any(|always| word == always));
    always || words.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// What is wrong, without the usage that clap shows below it.
fn first_words(error: &clap::Error) -> String {
    let text = error.to_string();
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let paragraph = paragraph.strip_prefix("error: ").unwrap_or(paragraph);
    match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "the command is not whole; see --help".into(),
        _ => paragraph.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn who_asked_for_json_is_answered_so_and_nobody_else() {
        let json = |line: &str| parse(&words(line)).map_err(|unclear| unclear.error).unwrap().json;
        assert!(json("cvmio volume status ledger --json"));
        assert!(!json("cvmio volume status ledger"));
        assert!(json("cvmio volume key add disk.img --json"));
        assert!(json("cvmio bench upkeep --json"));
        assert!(json("cvmio volume activate ledger") && json("cvmio volume deactivate --all"));
        assert!(!json("cvmio volume units /tmp/units"), "it has no such option");
        assert!(!json("cvmio volume export a.img --to - --json"), "the stream goes there");
        assert!(json("cvmio volume export a.img --to a.stream --json"));
    }

    #[test]
    fn what_is_no_command_is_told_a_program_in_few_words() {
        let told = |line: &str| parse(&words(line)).err().unwrap().json;
        let failure = told("cvmio volume status ledger --colour --json").unwrap();
        assert_eq!((failure.code(), failure.to_string()), (2, "unexpected argument '--colour' found".into()));
        let failure = told("cvmio volume status --json").unwrap();
        assert!(failure.to_string().ends_with("were not provided: <NAME>"), "{failure}");
        assert!(told("cvmio volume activate").is_some());
        assert!(told("cvmio volume status").is_none() && told("cvmio volume status --json --help").is_none());
    }
}
