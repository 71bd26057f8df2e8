//! Every command that the documents and the help show must be one that can be typed.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory, Subcommand};

use super::Cli;
use daemon::sign::Sign;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages() -> Vec<(String, String)> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let read = |path: PathBuf| (path.display().to_string(), fs::read_to_string(&path).unwrap());
    pages.chain([root().join("README.md")]).map(read).collect()
}

/// The commands of a shell that a text shows, one by one, with their words.
fn commands(text: &str) -> Vec<Vec<String>> {
    let whole = text.replace("\\\n", " ");
    let mut lines: Vec<String> = Vec::new();
    for line in whole.lines() {
        // A quotation may go on in the next line.
        match lines.last_mut().filter(|last| last.matches('\'').count() % 2 == 1) {
            Some(last) => *last += line,
            None => lines.push(line.trim().trim_start_matches(['$', '#', '(']).trim().into()),
        }
    }
    let words = lines.iter().filter_map(|line| shlex::split(line)).flat_map(|words| {
        let parts = words.split(|word| ["&&", "|", ";"].contains(&word.as_str()));
        parts.map(<[String]>::to_vec).collect::<Vec<_>>()
    });
    let ours = words.filter(|words| words.first().is_some_and(|word| word == "cvmio"));
    ours.map(|words| words.into_iter().take_while(|word| !word.starts_with(['>', '#'])).collect()).collect()
}

/// All that can be typed, also what other programs understand.
fn grammar() -> Command {
    let bench = bench::BenchCommand::augment_subcommands(Command::new("bench")).arg_required_else_help(true);
    let demo = demo::DemoArgs::augment_args(Command::new("demo"));
    let known = ["bench", "demo"];
    let rest = crate::others::ALL.into_iter().filter(|other| !known.contains(&other.word));
    Cli::command().subcommands([bench, demo]).subcommands(rest.map(crate::others::unknown))
}

/// Whether the words behind this one are another program's, whose own tests look at its documents.
fn is_elsewhere(command: &Command) -> bool {
    command.get_arguments().any(|argument| argument.get_id() == crate::others::REST)
}

fn check(from: &str, text: &str) -> usize {
    let found = commands(text);
    for words in &found {
        if let Err(error) = grammar().try_get_matches_from(words) {
            panic!("{from}: {}: {error}", words.join(" "));
        }
    }
    found.len()
}

/// The blocks between fences that show a terminal.
fn consoles(page: &str) -> String {
    let blocks = page.split("```").skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix("console\n").or(block.strip_prefix("sh\n"))).collect()
}

/// The pieces between single backticks, outside of blocks.
fn spans(page: &str) -> Vec<String> {
    let text: String = page.split("```").step_by(2).collect();
    let lines = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    lines.map(String::from).collect()
}

/// A command that is only mentioned need not have its arguments; but it must exist, and have the options.
fn check_mention(from: &str, words: &[&str]) {
    let mut command: Command = grammar();
    command.build();
    let mut rest = words.iter().skip(1).peekable();
    while let Some(below) = rest.peek().and_then(|word| command.find_subcommand(word).cloned()) {
        command = below;
        rest.next();
    }
    if is_elsewhere(&command) {
        return;
    }
    let is_leaf = command.get_subcommands().next().is_none();
    for word in rest {
        assert!(is_leaf, "{from}: {}: there is no command `{word}`", words.join(" "));
        let option = word.strip_prefix("--").map(|word| word.split('=').next().unwrap_or_default());
        let known =
            |option: &str| command.get_arguments().any(|argument| argument.get_long() == Some(option));
        assert!(option.is_none_or(known), "{from}: {}: there is no option `{word}`", words.join(" "));
    }
}

#[test]
fn what_documents_show_can_be_typed() {
    let mut shown = 0;
    for (from, page) in pages() {
        shown += check(&from, &consoles(&page));
        for span in spans(&page) {
            let words: Vec<&str> = span.split_whitespace().collect();
            if words.first() == Some(&"cvmio") && words.get(1) != Some(&"...") {
                check_mention(&from, &words);
                shown += 1;
            }
        }
    }
    assert!(shown > 35, "only {shown} commands were found");
}

#[test]
fn what_the_help_shows_can_be_typed() {
    fn all(command: &Command) -> Vec<&Command> {
        std::iter::once(command).chain(command.get_subcommands().flat_map(all)).collect()
    }
    let root = grammar();
    let help =
        all(&root).into_iter().filter_map(|command| Some((command.get_name(), command.get_after_help()?)));
    let shown: usize = help.map(|(name, help)| check(name, &help.to_string())).sum();
    assert!(shown > 15, "only {shown} commands were found");
}

#[test]
fn alarms_are_those_that_there_are() {
    let page = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    for tamper in Sign::ALL {
        let row = page.lines().find(|line| line.starts_with(&format!("| {} |", tamper.name()))).unwrap();
        assert!(row.contains(tamper.message_id()), "{row}");
    }
    let metrics = include_str!("../../../daemon/src/metrics/text.rs");
    let names = spans(&page).into_iter().filter_map(|span| span.strip_prefix("cvmio_").map(String::from));
    let names: Vec<String> = names.collect();
    assert!(names.len() > 8);
    for name in names {
        assert!(metrics.contains(&format!("\"{name}\"")), "there is no metric cvmio_{name}");
    }
}
