//! Ground of all programs, below all rooms: failures and exit codes, output in words and in JSON, progress, interrupts, sizes and times as they
//! are typed. The programs find and start each other, and make manual pages and completions from their grammar.
#![forbid(unsafe_code)]

pub mod answer;
pub mod failure;
pub mod find;
pub mod grammar;
pub mod input;
pub mod interrupt;
pub mod manual;
pub mod output;

use std::ffi::OsString;
use std::process::ExitCode;

use answer::{Asked, Unclear};
use clap::FromArgMatches;
use failure::Failure;

/// Stack that the main thread needs. A large grammar takes most of it.
const STACK: u64 = 512 << 10;

/// Carries out what was typed, the program's name included: parses it by `grammar`, and hands it to `run`. Says what went wrong.
pub fn run<C: FromArgMatches>(
    grammar: impl FnOnce() -> clap::Command,
    words: &[OsString],
    run: impl FnOnce(C) -> Result<(), Failure>,
) -> ExitCode {
    if let Err(failure) = check_stack() {
        return end(Err(failure), answer::seems_json(words));
    }
    match answer::parse(grammar(), words) {
        Ok(Asked { command, json }) => end(run(command), json),
        // What was asked for, such as the help.
        Err(Unclear { error, .. }) if !error.use_stderr() => {
            output::print_by(|| error.print());
            end(Ok(()), false)
        }
        Err(Unclear { error, json }) => {
            // That nobody reads it is no failure of its own.
            let _ = error.print();
            json.iter().for_each(output::json_error);
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX))
        }
    }
}

/// Refuses a stack on which this process would run over its end (`ulimit -s`), in the middle of anything.
fn check_stack() -> Result<(), Failure> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    match limit.filter(|limit| *limit < STACK) {
        None => Ok(()),
        Some(limit) => Err(Failure::usage(format!(
            "this process may have {} of stack (`ulimit -s`), and needs {}. Nothing was changed; raise the limit",
            output::bytes(limit),
            output::bytes(STACK)
        ))),
    }
}

/// The exit code of what was done; says what went wrong, also in JSON if a program asked for that.
pub fn end(done: Result<(), Failure>, json: bool) -> ExitCode {
    let done = done.and_then(|()| output::unprinted().map_or(Ok(()), Err));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::error(&failure);
            if json && !failure.is_told() {
                output::json_error(&failure);
            }
            ExitCode::from(failure.code())
        }
    }
}
