//! Reanchoring: exactly the state that was named, one history, one anchor; and what is refused.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::common::medium::{Image, image, put, put_back};
use crate::common::{Bench, Session, credential, options, page};
use anchor::{Anchor, MemoryAnchor, Stamp, State};
use futures::FutureExt;
use memory::BLOCK_SIZE;
use testkit::{Outcome, ScriptedAnchor};
use volume::format::protections::Freshness;
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;
use volume::{
    Choice, CreateOptions, Environment, Error, KeyChange, Kind, Reanchor, RekeyOrder, Request, Result,
    StateName, Survey, Volume, begin_rekey, change_keys, reanchor, survey,
};

const STORE: u64 = 5400;
const ANCHORED: [Freshness; 4] =
    [Freshness::Strict, Freshness::Write, Freshness::Interval, Freshness::Transaction];
/// Blocks that the tests write to.
const BLOCKS: u64 = 12;

fn created(freshness: Freshness) -> (Bench, Policy) {
    let bench = Bench::new(CreateOptions { freshness, ..options(4096, Shape::STANDARD) }, STORE);
    let policy = bench.create();
    (bench, policy)
}

fn stamp(anchor: &dyn Anchor) -> Option<Stamp> {
    anchor.read().now_or_never().expect("in memory").expect("readable")
}

fn anchor(bench: &Bench) -> Arc<dyn Anchor> {
    Arc::clone(bench.environment.anchor.as_ref().expect("an anchor"))
}

fn look(bench: &Bench, policy: &Policy, choice: Choice) -> Result<(Survey, Volume)> {
    let key = Arc::new(credential());
    survey(bench.environment.clone(), policy.clone(), key, choice, bench.attach)?.block()
}

fn accept(bench: &Bench, policy: &Policy, state: StateName) -> Result<Policy> {
    let save = Box::new(|_: &Policy| panic!("the address has not changed"));
    let order = Reanchor { state, anchor: None, anchor_options: Default::default(), save };
    reanchor(bench.environment.clone(), policy.clone(), Arc::new(credential()), order, bench.attach)?.block()
}

fn refused<T>(result: Result<T>, kind: Kind, words: &str) {
    let error = result.map(drop).expect_err(words);
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

/// What each of the blocks reads as.
fn content(session: &mut Session) -> Vec<u8> {
    (0..BLOCKS).map(|block| session.read(block, 1).expect("readable")[0]).collect()
}

fn commit(session: &mut Session) {
    session.one(Request::Commit).result.expect("committed");
}

/// Three sessions that write, with checkpoints among them; the last one is not detached. The content at each generation that a commit ended at.
fn history(bench: &Bench, policy: &Policy) -> BTreeMap<u64, Vec<u8>> {
    let mut known = BTreeMap::from([(0, vec![0; 12])]);
    let mut fill = 0;
    for number in 0..3 {
        let mut session = bench.attach(policy).expect("attached");
        for round in 0..6 {
            fill += 1;
            session.write(fill % BLOCKS, 1, u8::try_from(fill).expect("small")).expect("written");
            commit(&mut session);
            let now = content(&mut session);
            known.insert(session.volume.status().generation, now);
            if round == 3 && number == 1 {
                session.checkpoint();
            }
        }
        if number == 1 {
            session.detach().expect("detached");
        }
    }
    known
}

#[test]
fn each_state_on_the_store_can_be_chosen_and_is_exactly_that_state() {
    for freshness in ANCHORED {
        let (bench, policy) = created(freshness);
        let known = history(&bench, &policy);
        let (before, held) = (image(&*bench.environment.store), stamp(&*anchor(&bench)).expect("claimed"));
        let (found, _) = look(&bench, &policy, Choice::Latest).expect("looked at");
        let mut states: Vec<StateName> =
            found.histories.iter().flat_map(|history| history.states.clone()).collect();
        states.sort_by_key(|state| (state.generation, state.head));
        states.dedup();
        assert!(states.len() >= 6, "{freshness}: {states:?}");
        assert_eq!(found.chosen, *states.last().expect("some"), "{freshness}");
        assert!(found.header_is_anchored);
        for state in states {
            put_back(&*bench.environment.store, &before);
            let environment = Environment {
                anchor: Some(Arc::new(MemoryAnchor::holding(held.clone()))),
                ..bench.environment.clone()
            };
            let again = Bench { environment, options: bench.options.clone(), attach: bench.attach };
            accept(&again, &policy, state).expect("accepted");
            assert!(image(&*bench.environment.store) == before, "reanchoring wrote to the store");
            let mut session = again.attach(&policy).expect("attached");
            let found = content(&mut session);
            let exact = known.get(&state.generation);
            let near = known.range(..=state.generation).next_back().into_iter();
            let near = near.chain(known.range(state.generation..).next());
            // Between two commits of the test there are only those that the volume makes for itself.
            let fits = exact
                .map_or_else(|| near.clone().any(|(_, content)| *content == found), |exact| *exact == found);
            assert!(fits, "{freshness}, {state}: {found:?}");
            // Nothing of what was given up comes back, and the volume goes on.
            for round in 0..4 {
                session.write(round, 1, 200).expect("written");
                commit(&mut session);
            }
            session.detach().expect("detached");
            let mut expected = found;
            expected[..4].fill(200);
            let mut session = again.attach(&policy).expect("attached again");
            assert_eq!(content(&mut session), expected, "{freshness}, {state}");
        }
    }
}

/// A volume, an older image of it, and the stamp of the newer.
fn rolled_back(freshness: Freshness) -> (Bench, Policy, Image) {
    let (bench, policy) = created(freshness);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 1, 1).expect("written");
    commit(&mut session);
    session.detach().expect("detached");
    let old = image(&*bench.environment.store);
    let mut session = bench.attach(&policy).expect("attached");
    for fill in 2..9 {
        session.write(0, 1, fill).expect("written");
        commit(&mut session);
    }
    session.detach().expect("detached");
    let newer = image(&*bench.environment.store);
    put_back(&*bench.environment.store, &old);
    (bench, policy, newer)
}

