//! The help texts are part of the interface.

mod common;

use common::{Desk, snapshot};

#[test]
fn help_texts() {
    let desk = Desk::new();
    let mut all = String::new();
    for command in [
        "",
        "volume",
        "volume create",
        "volume attach",
        "volume detach",
        "volume list",
        "volume status",
        "volume top",
        "volume commit",
        "volume scrub",
        "volume check",
        "volume dump",
        "volume key",
        "volume key add",
        "volume key remove",
        "volume key list",
        "volume rekey",
        "volume header",
        "volume header backup",
        "volume header restore",
        "volume export",
        "volume import",
        "volume grow",
        "volume reanchor",
        "volume prepare",
        "volume activate",
        "volume deactivate",
        "volume units",
        "bench",
        "bench volume",
        "bench nbd",
        "bench upkeep",
        "demo",
        "completions",
        "man",
    ] {
        let text = desk.done(&format!("{command} --help"));
        // What takes arguments shows how.
        let is_leaf = !text.contains("Commands:");
        assert!(!is_leaf || text.contains("Example"), "{command} has no example");
        all += &format!("$ cvmio {command} --help\n{text}\n");
    }
    snapshot("help.txt", &all);
}

#[test]
fn a_word_that_is_no_command_is_usage() {
    let desk = Desk::new();
    for wrong in [
        "",
        "volum",
        "volume create",
        "volume attach x --queues 0",
        "volume create x --size 1X",
        "volume status a/b",
    ] {
        let said = desk.run(wrong);
        assert_eq!(said.code, 2, "{wrong}: {}", said.error);
        assert!(said.out.is_empty(), "{wrong}");
    }
}
