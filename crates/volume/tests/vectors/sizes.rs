//! The table in the document is what the code computes.
#![expect(clippy::disallowed_methods, reason = "the test reads a document")]

#[path = "../../examples/sizes.rs"]
mod example;

#[test]
fn the_document_has_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/semantics.md");
    let document = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let table = example::table();
    assert!(document.contains(&table), "put the output of the example `sizes` into the document:\n{table}");
}