#[test]
fn after_a_backup_was_put_back_it_goes_on_and_what_was_given_up_stays_away() {
    for freshness in ANCHORED {
        let (bench, policy, newer) = rolled_back(freshness);
        refused(bench.attach(&policy), Kind::Stale, "older state");
        let (found, volume) = look(&bench, &policy, Choice::Latest).expect("looked at");
        assert_eq!(Session::reading(volume).read(0, 1).expect("readable"), page(1));
        let anchored = found.anchor.expect("the anchor is there");
        assert!(anchored.state.generation > found.chosen.generation);
        accept(&bench, &policy, found.chosen).expect("accepted");
        let mut session = bench.attach(&policy).expect("attached");
        assert_eq!(session.read(0, 1).expect("readable"), page(1));
        // The owner has released the volume; whether the session that has it is dead, only itself could say.
        assert!(session.volume.status().foreign_units > 0);
        session.write(1, 1, 77).expect("written");
        commit(&mut session);
        session.detach().expect("detached");
        // The image that was given up is the host's now.
        put_back(&*bench.environment.store, &newer);
        let kind = bench.attach(&policy).err().expect("refused").kind();
        assert!(matches!(kind, Kind::Stale | Kind::Forked), "{freshness}: {kind:?}");
    }
}

#[test]
fn a_superblock_that_covers_more_than_the_anchor_is_not_taken() {
    let (bench, policy) = created(Freshness::Strict);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 1, 1).expect("written");
    commit(&mut session);
    let middle = session.volume.status().generation;
    session.write(0, 1, 2).expect("written");
    commit(&mut session);
    drop(session);
    // This one's superblock lists what the first wrote as a closed stretch, and covers all of it.
    drop(bench.attach(&policy).expect("attached"));
    let (found, _) =
        look(&bench, &policy, Choice::Generation(middle)).expect("the first one's superblock is there");
    accept(&bench, &policy, found.chosen).expect("accepted");
    let mut session = bench.attach(&policy).expect("attached");
    assert_eq!(session.read(0, 1).expect("readable"), page(1));
    assert_eq!(session.volume.status().generation, middle);
}

#[test]
fn a_session_that_is_alive_is_fenced() {
    let (bench, policy) = created(Freshness::Strict);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 1, 1).expect("written");
    commit(&mut session);
    let (found, _) = look(&bench, &policy, Choice::Latest).expect("looked at");
    accept(&bench, &policy, found.chosen).expect("accepted");
    session.write(0, 1, 2).expect("nothing says so yet");
    assert_eq!(session.flush().expect_err("it was fenced").kind(), Kind::Fenced);
    drop(session);
    assert_eq!(bench.attach(&policy).expect("attached").read(0, 1).expect("readable"), page(1));
}

