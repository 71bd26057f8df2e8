//! Who may use whom: the crates by a table, and the folders of a crate without circles.

use std::collections::{BTreeMap, BTreeSet};

use tidy::{crates, read, root, sources};

/// Each crate with the crates of this workspace that it is built from, tests apart. The arrows point down: a crate may only name those above
/// it in this list. A new crate gets a line, and a new arrow a reason in a decision record.
const MAY_USE: &[(&str, &[&str])] = &[
    ("memory", &[]),
    ("uring", &[]),
    ("virtqueue", &[]),
    ("anchor", &[]),
    ("tls-files", &[]),
    ("anchor-etcd", &["anchor", "tls-files"]),
    ("seal", &["memory"]),
    ("anchor-tpm", &["anchor", "seal"]),
    ("anchor-owner", &["anchor", "tls-files"]),
    ("owner", &["anchor", "anchor-owner", "seal", "tls-files"]),
    ("store", &["memory", "uring"]),
    // Runs where nobody is trusted: neither `seal` nor `volume`.
    ("host", &["memory", "store", "uring", "virtqueue"]),
    ("volume", &["anchor", "memory", "seal", "store"]),
    ("testkit", &["anchor", "memory", "seal", "store", "volume"]),
    ("export", &["memory", "tls-files", "uring", "seal", "store", "volume"]),
    ("simulator", &["anchor", "memory", "seal", "store", "testkit", "volume"]),
    ("daemon", &["anchor", "export", "memory", "seal", "store", "volume"]),
    ("service", &["anchor", "daemon", "memory", "seal", "store", "volume"]),
    ("programs", &["anchor", "anchor-etcd", "anchor-owner", "anchor-tpm", "daemon"]),
    ("cvmio-owner", &["anchor", "anchor-etcd", "anchor-tpm", "owner", "programs"]),
    ("report", &[]),
    ("initramfs", &[]),
    ("scm", &["memory", "seal"]),
    ("scm-probe", &["scm", "seal"]),
    ("measure", &["initramfs", "report", "scm-probe"]),
    ("bench", &["anchor", "daemon", "export", "measure", "memory", "programs", "seal", "store", "volume"]),
    ("demo", &["anchor-tpm", "daemon", "programs", "seal", "store", "volume"]),
    ("cvmio-scm", &["export", "memory", "programs", "scm", "seal"]),
    ("scm-preload", &["memory", "scm"]),
    ("cvmio", &["anchor", "daemon", "export", "memory", "programs", "seal", "service", "store", "volume"]),
    ("cvmio-bench", &["bench", "daemon", "demo", "programs"]),
    ("guest", &["initramfs"]),
];

/// The workspace's crates that a crate names in its manifest under `[dependencies]`.
fn arrows(name: &str, all: &BTreeSet<String>) -> BTreeSet<String> {
    let manifest: toml::Table =
        read(&format!("crates/{name}/Cargo.toml")).parse().unwrap_or_else(|error| panic!("{name}: {error}"));
    let used = manifest.get("dependencies").and_then(toml::Value::as_table).cloned().unwrap_or_default();
    used.keys().filter(|used| all.contains(*used)).cloned().collect()
}

#[test]
fn crates_use_those_below_them() {
    let all: BTreeSet<String> = crates().into_iter().collect();
    for (place, (name, may_use)) in MAY_USE.iter().enumerate() {
        let above = &MAY_USE[..place];
        for used in *may_use {
            assert!(above.iter().any(|(name, _)| name == used), "{name} -> {used} points up, or across");
        }
        if !root().join("crates").join(name).exists() {
            continue;
        }
        for used in arrows(name, &all) {
            let is_known = MAY_USE.iter().any(|(name, _)| *name == used);
            assert!(!is_known || may_use.contains(&used.as_str()), "{name} uses {used}, and may not");
        }
    }
}

#[test]
fn the_daemon_and_the_service_know_no_command_line() {
    for name in ["daemon", "service"] {
        let manifest = read(&format!("crates/{name}/Cargo.toml"));
        assert!(!manifest.contains("clap"), "{name} uses clap");
    }
}

#[test]
fn the_program_that_holds_keys_has_no_database() {
    let uses_it = |name: &String| read(&format!("crates/{name}/Cargo.toml")).contains("rusqlite");
    assert_eq!(crates().into_iter().filter(uses_it).collect::<Vec<_>>(), ["demo"]);
}

/// The folders right below a crate's `src`, each with those that its files import by `crate::`.
fn folders(name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let below = format!("crates/{name}/src/");
    let parts = |path: &str| -> Option<String> {
        let (folder, _) = path.strip_prefix(&below)?.split_once('/')?;
        Some(folder.to_string())
    };
    let all = sources(&below);
    let names: BTreeSet<String> = all.iter().filter_map(|source| parts(&source.path)).collect();
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for source in &all {
        let Some(folder) = parts(&source.path) else { continue };
        let code = source.text.split("#[cfg(test)]").next().unwrap_or_default();
        let imports = code.split("crate::").skip(1).filter_map(|rest| {
            let word: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            (names.contains(&word) && word != folder).then_some(word)
        });
        found.entry(folder.clone()).or_default().extend(imports);
    }
    found
}

/// Circles that are still there. None is to be added.
const KNOWN: [&str; 1] = ["volume: format, geometry"];

#[test]
fn no_two_folders_of_a_crate_import_each_other() {
    let mut found = Vec::new();
    for name in crates() {
        let folders = folders(&name);
        for (one, used) in &folders {
            let back = |other: &&String| folders.get(*other).is_some_and(|used| used.contains(one));
            found.extend(
                used.iter()
                    .filter(|other| one < *other)
                    .filter(back)
                    .map(|other| format!("{name}: {one}, {other}")),
            );
        }
    }
    assert_eq!(found, KNOWN, "folders of one crate that import each other");
}
