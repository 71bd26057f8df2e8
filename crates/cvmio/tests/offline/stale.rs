//! Every command that moves the anchor, or relies on it, looks first whether the store stands where the anchor says.

use std::fs;
use std::os::unix::fs::FileExt;

use super::cut_short::{cut_everywhere, untraceable};
use crate::common::machine::{tell, tell_skipped};
use crate::common::{Desk, Said};

/// Writes a block and makes it durable.
fn write(desk: &Desk, bytes: u8) {
    desk.done("volume attach disk.img --key-file key");
    let device = fs::File::options().write(true).open(desk.path("run/disk/disk")).unwrap();
    device.write_all_at(&[bytes; 4096], 0).unwrap();
    device.sync_all().unwrap();
    drop(device);
    desk.done("volume detach disk");
}

fn first_byte(desk: &Desk) -> u8 {
    desk.done("volume attach disk.img --key-file key --read-only");
    let byte = fs::read(desk.path("run/disk/disk")).unwrap()[0];
    desk.done("volume detach disk");
    byte
}

/// A volume that has gone on from the image `old.img`; the newest is `new.img`, and in `disk.img`.
fn gone_on() -> Desk {
    let desk = Desk::new();
    go_on(&desk);
    desk
}

fn go_on(desk: &Desk) {
    fs::copy(desk.path("key"), desk.path("third")).unwrap();
    desk.create("");
    desk.done("volume key add disk.img --key-file key --new-key-file other --label second");
    desk.done("volume header backup disk.img saved --key-file key");
    write(desk, 1);
    fs::copy(desk.path("disk.img"), desk.path("old.img")).unwrap();
    write(desk, 2);
    fs::copy(desk.path("disk.img"), desk.path("new.img")).unwrap();
}

const FILES: [&str; 3] = ["disk.img", "anchor", "disk.img.policy.toml"];

/// The commands refuse the image in `disk.img` with this exit code, and change nothing.
fn all_refuse(desk: &Desk, code: i32, why: &str) {
    let migrate =
        format!("anchor migrate disk.img --key-file key --to file:{}", desk.path("second").display());
    let before = FILES.map(|name| desk.read(name));
    for command in [
        "volume attach disk.img --key-file key",
        "volume check disk.img --key-file key",
        "anchor verify disk.img --key-file key",
        "volume export disk.img --key-file key --stream-key-file other --to stream",
        &migrate,
        "volume grow disk.img --size 24M --key-file key",
        "volume key add disk.img --key-file key --new-key-file third --label third",
        "volume key remove disk.img 1 --key-file key",
        "volume rekey disk.img --key-file key --keep-key-file other",
        "volume header restore disk.img saved --key-file key",
    ] {
        let Said { code: ended, error, .. } = desk.run(command);
        assert!(ended == code && error.contains(why), "{command}: {ended}: {error}");
        assert!(FILES.map(|name| desk.read(name)) == before, "{command} has changed something");
        assert!(!desk.path("second").exists(), "{command} has made an anchor");
    }
}

#[test]
fn an_older_image_is_refused_by_every_command_and_nothing_moves() {
    crate::skip_without_devices!();
    let desk = gone_on();
    fs::copy(desk.path("old.img"), desk.path("disk.img")).unwrap();
    all_refuse(&desk, 5, "this image is an older state");
    fs::copy(desk.path("new.img"), desk.path("disk.img")).unwrap();
    assert_eq!(first_byte(&desk), 2);
}

#[test]
fn an_image_with_a_history_of_its_own_is_refused_likewise() {
    crate::skip_without_devices!();
    let desk = gone_on();
    // Whoever holds an older image, an older anchor and the key has another history from there.
    let anchor = desk.read("anchor");
    let other = gone_on_beside(&desk);
    desk.write("anchor", &anchor);
    desk.write("disk.img", &other);
    all_refuse(&desk, 6, "a history of its own");
    fs::copy(desk.path("new.img"), desk.path("disk.img")).unwrap();
    assert_eq!(first_byte(&desk), 2);
}

