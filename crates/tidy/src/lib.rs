//! Rules of this repository that a machine can check; `tests/tidy` has one module for each. Here is what they have in common: the sources.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A text of the repository.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The crates of the workspace, in order, by the names of their folders.
///
/// # Panics
/// If the folder cannot be read.
#[must_use]
pub fn crates() -> Vec<String> {
    let entries = fs::read_dir(root().join("crates")).expect("crates/ can be read").flatten();
    let with_manifest = entries.filter(|entry| entry.path().join("Cargo.toml").exists());
    let mut names: Vec<String> =
        with_manifest.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// A Rust file: where it is below the root, and what it says.
pub struct Source {
    /// Such as `crates/daemon/src/lib.rs`.
    pub path: String,
    /// Its lines.
    pub text: String,
}

/// All Rust files below a folder, in order.
#[must_use]
pub fn sources(below: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut left = vec![root().join(below)];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap_or_default();
                let name = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
                found.push(Source { path: name, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// A document's tables: for each line that is a row, its cells.
#[must_use]
pub fn rows(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("| "));
    lines
        .map(|line| line.trim_end_matches(" |").split(" | ").map(|cell| cell.trim().to_string()).collect())
        .collect()
}
