//! How long lines, functions and files may be.

use tidy::{Source, sources};

/// Most characters of a line that is a comment. Rustfmt holds code to 110.
const COMMENT: usize = 150;

/// Most lines of a function: it fits a screen.
const FUNCTION: usize = 70;

/// Most lines of a file; about 300 is the aim.
const FILE: usize = 700;

/// Functions that are longer, and since when they may stay: each is a list or a table that another cut would not make clearer. Take one out
/// when it has become shorter; the test says so.
const LONG: [&str; 7] = [
    "crates/daemon/src/metrics/text.rs: volume",
    "crates/daemon/src/status.rs: write",
    "crates/simulator/src/plan.rs: of",
    "crates/simulator/src/recovery.rs: recover",
    "crates/simulator/src/schedule.rs: step",
    "crates/volume/src/start.rs: core",
    "crates/volume/src/volume.rs: status",
];

#[test]
fn comments_are_not_wider_than_a_screen() {
    let wide = sources("crates").into_iter().flat_map(|source| {
        let lines = source.text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
        let wide = lines.filter(|(_, line)| line.chars().count() > COMMENT).map(|(index, _)| index + 1);
        wide.map(|line| format!("{}:{line}", source.path)).collect::<Vec<_>>()
    });
    let wide: Vec<String> = wide.collect();
    assert!(wide.is_empty(), "comments of more than {COMMENT} characters; break these lines: {wide:#?}");
}

/// The name of the function that begins in a line.
fn function(line: &str) -> Option<&str> {
    let words = line.trim_start();
    let rest = ["pub ", "pub(crate) ", "pub(super) ", "const ", "async ", "unsafe "]
        .iter()
        .fold(words, |rest, word| rest.strip_prefix(word).unwrap_or(rest));
    rest.strip_prefix("fn ")?.split(['(', '<']).next()
}

/// Functions of more than [`FUNCTION`] lines. Rustfmt puts the end of one below its beginning.
fn long(source: &Source) -> Vec<String> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut found = Vec::new();
    for (from, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indent}}}");
        let length = lines[from..].iter().position(|line| *line == end).unwrap_or(0) + 1;
        // A declaration without a body ends before the next function begins.
        let is_declared = lines[from..].iter().position(|line| line.trim_end().ends_with(';'));
        let has_body = lines[from..].iter().position(|line| line.trim_end().ends_with('{'));
        if length > FUNCTION && has_body < is_declared.or(Some(usize::MAX)) {
            found.push(format!("{}: {name}", source.path));
        }
    }
    found
}

#[test]
fn a_function_fits_a_screen() {
    let mut found: Vec<String> =
        sources("crates").iter().filter(|source| source.path.contains("/src/")).flat_map(long).collect();
    found.sort();
    assert_eq!(found, LONG, "functions of more than {FUNCTION} lines, and those that this test knows");
}

#[test]
fn a_file_is_one_idea() {
    let long = sources("crates").into_iter().map(|source| (source.text.lines().count(), source.path));
    let long: Vec<_> = long.filter(|(lines, _)| *lines > FILE).collect();
    assert!(long.is_empty(), "files of more than {FILE} lines: {long:#?}");
}
