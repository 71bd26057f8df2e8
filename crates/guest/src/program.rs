//! Our programs, as guests can run them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::output;
use crate::workspace;

/// Builds `cvmio` as one file that runs on any kernel, and puts it into `directory`.
///
/// Only its last step differs from the ordinary build: `cargo rustc` hands the flag to no other crate, so no dependency is compiled again.
pub(crate) fn cvmio(target: &Path, directory: &Path) -> PathBuf {
    let what = ["rustc", "--quiet", "--locked", "-p", "cvmio", "--bin", "cvmio", "--target-dir"];
    output(cargo().args(what).arg(target).args(["--", "-C", "target-feature=+crt-static"]));
    let path = directory.join("cvmio");
    strip(&target.join("debug/cvmio"), &path);
    path
}

/// Builds the integration test `name` of the workspace, and puts it into `directory`. Returns it with the libraries of this machine that it
/// needs, each as (path in a guest, file).
///
/// It is the program that `cargo test` has made already: with other packages chosen, dependencies would be compiled again.
pub(crate) fn tests(target: &Path, directory: &Path, name: &str) -> Vec<(String, PathBuf)> {
    let what = ["test", "--quiet", "--locked", "--workspace", "--exclude", "guest", "--no-run"];
    let mut build = cargo();
    build.args(what).args(["--message-format", "json", "--test", name, "--target-dir"]).arg(target);
    let messages = output(&mut build);
    let made = messages.split_once("\"executable\":\"").and_then(|(_, rest)| rest.split_once('"'));
    let (made, _) = made.unwrap_or_else(|| panic!("cargo has built no test {name}: {messages}"));
    let path = directory.join(name);
    strip(Path::new(made), &path);
    let list = output(Command::new("ldd").arg(&path));
    // `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader. What has no path is of the kernel.
    let files = list.lines().filter_map(|line| {
        let (file, _) = line.split_once(" (")?;
        let file = file.rsplit_once(" => ").map_or(file, |(_, file)| file).trim();
        let place = file.strip_prefix('/')?;
        // That directory is a link in a guest.
        let place = place.strip_prefix("lib64/").map_or(place.into(), |name| format!("usr/lib64/{name}"));
        Some((place, PathBuf::from(file)))
    });
    std::iter::once((format!("usr/bin/{name}"), path)).chain(files).collect()
}

/// Makes a Debian package of `cvmio` as guests have it, with this version.
///
/// # Errors
/// When there is no cargo-deb, which `make test` installs.
pub(crate) fn package(version: &str) -> Result<PathBuf, String> {
    let made = Command::new("scripts/deb")
        .args(["guest", "--deb-version", version])
        .current_dir(workspace())
        .output();
    let made = made.map_err(|error| format!("scripts/deb: {error}"))?;
    let said = String::from_utf8_lossy(&made.stderr);
    if said.starts_with("cargo-deb is missing") {
        return Err(said.trim().into());
    }
    assert!(made.status.success(), "scripts/deb failed: {said}");
    Ok(workspace().join(String::from_utf8_lossy(&made.stdout).trim()))
}

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace());
    cargo
}

/// Without its symbols a program is a tenth, and guests have it in memory twice.
fn strip(program: &Path, to: &Path) {
    output(Command::new("strip").arg("-o").arg(to).arg(program));
}
