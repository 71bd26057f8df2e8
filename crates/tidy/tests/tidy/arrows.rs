//! Who may use whom: the crates by a table, and the folders of a crate without circles.

use std::collections::{BTreeMap, BTreeSet};

use tidy::{crates, read, root, sources};

/// Each crate with the crates of this workspace that it is built from, tests apart. The arrows point down: a crate may only name those above
/// it in this list. A new crate gets a line, and a new arrow a reason in a decision record.
const MAY_USE: &[(&str, &[&str])] = &[
    ("error-kind", &[]),
    ("cli", &["error-kind"]),
    ("memory", &[]),
    ("uring", &[]),
    ("virtqueue", &[]),
    ("anchor", &["error-kind"]),
    ("tls-files", &[]),
    ("http1", &[]),
    ("attest", &["error-kind"]),
    ("anchor-etcd", &["anchor", "http1", "tls-files"]),
    ("seal", &["memory"]),
    ("secrets", &["cli", "seal"]),
    ("kbs", &["attest", "error-kind", "http1", "seal"]),
    ("anchor-tpm", &["anchor", "seal"]),
    ("anchor-owner", &["anchor", "tls-files"]),
    ("anchors", &["anchor", "anchor-etcd", "anchor-owner", "anchor-tpm"]),
    ("evidence-files", &["attest", "cli"]),
    ("chip", &["attest", "cli", "evidence-files"]),
    (
        "owner",
        &[
            "anchor",
            "anchor-owner",
            "attest",
            "error-kind",
            "evidence-files",
            "http1",
            "kbs",
            "seal",
            "tls-files",
        ],
    ),
    ("store", &["error-kind", "memory", "uring", "virtqueue"]),
    // Runs where nobody is trusted: neither `seal` nor `volume`.
    ("host", &["error-kind", "memory", "store", "uring", "virtqueue"]),
    ("cvmio-host", &["cli", "host", "store"]),
    ("volume", &["anchor", "error-kind", "memory", "seal", "store"]),
    ("testkit", &["anchor", "memory", "seal", "store", "volume"]),
    ("export", &["error-kind", "memory", "tls-files", "uring", "seal", "store", "volume"]),
    ("simulator", &["anchor", "memory", "seal", "store", "testkit", "volume"]),
    (
        "daemon",
        &[
            "anchor",
            "attest",
            "chip",
            "cli",
            "export",
            "kbs",
            "memory",
            "seal",
            "secrets",
            "store",
            "tls-files",
            "volume",
        ],
    ),
    ("service", &["anchor", "cli", "daemon", "kbs", "memory", "seal", "store", "volume"]),
    ("cvmio-owner", &["anchor", "anchor-etcd", "anchor-tpm", "attest", "cli", "owner"]),
    ("report", &[]),
    ("initramfs", &[]),
    ("vm", &["attest", "error-kind"]),
    ("job", &["attest", "cli", "error-kind", "evidence-files", "initramfs", "vm"]),
    ("cvmio-job", &["attest", "cli", "evidence-files", "job", "vm"]),
    ("scm", &["error-kind", "memory", "seal"]),
    ("scm-probe", &["scm", "seal"]),
    ("measure", &["cli", "error-kind", "initramfs", "report", "scm-probe"]),
    ("bench", &["anchor", "cli", "daemon", "export", "measure", "memory", "seal", "store", "volume"]),
    ("demo", &["anchor-tpm", "cli", "daemon", "seal", "store", "volume"]),
    ("cvmio-attest", &["attest", "chip", "cli", "error-kind", "evidence-files", "http1", "tls-files"]),
    ("cvmio-scm", &["cli", "error-kind", "export", "memory", "scm", "seal", "secrets"]),
    ("scm-preload", &["memory", "scm"]),
    (
        "cvmio",
        &[
            "anchor", "anchors", "cli", "daemon", "export", "kbs", "memory", "seal", "service", "store",
            "volume",
        ],
    ),
    ("cvmio-bench", &["anchors", "bench", "cli", "demo"]),
    ("guest", &["initramfs"]),
];

