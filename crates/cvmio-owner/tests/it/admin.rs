//! The owner's commands, with and without a running service; and the audit log.

use crate::room::{Room, stamp};
use anchor_owner::Error;
use anchor_owner::wire::Refusal;
use owner::log::ENTRY_SIZE;
use std::fs;

#[test]
fn who_may_move_a_volume_can_be_changed_while_it_is_served() {
    let mut room = Room::new();
    room.start();
    room.volume("ledger", &["guest"]);
    let mut client = room.client("ledger", "guest");
    client.compare_and_swap(None, &stamp(1, 1)).unwrap();
    let certificate = room.path("guest/client.pem");
    let certificate = certificate.to_str().unwrap();

    room.done("volume disallow", &["ledger", "--client", certificate]);
    let error = client.ask_stamp().unwrap_err();
    assert!(matches!(error, Error::Refused(_, Refusal::NotAllowed, _)), "{error}");
    room.done("volume allow", &["ledger", "--client", certificate]);
    client.compare_and_swap(Some(&stamp(1, 1)), &stamp(1, 2)).unwrap();

    room.done("volume retire", &["ledger"]);
    let error = client.compare_and_swap(Some(&stamp(1, 2)), &stamp(1, 3)).unwrap_err();
    assert!(matches!(error, Error::Refused(_, Refusal::Retired, _)), "{error}");
    assert_eq!(client.ask_stamp().unwrap().as_deref(), Some(&stamp(1, 2)));
    room.done("volume remove", &["ledger"]);
    assert!(client.ask_stamp().is_err());

    let log = room.done("audit show", &[]);
    for line in [
        "allowed ledger",
        "disallowed ledger",
        "claimed ledger",
        "retired ledger",
        "removed ledger",
        "reason Retired",
    ] {
        assert!(log.contains(line), "{line:?} is not in\n{log}");
    }
    room.done("audit verify", &[]);
}

#[test]
fn the_stamp_of_another_volume_does_not_get_the_place() {
    let room = Room::serving();
    let mut client = room.client("ledger", "guest");
    client.compare_and_swap(None, &stamp(1, 1)).unwrap();
    let other = anchor::Stamp { volume: [9; 16], ..stamp(1, 2) };
    let error = client.compare_and_swap(Some(&stamp(1, 1)), &other).unwrap_err();
    assert!(matches!(error, Error::Refused(_, Refusal::OtherVolume, _)), "{error}");
    let end = anchor::Stamp { state: anchor::State::Terminal, ..stamp(1, 2) };
    client.compare_and_swap(Some(&stamp(1, 1)), &end).unwrap();
    assert!(client.compare_and_swap(Some(&end), &stamp(1, 3)).is_err(), "a terminal stamp moved");
}

#[test]
fn commands_that_make_no_sense_are_refused_and_change_nothing() {
    let mut room = Room::new();
    room.volume("ledger", &["guest"]);
    let before = room.done("audit verify", &[]);
    for running in [false, true] {
        if running {
            room.start();
        }
        for (command, more, expected) in [
            ("volume add", &["ledger"][..], "is there already"),
            ("volume add", &["Ledger"], "is no name of a volume"),
            ("volume add", &["two", "--client", "abc"], "64 hexadecimal digits"),
            ("volume retire", &["none"], "there is no volume none"),
            ("volume disallow", &["ledger", "--client", &"0".repeat(64)], "was not allowed before"),
            ("init", &["--no-authority"], "is there already"),
            ("audit verify", &["--head", "7"], "is no NUMBER:HASH"),
        ] {
            let said = room.run(command, more);
            assert_eq!(said.code, 2, "{command} {more:?}: {}", said.error);
            assert!(said.error.contains(expected), "{expected:?} is not in: {}", said.error);
        }
        if !running {
            assert_eq!(room.done("audit verify", &[]), before);
        }
    }
    // Credentials that were made for a command that was refused are not left behind.
    let path = room.path("unused");
    assert_eq!(room.run("volume add", &["ledger", "--new-client", path.to_str().unwrap()]).code, 2);
    assert!(!path.join("client.key").exists());
}

#[test]
fn an_exported_log_is_checked_anywhere_and_tampering_is_named() {
    let room = Room::serving();
    let mut client = room.client("ledger", "guest");
    client.compare_and_swap(None, &stamp(1, 1)).unwrap();
    for generation in 1..6 {
        client.compare_and_swap(Some(&stamp(1, generation)), &stamp(1, generation + 1)).unwrap();
    }
    let (file, changed) = (room.path("log"), room.path("changed"));
    room.done("audit export", &[file.to_str().unwrap()]);
    let verified = room.done("audit verify", &[file.to_str().unwrap()]);
    let head = verified.lines().find_map(|line| line.strip_prefix("head ")).unwrap();
    assert_eq!(room.done("audit verify", &["--head", head]), verified);

    let whole = fs::read(&file).unwrap();
    let check = |bytes: &[u8], expected: &str| {
        fs::write(&changed, bytes).unwrap();
        let said = room.run("audit verify", &[changed.to_str().unwrap(), "--head", head]);
        assert_eq!(said.code, 4, "{}", said.error);
        assert!(said.error.contains(expected), "{expected:?} is not in: {}", said.error);
    };
    let entries: Vec<&[u8]> = whole.chunks(ENTRY_SIZE).collect();
    check(&entries[..entries.len() - 2].concat(), "its end was cut off");
    let mut bytes = whole.clone();
    bytes[5 * ENTRY_SIZE + 140] ^= 1;
    check(&bytes, "entry 6 of the audit log was changed");
    let mut order = entries.clone();
    order.swap(4, 5);
    check(&order.concat(), "has entry 6 where entry 5 belongs");
    order.clone_from(&entries);
    order.remove(4);
    check(&order.concat(), "has entry 6 where entry 5 belongs");
    check(&whole[..whole.len() - 7], "an entry has 384 bytes, not 377");
}

/// As every program of this project does it.
#[test]
fn a_failure_is_told_a_program_with_its_code_and_the_name_of_its_kind() {
    let room = Room::new();
    let ended = room.command("none", "list").arg("--json").output().unwrap();
    let told: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    let (code, kind) = (ended.status.code().unwrap(), told["error"]["kind"].as_str().unwrap());
    assert_eq!(told["error"]["code"], code, "{told}");
    assert!([(2, "usage"), (3, "io")].contains(&(code, kind)), "{told}");
    let words = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(words.trim_end(), format!("cvmio: error: {}", told["error"]["message"].as_str().unwrap()));
}