/// Moves to `to`; whether the policy was saved.
fn move_to(
    bench: &Bench,
    policy: &Policy,
    state: StateName,
    to: &Arc<dyn Anchor>,
    keeps: bool,
) -> (Result<Policy>, bool) {
    let saved = Rc::new(Cell::new(false));
    let told = Rc::clone(&saved);
    let save = Box::new(move |_: &Policy| {
        told.set(true);
        if keeps { Ok(()) } else { Err(Error::new(Kind::Io, "the disk is full")) }
    });
    let order = Reanchor { state, anchor: Some(Arc::clone(to)), anchor_options: Default::default(), save };
    let key = Arc::new(credential());
    let job = reanchor(bench.environment.clone(), policy.clone(), key, order, bench.attach);
    (job.expect("a queue").block(), saved.get())
}

#[test]
fn a_volume_moves_to_another_anchor_and_the_old_one_ends() {
    let (bench, policy) = created(Freshness::Strict);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 1, 9).expect("written");
    session.flush().expect("flushed");
    let (found, _) = look(&bench, &policy, Choice::Latest).expect("looked at");
    let to: Arc<dyn Anchor> = Arc::new(MemoryAnchor::new());
    let (moved, saved) = move_to(&bench, &policy, found.chosen, &to, true);
    let after = moved.expect("moved");
    assert!(saved && after.anchor.as_deref() == Some("memory:"));
    session.write(1, 1, 1).expect("nothing says so yet");
    assert_eq!(session.flush().expect_err("it was fenced").kind(), Kind::Fenced);
    drop(session);
    assert_eq!(stamp(&*anchor(&bench)).expect("a stamp").state, State::Terminal);
    refused(bench.attach(&policy), Kind::Anchor, "(its address ends in `memory:`)");
    let left = look(&bench, &policy, Choice::Latest).expect("looked at").0.anchor.expect("a stamp");
    assert_eq!((left.standing, left.moved_to.as_deref()), ("moved", Some("memory:")));
    refused(accept(&bench, &policy, found.chosen), Kind::Usage, "moved away");
    let bench = Bench { environment: Environment { anchor: Some(to), ..bench.environment }, ..bench };
    let mut session = bench.attach(&after).expect("attached");
    assert_eq!(session.read(0, 1).expect("readable"), page(9));
    session.detach().expect("detached");
}

#[test]
fn a_move_that_is_cut_short_leaves_no_two_anchors_and_can_be_done_again() {
    use Outcome::{FailAfter, FailBefore, Proceed};
    let twice = |outcome| vec![outcome, outcome];
    // The first move is the old anchor's, the second the new one's; a failed one is tried twice.
    for (old, new, keeps) in [
        (twice(FailBefore), vec![], true),
        (vec![FailAfter], vec![], true),
        (vec![], twice(FailBefore), true),
        (vec![Proceed], vec![FailAfter], true),
        (vec![], vec![], false),
    ] {
        let (mut bench, policy) = created(Freshness::Strict);
        let mut session = bench.attach(&policy).expect("attached");
        session.write(0, 1, 9).expect("written");
        session.detach().expect("detached");
        let (found, _) = look(&bench, &policy, Choice::Latest).expect("looked at");
        let what = format!("{old:?} {new:?} {keeps}");
        let first = Arc::new(ScriptedAnchor::new(stamp(&*anchor(&bench))));
        let second = Arc::new(ScriptedAnchor::new(None));
        old.into_iter().for_each(|outcome| first.script(outcome));
        new.into_iter().for_each(|outcome| second.script(outcome));
        bench.environment.anchor = Some(first.clone());
        let to: Arc<dyn Anchor> = second.clone();
        let (moved, _) = move_to(&bench, &policy, found.chosen, &to, keeps);
        let ended = first.held().expect("a stamp").state == State::Terminal;
        assert!(second.held().is_none() || ended, "{what}: two anchors at once");
        if moved.is_err() {
            assert!(ended != bench.attach(&policy).is_ok(), "{what}");
            let (found, _) = look(&bench, &policy, Choice::Latest).expect("looked at");
            move_to(&bench, &policy, found.chosen, &to, true).0.expect("done again");
        }
        assert_eq!(first.held().expect("a stamp").state, State::Terminal, "{what}");
        bench.environment.anchor = Some(to);
        let mut session = bench.attach(&policy).expect("attached");
        assert_eq!(session.read(0, 1).expect("readable"), page(9), "{what}");
    }
}

