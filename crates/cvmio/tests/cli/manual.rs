//! Manual pages and completions, made from the grammar.

use std::fs;
use std::process::Command;

use crate::common::machine::{has, tell_skipped};
use crate::common::{Desk, is_elsewhere};

/// The commands below `words`, as the help lists them, and theirs.
fn commands(desk: &Desk, words: &str) -> Vec<String> {
    let help = desk.done(&format!("{words} --help"));
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = list.take_while(|line| !line.is_empty()).filter_map(|line| {
        let name = line.strip_prefix("  ")?.split(' ').next()?;
        let is_ours = !name.is_empty() && name != "help" && !(words.is_empty() && is_elsewhere(desk, name));
        is_ours.then(|| format!("{words} {name}").trim().to_string())
    });
    let below: Vec<String> = names.collect();
    below.iter().flat_map(|one| std::iter::once(one.clone()).chain(commands(desk, one))).collect()
}

#[test]
fn each_command_has_a_page_that_renders_without_a_warning() {
    let desk = Desk::new();
    desk.done("man pages");
    let mut all = commands(&desk, "");
    assert!(all.len() > 15, "{all:?}");
    all.push(String::new());
    let mut expected: Vec<String> =
        all.iter().map(|words| format!("cvmio {words}").trim().replace(' ', "-") + ".1").collect();
    expected.sort();
    let entries = fs::read_dir(desk.path("pages")).unwrap();
    let mut found: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    assert_eq!(found, expected);

    let attach = String::from_utf8(desk.read("pages/cvmio-volume-attach.1")).unwrap();
    assert!(attach.contains("key\\-file"), "{attach}");
    let examples = attach.split(".SH EXAMPLES\n.nf\n").nth(1);
    assert!(examples.is_some_and(|text| text.contains("mkfs.ext4 /dev/loop0")), "{attach}");
    let root = String::from_utf8(desk.read("pages/cvmio.1")).unwrap();
    let (examples, codes) = root.split_once(".SH \"EXIT STATUS\"\n").unwrap();
    assert!(examples.contains(".SH EXAMPLES\n.nf\n") && codes.contains("7  fenced"), "{root}");
    if !has("groff") {
        return tell_skipped("no groff to render the pages with");
    }
    for page in found {
        // All warnings but those of long words that leave a line ragged.
        let output = Command::new("groff")
            .args(["-man", "-ww", "-Wbreak", "-Tutf8", "-K", "utf8", "-z"])
            .arg(desk.path("pages").join(&page))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{page}: {said}");
    }
}

fn check_completions(shell: &str) {
    let desk = Desk::new();
    let text = desk.done(&format!("completions {shell}"));
    assert!(text.contains("passphrase-file") && text.contains("detach"), "{shell}: {text}");
    // Also what other programs understand.
    assert!(text.contains("fsync-every") && text.contains("transactions"), "{shell}: {text}");
    if !has(shell) {
        return tell_skipped(&format!("no {shell} to read its completions"));
    }
    desk.write("script", text.as_bytes());
    let output = Command::new(shell).arg("-n").arg(desk.path("script")).output().unwrap();
    assert!(output.status.success(), "{shell}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn bash_reads_its_completions() {
    check_completions("bash");
}

#[test]
fn zsh_reads_its_completions() {
    check_completions("zsh");
}

#[test]
fn fish_reads_its_completions() {
    check_completions("fish");
}

#[test]
fn a_directory_that_cannot_be_made_is_usage() {
    let desk = Desk::new();
    let said = desk.run("man key/pages");
    assert_eq!(said.code, 2);
    assert!(said.error.contains("choose another directory"), "{}", said.error);
}
