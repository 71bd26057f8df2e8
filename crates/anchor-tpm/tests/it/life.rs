//! What an anchor does when nothing goes wrong.

use super::bed::{Bed, INDEX, move_up, refusal, stamp};
use anchor::{Access, Address, Opening, Options};
use anchor_tpm::error::Error;
use anchor_tpm::{Settings, TpmAnchor, scheme};
use futures::executor::block_on;

#[test]
fn it_moves_only_from_what_is_expected_and_survives_restarts_of_both_sides() {
    if !super::bed::is_able() {
        return;
    }
    let mut bed = Bed::with_anchor();
    let mut anchor = bed.anchor();
    assert_eq!(anchor.stamp().unwrap(), None);
    assert!(matches!(anchor.compare_and_swap(Some(&stamp(1)), &stamp(2)), Err(Error::Conflict(None))));
    move_up(&mut anchor, 0, 5);
    let mut other = bed.anchor();
    match other.compare_and_swap(Some(&stamp(4)), &stamp(6)) {
        Err(Error::Conflict(Some(held))) => assert_eq!(*held, stamp(5)),
        wrong => panic!("{wrong:?}"),
    }
    other.compare_and_swap(Some(&stamp(5)), &stamp(6)).unwrap();
    assert_eq!(anchor.stamp().unwrap(), Some(stamp(6)), "the first sees the second's move");
    assert_eq!(anchor.extends(), Some(7), "one of them at its creation");

    bed.swtpm.power_off();
    assert!(refusal(anchor.stamp()).contains("no TPM can be reached"));
    bed.swtpm.power_on();
    assert_eq!(anchor.stamp().unwrap(), Some(stamp(6)), "the earlier session is gone, and a new one does");
    anchor.compare_and_swap(Some(&stamp(6)), &stamp(7)).unwrap();

    let mut reader = TpmAnchor::new(Settings { read_only: true, ..bed.settings() });
    let before = std::fs::read(bed.companion()).unwrap();
    assert_eq!(reader.stamp().unwrap(), Some(stamp(7)));
    assert!(refusal(reader.compare_and_swap(Some(&stamp(7)), &stamp(8))).contains("reading only"));
    assert_eq!(std::fs::read(bed.companion()).unwrap(), before);
}

/// Without a resource manager the TPM keeps what a process leaves that ends without a word: three sessions fill it.
#[test]
fn sessions_that_others_have_left_behind_are_in_nobodys_way() {
    if !super::bed::is_able() {
        return;
    }
    let bed = Bed::with_anchor();
    for generation in 0..8 {
        let mut anchor = bed.anchor();
        move_up(&mut anchor, generation, generation + 1);
        std::mem::forget(anchor);
    }
    assert_eq!(bed.anchor().stamp().unwrap(), Some(stamp(8)));
}

#[test]
fn creating_refuses_what_is_in_use_and_goes_on_with_what_was_cut_short() {
    if !super::bed::is_able() {
        return;
    }
    let bed = Bed::new();
    let mut anchor = bed.anchor();
    assert!(refusal(anchor.stamp()).contains("companion file"));
    assert!(anchor.create(b"").unwrap());
    assert!(!anchor.create(b"").unwrap(), "made and never claimed");
    move_up(&mut anchor, 0, 1);
    let refused = refusal(anchor.create(b""));
    assert!(refused.contains("the anchor of a volume already; choose another index"), "{refused}");
    assert_eq!(anchor.stamp().unwrap(), Some(stamp(1)));

    // Cut after the file was made, and again after the index was defined.
    anchor.destroy(b"").unwrap();
    assert!(!bed.companion().exists());
    anchor.create(b"").unwrap();
    let file = std::fs::read(bed.companion()).unwrap();
    anchor.destroy(b"").unwrap();
    std::fs::write(bed.companion(), &file).unwrap();
    assert!(anchor.create(b"").unwrap(), "the file was there");
    anchor.destroy(b"").unwrap();
    std::fs::write(bed.companion(), &file).unwrap();
    let unwritten = anchor_tpm::wire::command::NvPublic::anchor(INDEX, false);
    bed.tpm().nv_define(&unwritten, &super::bed::SECRET, b"").unwrap();
    let refused = refusal(anchor.stamp());
    assert!(refused.contains("was cut short, then do it again"), "{refused}");
    assert!(anchor.create(b"").unwrap(), "the index was there");
    assert_eq!(anchor.stamp().unwrap(), None);
    move_up(&mut anchor, 0, 3);

    // The file of another anchor is not taken.
    let other = Settings { index: INDEX + 1, ..bed.settings() };
    let refused = refusal(TpmAnchor::new(other).create(b""));
    assert!(refused.contains("it belongs to another anchor"), "{refused}");
}

#[test]
fn the_scheme_makes_and_opens_it_and_names_the_key_that_it_is_to_be_given() {
    if !super::bed::is_able() {
        return;
    }
    let bed = Bed::new();
    let address = Address::parse(&bed.settings().address).unwrap();
    let file = |name: &str| bed.directory.path().join(name).to_str().unwrap().to_owned();
    let mut options: Options = [("companion", file("c")), ("secret-file", file("s"))]
        .map(|(name, value)| (name.into(), value))
        .into_iter()
        .collect();
    let scheme = scheme();
    let open = |options: &Options| {
        (scheme.check)(address.rest(), options).unwrap();
        let opening = Opening { address: &address, options, access: Access::ReadWrite, timeout: None };
        (scheme.create)(&opening)
    };
    let asked = open(&options).err().unwrap().to_string();
    let key = hex::encode(bed.key);
    assert!(asked.contains(&format!("options: endorsement-key={key}")), "{asked}");
    assert!(!std::path::Path::new(&file("s")).exists(), "nothing was made");

    options.insert("endorsement-key".into(), key);
    let made = open(&options).unwrap();
    assert!(made.notes.iter().any(|note| note.contains("host emulates is no root")));
    assert_eq!(block_on(made.anchor.read()), Ok(None));
    block_on(made.anchor.advance(None, &stamp(1))).unwrap();
    assert_eq!(block_on(made.anchor.read()), Ok(Some(stamp(1))));
    assert_eq!(made.anchor.health().facts, [("nv-writes", "2 of about 500000".to_owned())]);
    assert_eq!(made.anchor.address(), bed.settings().address);
    assert!(open(&options).err().unwrap().to_string().contains("the anchor of a volume already"));
    (made.undo.unwrap())();
    drop(made.anchor);
    assert_eq!(bed.tpm().public(INDEX).unwrap(), None, "taken away again");
}
