//! Completions and manual pages: made from the same grammar as the help.

use std::path::Path;

use crate::failure::Failure;
use crate::output;
use clap::Command;
use clap::builder::Resettable;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// Prints the completions of a shell for a program.
pub fn completions(grammar: Command, shell: Shell) {
    output::print(&completed(grammar, shell));
}

/// The completions of a shell for a program.
pub fn completed(mut grammar: Command, shell: Shell) -> String {
    let (mut text, name) = (Vec::new(), grammar.get_name().to_string());
    clap_complete::generate(shell, &mut grammar, name, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Writes the manual pages of a program's commands into `directory`, one for each that `wanted` says yes to.
///
/// # Errors
/// When they cannot be written.
pub fn write(grammar: Command, directory: &Path, wanted: impl Fn(&Command) -> bool) -> Result<(), Failure> {
    let mut root = grammar.disable_help_subcommand(true);
    root.build();
    let write = || {
        std::fs::create_dir_all(directory)?;
        let mut pages = pages(&root).into_iter().filter(|command| wanted(command));
        pages.try_for_each(|command| write_page(command.clone(), directory))
    };
    write().map_err(|error: std::io::Error| {
        Failure::usage(format!(
            "the manual pages cannot be written to {}: {error}; choose another directory",
            directory.display()
        ))
    })
}

/// A command and all below it, without those that are not for people.
fn pages(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    std::iter::once(command).chain(below.flat_map(pages)).collect()
}

fn write_page(command: Command, directory: &Path) -> std::io::Result<()> {
    let last = command.get_after_help().map(ToString::to_string);
    let page = Man::new(command.after_help(Resettable::Reset));
    let mut text = Vec::new();
    page.render(&mut text)?;
    last_sections(&last.unwrap_or_default()).to_writer(&mut text)?;
    std::fs::write(directory.join(page.get_filename()), text)
}

/// What stands below the help: examples, and at the root the exit codes. Their lines are not to be filled.
fn last_sections(text: &str) -> Roff {
    let (examples, codes) = match text.find("Exit codes:") {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let mut roff = Roff::new();
    for (heading, lines) in [("EXAMPLES", examples), ("EXIT STATUS", codes)] {
        if !lines.is_empty() {
            let lines = [roman(lines.trim_end())];
            roff.control("SH", [heading]).control("nf", []).text(lines).control("fi", []);
        }
    }
    roff
}
