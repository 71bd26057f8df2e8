//! What can be typed: the commands of `cvmio` that this program carries out.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Benchmarks and a demonstration of protected volumes.
#[derive(Parser, Debug)]
#[command(name = "cvmio", bin_name = "cvmio", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Measure what protection costs on this machine
    #[command(subcommand, after_help = "Example:\n  cvmio bench volume --dir /srv --size 4096")]
    Bench(Box<bench::BenchCommand>),
    Demo(demo::DemoArgs),
    /// Prints the grammar of these commands in JSON, for the completions of `cvmio`
    #[command(hide = true)]
    Grammar,
    /// Writes the manual pages of these commands; started by `cvmio man`
    #[command(hide = true)]
    Man {
        directory: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use clap::CommandFactory;
    use cli::grammar::Grammar;
    use cli::manual;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn completions_of_the_grammar_as_data_are_those_of_the_grammar() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let bench =
                |grammar: clap::Command| grammar.find_subcommand("bench").cloned().expect("it is there");
            let ours = manual::completed(bench(Cli::command()), shell);
            let line = serde_json::to_string(&Grammar::of(&Cli::command())).unwrap();
            let theirs: Grammar = serde_json::from_str(&line).unwrap();
            let theirs = manual::completed(bench(theirs.command()), shell);
            assert!(ours.contains("fsync-every"), "{ours}");
            let hidden = hidden(&bench(Cli::command()));
            let offered = |text: &str| words(text).difference(&hidden).cloned().collect::<BTreeSet<_>>();
            assert_eq!(offered(&ours), offered(&theirs));
        }
    }

    /// The options of commands that are not for users: a grammar as data leaves these out.
    fn hidden(command: &clap::Command) -> BTreeSet<String> {
        fn all(command: &clap::Command) -> BTreeSet<String> {
            let own =
                command.get_arguments().filter_map(|argument| Some(format!("--{}", argument.get_long()?)));
            own.chain(command.get_subcommands().flat_map(all)).collect()
        }
        command.get_subcommands().filter(|command| command.is_hide_set()).flat_map(all).collect()
    }

    /// The options that completions offer. What excludes what, a grammar as data leaves to the program.
    fn words(completions: &str) -> BTreeSet<String> {
        let words = completions.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-'));
        words.filter(|word| word.starts_with("--") && word.len() > 2).map(String::from).collect()
    }

    /// The words behind each `cvmio` of a document's commands on measuring. Those of `rq` end in options of `fio`, and become two.
    fn commands_in(text: &str) -> Vec<Vec<String>> {
        let mut commands = Vec::new();
        for (at, _) in text.match_indices("cvmio bench ") {
            let line = text
                .get(at..)
                .and_then(|rest| rest.split(['`', '\n', '|', '<', '#']).next())
                .unwrap_or_default();
            let line = line.trim_end_matches(['.', ',', ';', ')', ' ']);
            let words: Vec<String> = line.split_whitespace().map(String::from).collect();
            // A sentence about a command is none.
            if words.get(2).is_none_or(|word| {
                !Cli::command().get_subcommands().any(|bench| bench.find_subcommand(word).is_some())
            }) {
                continue;
            }
            let (own, options) = match words.iter().position(|word| word == "--") {
                Some(at) => (words[..at].to_vec(), Some(words[at + 1..].to_vec())),
                None => (words, None),
            };
            commands.push(own);
            let fio = ["cvmio", "bench", "fio"].map(String::from);
            commands.extend(options.map(|options| fio.into_iter().chain(options).collect()));
        }
        commands
    }

    #[test]
    fn commands_in_documents_are_those_of_today() {
        let docs = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
        let mut files = vec![docs.join("measuring.md"), docs.join("performance.md")];
        let results = std::fs::read_dir(docs.join("results")).unwrap();
        files.extend(results.map(|entry| entry.unwrap().path()));
        let mut count = 0;
        for file in files {
            for words in commands_in(&std::fs::read_to_string(&file).unwrap()) {
                let line = words.join(" ");
                // Some stand for all of their kind and leave out what must be there.
                let known = match Cli::command().try_get_matches_from(&words) {
                    Ok(_) => true,
                    Err(error) => error.kind() == clap::error::ErrorKind::MissingRequiredArgument,
                };
                assert!(known, "{}: {line}", file.display());
                count += 1;
            }
        }
        assert!(count > 40, "{count} commands were found");
    }

    #[test]
    fn who_asked_for_json_is_answered_so() {
        let words = ["cvmio-bench", "bench", "upkeep", "--json"].map(Into::into);
        let asked = cli::answer::parse::<Cli>(Cli::command(), &words);
        assert!(asked.map_err(|unclear| unclear.error).unwrap().json);
    }
}
