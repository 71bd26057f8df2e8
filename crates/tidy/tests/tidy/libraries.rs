//! What a library leaves to the program: the names of flags. And where a module's file is.

use tidy::sources;

/// Crates whose messages reach users of several programs.
const LIBRARIES: &[&str] = &[
    "anchor",
    "anchor-etcd",
    "anchor-owner",
    "anchor-tpm",
    "anchors",
    "error-kind",
    "attest",
    "evidence-files",
    "export",
    "host",
    "http1",
    "kbs",
    "memory",
    "owner",
    "scm",
    "scm-preload",
    "seal",
    "store",
    "tls-files",
    "uring",
    "virtqueue",
    "volume",
];

/// Flags of programs that are not ours.
const FOREIGN: &[&str] = &["blockdev --setrw"];

/// The part of a file that is no test, without comments.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let product = text.split("#[cfg(test)]").next().unwrap_or_default();
    product.lines().filter(|line| !line.trim_start().starts_with("//"))
}

fn names_a_flag(line: &str) -> bool {
    let ours = FOREIGN.iter().fold(line.to_owned(), |line, foreign| line.replace(foreign, ""));
    ours.match_indices("--").any(|(at, _)| ours[at + 2..].starts_with(|next: char| next.is_ascii_lowercase()))
}

#[test]
fn a_library_names_no_flag() {
    assert!(
        names_a_flag("go on with --force\",")
            && !names_a_flag("(blockdev --setrw)")
            && !names_a_flag("a -- b")
    );
    let mut bad = Vec::new();
    for library in LIBRARIES {
        let found = sources(&format!("crates/{library}/src"));
        assert!(!found.is_empty(), "{library} has no sources");
        for source in found.iter().filter(|source| !source.path.ends_with("tests.rs")) {
            let lines = code(&source.text).filter(|line| names_a_flag(line));
            bad.extend(lines.map(|line| format!("{}: {}", source.path, line.trim())));
        }
    }
    assert!(
        bad.is_empty(),
        "the program adds how it is asked for (see `error_kind::Remedy`):\n{}",
        bad.join("\n")
    );
}

#[test]
fn a_module_is_in_the_file_of_its_name() {
    let of_folders = sources("crates").into_iter().filter(|source| source.path.ends_with("/mod.rs"));
    // The common part of a crate's test programs is no program of its own only by that name.
    let bad: Vec<_> =
        of_folders.map(|source| source.path).filter(|path| !path.ends_with("tests/common/mod.rs")).collect();
    assert!(bad.is_empty(), "name these FOLDER.rs, beside the folder: {bad:?}");
}
