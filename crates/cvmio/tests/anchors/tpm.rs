//! A volume whose anchor is a TPM, from its creation to a host that puts everything back.

#[path = "../../../anchor-tpm/tests/it/bed.rs"]
#[allow(dead_code, reason = "the anchor's own tests use the rest")]
pub mod bed;

use anchor_tpm::tpm::Tpm;
use anchor_tpm::transport::Place;
use bed::Swtpm;
use serde_json::Value;

use super::common::machine::{has, has_ended, sh, tell_skipped, wait_for};
use super::common::{Desk, Said};

/// Attaches the volume, and gives the address of its NBD server.
fn attached(desk: &Desk, image: &str) -> String {
    let command =
        format!("volume attach {image} --policy disk.img.policy.toml --key-file key --as nbd --json");
    let ready: Value = serde_json::from_str(&desk.done(&command)).unwrap();
    let here = desk.path("").display().to_string();
    ready["uri"].as_str().unwrap().replace("[DIR]", here.trim_end_matches('/'))
}

/// Attaches the volume, does something with it, and detaches it.
fn session(desk: &Desk, act: &str) -> String {
    let uri = attached(desk, "disk.img");
    let said = sh(&format!("qemu-io -f raw {act} '{uri}'"));
    // At level transaction only what is committed stays.
    desk.done("volume commit disk");
    wait_for("the volume to be put away", || desk.run("volume detach disk").code == 0);
    said
}

pub fn create(desk: &Desk, swtpm: &Swtpm, more: &str) -> Said {
    let anchor = format!("tpm:{},0x01800100", swtpm.socket().display());
    let [companion, secret] =
        ["companion", "secret-file"].map(|name| format!("{name}={}", desk.path(name).display()));
    desk.run(&format!(
        "volume create disk.img --size 16M --key-file key --anchor {anchor} \
         --anchor-option {companion} --anchor-option {secret} {more}"
    ))
}

pub fn endorsement_key(swtpm: &Swtpm) -> String {
    hex::encode(Tpm::new(Place::Path(swtpm.socket()), None).endorsement_key().unwrap())
}

#[test]
fn of_two_guests_on_one_tpm_the_older_one_is_fenced_and_names_what_was_never_anchored() {
    if let Some(missing) = ["swtpm", "qemu-io"].into_iter().find(|program| !has(program)) {
        return tell_skipped(&format!("there is no {missing}"));
    }
    let desk = Desk::new();
    let swtpm = Swtpm::start(&desk.path("tpm"));
    let made = create(&desk, &swtpm, &format!("--anchor-option endorsement-key={}", endorsement_key(&swtpm)));
    assert_eq!(made.code, 0, "{made:?}");
    let first = attached(&desk, "disk.img");
    sh(&format!("qemu-io -f raw -c 'write -P 1 0 4k' -c flush '{first}'"));
    desk.done("volume commit disk");
    std::fs::copy(desk.path("disk.img"), desk.path("copy.img")).unwrap();
    let second = attached(&desk, "copy.img");
    sh(&format!("qemu-io -f raw -c 'write -P 2 8k 8k' -c flush '{first}'"));
    let refused = desk.run("volume commit disk");
    assert_eq!(refused.code, 7, "{refused:?}");
    assert!(refused.error.contains("never anchored: 2 blocks: 2-3;"), "{}", refused.error);
    let status: Value = serde_json::from_str(&desk.done("volume status disk --json")).unwrap();
    assert_eq!(status["volume"]["unanchored"]["stretches"], serde_json::json!([[2, 2]]), "{status}");
    let said = sh(&format!("qemu-io -f raw -c 'read -P 1 0 4k' -c 'write -P 3 0 4k' '{second}'"));
    assert!(said.contains("read 4096/4096") && !said.contains("failed"), "{said}");
    desk.done("volume commit copy");
    for name in ["copy", "disk"] {
        let process = status_of(&desk, name)["process"].as_u64().and_then(|id| u32::try_from(id).ok());
        // The fenced one has nothing to release, and says so.
        let _ = desk.run(&format!("volume detach {name}"));
        wait_for("the daemon's end", || process.is_none_or(has_ended));
    }
}

fn status_of(desk: &Desk, name: &str) -> Value {
    serde_json::from_str(&desk.done(&format!("volume status {name} --json"))).unwrap()
}

#[test]
fn a_host_that_puts_image_and_companion_file_back_is_caught() {
    if let Some(missing) = ["swtpm", "qemu-io"].into_iter().find(|program| !has(program)) {
        return tell_skipped(&format!("there is no {missing}"));
    }
    let desk = Desk::new();
    let swtpm = Swtpm::start(&desk.path("tpm"));
    let create = |more: &str| create(&desk, &swtpm, more);
    let key = endorsement_key(&swtpm);
    let asked = create("");
    assert_eq!(asked.code, 8, "{asked:?}");
    assert!(asked.error.contains(&format!("options: endorsement-key={key}")), "{}", asked.error);
    assert!(!desk.path("disk.img").exists() && !desk.path("secret-file").exists(), "nothing was made");

    let made = create(&format!("--anchor-option endorsement-key={key}"));
    assert_eq!(made.code, 0, "{made:?}");
    assert!(made.out.contains("freshness transaction"), "{}", made.out);
    assert!(made.error.contains("host emulates is no root"), "{}", made.error);

    session(&desk, "-c 'write -P 1 0 64k' -c flush");
    let old = ["disk.img", "companion"].map(|name| (name, desk.read(name)));
    session(&desk, "-c 'write -P 2 0 64k' -c flush");
    let new = ["disk.img", "companion"].map(|name| (name, desk.read(name)));

    // Everything that the host has: the image alone, both, and the file alone.
    let attach = || desk.run("volume attach disk.img --key-file key --as nbd");
    desk.write("disk.img", &old[0].1);
    let refused = attach();
    assert_eq!(refused.code, 5, "{refused:?}");
    desk.write("companion", &old[1].1);
    let refused = attach();
    assert_eq!(refused.code, 8, "{refused:?}");
    assert!(refused.error.contains("the file is an older copy or was changed"), "{}", refused.error);
    desk.write("disk.img", &new[0].1);
    assert_eq!(attach().code, 8);

    // The volume is unharmed.
    desk.write("companion", &new[1].1);
    assert!(session(&desk, "-c 'read -P 2 0 64k'").contains("read 65536/65536"));

    // No TPM, and another one.
    drop(swtpm);
    let refused = attach();
    assert_eq!(refused.code, 8, "{refused:?}");
    assert!(refused.error.contains("no TPM can be reached"), "{}", refused.error);
    std::fs::remove_dir_all(desk.path("tpm")).unwrap();
    let _other = Swtpm::start(&desk.path("tpm"));
    let refused = attach();
    assert_eq!(refused.code, 8, "{refused:?}");
    assert!(refused.error.contains("this is another TPM"), "{}", refused.error);
}
