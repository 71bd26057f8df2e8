//! Running programs that a benchmark needs.

use std::fs;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use cli::failure::Failure;
use cli::interrupt::Interrupt;

/// How often it is looked whether a program has ended.
pub const GLANCE: Duration = Duration::from_millis(20);

/// A program's process.
pub fn process_of(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// What is said when a program cannot be run.
pub fn missing(command: &Command, error: &std::io::Error) -> Failure {
    Failure::usage(format!("{} cannot be run: {error}; install it", command.get_program().display()))
}

/// Runs a program that must succeed; its output. A signal that asks for the end ends the program as well.
///
/// # Errors
/// When it cannot be run, fails, or the end was asked for.
pub fn run(command: &mut Command, interrupt: &Interrupt) -> Result<String, Failure> {
    let failed = |error: std::io::Error| Failure::io(format!("a temporary file: {error}"));
    // To files: nobody reads meanwhile, and a pipe fills up.
    let (mut said, mut complained) =
        (tempfile::tempfile().map_err(failed)?, tempfile::tempfile().map_err(failed)?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(said.try_clone().map_err(failed)?)
        .stderr(complained.try_clone().map_err(failed)?)
        .process_group(0)
        .spawn()
        .map_err(|error| missing(command, &error))?;
    let program = command.get_program().display();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(error) => return Err(Failure::io(format!("{program}: {error}"))),
        }
        if let Err(end) = interrupt.check() {
            // The group: fio has a process for its job.
            if let Some(group) = process_of(&child) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = child.wait();
            return Err(end.into());
        }
        thread::sleep(GLANCE);
    };
    let text = |file: &mut fs::File| -> Result<String, Failure> {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).map_err(failed)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    if status.success() {
        return text(&mut said);
    }
    Err(Failure::io(format!("{program} failed ({status}): {}", text(&mut complained)?.trim())))
}
