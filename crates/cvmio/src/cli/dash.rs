//! `-` stands for standard input or output where a command says so, and is no path anywhere else: a file of that name would be made by
//! mistake only.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Arg, Command};

/// What takes it, beside secrets: the command's word, and the argument's id.
const TAKEN: [(&str, &str); 6] = [
    ("export", "to"),
    ("import", "from"),
    ("backup", "file"),
    ("restore", "file"),
    ("activate", "config"),
    ("deactivate", "config"),
];

/// Has all other arguments that are paths refuse it.
pub fn refused(command: Command) -> Command {
    let name = command.get_name().to_string();
    command.mut_args(|argument| refused_by(&name, argument)).mut_subcommands(refused)
}

fn refused_by(command: &str, argument: Arg) -> Arg {
    let id = argument.get_id().as_str();
    let is_secret = id.ends_with("key_file") || id.ends_with("passphrase_file");
    let is_path = argument.get_value_parser().type_id() == clap::value_parser!(PathBuf).type_id();
    match is_path && !is_secret && !TAKEN.contains(&(command, id)) {
        true => argument.value_parser(PathBufValueParser::new().try_map(no_dash)),
        false => argument,
    }
}

fn no_dash(path: PathBuf) -> Result<PathBuf, &'static str> {
    match path == Path::new("-") {
        true => Err("standard input and output cannot be used here; a file of that name is `./-`"),
        false => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// Each argument whose value is called one, with its command.
    fn paths(command: &Command) -> Vec<(String, String)> {
        let name = command.get_name();
        let own = command.get_arguments().filter(|argument| argument.get_action().takes_values());
        let own = own.filter(|argument| {
            let named = argument.get_value_names().and_then(|names| names.first());
            let named = named.map_or(argument.get_id().as_str().to_uppercase(), ToString::to_string);
            ["FILE", "PATH", "STORE", "DIR", "PROGRAM", "POLICY"].contains(&named.as_str())
        });
        let own = own.map(|argument| (name.to_string(), argument.get_id().to_string()));
        own.chain(command.get_subcommands().filter(|one| !one.is_hide_set()).flat_map(paths)).collect()
    }

    fn parser<'a>(command: &'a Command, name: &str, id: &str) -> Option<&'a Arg> {
        let own = (command.get_name() == name)
            .then(|| command.get_arguments().find(|argument| argument.get_id() == id))
            .flatten();
        own.or_else(|| command.get_subcommands().find_map(|below| parser(below, name, id)))
    }

    #[test]
    fn every_path_refuses_it_unless_it_takes_it() {
        let command = refused(Cli::command());
        let all = paths(&command);
        assert!(all.len() > 40, "{all:?}");
        for (name, id) in all {
            let parser = parser(&command, &name, &id).unwrap().get_value_parser().clone();
            let alone = Command::new("alone").arg(Arg::new("path").value_parser(parser));
            let parsed = |text: &str| alone.clone().try_get_matches_from(["alone", text]).is_ok();
            let takes = id.ends_with("key_file")
                || id.ends_with("passphrase_file")
                || TAKEN.contains(&(name.as_str(), id.as_str()));
            assert!(parsed("./-"), "{name} {id}");
            assert_eq!(parsed("-"), takes, "{name} {id}");
        }
    }
}
