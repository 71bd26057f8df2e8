//! Programs of the system that do a part of the work, and what they say when they fail.

use std::io;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cli::interrupt::Interrupt;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::{Context, Error, Result};

/// Most characters of a program's complaint.
const SHOWN: usize = 2000;

/// How often it is looked whether the end was asked for.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs a program to its end, with nothing to read.
///
/// # Errors
/// If it cannot be started, or does not end well; with what it said last.
pub fn output(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| unstarted(command, error))?;
    checked(command, output)
}

/// Waits for the end of a program, which is ended when the user asks for that.
///
/// # Errors
/// As [`output`]; with the interrupt, where there was one.
pub fn finished(command: &Command, child: Child, interrupt: &Interrupt) -> Result<Output> {
    let ended = interruptible(child.id(), interrupt, || child.wait_with_output())?;
    interrupt.check().map_err(|error| Error::usage(error.to_string()).because(error))?;
    checked(command, ended.of(command.get_program())?)
}

/// Does something that waits for a program, which is ended when the user asks for the end: a signal may have reached this program only.
///
/// # Errors
/// If there is no such program.
pub fn interruptible<T>(program: u32, interrupt: &Interrupt, work: impl FnOnce() -> T) -> Result<T> {
    let program = i32::try_from(program).ok().and_then(Pid::from_raw);
    let program = program.ok_or_else(|| Error::io("a program that was started has no process id"))?;
    let program = pidfd_open(program, PidfdFlags::empty()).map_err(io::Error::from).of("a process id")?;
    let is_done = AtomicBool::new(false);
    Ok(std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                if interrupt.check().is_err() {
                    // It may have ended by itself.
                    let _ = pidfd_send_signal(&program, Signal::TERM);
                    return;
                }
                std::thread::park_timeout(PAUSE);
            }
        });
        let done = work();
        is_done.store(true, Ordering::Release);
        watch.thread().unpark();
        done
    }))
}

/// What a program left whose end was waited for; an error with what it said last, if it did not end well.
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
