//! Programs of the machine, run to their end.

use std::process::{Command, Stdio};

/// Runs what a machine without network, or one that is not Debian, cannot.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    said(command).map(drop)
}

/// The same, and what it prints.
pub(crate) fn said(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = said.lines().find(|line| line.starts_with("E:")).or_else(|| said.lines().last());
    Err(format!("{name} failed: {}", reason.unwrap_or("it does not say why")))
}

/// What a program prints that must succeed.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}
