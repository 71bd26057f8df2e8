//! A database that was put back, without and with an anchor of the service's own.

use crate::room::{Room, stamp};
use anchor_owner::{Client, Error};
use std::fs;

/// The client's connection ended with the service that it was made to; it notices at its next attempt.
fn lose_connection(client: &mut Client) {
    let error = client.ask_stamp().unwrap_err();
    assert!(matches!(error, Error::Lost(..)), "{error}");
}

#[test]
fn a_client_that_remembers_more_refuses_a_database_that_was_put_back() {
    let mut room = Room::serving();
    let mut client = room.client("ledger", "guest");
    client.compare_and_swap(None, &stamp(1, 1)).unwrap();
    room.stop();
    let old = fs::read(room.database()).unwrap();
    room.start();
    lose_connection(&mut client);
    client.compare_and_swap(Some(&stamp(1, 1)), &stamp(1, 2)).unwrap();
    let log = room.done("audit verify", &[]);
    let head = log.lines().find_map(|line| line.strip_prefix("head ")).unwrap().to_owned();
    room.stop();
    fs::write(room.database(), old).unwrap();
    room.start();

    lose_connection(&mut client);
    let error = client.ask_stamp().unwrap_err();
    assert!(matches!(error, Error::RolledBack(..)) && error.to_string().contains("was put back"), "{error}");
    // An owner who noted the end of the log finds it as well.
    let said = room.run("audit verify", &["--head", &head]);
    assert_eq!(said.code, 4);
    assert!(said.error.contains("its end was cut off, or an older copy was put back"), "{}", said.error);
    // What is not promised: a client that starts anew remembers nothing, and takes the old stamp.
    let held = room.client("ledger", "guest").ask_stamp().unwrap();
    assert_eq!(held.as_deref(), Some(&stamp(1, 1)));
}

#[test]
fn another_database_is_noticed_also_when_its_log_is_longer() {
    let mut room = Room::serving();
    let mut client = room.client("ledger", "guest");
    client.compare_and_swap(None, &stamp(1, 1)).unwrap();
    room.stop();
    fs::remove_file(room.database()).unwrap();
    room.done("init", &["--no-authority"]);
    room.volume("ledger", &["guest"]);
    (0..9).for_each(|number| room.volume(&format!("v{number}"), &["guest"]));
    room.start();
    lose_connection(&mut client);
    let error = client.ask_stamp().unwrap_err();
    assert!(error.to_string().contains("another database than before"), "{error}");
}

#[test]
fn a_service_with_an_anchor_of_its_own_does_not_start_on_a_database_that_was_put_back() {
    let mut room = Room::serving_anchored();
    let mut client = room.client("ledger", "guest");
    client.compare_and_swap(None, &stamp(1, 1)).unwrap();
    let (code, error) = room.stop();
    assert_eq!(code, 0);
    assert!(error.contains("stands on the anchor file:"), "{error}");
    let old = fs::read(room.database()).unwrap();
    room.start();
    lose_connection(&mut client);
    client.compare_and_swap(Some(&stamp(1, 1)), &stamp(1, 2)).unwrap();
    room.stop();
    fs::write(room.database(), old).unwrap();
    for command in ["serve --listen 127.0.0.1:0", "list", "audit verify"] {
        let said = room.run(command, &[]);
        assert_eq!(said.code, 5, "{command}: {}", said.error);
        assert!(said.error.contains("the database was put back"), "{}", said.error);
    }
}

#[test]
fn an_anchored_database_is_not_served_without_its_anchor() {
    let room = Room::anchored();
    let bare = |anchor: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cvmio-owner"));
        let output = command.args(["list", "--state"]).arg(room.path("state")).args(anchor).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, error) = bare(&[]);
    assert_eq!(code, 2);
    assert!(error.contains("serve it with that anchor"), "{error}");
    anchor::FileAnchor::create(&room.path("other")).unwrap();
    let (code, error) = bare(&["--anchor", &format!("file:{}", room.path("other").display())]);
    assert_eq!(code, 2);
    assert!(error.contains("does not belong to this database"), "{error}");
    // And an anchor that is in use is not taken for a new database.
    let said = room.command("second", "init").arg("--no-authority").output().unwrap();
    assert_eq!(said.status.code(), Some(2));
    assert!(String::from_utf8(said.stderr).unwrap().contains("is in use already"));
    assert!(!room.path("second").join(owner::DATABASE).exists());
}

/// The service dies between its database and its anchor: what no answer rested on is dropped. It may be forged.
#[test]
fn entries_that_the_anchor_does_not_cover_are_dropped() {
    let mut room = Room::serving_anchored();
    let mut client = room.client("ledger", "guest");
    client.compare_and_swap(None, &stamp(1, 1)).unwrap();
    let own = fs::read(room.path("own")).unwrap();
    client.compare_and_swap(Some(&stamp(1, 1)), &stamp(1, 2)).unwrap();
    room.kill();
    fs::write(room.path("own"), own).unwrap();
    room.start();
    let held = room.client("ledger", "guest").ask_stamp().unwrap();
    assert_eq!(held.as_deref(), Some(&stamp(1, 1)));
    let log = room.done("audit show", &[]);
    assert!(log.contains("cut 1 entries that no answer rested on"), "{log}");
    assert!(room.done("audit verify", &[]).starts_with("whole: "));
}

/// Two services on two copies of one database: the second takes the anchor, and the first stops.
#[test]
fn of_two_services_on_copies_the_older_one_is_fenced() {
    let mut room = Room::serving_anchored();
    let mut client = room.client("ledger", "guest");
    client.compare_and_swap(None, &stamp(1, 1)).unwrap();
    fs::create_dir(room.path("copy")).unwrap();
    // The state directory as a snapshot of its file system would have it.
    fs::copy(room.database(), room.path("copy").join(owner::DATABASE)).unwrap();
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .arg(room.path("state/tls"))
        .arg(room.path("copy"))
        .status();
    assert!(copied.unwrap().success());
    let (mut second, port) = room.start_other("copy");

    let error = client.compare_and_swap(Some(&stamp(1, 1)), &stamp(1, 2)).unwrap_err();
    assert!(matches!(error, Error::Unavailable(..) | Error::Lost(..)), "{error}");
    let (code, error) = room.wait();
    assert_eq!(code, 7, "{error}");
    assert!(error.contains("another service has taken"), "{error}");
    let mut other = room.client_at(&format!("127.0.0.1:{port}/ledger"), room.files("guest"));
    let held = other.ask_stamp().unwrap();
    assert_eq!(held.as_deref(), Some(&stamp(1, 1)));
    second.kill().unwrap();
    second.wait().unwrap();
}
