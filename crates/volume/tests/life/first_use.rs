//! A policy that was there before its volume.

use std::sync::Arc;

use crate::common::{Bench, credential, medium, options};
use anchor::{Anchor, MemoryAnchor};
use seal::slot::Argon2Params;
use testkit::{Outcome, ScriptedAnchor};
use volume::format::protections::Provision;
use volume::geometry::Shape;
use volume::policy::Policy;
use volume::{Kind, create_by_policy};

/// A bench, and the policy for a volume that is not there yet.
fn bench() -> (Bench, Policy) {
    let bench = Bench::new(options(4096, Shape::STANDARD), 16384);
    let policy = Bench::new(options(4096, Shape::STANDARD), 16384).create();
    let anchor = bench.environment.anchor.as_ref().map(|anchor| anchor.address());
    (bench, Policy { volume: [9; 16], format_if_blank: true, anchor, ..policy })
}

fn first_use(bench: &Bench, policy: &Policy) -> volume::Result<()> {
    let argon2 = Argon2Params { memory_kib: 8, passes: 1, lanes: 1 };
    create_by_policy(bench.environment.clone(), policy.clone(), Provision::Full, credential(), argon2)?
        .block()
}

fn write_block(bench: &Bench, policy: &Policy, byte: u8) {
    let mut session = bench.attach(policy).expect("attached");
    session.write(5, 1, byte).expect("written");
    session.flush().expect("flushed");
    session.detach().expect("detached");
}

#[test]
fn a_blank_store_becomes_the_volume_that_the_policy_names_once() {
    let (bench, policy) = bench();
    first_use(&bench, &policy).expect("made");
    write_block(&bench, &policy, 1);
    // Now there is a volume, which nobody makes again.
    assert_eq!(first_use(&bench, &policy).unwrap_err().kind(), Kind::Usage);
    write_block(&bench, &policy, 2);
}

#[test]
fn a_blank_store_under_a_claimed_anchor_is_a_rollback() {
    let (bench, policy) = bench();
    first_use(&bench, &policy).expect("made");
    let blank = Bench::new(options(4096, Shape::STANDARD), 16384);
    let mut environment = blank.environment.clone();
    environment.anchor = bench.environment.anchor.clone();
    let blank = Bench { environment, ..blank };
    for policy in [policy.clone(), Policy { format_if_blank: false, ..policy }] {
        let error = first_use(&blank, &policy).unwrap_err();
        assert_eq!(error.kind(), Kind::Stale, "{error}");
    }
}

#[test]
fn a_store_that_is_blank_at_its_beginning_only_is_somebodys() {
    let (bench, policy) = bench();
    let store = bench.environment.store.as_ref();
    for (block, at, mark, what) in [
        (16383, 4096 - 512 + 3, &b"NTFS    "[..], "an NTFS file system, at byte 67108355 of 67108864"),
        (512, 0, b"\x5e\xf1\xab\x2f", "a VMFS volume, at byte 2097152 of"),
    ] {
        let mut content = [0; 4096];
        content[at..at + mark.len()].copy_from_slice(mark);
        medium::put(store, block, &content);
        let error = first_use(&bench, &policy).unwrap_err();
        assert!(error.kind() == Kind::Usage && error.to_string().contains(what), "{error}");
        medium::put(store, block, &[0; 4096]);
    }
    medium::put(store, 513, &[1; 4096]);
    first_use(&bench, &policy).expect("what nobody knows is nobody's, that far from the beginning");
}

#[test]
fn what_the_policy_does_not_allow_is_not_made() {
    let (bench, policy) = bench();
    let not_allowed = Policy { format_if_blank: false, ..policy.clone() };
    assert_eq!(first_use(&bench, &not_allowed).unwrap_err().kind(), Kind::Usage);
    let other_anchor = Policy { anchor: Some("file:/elsewhere".into()), ..policy.clone() };
    assert_eq!(first_use(&bench, &other_anchor).unwrap_err().kind(), Kind::Usage);
    let mut environment = bench.environment.clone();
    environment.anchor = None;
    let without = Bench { environment, ..Bench::new(options(4096, Shape::STANDARD), 16384) };
    assert_eq!(
        first_use(&without, &Policy { anchor: None, ..policy.clone() }).unwrap_err().kind(),
        Kind::Usage
    );
    first_use(&bench, &policy).expect("nothing was written until now");
}

#[test]
fn a_first_use_that_was_cut_is_done_again_and_a_used_volume_is_not() {
    let (mut bench, policy) = bench();
    let cut = Arc::new(ScriptedAnchor::new(None));
    [Outcome::FailBefore; 2].into_iter().for_each(|outcome| cut.script(outcome));
    bench.environment.anchor = Some(cut.clone());
    let policy = Policy { anchor: Some(cut.address()), ..policy };
    assert_eq!(first_use(&bench, &policy).unwrap_err().kind(), Kind::Anchor);
    // Of another volume it would be somebody's data.
    let other = Policy { volume: [8; 16], ..policy.clone() };
    assert_eq!(first_use(&bench, &other).unwrap_err().kind(), Kind::Usage);
    first_use(&bench, &policy).expect("made now");
    write_block(&bench, &policy, 3);

    // An anchor from before the first use, as an old backup has it, is no leave to make the volume anew.
    let fresh = Arc::new(MemoryAnchor::new());
    bench.environment.anchor = Some(fresh.clone());
    let policy = Policy { anchor: Some(fresh.address()), ..policy };
    assert_eq!(first_use(&bench, &policy).unwrap_err().kind(), Kind::Usage);
    assert_eq!(bench.attach(&policy).err().expect("never claimed").kind(), Kind::Anchor);
    bench.environment.anchor = Some(cut);
    write_block(
        &bench,
        &Policy { anchor: bench.environment.anchor.as_ref().map(|anchor| anchor.address()), ..policy },
        4,
    );
}
