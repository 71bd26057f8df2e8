//! The commands that stand in the documents.

use std::fs;
use std::path::Path;

/// A page of the documents.
pub fn page(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(name)).unwrap()
}

/// What is behind the heading of a section, up to the next one of its level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let from = page.find(&format!("{heading}\n")).unwrap_or_else(|| panic!("there is no section {heading}"));
    let rest = &page[from + heading.len()..];
    let level = format!("\n{} ", heading.split(' ').next().unwrap_or_default());
    // A prompt looks as the first heading does, behind which there is no other one.
    if level == "\n# " { rest } else { rest.split(level.as_str()).next().unwrap_or_default() }
}

/// The lines of the blocks of a section that are of a kind; one that goes on in the next line is one.
fn lines(page: &str, heading: &str, kind: &str) -> Vec<String> {
    let begin = format!("```{kind}\n");
    let blocks = section(page, heading).split(&begin).skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next()).map(|block| block.replace("\\\n", " "));
    blocks.flat_map(|block| block.lines().map(String::from).collect::<Vec<_>>()).collect()
}

/// The commands of the console blocks of a section, in order.
pub fn commands(page: &str, heading: &str) -> Vec<String> {
    let ours = |line: &String| Some(line.strip_prefix("# ").or(line.strip_prefix("$ "))?.to_string());
    lines(page, heading, "console").iter().filter_map(ours).collect()
}

/// The commands of the shell blocks of a section, which have no prompts.
pub fn shell(page: &str, heading: &str) -> Vec<String> {
    lines(page, heading, "sh")
}
