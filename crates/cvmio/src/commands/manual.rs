//! `cvmio completions` and `cvmio man`: made from the same grammar as the help.

use std::io::Write;
use std::path::Path;

use clap::builder::Resettable;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::cli::Cli;
use crate::cli::manual::{Completions, Manual};
use crate::failure::Failure;

pub fn completions(args: &Completions) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "cvmio", &mut text);
    // That nobody reads it is no failure.
    let _ = std::io::stdout().write_all(&text);
    Ok(())
}

pub fn manual(args: &Manual) -> Result<(), Failure> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let write = || {
        std::fs::create_dir_all(&args.directory)?;
        pages(&root).into_iter().try_for_each(|command| write_page(command.clone(), &args.directory))
    };
    write().map_err(|error: std::io::Error| {
        Failure::usage(format!(
            "the manual pages cannot be written to {}: {error}; choose another directory",
            args.directory.display()
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