#[test]
fn a_lost_anchor_is_replaced_and_others_are_not_touched() {
    let (bench, policy) = created(Freshness::Strict);
    let (other, other_policy) = created(Freshness::Strict);
    drop(other.attach(&other_policy).expect("attached"));
    let lost = Bench {
        environment: Environment { anchor: None, ..bench.environment.clone() },
        options: bench.options.clone(),
        attach: bench.attach,
    };
    let (found, _) = look(&lost, &policy, Choice::Latest).expect("looked at");
    assert!(found.anchor.is_none() && !found.header_is_anchored);
    refused(accept(&lost, &policy, found.chosen), Kind::Usage, "lost");
    // One that another volume lives by is not free, whether its stamp could be ours or not.
    let before = stamp(&*anchor(&other));
    let (taken, saved) = move_to(&lost, &policy, found.chosen, &anchor(&other), true);
    refused(taken, Kind::Anchor, "belongs to a volume already");
    assert!(!saved && stamp(&*anchor(&other)) == before);
    let to: Arc<dyn Anchor> = Arc::new(MemoryAnchor::new());
    move_to(&lost, &policy, found.chosen, &to, true).0.expect("moved");
    let back = Bench { environment: Environment { anchor: Some(to), ..lost.environment }, ..lost };
    back.attach(&policy).expect("attached").detach().expect("detached");
}

#[test]
fn what_cannot_be_reanchored_is_refused_and_moves_no_anchor() {
    let (off, off_policy) = created(Freshness::Off);
    refused(look(&off, &off_policy, Choice::Latest), Kind::Usage, "freshness is off");
    let (mut bench, policy) = created(Freshness::Strict);
    let known = history(&bench, &policy);
    let held = stamp(&*anchor(&bench)).expect("claimed");
    let (found, _) = look(&bench, &policy, Choice::Latest).expect("looked at");
    refused(look(&bench, &policy, Choice::Generation(1 << 40)), Kind::Usage, "does not offer");
    let elsewhere = StateName { head: [0; 8], ..found.chosen };
    refused(accept(&bench, &policy, elsewhere), Kind::Usage, "does not offer");
    // An anchor of another volume, and one that somebody made up.
    for forged in [Stamp { volume: [9; 16], ..held.clone() }, Stamp { claims: 99, ..held.clone() }] {
        let kept = bench.environment.anchor.replace(Arc::new(MemoryAnchor::holding(forged.clone())));
        assert_eq!(accept(&bench, &policy, found.chosen).expect_err("refused").kind(), Kind::Anchor);
        assert_eq!(stamp(&*anchor(&bench)), Some(forged));
        bench.environment.anchor = kept;
    }
    // A bitmap that does not open.
    let geometry = Geometry::for_logical(4096, Shape::STANDARD).expect("a size");
    let places = geometry.bitmap_start()..geometry.data_start();
    let whole = image(&*bench.environment.store);
    places.for_each(|place| put(&*bench.environment.store, place, &[0x5a; BLOCK_SIZE]));
    refused(accept(&bench, &policy, found.chosen), Kind::Corrupt, "free space is damaged");
    put_back(&*bench.environment.store, &whole);
    assert_eq!(stamp(&*anchor(&bench)), Some(held));
    assert!(known.len() > 10);
}

fn add_slot(bench: &Bench, policy: &Policy) {
    let change = KeyChange::Add {
        credential: seal::slot::Credential::KeyFile(seal::SecretBytes::from_slice(&[8; 64])),
        label: "second".into(),
        argon2: bench.options.argon2,
    };
    // A beginning that was cut has taken the anchor, and left it as if a session were running.
    let job =
        change_keys(bench.environment.clone(), policy.clone(), credential(), change, true, bench.attach);
    job.expect("a queue").block().expect("changed");
}

#[test]
fn a_header_from_before_a_change_of_the_keys_is_told_and_accepted() {
    let (bench, policy) = created(Freshness::Strict);
    let old = image(&*bench.environment.store);
    add_slot(&bench, &policy);
    put_back(&*bench.environment.store, &old);
    refused(bench.attach(&policy), Kind::Stale, "header");
    let (found, _) = look(&bench, &policy, Choice::Latest).expect("looked at");
    assert!(!found.header_is_anchored && found.slots.len() == 1);
    accept(&bench, &policy, found.chosen).expect("accepted");
    bench.attach(&policy).expect("attached");
}

