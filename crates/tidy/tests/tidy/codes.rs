//! There is one table of exit codes in the documents, and the help has the same codes.

use std::fs;

use tidy::{read, root, rows};

/// Tables whose first column is headed `code`, by the documents that have them.
fn tables() -> Vec<(String, Vec<(String, String)>)> {
    let documents = |folder: &str| {
        let entries = fs::read_dir(root().join(folder)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}{name}")).collect::<Vec<_>>()
    };
    let readmes = tidy::crates().into_iter().map(|name| format!("crates/{name}/README.md"));
    let readmes = readmes.filter(|name| root().join(name).exists());
    let all = documents("").into_iter().chain(documents("docs/")).chain(readmes);
    let tables = all.filter_map(|name| {
        let rows = rows(&read(&name));
        let from = rows.iter().position(|row| row.first().is_some_and(|cell| cell == "code"))?;
        let rows = rows[from + 1..].iter().skip_while(|row| row[0].starts_with("---"));
        let rows = rows.take_while(|row| row[0].parse::<u8>().is_ok());
        Some((name, rows.map(|row| (row[0].clone(), word(&row[1]))).collect()))
    });
    tables.collect()
}

/// A kind's name, without what is said about it.
fn word(text: &str) -> String {
    text.trim().trim_start_matches('`').split([':', '`', ' ']).next().unwrap_or_default().to_string()
}

#[test]
fn there_is_one_table_and_the_help_has_the_same() {
    let tables = tables();
    let places: Vec<&String> = tables.iter().map(|(name, _)| name).collect();
    assert_eq!(places.len(), 1, "exit codes stand in one document, and not in {places:?}");
    let help = read("crates/cvmio/src/cli.rs");
    let help =
        help.split("Exit codes:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap_or_default();
    let told: Vec<(String, String)> = help
        .lines()
        .filter_map(|line| line.trim().split_once("  "))
        .map(|(code, what)| (code.to_string(), word(what)))
        .collect();
    assert_eq!(told, tables[0].1, "the help, and {}", places[0]);
}
