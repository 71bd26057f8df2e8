//! A volume whose anchor is a TPM, from its creation to a host that puts everything back.

#[path = "../../../anchor-tpm/tests/it/bed.rs"]
#[allow(dead_code, reason = "the anchor's own tests use the rest")]
mod bed;

use anchor_tpm::tpm::Tpm;
use anchor_tpm::transport::Place;
use bed::Swtpm;
use serde_json::Value;

use super::common::Desk;
use super::common::machine::{has, sh, tell_skipped, wait_for};

/// Attaches the volume, does something with it, and detaches it.
fn session(desk: &Desk, act: &str) -> String {
    let ready: Value =
        serde_json::from_str(&desk.done("volume attach disk.img --key-file key --as nbd --json")).unwrap();
    let here = desk.path("").display().to_string();
    let uri = ready["uri"].as_str().unwrap().replace("[DIR]", here.trim_end_matches('/'));
    let said = sh(&format!("qemu-io -f raw {act} '{uri}'"));
    // At level transaction only what is committed stays.
    desk.done("volume commit disk");
    wait_for("the volume to be put away", || desk.run("volume detach disk").code == 0);
    said
}

#[test]
fn a_host_that_puts_image_and_companion_file_back_is_caught() {
    if let Some(missing) = ["swtpm", "qemu-io"].into_iter().find(|program| !has(program)) {
        return tell_skipped(&format!("there is no {missing}"));
    }
    let desk = Desk::new();
    let swtpm = Swtpm::start(&desk.path("tpm"));
    let anchor = format!("tpm:{},0x01800100", swtpm.socket().display());
    let create = |more: &str| {
        let options =
            ["companion", "secret-file"].map(|name| format!("{name}={}", desk.path(name).display()));
        let [companion, secret] = options;
        desk.run(&format!(
            "volume create disk.img --size 16M --key-file key --anchor {anchor} \
             --anchor-option {companion} --anchor-option {secret} {more}"
        ))
    };
    let key = hex::encode(Tpm::new(Place::Path(swtpm.socket()), None).endorsement_key().unwrap());
    let asked = create("");
    assert_eq!(asked.code, 8, "{asked:?}");
    assert!(asked.error.contains(&format!("--anchor-option endorsement-key={key}")), "{}", asked.error);
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
