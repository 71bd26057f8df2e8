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
    if let Some(last) = last {
        last_section(&last).to_writer(&mut text)?;
    }
    std::fs::write(directory.join(page.get_filename()), text)
}

/// What stands below the help: its first line is a heading, and its lines are not to be filled.
fn last_section(text: &str) -> Roff {
    let heading = if text.starts_with("Exit codes") { "EXIT STATUS" } else { "EXAMPLES" };
    let mut roff = Roff::new();
    roff.control("SH", [heading]).control("nf", []).text([roman(text)]).control("fi", []);
    roff
}
