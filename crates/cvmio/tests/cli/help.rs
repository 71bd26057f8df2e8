//! The help texts are part of the interface.

use crate::common::{Desk, is_elsewhere, snapshot};

/// Appends a command's help, and that of all below it.
fn tell(desk: &Desk, command: &str, all: &mut String, leaves: &mut usize) {
    let text = desk.done(&format!("{command} --help"));
    *all += &format!("$ cvmio {command} --help\n{text}\n");
    let below: Vec<&str> = text
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // Of a description that goes on, the second line stands further to the right.
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help" && !(command.is_empty() && is_elsewhere(desk, name)))
        .collect();
    if below.is_empty() {
        // What takes arguments shows how.
        assert!(text.contains("Example"), "{command} has no example");
        *leaves += 1;
    }
    for name in below {
        tell(desk, format!("{command} {name}").trim(), all, leaves);
    }
}

#[test]
fn help_texts() {
    let desk = Desk::new();
    let (mut all, mut leaves) = (String::new(), 0);
    tell(&desk, "", &mut all, &mut leaves);
    assert!(leaves > 25, "{leaves} commands");
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
