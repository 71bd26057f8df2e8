//! How a command that was typed is to be answered: for people, or for programs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use clap::error::ErrorKind;
use clap::{ArgMatches, FromArgMatches};

/// Commands whose answer is JSON, asked for or not.
const ALWAYS: [&str; 2] = ["activate", "deactivate"];

/// A command, and how to answer it.
pub struct Asked<C> {
    /// What is to be done.
    pub command: C,
    /// For a program, and not for people.
    pub json: bool,
}

/// Why there is no command.
pub struct Unclear {
    /// What clap says.
    pub error: clap::Error,
    /// The same for a program, if one seems to ask.
    pub json: Option<Failure>,
}

/// Takes what was typed, the program's name included, as one of the commands of `grammar`.
///
/// # Errors
/// When that is no command, or one that clap itself answers, such as `--help`.
pub fn parse<C: FromArgMatches>(grammar: clap::Command, words: &[OsString]) -> Result<Asked<C>, Unclear> {
    let matches = grammar.try_get_matches_from(words);
    let parsed = matches.and_then(|matches| {
        let json = wants_json(&matches);
        Ok(Asked { command: C::from_arg_matches(&matches)?, json })
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
        // Standard output has the stream, or the backup, and takes nothing else.
        Some(("export", export)) if is_output(export, "to") => false,
        Some(("backup", backup)) if is_output(backup, "file") => false,
        Some((_, below)) => wants_json(below),
        None => matches.try_get_one::<bool>("json").ok().flatten().is_some_and(|json| *json),
    }
}

fn is_output(matches: &ArgMatches, id: &str) -> bool {
    matches.try_get_one::<PathBuf>(id).ok().flatten().is_some_and(|path| path == Path::new("-"))
}

/// Whether a program seems to ask. Of what is no command one can only guess.
pub fn seems_json(words: &[OsString]) -> bool {
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
