//! QEMU's control socket. Source: QEMU, docs/interop/qmp-spec.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::{Context, Error, Result};

/// No command of ours takes longer; a dump of the largest guest is the slowest.
const PATIENCE: Duration = Duration::from_secs(600);

/// A QEMU that takes commands.
#[derive(Debug)]
pub struct Qmp {
    reader: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects, and agrees on capabilities.
    ///
    /// # Errors
    /// When it is no QEMU.
    pub fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).doing(socket.display())?;
        stream.set_read_timeout(Some(PATIENCE)).doing(socket.display())?;
        let mut qmp = Self { reader: BufReader::new(stream) };
        let greeting = qmp.message()?;
        if greeting.get("QMP").is_none() {
            return Err(Error::io(format!("{} is no socket of QEMU's QMP", socket.display())));
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Carries out a command.
    ///
    /// # Errors
    /// What QEMU says when it cannot.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.reader.get_mut().write_all(line.as_bytes()).doing(format!("QEMU, {command}"))?;
        loop {
            let mut message = self.message()?;
            if let Some(error) = message.get("error") {
                let why = error.get("desc").and_then(Value::as_str).unwrap_or("it does not say why");
                return Err(Error::io(format!("QEMU refuses {command}: {why}")));
            }
            // Events come in between.
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
        }
    }

    fn message(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).doing("QEMU")? == 0 {
            return Err(Error::io("QEMU has ended"));
        }
        serde_json::from_str(&line).doing("QEMU says what is no JSON")
    }
}