#[test]
fn a_change_of_key_that_never_began_does_not_hide_the_header_that_counts() {
    let mut hidden = 0;
    for steps in 0..8 {
        let (bench, policy) = created(Freshness::Strict);
        let mut session = bench.attach(&policy).expect("attached");
        session.write(0, 1, 7).expect("written");
        session.detach().expect("detached");
        let before = stamp(&*anchor(&bench)).expect("a stamp").header_digest;
        let (environment, _) = bench.stopping(steps);
        let order = volume::RekeyOrder::default();
        let job = volume::begin_rekey(environment, policy.clone(), credential(), order, bench.attach);
        let _ = job.expect("a queue").block();
        if stamp(&*anchor(&bench)).expect("a stamp").header_digest != before {
            break;
        }
        let old = image(&*bench.environment.store);
        hidden += usize::from(old[..2] != old[2..4]);
        // A change that did begin. Then the owner goes back to before.
        add_slot(&bench, &policy);
        put_back(&*bench.environment.store, &old);
        let (found, _) = look(&bench, &policy, Choice::Latest).expect("looked at");
        assert!(!found.header_is_anchored && found.slots.len() == 1, "{steps}");
        accept(&bench, &policy, found.chosen).expect("accepted");
        assert_eq!(content(&mut bench.attach(&policy).expect("attached"))[0], 7);
    }
    assert!(hidden > 0, "no beginning was cut between its two copies");
}

#[test]
fn states_are_written_and_read() {
    let name = StateName { generation: 41, head: [0x9f, 0x3a, 0xc2, 0xd1, 0x7b, 0xe0, 0xa4, 0x55] };
    assert_eq!(name.to_string(), "41:9f3ac2d17be0a455");
    assert_eq!("41:9f3ac2d17be0a455".parse(), Ok(name));
    assert_eq!("41:9f3ac2d17be0a455".parse(), Ok(Choice::State(name)));
    assert_eq!("41".parse(), Ok(Choice::Generation(41)));
    assert_eq!("latest".parse(), Ok(Choice::Latest));
    for wrong in ["", "last", "41:", "41:9f", "x:9f3ac2d17be0a455", "41:9f3ac2d17be0a455ff", "-1"] {
        assert!(wrong.parse::<Choice>().is_err(), "{wrong}");
    }
}

#[test]
fn a_change_of_key_that_never_began_hides_nothing_from_who_has_lost_the_anchor() {
    let (mut bench, policy) = created(Freshness::Strict);
    let scripted = Arc::new(ScriptedAnchor::new(stamp(&*anchor(&bench))));
    bench.environment.anchor = Some(scripted.clone());
    // The anchor is taken, and then fails twice: the new header is on the disk, and nothing vouches for it.
    for outcome in [Outcome::Proceed, Outcome::FailBefore, Outcome::FailBefore] {
        scripted.script(outcome);
    }
    let order = RekeyOrder { keep: Vec::new(), remove_others: true, force: true };
    let job = begin_rekey(bench.environment.clone(), policy.clone(), credential(), order, bench.attach);
    assert_eq!(job.expect("a queue").block().expect_err("cut short").kind(), Kind::Anchor);
    let copies = |bench: &Bench| {
        let image = image(&*bench.environment.store);
        let pair = |at: usize| image[at..at + 2].concat();
        [pair(0), pair(2)]
    };
    let [a, b] = copies(&bench);
    assert!(a != b, "the new header is there");
    let mut session = bench.attach(&policy).expect("the change has not begun");
    assert!(copies(&bench) == [a.clone(), a], "one header counts, for everybody");
    session.write(0, 1, 9).expect("written");
    session.detach().expect("detached");
    let lost = Bench { environment: Environment { anchor: None, ..bench.environment }, ..bench };
    let (found, _) = look(&lost, &policy, Choice::Latest).expect("looked at");
    let to: Arc<dyn Anchor> = Arc::new(MemoryAnchor::new());
    let after = move_to(&lost, &policy, found.chosen, &to, true).0.expect("moved");
    let back = Bench { environment: Environment { anchor: Some(to), ..lost.environment }, ..lost };
    let mut session = back.attach(&after).expect("attached");
    assert!(session.read(0, 1).expect("readable") == page(9), "nothing is lost");
}
