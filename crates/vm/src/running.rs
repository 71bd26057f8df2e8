//! A machine that runs: QEMU as a process.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Error;

/// A machine that runs. It ends when this is dropped, unless it was [left](Running::leave).
#[derive(Debug)]
pub struct Running(Option<Child>);

impl Running {
    pub(crate) fn start(mut command: Command, log: &Path) -> Result<Self, Error> {
        let file = File::create(log).map_err(|error| Error::Log(log.into(), error))?;
        let copy = file.try_clone().map_err(|error| Error::Log(log.into(), error))?;
        // A process group of its own: Ctrl-C is for the program that watches, which then ends the machine in its own way.
        command.process_group(0).stdin(Stdio::null()).stdout(file).stderr(copy);
        let child =
            command.spawn().map_err(|error| Error::Qemu(PathBuf::from(command.get_program()), error))?;
        Ok(Self(Some(child)))
    }

    /// QEMU's process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        self.0.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Lets it run on behind this program's end.
    pub fn leave(mut self) {
        self.0 = None;
    }

    /// Ends it at once, as if its power was cut.
    pub fn end(mut self) {
        self.kill();
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
