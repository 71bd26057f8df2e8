//! The owner's way out when store and anchor no longer agree.

use std::os::unix::fs::FileExt;

use crate::common::machine::content;
use crate::common::{Desk, Said};
use serde_json::Value;

const LOOK: &str = "volume reanchor disk.img --key-file key";

/// A volume whose backup was put back, after it had gone on.
fn rolled_back() -> (Desk, Vec<u8>) {
    let desk = Desk::new();
    desk.create("");
    let old = desk.read("disk.img");
    desk.done("volume key add disk.img --key-file key --new-key-file other --label second");
    let newer = desk.read("disk.img");
    desk.write("disk.img", &old);
    (desk, newer)
}

fn json(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

/// The state that is shown as chosen.
fn chosen(desk: &Desk, more: &str) -> String {
    let said = desk.run(&format!("{LOOK} --json {more}"));
    assert_eq!(said.code, 0, "{}", said.error);
    assert_eq!(json(&said)["reanchored"], false);
    json(&said)["chosen"].as_str().unwrap().to_owned()
}

#[test]
fn a_backup_that_was_put_back_counts_when_it_was_confirmed() {
    let (desk, newer) = rolled_back();
    assert_eq!(desk.run("volume check disk.img --key-file key").code, 5);
    let (store, anchor) = (desk.read("disk.img"), desk.read("anchor"));
    let text = desk.done(LOOK);
    assert!(text.contains("header: NOT the one") && text.contains("Nothing was changed."), "{text}");
    let state = chosen(&desk, "");
    assert!(text.contains(&format!("--confirm {state}")), "{text}");
    for (more, code) in [
        ("--confirm 0:0000000000000000", 2),
        ("--confirm 0", 2),
        ("--to 77", 2),
        ("--lost-anchor --anchor file:/nowhere/anchor", 2),
        ("--lost-anchor", 2),
    ] {
        let said = desk.run(&format!("{LOOK} {more}"));
        assert_eq!(said.code, code, "{more}: {}", said.error);
    }
    assert_eq!(desk.run("volume reanchor disk.img --key-file other").code, 10);
    assert!(desk.read("anchor") == anchor && desk.read("disk.img") == store, "looking has changed something");

    let said = desk.run(&format!("{LOOK} --confirm {state}"));
    assert_eq!(said.code, 0, "{}", said.error);
    assert!(
        said.error.contains("was reanchored") && said.error.contains("removed may be back"),
        "{}",
        said.error
    );
    assert!(desk.read("disk.img") == store, "reanchoring wrote to the store");
    assert!(desk.done("volume check disk.img --key-file key").contains("all whole"));
    desk.write("disk.img", &newer);
    assert_eq!(desk.run("volume check disk.img --key-file key").code, 5, "what was given up came back");
}

#[test]
fn a_lost_anchor_is_replaced_and_the_policy_follows() {
    let desk = Desk::new();
    desk.create("");
    std::fs::remove_file(desk.path("anchor")).unwrap();
    let said = desk.run(LOOK);
    assert!(said.code == 8 && said.error.contains("--lost-anchor"), "{said:?}");
    let more = format!("--lost-anchor --anchor file:{}", desk.path("second").display());
    let state = chosen(&desk, &more);
    assert!(!desk.path("second").exists(), "looking has made an anchor");
    let said = desk.run(&format!("{LOOK} {more} --confirm {state} --json"));
    assert!(said.code == 0 && json(&said)["reanchored"] == true, "{said:?}");
    let policy = String::from_utf8(desk.read("disk.img.policy.toml")).unwrap();
    assert!(policy.contains("/second\""), "{policy}");
    assert!(desk.done("volume check disk.img --key-file key").contains("all whole"));
}

#[test]
fn a_volume_that_has_moved_says_where_to() {
    let desk = Desk::new();
    desk.create("");
    let old_policy = desk.read("disk.img.policy.toml");
    let more = format!("--anchor file:{}", desk.path("new.anchor").display());
    let state = chosen(&desk, &more);
    let said = desk.run(&format!("{LOOK} {more} --confirm {state}"));
    assert!(said.code == 0 && said.error.contains("must not be used any more"), "{said:?}");
    desk.done("volume check disk.img --key-file key");
    desk.write("old.toml", &old_policy);
    let said = desk.run("volume check disk.img --key-file key --policy old.toml");
    assert!(said.code == 8 && said.error.contains("new.anchor`"), "{said:?}");
    // Done again with the old policy, as after a cut: the move ends where it ended before.
    let again = format!("{LOOK} {more} --policy old.toml --confirm {state}");
    assert_eq!(desk.run(&again).code, 0);
    desk.done("volume check disk.img --key-file key --policy old.toml");
}

#[test]
fn damage_is_shown_and_accepted_only_by_name() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    desk.done("volume attach disk.img --key-file key");
    let device = std::fs::File::options().write(true).open(desk.path("run/disk/disk")).unwrap();
    device.write_all_at(&content(5, 64 * 4096), 0).unwrap();
    device.sync_all().unwrap();
    drop(device);
    desk.done("volume detach disk");
    let dump: Value = serde_json::from_str(&desk.done("volume dump disk.img --key-file key --json")).unwrap();
    let start = usize::try_from(dump["copies"][0]["header"]["ok"]["data-start"].as_u64().unwrap()).unwrap();
    let superblocks = dump["superblocks"].as_array().unwrap();
    let roots: Vec<u64> = superblocks
        .iter()
        .flat_map(|one| ["map", "salts"].map(|name| one[name]["physical"].as_u64()))
        .flatten()
        .collect();
    let mut bytes = desk.read("disk.img");
    // One block that is no root, and that the map reaches: the data stands together.
    let place = (start + 8..).find(|at| {
        bytes[at * 4096..][..4096].iter().any(|&byte| byte != 0) && !roots.contains(&(*at as u64))
    });
    bytes[place.unwrap() * 4096 + 100] ^= 1;
    desk.write("disk.img", &bytes);
    let said = desk.run(LOOK);
    assert!(said.code == 0 && said.out.contains("DAMAGED or unreadable (from block"), "{said:?}");
    let state = chosen(&desk, "");
    let anchor = desk.read("anchor");
    let said = desk.run(&format!("{LOOK} --confirm {state}"));
    assert!(said.code == 4 && said.error.contains("--accept-damage"), "{said:?}");
    assert!(desk.read("anchor") == anchor, "a refusal has moved the anchor");
    desk.done(&format!("{LOOK} --confirm {state} --accept-damage"));
    assert_ne!(desk.read("anchor"), anchor);
}

#[test]
fn without_freshness_there_is_nothing_to_reanchor() {
    let desk = Desk::new();
    desk.create("--freshness off");
    let said = desk.run(LOOK);
    assert!(said.code == 2 && said.error.contains("freshness is off"), "{said:?}");
}
