//! The documents name a test for each promise and each attack; the tests must be there.
#![expect(clippy::disallowed_methods, reason = "the test reads documents and sources")]

use std::fs;
use std::path::{Path, PathBuf};

/// The rows of all tables that end in a column of this name: what the row is about, and its last cell.
fn rows(document: &str, column: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in document.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let last = cells.last().copied().unwrap_or_default();
        if !line.starts_with('|') {
            inside = false;
        } else if last == column {
            inside = true;
        } else if inside && !line.starts_with("| ---") {
            found.push((cells[0].to_owned(), last.to_owned()));
        }
    }
    found
}

/// All Rust files of a crate, with the components of their names below `src` or `tests`.
fn files(of: &Path) -> Vec<(Vec<String>, PathBuf)> {
    let mut found = Vec::new();
    let mut left = vec![(Vec::new(), of.join("src")), (Vec::new(), of.join("tests"))];
    while let Some((components, directory)) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten() {
            let path = entry.expect("readable").path();
            let mut components: Vec<String> = components.clone();
            let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() {
                components.push(stem);
                left.push((components, path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                if stem != "mod" && stem != "main" {
                    components.push(stem);
                }
                found.push((components, path));
            }
        }
    }
    found
}

/// Whether `text` has this function, and (if `must_be_test`) an attribute that makes it a test.
fn has_function(text: &str, name: &str, must_be_test: bool) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    let declares = |line: &str| {
        line.split_once("fn ")
            .is_some_and(|(_, rest)| rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(['(', '<'])))
    };
    (0..lines.len()).filter(|at| declares(lines[*at])).any(|at| {
        let attributes = lines[..at].iter().rev().map(|line| line.trim());
        let mut attributes = attributes.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        !must_be_test || attributes.any(|line| line == "#[test]")
    })
}

/// Whether `crate::file::function` exists.
fn exists(crates: &Path, name: &str) -> bool {
    let parts: Vec<&str> = name.split("::").collect();
    let [of, path @ .., function] = &parts[..] else { return false };
    // The simulator's checks and the audit's trials are functions that a test of another name runs.
    let must_be_test = *of != "simulator" && !name.starts_with("seal::audit::trials::");
    files(&crates.join(of.replace('_', "-"))).iter().any(|(components, file)| {
        let ends = components.len() >= path.len()
            && components[components.len() - path.len()..].iter().zip(path).all(|(a, b)| a == b);
        !path.is_empty()
            && ends
            && has_function(&fs::read_to_string(file).expect("readable"), function, must_be_test)
    })
}

/// Names of a cell: what stands in backticks and has a `::`.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).filter(|name| name.contains("::")).collect()
}

/// `may_be_unshown`: an attack that nothing catches has no test; a promise is one because it has.
fn check(document: &str, column: &str, least: usize, may_be_unshown: bool) {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates/");
    let text = fs::read_to_string(crates.join("../docs").join(document)).expect("the document");
    let rows = rows(&text, column);
    assert!(rows.len() >= least, "{document}: {} rows", rows.len());
    let mut wrong = Vec::new();
    for (about, cell) in &rows {
        let names = names(cell);
        if names.is_empty() && !(may_be_unshown && cell == "not shown") {
            wrong.push(format!("{about}: names no test"));
        }
        if rows.iter().filter(|(other, _)| other == about).count() > 1 {
            wrong.push(format!("{about}: stands there twice"));
        }
        let missing = names.into_iter().filter(|name| !exists(crates, name));
        wrong.extend(missing.map(|name| format!("{about}: there is no {name}")));
    }
    assert!(wrong.is_empty(), "{document}:\n{}", wrong.join("\n"));
}

#[test]
fn each_promise_has_its_test() {
    check("semantics.md", "held by", 30, false);
}

#[test]
fn each_attack_has_its_test() {
    check("security-review.md", "shown by", 40, true);
}

#[test]
fn what_does_not_exist_is_noticed() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates/");
    assert!(exists(crates, "volume::promises::each_attack_has_its_test"));
    for name in [
        "volume::promises::there_is_no_such_test",
        "volume::life::each_attack_has_its_test",
        // A function, but no test.
        "volume::promises::exists",
        "nowhere::promises::each_attack_has_its_test",
        "volume::each_attack_has_its_test",
    ] {
        assert!(!exists(crates, name), "{name}");
    }
}
