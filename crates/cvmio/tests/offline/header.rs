//! Header and key slots: to a file, and back.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Stdio;

use crate::common::Desk;

/// Both copies of header and key slots.
fn damage(desk: &Desk) {
    let file = OpenOptions::new().write(true).open(desk.path("disk.img")).unwrap();
    file.write_all_at(&[0x5a; 4 * 4096], 0).unwrap();
}

#[test]
fn a_header_is_backed_up_and_restored() {
    let desk = Desk::new();
    desk.create("");
    let said = desk.done("volume header backup disk.img first.header --key-file key");
    assert!(said.contains("generation 1, key slots: 0 first to first.header"), "{said}");
    assert_eq!(std::fs::metadata(desk.path("first.header")).unwrap().mode() & 0o777, 0o600);
    let again = desk.run("volume header backup disk.img first.header --key-file key");
    assert_eq!(again.code, 2, "{}", again.error);
    let whole = desk.done("volume header restore disk.img first.header --key-file key");
    assert!(whole.contains("nothing was written"), "{whole}");

    damage(&desk);
    assert_ne!(desk.run("volume check disk.img --key-file key").code, 0, "the damage does nothing");
    let said = desk.run("volume header restore disk.img first.header --key-file other");
    assert_eq!(said.code, 10, "{}", said.error);
    let said = desk.done("volume header restore disk.img first.header --key-file key");
    assert!(said.starts_with("restored the header of volume "), "{said}");
    desk.done("volume check disk.img --key-file key");

    // A slot is taken away; the older header must not bring it back.
    desk.done("volume key add disk.img --key-file key --new-key-file other --label second");
    desk.done("volume key remove disk.img 0 --key-file other");
    desk.done("volume header backup disk.img latest.header --key-file other");
    damage(&desk);
    let before = desk.read("disk.img");
    let said = desk.run("volume header restore disk.img first.header --key-file key");
    assert_eq!(said.code, 5, "{}", said.error);
    assert!(desk.read("disk.img") == before, "a refused restoration wrote to the store");
    desk.done("volume header restore disk.img latest.header --key-file other");
    assert_eq!(desk.done("volume key list disk.img"), "slot  1  key-file  second\n");
    desk.write("long.header", &[desk.read("latest.header"), vec![0]].concat());
    assert_eq!(desk.run("volume header restore disk.img long.header --key-file other").code, 4);
}

/// As with a stream, `-` is standard output and input.
#[test]
fn a_header_goes_through_a_pipe() {
    let desk = Desk::new();
    desk.create("");
    let said = desk.run("volume header backup disk.img - --key-file key --json");
    assert!(said.code == 2 && said.error.contains("--json") && said.out.is_empty(), "{said:?}");
    let backup = |to: Stdio| {
        let mut command = desk.command("volume header backup disk.img - --key-file key");
        command.stdout(to).output().unwrap()
    };
    let piped = backup(Stdio::piped());
    assert!(piped.status.success() && !desk.path("-").exists(), "{piped:?}");
    assert!(String::from_utf8_lossy(&piped.stderr).contains("to standard output"), "{piped:?}");
    desk.done("volume header backup disk.img first.header --key-file key");
    assert!(piped.stdout == desk.read("first.header"));
    let full = backup(File::create("/dev/full").unwrap().into());
    assert_eq!(full.status.code(), Some(3), "{full:?}");
    let before = desk.read("disk.img");
    let store = backup(OpenOptions::new().write(true).open(desk.path("disk.img")).unwrap().into());
    let error = String::from_utf8_lossy(&store.stderr);
    assert!(store.status.code() == Some(2) && error.contains("store and as the backup"), "{error}");
    assert!(desk.read("disk.img") == before);

    damage(&desk);
    let mut command = desk.command("volume header restore disk.img - --key-file key");
    let restored = command.stdin(File::open(desk.path("first.header")).unwrap()).output().unwrap();
    assert!(restored.status.success(), "{restored:?}");
    desk.done("volume check disk.img --key-file key");
}

#[test]
fn without_an_anchor_the_owner_is_warned() {
    let desk = Desk::new();
    desk.create("--freshness off");
    desk.done("volume header backup disk.img first.header --key-file key");
    let said = desk.run("volume header restore disk.img first.header --key-file key");
    assert!(
        said.code == 0 && said.error.contains("nothing says whether this header is the latest"),
        "{said:?}"
    );
    desk.done("volume key add disk.img --key-file key --new-key-file other");
    let said = desk.run("volume header restore disk.img first.header --key-file key --json");
    assert!(said.code == 0 && said.error.contains("older than the one that it replaced"), "{said:?}");
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&json["replaced-newer-generation"], &json["header"]["generation"]), (&2.into(), &1.into()));
    assert_eq!(desk.run("volume check disk.img --key-file other").code, 10);
}
