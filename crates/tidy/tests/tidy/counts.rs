//! Numbers in the documents that the code says too.

use std::fs;

use tidy::{read, root};

/// A document, the words around its number, and where the code says it: a file, and the text before the number there.
const COUNTS: [(&str, (&str, &str), &str, &str); 4] = [
    ("docs/disk-format.md", ("\n", " slots of 256 bytes"), "crates/seal/src/slot.rs", "SLOT_COUNT: usize = "),
    (
        "docs/disk-format.md",
        ("## Superblock (1 block, ", " slots)"),
        "crates/volume/src/geometry.rs",
        "SUPERBLOCK_SLOTS: u8 = ",
    ),
    (
        "docs/operations.md",
        ("A volume grows ", " times, "),
        "crates/volume/src/geometry/extents.rs",
        "MAX_GROWTHS: usize = ",
    ),
    (
        "crates/cvmio/src/cli/grow.rs",
        ("A volume grows ", " times at most"),
        "crates/volume/src/geometry/extents.rs",
        "MAX_GROWTHS: usize = ",
    ),
];

/// The number that ends right before `end` and begins right behind `begin`.
fn number<'a>(text: &'a str, begin: &str, end: &str) -> Option<&'a str> {
    let candidates = text.match_indices(begin).map(|(at, _)| &text[at + begin.len()..]);
    candidates.filter_map(|rest| rest.split(end).next()).find(|found| found.parse::<u64>().is_ok())
}

#[test]
fn documents_have_the_numbers_of_the_code() {
    for (document, (begin, end), file, constant) in COUNTS {
        let told = read(document);
        let told = number(&told, begin, end).unwrap_or_else(|| panic!("{document} says no `{begin}N{end}`"));
        let code = read(file);
        let code = number(&code, constant, ";").unwrap_or_else(|| panic!("{file} has no `{constant}N;`"));
        assert_eq!(told, code, "{document}: {begin}{told}{end}; {file} has {constant}{code}");
    }
}

#[test]
fn each_crate_has_few_test_programs() {
    // Each is a link of all that it uses.
    const MOST: usize = 8;
    for name in &tidy::crates() {
        let entries =
            fs::read_dir(root().join("crates").join(name).join("tests")).into_iter().flatten().flatten();
        let is_program = |path: &std::path::Path| {
            path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists()
        };
        let programs = entries.filter(|entry| is_program(&entry.path())).count();
        assert!(programs <= MOST, "crates/{name}/tests has {programs} programs; make modules of larger ones");
    }
}
