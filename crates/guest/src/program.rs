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

/// Builds `cvmio-scm` and the library that is preloaded, to be run on this machine. Returns both.
pub(crate) fn scm(target: &Path) -> (PathBuf, PathBuf) {
    let what = ["build", "--quiet", "--locked", "-p", "cvmio-scm", "-p", "scm-preload", "--target-dir"];
    output(cargo().args(what).arg(target));
    (target.join("debug/cvmio-scm"), target.join("debug/libcvmio_scm.so"))
}

/// Builds `cvmio-host`, to be run on this machine.
pub(crate) fn host(target: &Path) -> PathBuf {
    output(cargo().args(["build", "--quiet", "--locked", "-p", "cvmio-host", "--target-dir"]).arg(target));
    target.join("debug/cvmio-host")
}

/// Builds `cvmio-owner`, to be run on this machine.
pub(crate) fn owner(target: &Path) -> PathBuf {
    output(cargo().args(["build", "--quiet", "--locked", "-p", "cvmio-owner", "--target-dir"]).arg(target));
    target.join("debug/cvmio-owner")
}

/// Builds `cvmio-job`, to be run on this machine and in guests of its own, and puts it into `directory`.
pub(crate) fn job(target: &Path, directory: &Path) -> PathBuf {
    output(cargo().args(["build", "--quiet", "--locked", "-p", "cvmio-job", "--target-dir"]).arg(target));
    let path = directory.join("cvmio-job");
    strip(&target.join("debug/cvmio-job"), &path);
    path
}

/// Builds `cvmio-bench`, to be run on this machine and with its libraries in a guest, and puts it into `directory`.
pub(crate) fn bench(target: &Path, directory: &Path) {
    let what = ["build", "--quiet", "--locked", "-p", "cvmio-bench", "--target-dir"];
    output(cargo().args(what).arg(target));
    strip(&target.join("debug/cvmio-bench"), &directory.join("cvmio-bench"));
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
    let files = libraries(&path).into_iter().map(|file| {
        let shown = file.display().to_string();
        let place = shown.trim_start_matches('/');
        // That directory is a link in a guest.
        let place = place.strip_prefix("lib64/").map_or(place.into(), |name| format!("usr/lib64/{name}"));
        (place, file)
    });
    std::iter::once((format!("usr/bin/{name}"), path)).chain(files).collect()
}

/// The libraries of this machine that a program of it needs, its loader among them.
pub(crate) fn libraries(program: &Path) -> Vec<PathBuf> {
    let list = output(Command::new("ldd").arg(program));
    // `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader. What has no path is of the kernel.
    let files = list.lines().filter_map(|line| {
        let (file, _) = line.split_once(" (")?;
        let file = file.rsplit_once(" => ").map_or(file, |(_, file)| file).trim();
        file.starts_with('/').then(|| PathBuf::from(file))
    });
    files.collect()
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
