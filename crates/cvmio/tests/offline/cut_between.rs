//! Commands that change a volume in several durable steps, killed before each of them: done again, or as their message then says, each comes to
//! its end, and no block is lost.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use super::cut_short::{cut_everywhere, untraceable};
use crate::common::machine::{tell, tell_skipped};
use crate::common::{Desk, Said};

/// The system calls behind which something is on the store, in the anchor or in the policy that was not there before. A file that is only
/// opened, or written under another name, changes nothing of a volume; and a killed process loses nothing by a flush that it did not make.
const STEPS: [&str; 7] =
    ["ftruncate", "fallocate", "pwrite64", "rename", "renameat2", "link", "io_uring_enter"];

/// Kills `command` at each step. Afterwards it is run again: `then` says whether that, and the state, is right.
fn cut(prepare: impl Fn(&Desk), command: impl Fn(&Desk) -> String, then: impl Fn(&Desk, &Said)) {
    if let Some(why) = untraceable() {
        return tell_skipped(why);
    }
    let again = |desk: &Desk, at: &str| {
        let said = desk.run(&command(desk));
        // So that a failed assertion says where it was.
        let shown = Said { error: format!("{at}: {}", said.error), ..said };
        then(desk, &shown);
    };
    let times = cut_everywhere(&STEPS, prepare, &command, again);
    tell(&format!("killed {times} times"));
    assert!(times > 10, "only {times}: does it still work by these calls?");
}

fn opens(desk: &Desk, store: &str, key: &str) {
    desk.done(&format!("volume check {store} --key-file {key}"));
}

fn created(desk: &Desk) {
    desk.create("");
}

#[test]
fn a_key_that_was_being_added() {
    let add = "volume key add disk.img --key-file key --new-key-file other";
    cut(
        created,
        |_| add.into(),
        |desk, said| {
            assert_eq!(said.code, 0, "{said:?}");
            let slots = desk.done("volume key list disk.img").lines().count();
            // It had been added: it is there twice now, and it was said what to do.
            assert!(
                slots == 2 || (slots == 3 && said.error.contains("it is there twice")),
                "{slots}: {said:?}"
            );
            opens(desk, "disk.img", "key");
            opens(desk, "disk.img", "other");
        },
    );
}

#[test]
fn a_key_that_was_being_removed() {
    let two = |desk: &Desk| {
        created(desk);
        desk.done("volume key add disk.img --key-file key --new-key-file other");
    };
    let remove = |_: &Desk| "volume key remove disk.img 1 --key-file key".to_owned();
    cut(two, remove, |desk, said| {
        assert!(said.code == 0 || said.error.contains("there is no key in slot 1"), "{said:?}");
        opens(desk, "disk.img", "key");
        assert_ne!(desk.run("volume check disk.img --key-file other").code, 0, "{said:?}");
    });
}

#[test]
fn a_volume_that_was_growing() {
    let grow = |_: &Desk| "volume grow disk.img --size 32M --key-file key".to_owned();
    cut(created, grow, |desk, said| {
        assert_eq!(said.code, 0, "{said:?}");
        assert!(
            String::from_utf8(desk.read("disk.img.policy.toml")).unwrap().contains("33554432"),
            "{said:?}"
        );
        opens(desk, "disk.img", "key");
    });
}

#[test]
fn a_change_of_the_volume_key() {
    let rekey = "volume rekey disk.img --key-file key";
    cut(
        created,
        |_| rekey.into(),
        |desk, said| {
            if said.code != 0 {
                assert!(said.code == 2 && said.error.contains("(--force)"), "{said:?}");
                desk.done(&format!("{rekey} --force"));
            }
            opens(desk, "disk.img", "key");
        },
    );
}

#[test]
fn a_move_to_another_anchor() {
    let migrate = |desk: &Desk| {
        format!("anchor migrate disk.img --key-file key --to file:{}", desk.path("second").display())
    };
    cut(created, migrate, |desk, said| {
        // The policy names it already: the move had come to its end.
        assert!(said.code == 0 || said.error.contains("as the anchor and as the new anchor"), "{said:?}");
        let policy = String::from_utf8(desk.read("disk.img.policy.toml")).unwrap();
        assert!(policy.contains("/second\""), "{said:?}: {policy}");
        opens(desk, "disk.img", "key");
    });
}

#[test]
fn a_state_that_was_being_confirmed_with_a_new_anchor() {
    let reanchor = |desk: &Desk| {
        format!("volume reanchor disk.img --key-file key --anchor file:{}", desk.path("second").display())
    };
    let confirm = |desk: &Desk| {
        let shown = desk.run(&format!("{} --json", reanchor(desk)));
        let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
        // An answer without a state is the refusal that the test looks at.
        shown["chosen"]
            .as_str()
            .map_or(reanchor(desk), |state| format!("{} --confirm {state}", reanchor(desk)))
    };
    cut(created, confirm, |desk, said| {
        assert!(said.code == 0 || said.error.contains("as the anchor and as the new anchor"), "{said:?}");
        let policy = String::from_utf8(desk.read("disk.img.policy.toml")).unwrap();
        assert!(policy.contains("/second\""), "{said:?}: {policy}");
        opens(desk, "disk.img", "key");
    });
}

#[test]
fn a_header_that_was_being_restored() {
    let damaged = |desk: &Desk| {
        created(desk);
        desk.done("volume header backup disk.img saved --key-file key");
        let store = OpenOptions::new().write(true).open(desk.path("disk.img")).unwrap();
        store.write_all_at(&[0x5a; 4 * 4096], 0).unwrap();
    };
    let restore = |_: &Desk| "volume header restore disk.img saved --key-file key".to_owned();
    cut(damaged, restore, |desk, said| {
        assert_eq!(said.code, 0, "{said:?}");
        let again = desk.done("volume header restore disk.img saved --key-file key");
        assert!(again.contains("nothing was written"), "{again}");
        opens(desk, "disk.img", "key");
    });
}

#[test]
fn a_volume_that_was_being_imported() {
    let exported = |desk: &Desk| {
        created(desk);
        desk.done("volume export disk.img --key-file key --stream-key-file other --to stream");
    };
    let import = |desk: &Desk| {
        let anchor = desk.path("new-anchor");
        let to = "--to new.img --stream-key-file other --key-file key";
        format!("volume import stream {to} --anchor file:{}", anchor.display())
    };
    cut(exported, import, |desk, said| {
        assert_eq!(said.code, 0, "{said:?}");
        opens(desk, "new.img", "key");
    });
}
