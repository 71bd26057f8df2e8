//! Our program, as one file that runs on any kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::debian::output;
use crate::workspace;

/// Builds `cvmio` with all its libraries in it, and puts it into `directory`.
///
/// Only its last step differs from the ordinary build: `cargo rustc` hands the flag to no other crate, so no dependency is compiled again.
pub(crate) fn cvmio(target: &Path, directory: &Path) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(workspace()).args(["rustc", "--quiet", "--locked", "-p", "cvmio", "--bin", "cvmio"]);
    build.arg("--target-dir").arg(target).args(["--", "-C", "target-feature=+crt-static"]);
    output(&mut build);
    // Without its symbols it is a tenth, and guests have it in memory twice.
    let path = directory.join("cvmio");
    output(Command::new("strip").arg("-o").arg(&path).arg(target.join("debug/cvmio")));
    path
}