/// What becomes of the older image where the owner has said that it counts, and three sessions have had it.
fn gone_on_beside(desk: &Desk) -> Vec<u8> {
    fs::copy(desk.path("old.img"), desk.path("disk.img")).unwrap();
    let shown = desk.done("volume reanchor disk.img --key-file key --json");
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let state = shown["chosen"].as_str().unwrap().to_owned();
    desk.done(&format!("volume reanchor disk.img --key-file key --confirm {state}"));
    for byte in [3, 4, 5] {
        write(desk, byte);
    }
    desk.read("disk.img")
}

/// Without a header nobody could even look at which states an image offers.
#[test]
fn a_header_comes_back_to_an_older_image_for_its_owner_to_look_at() {
    crate::skip_without_devices!();
    let desk = gone_on();
    fs::copy(desk.path("old.img"), desk.path("disk.img")).unwrap();
    let store = fs::File::options().write(true).open(desk.path("disk.img")).unwrap();
    store.write_all_at(&[0x5a; 4 * 4096], 0).unwrap();
    let anchor = desk.read("anchor");
    assert_ne!(desk.run("volume reanchor disk.img --key-file key").code, 0);
    let said = desk.run("volume header restore disk.img saved --key-file key");
    assert!(said.code == 5 && said.error.contains("the backup's is there again"), "{said:?}");
    assert!(desk.read("anchor") == anchor && desk.read("disk.img") == desk.read("old.img"));
    let shown = desk.done("volume reanchor disk.img --key-file key");
    assert!(shown.contains("OLDER than what the anchor vouches for"), "{shown}");
}

/// Of the three steps of a move, the first two are of anchors. Killed behind the first, it is done again, and the host has put an older image in
/// place by then.
#[test]
fn a_move_that_was_cut_short_is_not_ended_on_an_older_image() {
    crate::skip_without_devices!();
    if let Some(why) = untraceable() {
        return tell_skipped(why);
    }
    let migrate = |desk: &Desk| {
        format!("anchor migrate disk.img --key-file key --to file:{}", desk.path("second").display())
    };
    let again = |desk: &Desk, at: &str| {
        let policy = String::from_utf8(desk.read("disk.img.policy.toml")).unwrap();
        if policy.contains("/second\"") {
            return;
        }
        let kept = |name: &str| fs::read(desk.path(name)).ok();
        let before = ["anchor", "second"].map(kept);
        fs::copy(desk.path("old.img"), desk.path("disk.img")).unwrap();
        let said = desk.run(&migrate(desk));
        assert!(said.code == 5 && said.error.contains("an older state"), "{at}: {said:?}");
        assert!(["anchor", "second"].map(kept) == before, "{at}: an anchor has moved");
        fs::copy(desk.path("new.img"), desk.path("disk.img")).unwrap();
        desk.done(&migrate(desk));
        desk.done("anchor verify disk.img --key-file key");
    };
    let times = cut_everywhere(&["pwrite64"], go_on, migrate, again);
    tell(&format!("killed {times} times"));
    assert!(times > 2, "only {times}: does it still work by these calls?");
}

/// It goes where it was going, or nowhere.
#[test]
fn a_move_that_was_cut_short_goes_to_no_third_anchor() {
    let desk = Desk::new();
    desk.create("");
    let migrate = |name: &str| {
        format!("anchor migrate disk.img --key-file key --to file:{}", desk.path(name).display())
    };
    let policy = desk.read("disk.img.policy.toml");
    desk.done(&migrate("second"));
    // As if it had been cut before the policy followed.
    desk.write("disk.img.policy.toml", &policy);
    let said = desk.run(&migrate("third"));
    assert!(said.code == 2 && said.error.contains("/second`") && !desk.path("third").exists(), "{said:?}");
    desk.done(&migrate("second"));
    desk.done("anchor verify disk.img --key-file key");
}