/// What an operator installs, each with all crates of this workspace that may be in it, directly or through others.
const MAY_LINK: &[(&str, &[&str])] = &[
    (
        "cvmio",
        &[
            "anchor",
            "anchor-etcd",
            "anchor-owner",
            "anchor-tpm",
            "anchors",
            "attest",
            "chip",
            "cli",
            "daemon",
            "error-kind",
            "evidence-files",
            "export",
            "http1",
            "kbs",
            "memory",
            "seal",
            "secrets",
            "service",
            "store",
            "tls-files",
            "uring",
            "virtqueue",
            "volume",
        ],
    ),
    (
        "cvmio-bench",
        &[
            "anchor",
            "anchor-etcd",
            "anchor-owner",
            "anchor-tpm",
            "anchors",
            "attest",
            "bench",
            "chip",
            "cli",
            "daemon",
            "demo",
            "error-kind",
            "evidence-files",
            "export",
            "http1",
            "initramfs",
            "kbs",
            "measure",
            "memory",
            "report",
            "scm",
            "scm-probe",
            "seal",
            "secrets",
            "store",
            "tls-files",
            "uring",
            "virtqueue",
            "volume",
        ],
    ),
    ("cvmio-host", &["cli", "error-kind", "host", "memory", "store", "uring", "virtqueue"]),
    ("cvmio-job", &["attest", "cli", "error-kind", "evidence-files", "initramfs", "job", "vm"]),
    (
        "cvmio-owner",
        &[
            "anchor",
            "anchor-etcd",
            "anchor-owner",
            "anchor-tpm",
            "attest",
            "cli",
            "error-kind",
            "evidence-files",
            "http1",
            "kbs",
            "memory",
            "owner",
            "seal",
            "tls-files",
        ],
    ),
    ("cvmio-attest", &["attest", "chip", "cli", "error-kind", "evidence-files", "http1", "tls-files"]),
    ("cvmio-scm", &["cli", "error-kind", "export", "memory", "scm", "seal", "secrets", "tls-files", "uring"]),
    ("scm-preload", &["error-kind", "memory", "scm", "seal"]),
];

/// What must never be in a program. Neither the owner's service nor storage-class memory is a volume. The host's program runs where nobody is
/// trusted: no code in it ever holds a key.
const NEVER_LINKS: &[(&str, &[&str])] = &[
    ("cvmio-owner", &["daemon", "export", "service", "volume"]),
    ("cvmio-scm", &["daemon", "service", "store", "volume"]),
    ("cvmio-host", &["anchors", "daemon", "export", "seal", "secrets", "service", "volume"]),
];

/// The workspace's crates that a crate names in its manifest under `[dependencies]`, for any target.
fn arrows(name: &str, all: &BTreeSet<String>) -> BTreeSet<String> {
    let manifest: toml::Table =
        read(&format!("crates/{name}/Cargo.toml")).parse().unwrap_or_else(|error| panic!("{name}: {error}"));
    let targets =
        manifest.get("target").and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::values);
    let tables = targets.filter_map(toml::Value::as_table).chain([&manifest]);
    let used = tables.filter_map(|table| table.get("dependencies")?.as_table()).flatten();
    // A crate may be known under another name.
    let names = used.map(|(key, value)| value.get("package").and_then(toml::Value::as_str).unwrap_or(key));
    names.filter(|used| all.contains(*used)).map(String::from).collect()
}

/// The workspace's crates that are in a program, by the arrows of each crate.
fn linked(program: &str, arrows: impl Fn(&str) -> BTreeSet<String>) -> BTreeSet<String> {
    let (mut found, mut left) = (BTreeSet::new(), vec![program.to_string()]);
    while let Some(name) = left.pop() {
        let new: Vec<_> = arrows(&name).into_iter().filter(|used| found.insert(used.clone())).collect();
        left.extend(new);
    }
    found
}

#[test]
fn programs_link_only_what_they_may() {
    let all: BTreeSet<String> = crates().into_iter().collect();
    let manifest: toml::Table = read("Cargo.toml").parse().expect("the workspace's manifest");
    let installed = manifest["workspace"]["default-members"].as_array().expect("a list");
    for program in installed.iter().filter_map(|path| path.as_str()?.strip_prefix("crates/")) {
        let (_, may_link) = MAY_LINK
            .iter()
            .find(|(name, _)| *name == program)
            .unwrap_or_else(|| panic!("{program} is installed: say in MAY_LINK what may be in it"));
        let linked = linked(program, |name| arrows(name, &all));
        let bad: Vec<_> = linked.iter().filter(|name| !may_link.contains(&name.as_str())).collect();
        assert!(bad.is_empty(), "{program} links {bad:?}, and may not");
    }
}

#[test]
fn programs_never_link_what_they_must_not() {
    let all: BTreeSet<String> = crates().into_iter().collect();
    for (program, never) in NEVER_LINKS.iter().filter(|(name, _)| all.contains(*name)) {
        let linked = linked(program, |name| arrows(name, &all));
        let bad: Vec<_> = never.iter().filter(|name| linked.contains(**name)).collect();
        assert!(bad.is_empty(), "{program} links {bad:?}, and must not");
    }
}

#[test]
fn what_is_linked_is_found_through_others() {
    let arrows = |name: &str| -> BTreeSet<String> {
        let used: &[&str] = match name {
            "program" => &["room"],
            "room" => &["ground", "volume"],
            "volume" => &["ground"],
            _ => &[],
        };
        used.iter().map(ToString::to_string).collect()
    };
    let expected = ["ground", "room", "volume"].map(String::from);
    assert_eq!(linked("program", arrows), BTreeSet::from(expected));
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
