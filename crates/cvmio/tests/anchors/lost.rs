//! The documented ways out when an anchor is gone for good, for each kind.

use std::fs;

use super::cluster::Cluster;
use super::common::Desk;
use super::common::machine::{has, tell_skipped};
use super::owner::Owner;
use super::tpm::{self, bed::Swtpm};
use super::{desk_on, json, options};

const LOOK: &str = "volume reanchor disk.img --key-file key";

/// Looks at what the store offers without its anchor, takes it, and has the new anchor vouch for it.
fn recover(desk: &Desk, new: &str) {
    let (store, policy) = (desk.read("disk.img"), desk.read("disk.img.policy.toml"));
    let look = format!("{LOOK} --lost-anchor {new}");
    let shown = json(desk, &format!("{look} --json"));
    assert!(shown["anchored"].is_null() && shown["reanchored"] == false, "{shown}");
    assert!(desk.read("disk.img.policy.toml") == policy, "looking has changed the policy");
    let state = shown["chosen"].as_str().unwrap().to_owned();
    desk.done(&format!("{look} --confirm {state}"));
    assert!(desk.read("disk.img") == store, "reanchoring wrote to the store");
    desk.done("anchor verify disk.img --key-file key");
}

/// The refusal says what to do, and so does the one behind it.
fn names_the_way(desk: &Desk, why: &str) {
    let said = desk.run(LOOK);
    assert!(said.code == 8 && said.error.contains(why), "{said:?}");
    assert!(said.error.contains("--anchor") && said.error.contains("--lost-anchor"), "{said:?}");
}

fn file(desk: &Desk, name: &str) -> String {
    format!("--anchor file:{}", desk.path(name).display())
}

#[test]
fn an_anchor_that_answers_is_not_lost() {
    let cluster = Cluster::start();
    let desk = desk_on(&cluster);
    let said = desk.run(&format!("{LOOK} --lost-anchor {}", file(&desk, "second")));
    assert!(said.code == 2 && said.error.contains("so it is not lost"), "{said:?}");
}

#[test]
fn of_a_cluster_that_is_dead_or_has_lost_its_data() {
    let cluster = Cluster::start();
    let desk = desk_on(&cluster);
    // With members whose data was in memory: a new cluster, perhaps at the same place, knows nothing.
    cluster.begin_anew();
    let refused = desk.run("volume attach disk.img --key-file key");
    assert!(refused.code == 8 && refused.error.contains("never claimed"), "{refused:?}");
    let address = cluster.address("cvmio/ledger");
    recover(&desk, &format!("--anchor {address} {}", options(&cluster)));
    for member in 0..3 {
        cluster.kill(member);
    }
    recover(&desk, &file(&desk, "second"));
}

#[test]
fn of_a_service_that_is_gone_or_has_lost_its_database() {
    let desk = Desk::new();
    let mut owner = Owner::new(&desk);
    let of_volume = owner.options();
    desk.done(&format!("volume create disk.img --size 16M --key-file key {of_volume}"));
    owner.stop();
    recover(&desk, &file(&desk, "second"));

    // A new service with a new database, at the place of the old one, which the policy still names.
    let desk = Desk::new();
    let mut owner = Owner::new(&desk);
    desk.done(&format!("volume create disk.img --size 16M --key-file key {}", owner.options()));
    owner.stop();
    fs::remove_dir_all(desk.path("owner")).unwrap();
    fs::rename(desk.path("client"), desk.path("old-client")).unwrap();
    let new = Owner::new(&desk);
    recover(&desk, &new.options());
}

#[test]
fn of_a_tpm_that_was_replaced_or_whose_companion_file_is_gone() {
    if let Some(missing) = ["swtpm"].into_iter().find(|program| !has(program)) {
        return tell_skipped(&format!("there is no {missing}"));
    }
    let desk = Desk::new();
    let swtpm = Swtpm::start(&desk.path("tpm"));
    let key = tpm::endorsement_key(&swtpm);
    let made = tpm::create(&desk, &swtpm, &format!("--anchor-option endorsement-key={key}"));
    assert_eq!(made.code, 0, "{made:?}");
    fs::remove_file(desk.path("companion")).unwrap();
    names_the_way(&desk, "it is not there");
    // The index of the lost one is in use still; another one takes its place.
    let anchor = |swtpm: &Swtpm, index: &str, companion: &str| {
        let [companion, secret] = [("companion", companion), ("secret-file", "secret-file")]
            .map(|(option, name)| format!("--anchor-option {option}={}", desk.path(name).display()));
        let key = tpm::endorsement_key(swtpm);
        let at = swtpm.socket().display().to_string();
        format!("--anchor tpm:{at},{index} {companion} {secret} --anchor-option endorsement-key={key}")
    };
    recover(&desk, &anchor(&swtpm, "0x01800101", "companion-2"));

    drop(swtpm);
    fs::remove_dir_all(desk.path("tpm")).unwrap();
    let other = Swtpm::start(&desk.path("tpm"));
    names_the_way(&desk, "this is another TPM");
    // At the same index of the new one.
    recover(&desk, &anchor(&other, "0x01800101", "companion-3"));
}
