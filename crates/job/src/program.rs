//! Programs of the system that do a part of the work, and what they say when they fail.

use std::io;
use std::process::{Command, Output, Stdio};

use crate::error::{Error, Result};

/// Most characters of a program's complaint.
const SHOWN: usize = 2000;

/// Runs a program to its end, with nothing to read.
///
/// # Errors
/// If it cannot be started, or does not end well; with what it said last.
pub fn output(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| unstarted(command, error))?;
    checked(command, output)
}

/// The same for one whose end was waited for elsewhere.
pub fn checked(command: &Command, output: Output) -> Result<Output> {
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    let from = said.char_indices().rev().nth(SHOWN).map_or(0, |(place, _)| place);
    Err(Error::io(format!(
        "{} failed ({}): {}",
        command.get_program().display(),
        output.status,
        &said[from..]
    )))
}

/// What to say of a program that cannot be started.
pub fn unstarted(command: &Command, error: io::Error) -> Error {
    let program = command.get_program().display().to_string();
    let message = match error.kind() {
        io::ErrorKind::NotFound => format!("{program} is not installed"),
        _ => format!("{program} cannot be started: {error}"),
    };
    Error::usage(message).because(error)
}
