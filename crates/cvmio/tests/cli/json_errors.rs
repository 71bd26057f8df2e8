//! What a program that asked for JSON is told of a failure: one object on standard output, beside the words and the exit code that there are
//! anyway.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::common::Desk;
use crate::common::machine::content;
use serde_json::Value;

/// Runs what must fail so, and nothing but one JSON document is on standard output; that.
fn failed(desk: &Desk, command: &str, code: i32) -> Value {
    let said = desk.run(command);
    assert_eq!(said.code, code, "{command}: {said:?}");
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{command}: {error}: {said:?}"))
}

/// The same, of a command whose only answer is the error.
fn error(desk: &Desk, command: &str, code: i32, kind: &str) {
    let told = failed(desk, command, code);
    let error = told["error"].as_object().unwrap();
    assert_eq!((told.as_object().unwrap().len(), error.len()), (1, 3), "{told}");
    assert_eq!((&error["code"], &error["kind"]), (&code.into(), &kind.into()), "{told}");
    // The words are those for people.
    let words = error["message"].as_str().unwrap();
    let without = desk.run(&command.replace(" --json", ""));
    assert!(!words.is_empty() && without.code == code, "{without:?}");
    if code != 2 || !without.error.starts_with("error: ") {
        assert_eq!(without.error.trim(), format!("cvmio: error: {words}"), "{command}");
    }
}

#[test]
fn each_kind_is_told_by_its_name() {
    let desk = Desk::new();
    desk.create("");
    let attach = "volume attach disk.img --key-file key --as nbd --json";
    error(&desk, "volume status nothing --json", 2, "usage");
    error(&desk, "volume status --json", 2, "usage");
    error(&desk, "volume attach disk.img --colour --json", 2, "usage");
    error(&desk, "volume attach disk.img --key-file other --as nbd --json", 10, "locked");
    let policy = desk.read("disk.img.policy.toml");
    desk.write("disk.img.policy.toml", b"nonsense");
    error(&desk, attach, 11, "policy");
    desk.write("disk.img.policy.toml", &policy);
    let anchor = desk.read("anchor");
    fs::remove_file(desk.path("anchor")).unwrap();
    error(&desk, attach, 8, "anchor");
    desk.write("anchor", &anchor);
    let before = desk.read("disk.img");
    desk.done("volume key add disk.img --key-file key --new-key-file other --label second");
    let after = desk.read("disk.img");
    desk.write("disk.img", &before);
    error(&desk, attach, 5, "stale");
    desk.write("disk.img", &after[..after.len() - 4096]);
    error(&desk, attach, 3, "io");
    desk.write("disk.img", &after);
    // Without a word of JSON nothing is printed for programs.
    let said = desk.run("volume status nothing");
    assert!(said.code == 2 && said.out.is_empty(), "{said:?}");
    // The stream goes there, and nothing else.
    let said = desk.run("volume export disk.img --to - --json --stream-key-file key");
    assert!(said.code == 2 && said.out.is_empty(), "{said:?}");
}

#[test]
fn activate_and_deactivate_answer_programs_only() {
    let desk = Desk::new();
    desk.create("");
    let line = |name: &str, key: &str| {
        let path = |name: &str| desk.path(name).display().to_string();
        format!(
            "{name} {} {} key-file:{} as=nbd\n",
            path("disk.img"),
            path("disk.img.policy.toml"),
            path(key)
        )
    };
    desk.write("tab", (line("wrong", "other") + &line("right", "key")).as_bytes());
    error(&desk, "volume activate wrong --tab tab", 10, "locked");
    error(&desk, "volume activate nobody --tab tab", 2, "usage");
    error(&desk, "volume activate", 2, "usage");
    let all = failed(&desk, "volume activate --all --tab tab", 10);
    assert_eq!((&all[0]["name"], &all[0]["error"]["kind"]), (&"wrong".into(), &"locked".into()), "{all}");
    assert_eq!((&all[1]["name"], &all[1]["state"]), (&"right".into(), &"active".into()), "{all}");
    desk.done("volume deactivate --all --tab tab");
}

#[test]
fn a_check_tells_what_it_found_and_what_that_means_in_one() {
    let desk = Desk::new();
    desk.create("");
    desk.done("volume attach disk.img --key-file key --as nbd");
    desk.write("source", &content(3, 1 << 20));
    let copy = format!("nbdcopy source 'nbd+unix:///?socket={}'", desk.path("run/disk/nbd.sock").display());
    if !crate::common::machine::has("nbdcopy") {
        desk.done("volume detach disk");
        return crate::common::machine::tell_skipped("no nbdcopy");
    }
    crate::common::machine::sh(&format!("cd {} && {copy}", desk.path("").display()));
    desk.done("volume detach disk");
    let store = fs::File::options().write(true).open(desk.path("disk.img")).unwrap();
    let dump: Value = serde_json::from_str(&desk.done("volume dump disk.img --json")).unwrap();
    let start = dump["copies"][0]["header"]["ok"]["data-start"].as_u64().unwrap();
    let bytes = desk.read("disk.img");
    let used = (start..).find(|block| {
        let at = usize::try_from(block * 4096).unwrap();
        bytes[at..at + 4096] != [0; 4096]
    });
    store
        .write_all_at(&[bytes[usize::try_from(used.unwrap() * 4096).unwrap()] ^ 1], used.unwrap() * 4096)
        .unwrap();
    let told = failed(&desk, "volume check disk.img --key-file key --json", 4);
    assert!(told["damaged-blocks"].as_u64() > Some(0), "{told}");
    assert_eq!((&told["error"]["code"], &told["error"]["kind"]), (&4.into(), &"corrupt".into()), "{told}");
}
