//! Free space against a set of blocks.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use event_listener::Event;
use futures::FutureExt;
use proptest::prelude::*;

use super::{Purpose, Space};
use crate::geometry::{Geometry, Shape};
use crate::readers::{Readers, Reading};
use crate::reservation::DATA_UNITS;

mod known;

fn space() -> (Geometry, Space, Arc<Readers>) {
    space_that(false)
}

fn space_that(near: bool) -> (Geometry, Space, Arc<Readers>) {
    space_on(near, false)
}

/// `untold`: on a store that cannot say what it has given.
fn space_on(near: bool, untold: bool) -> (Geometry, Space, Arc<Readers>) {
    let geometry = Geometry::for_logical(4096, Shape::TINY).expect("a tiny volume");
    let readers = Arc::new(Readers::default());
    // Views leave memory whenever they may.
    let space = Space::new(geometry, Arc::clone(&readers), Arc::default(), 0, near, untold);
    let free: Vec<u32> = (0..geometry.units())
        .map(|unit| u32::try_from(geometry.unit_range(unit).count()).expect("small"))
        .collect();
    space.begin(&free, &[], &[]);
    (geometry, space, readers)
}

/// More than there is.
const ENOUGH: u64 = 1 << 20;

fn reserve(geometry: &Geometry, space: &Space, want: u64) {
    reserve_from(geometry, space, want, &BTreeSet::new());
}

/// Reserves units; `bitmap` has the blocks that the bitmap on the store says are in use.
fn reserve_from(geometry: &Geometry, space: &Space, want: u64, bitmap: &BTreeSet<u64>) {
    make_usable(geometry, space, &space.choose(want, 1000), bitmap);
}

fn make_usable(geometry: &Geometry, space: &Space, units: &[u32], bitmap: &BTreeSet<u64>) {
    for unit in units {
        if !space.is_resident(*unit) {
            let range = geometry.unit_range(*unit);
            let mut used = vec![0; range.clone().count().div_ceil(64)];
            for block in bitmap.range(range.clone()) {
                let bit = usize::try_from(block - range.start).expect("small");
                used[bit / 64] |= 1u64 << (bit % 64);
            }
            space.load(*unit, used);
        }
    }
    space.activate(units);
}

/// What is reserved for writes is not discarded, so what is more than they need is given up: unless a block of it is on its way.
#[test]
fn what_is_reserved_and_free_can_be_discarded_when_it_is_more_than_enough() {
    let (geometry, space, _readers) = space();
    reserve(&geometry, &space, space.free() / 2);
    let runs = space.take(Purpose::Data, space.usable_for(Purpose::Data), 0);
    space.placed(runs.iter().cloned());
    let all = runs.iter().map(|run| run.end - run.start).sum::<u64>();
    assert_eq!(space.choose_to_discard(1000), [0_u32; 0], "nothing was ever in the other units");
    let pin = space.pin(runs.into_iter().flatten().collect());
    space.let_go([pin]);
    space.collect();
    assert_eq!(space.usable_for(Purpose::Data), all);
    let enough = 3 * u64::from(geometry.unit_blocks);
    let on_its_way = space.take(Purpose::Data, 1, 0);
    space.give_up_surplus(enough);
    let left = space.usable_for(Purpose::Data);
    assert!((enough..enough + u64::from(geometry.unit_blocks)).contains(&left), "{left} of {all}");
    let chosen = space.choose_to_discard(1000);
    assert!(!chosen.is_empty() && !chosen.contains(&geometry.unit_of(on_its_way[0].start)));
    let reserved = space.reserved(1000);
    assert!(chosen.iter().all(|unit| !reserved.contains(unit)), "each needs a reservation of its own");
}

/// On a store that gives space as it is written to, data waits for units of its own.
#[test]
fn data_leaves_what_is_kept_for_nodes_while_it_can_have_other_units() {
    for near in [true, false] {
        let (geometry, space, _readers) = space_that(near);
        make_usable(&geometry, &space, &space.choose_for_nodes(16, 1), &BTreeSet::new());
        assert_eq!(space.take(Purpose::Data, 1, 0).is_empty(), near);
        reserve(&geometry, &space, space.free());
        let rest: u64 = space.take(Purpose::Data, u64::MAX, 0).iter().map(|run| run.end - run.start).sum();
        // When there are none any more, it has all.
        assert_eq!((space.free(), rest > 0), (0, true));
    }
}

#[test]
fn what_was_given_comes_first_and_nothing_else_is_taken() {
    let (geometry, space, _readers) = space();
    let units: Vec<Range<u64>> = (0..geometry.units()).map(|unit| geometry.unit_range(unit)).collect();
    // Two blocks of the third unit, six of the seventh, and the end of the last one with what is behind it.
    let last = units.last().expect("units").clone();
    let given = [
        units[2].start + 1..units[2].start + 3,
        units[6].start + 4..units[6].start + 10,
        last.end - 3..last.end + 9,
    ];
    let number = |unit: usize| u32::try_from(unit).expect("small");
    let chosen = space.choose_given(Purpose::Nodes, &given, 7, 9);
    assert_eq!(chosen, [6, number(units.len() - 1)]);
    make_usable(&geometry, &space, &chosen, &BTreeSet::from([units[6].start + 5]));
    assert_eq!(space.given_to_nodes(&given), 5 + 3);
    // What is kept for nodes is not for data, and what was chosen is not chosen again.
    assert_eq!(space.choose_given(Purpose::Data, &given, 100, 9), [2]);
    let before = space.free();
    let places: BTreeSet<u64> = std::iter::from_fn(|| space.take_given_place(&given)).collect();
    assert_eq!((places.len() as u64, before - space.free()), (8, 8));
    assert!(places.iter().all(|place| given.iter().any(|run| run.contains(place))));
    assert!(!places.contains(&(units[6].start + 5)) && space.given_to_nodes(&given) == 0);
    space.give_node_places_back(&[units[6].start + 4]);
    assert_eq!(space.take_given_place(&given), Some(units[6].start + 4));
}

#[test]
fn data_takes_what_was_given_before_anything_else() {
    let (geometry, space, _readers) = space();
    let units: Vec<Range<u64>> = (0..4).map(|unit| geometry.unit_range(unit)).collect();
    let take = |want| -> Vec<u64> { space.take(Purpose::Data, want, 0).into_iter().flatten().collect() };
    make_usable(&geometry, &space, &[0, 1, 2], &BTreeSet::new());
    assert_eq!(space.reserved(9), [0, 1, 2]);
    // Every other block of the second unit, two of the third, and one of a unit that data does not have.
    let second = units[1].clone().step_by(2).map(|block| block..block + 1);
    let others = [units[2].start + 5..units[2].start + 7, units[3].start..units[3].start + 1];
    let given: Vec<Range<u64>> = second.chain(others).collect();
    assert!(space.prefer(Some(&given)));
    let all: Vec<u64> = given.iter().cloned().flatten().collect();
    let (first, rest) = (take(3), take(all.len() as u64 - 4));
    assert_eq!([first, rest].concat(), all[..all.len() - 1]);
    // The units that had none are given up, and listed until they are forgotten. Data takes whatever there is when none is left.
    assert_eq!(
        (space.usable_for(Purpose::Data), space.reserved(9).len()),
        (u64::from(geometry.unit_blocks) - 2, 3)
    );
    assert!(take(1).is_empty());
    assert_eq!(space.usable(), 0);
    assert!(space.prefer(Some(&given)), "the fourth unit has one");
    make_usable(&geometry, &space, &space.choose_given(Purpose::Data, &given, 1, 9), &BTreeSet::new());
    assert_eq!(take(2), [units[3].start]);
    assert!(!space.prefer(Some(&given)) && !space.prefer(None));
    reserve(&geometry, &space, 8);
    assert_eq!(take(8).len(), 8);
}

#[derive(Debug, Clone)]
enum Step {
    /// See [`prefer_one_of`].
    Prefer(usize),
    Reserve(u64),
    Take(Purpose, u64),
    ReserveForNodes(u64),
    GiveBack(usize),
    Place(usize),
    Free(usize),
    Freeze,
    Publish,
    /// Whoever wants to reserve asks for the room first; units that ran empty are forgotten then.
    Room,
    /// Units that are more than enough for so many blocks of data are given up, to be discarded.
    GiveUp(u64),
    /// A write begins, and takes so many blocks.
    Write(u64),
    /// One of the writes under way has ended.
    EndWrite(usize),
}

fn purpose() -> impl Strategy<Value = Purpose> {
    prop_oneof![Just(Purpose::Data), Just(Purpose::Nodes)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..5usize).prop_map(Step::Prefer),
        (1..200u64).prop_map(Step::Reserve),
        (purpose(), 1..60u64).prop_map(|(purpose, want)| Step::Take(purpose, want)),
        (1..200u64).prop_map(Step::ReserveForNodes),
        (0..20usize).prop_map(Step::GiveBack),
        (0..60usize).prop_map(Step::Place),
        (0..60usize).prop_map(Step::Free),
        Just(Step::Freeze),
        Just(Step::Publish),
        Just(Step::Room),
        (0..200u64).prop_map(Step::GiveUp),
        (1..60u64).prop_map(Step::Write),
        (0..10usize).prop_map(Step::EndWrite),
    ]
}

/// What a volume knows beside its free space.
#[derive(Default)]
struct Model {
    /// Taken, and on their way into an entry.
    out: BTreeSet<u64>,
    /// Named by entries.
    named: BTreeSet<u64>,
    /// The published bitmap, and the one that the checkpoint under way will publish.
    bitmap: BTreeSet<u64>,
    frozen: Option<(BTreeSet<u64>, Vec<super::Pin>)>,
    /// Places of writes under way.
    writes: Vec<(Reading, BTreeSet<u64>)>,
    /// Freed since the last freeze.
    pins: Vec<super::Pin>,
}

impl Model {
    /// Of what is under way a superblock would know, and no block is lost.
    fn check(&self, geometry: &Geometry, space: &Space) -> Result<(), TestCaseError> {
        let listed = space.reserved(1000);
        let places = self.writes.iter().flat_map(|(_, places)| places);
        let lost: Vec<u64> = places
            .copied()
            .filter(|block| self.out.contains(block) && !listed.contains(&geometry.unit_of(*block)))
            .collect();
        prop_assert!(lost.is_empty(), "a superblock would not know that {:?} may be written", lost);
        let taken = (self.out.len() + self.named.len()) as u64;
        prop_assert_eq!(space.free() + taken + space.pinned(), geometry.data_blocks());
        Ok(())
    }
}

fn first(blocks: &mut BTreeSet<u64>, count: usize) -> Vec<u64> {
    let first: Vec<u64> = blocks.iter().copied().take(count).collect();
    blocks.retain(|block| !first.contains(block));
    first
}

/// The store says that it has given one of so many blocks; 0: it has room again.
fn prefer_one_of(geometry: &Geometry, space: &Space, one_of: usize) {
    let blocks = geometry.data().flatten().step_by(one_of.max(1));
    let given: Vec<Range<u64>> = blocks.map(|block| block..block + 1).collect();
    space.prefer((one_of > 0).then_some(&given));
}

proptest! {
    /// No block is handed out twice, none is lost, and the counts are the sets' sizes; also when views leave memory and come back.
    #[test]
    fn it_hands_out_each_block_once(steps in prop::collection::vec(step(), 1..200)) {
        let (geometry, space, _readers) = space();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Prefer(one_of) => prefer_one_of(&geometry, &space, one_of),
                Step::Reserve(want) => reserve_from(&geometry, &space, want, &model.bitmap),
                Step::ReserveForNodes(want) => {
                    let units = space.choose_for_nodes(want, 1000);
                    make_usable(&geometry, &space, &units, &model.bitmap);
                    let rest = space.free() - space.usable();
                    prop_assert!(space.usable_for(Purpose::Nodes) >= want || rest == 0, "{} are left", rest);
                }
                Step::Take(purpose, want) => {
                    let (usable, preferred) = (space.usable(), space.lock().preferred.is_some());
                    let runs = space.take(purpose, want, 0);
                    let taken = runs.iter().map(|run| run.end - run.start).sum::<u64>();
                    prop_assert!(taken == want.min(usable) || preferred && space.usable() == 0, "{taken} of {want}");
                    for block in runs.into_iter().flatten() {
                        prop_assert!(geometry.holds(block) && !model.named.contains(&block), "{} is in use", block);
                        prop_assert!(model.out.insert(block), "{} was handed out twice", block);
                    }
                }
                Step::GiveBack(count) => {
                    first(&mut model.out, count).into_iter().for_each(|block| space.give_back(block..block + 1));
                }
                Step::Place(count) => {
                    let placed = first(&mut model.out, count);
                    model.named.extend(&placed);
                    space.placed(placed.into_iter().map(|block| block..block + 1));
                }
                Step::Free(count) => model.pins.push(space.pin(first(&mut model.named, count))),
                Step::Freeze if model.frozen.is_none() => {
                    space.before_freeze();
                    model.frozen = Some((model.named.clone(), std::mem::take(&mut model.pins)));
                }
                Step::Publish => {
                    let Some((bitmap, pins)) = model.frozen.take() else { continue };
                    model.bitmap = bitmap;
                    space.after_merge();
                    space.published(&space.reserved(1000));
                    space.let_go(pins);
                }
                Step::Room => {
                    space.room(1);
                }
                Step::GiveUp(enough) => {
                    let before = space.usable_for(Purpose::Data);
                    space.give_up_surplus(enough);
                    prop_assert!(space.usable_for(Purpose::Data) >= before.min(enough));
                }
                Step::Freeze => {}
                Step::Write(want) => {
                    let writing = space.begin_write();
                    let places: BTreeSet<u64> = space.take(Purpose::Data, want, 0).into_iter().flatten().collect();
                    prop_assert!(places.iter().all(|block| model.out.insert(*block)), "handed out twice");
                    model.writes.push((writing, places));
                }
                Step::EndWrite(at) if at < model.writes.len() => drop(model.writes.swap_remove(at)),
                Step::EndWrite(_) => {}
            }
            model.check(&geometry, &space)?;
        }
    }
}

/// So many blocks for nodes, in units that are reserved for them.
fn take_for_nodes(geometry: &Geometry, space: &Space, count: u64) -> Vec<u64> {
    make_usable(geometry, space, &space.choose_for_nodes(count, 1000), &BTreeSet::new());
    let runs = space.take(Purpose::Nodes, count, 0);
    space.placed(runs.clone());
    runs.into_iter().flatten().collect()
}

#[test]
fn nodes_go_where_nodes_were_and_data_elsewhere_as_long_as_there_is_room() {
    let (geometry, space, _readers) = space();
    let units = |blocks: &[u64]| -> BTreeSet<u32> { blocks.iter().map(|at| geometry.unit_of(*at)).collect() };
    let first = take_for_nodes(&geometry, &space, 64);
    reserve(&geometry, &space, 64);
    let data: Vec<u64> = space.take(Purpose::Data, 64, 0).into_iter().flatten().collect();
    assert!(units(&first).is_disjoint(&units(&data)));
    // The next generation needs units of its own, while the first is in use; the third has those of the first.
    let second = take_for_nodes(&geometry, &space, 64);
    assert!(units(&first).is_disjoint(&units(&second)));
    space.let_go([space.pin(first.clone())]);
    space.published(&space.reserved(1000));
    space.published(&space.reserved(1000));
    let third = take_for_nodes(&geometry, &space, 64);
    assert_eq!(units(&third), units(&first));
    // Data has all the rest, and then what is kept for nodes.
    space.let_go([space.pin(third.clone())]);
    reserve(&geometry, &space, space.free());
    let rest: Vec<u64> = space.take(Purpose::Data, space.usable(), 0).into_iter().flatten().collect();
    assert!(units(&rest).is_superset(&units(&third)));
    assert_eq!(space.free(), 0);
}

#[test]
fn views_that_the_bitmap_has_leave_memory_and_those_on_their_way_stay() {
    let (geometry, space, _readers) = space();
    reserve(&geometry, &space, 16);
    let empty = space.memory();
    let taken: Vec<_> = space.take(Purpose::Data, 10_000, 0);
    space.published(&[]);
    space.before_freeze();
    space.after_merge();
    assert_eq!(space.memory(), empty, "nobody knows yet what becomes of these blocks");
    space.placed(taken);
    space.before_freeze();
    space.after_merge();
    assert!(space.memory() < empty);
}

#[test]
fn a_pinned_block_is_not_reused_while_an_older_reader_is_in_flight() {
    let (geometry, space, readers) = space();
    reserve(&geometry, &space, 16);
    let everything: Vec<u64> = space.take(Purpose::Data, 10_000, 0).into_iter().flatten().collect();
    let reading = readers.enter();
    let pin = space.pin(everything.clone());
    space.let_go([pin]);
    assert!(space.take(Purpose::Data, 1, 0).is_empty());
    drop(reading);
    space.collect();
    let again: BTreeSet<u64> = space.take(Purpose::Data, 10_000, 0).into_iter().flatten().collect();
    assert_eq!(again, everything.into_iter().collect());
}

#[test]
fn what_the_predecessor_reserved_and_what_replay_found_are_not_handed_out() {
    let (geometry, space, _readers) = space();
    let free: Vec<u32> = vec![geometry.unit_blocks; geometry.units() as usize];
    let held = geometry.unit_range(2).start + 3;
    let other = Space::new(geometry, Arc::default(), Arc::default(), 0, false, false);
    other.begin(&free[..8], &[0, 1], &[held]);
    reserve(&geometry, &other, 10_000);
    let blocks: BTreeSet<u64> = other.take(Purpose::Data, 10_000, 0).into_iter().flatten().collect();
    assert_eq!(blocks.len() as u64, 6 * u64::from(geometry.unit_blocks) - 1);
    assert!(!blocks.contains(&held));
    assert!(blocks.iter().all(|block| geometry.unit_of(*block) >= 2));
    drop(space);
}

#[test]
fn the_predecessors_units_can_be_taken_over() {
    let (geometry, _, _readers) = space();
    let space = Space::new(geometry, Arc::default(), Arc::default(), 0, false, false);
    space.begin(&[geometry.unit_blocks; 4], &[0, 1], &[]);
    assert_eq!(space.free(), 2 * u64::from(geometry.unit_blocks));
    assert!(space.take_over());
    assert_eq!(space.free(), 4 * u64::from(geometry.unit_blocks));
    assert!(!space.take_over(), "once");
    reserve(&geometry, &space, 10_000);
    assert_eq!(space.usable(), 4 * u64::from(geometry.unit_blocks));
}

#[test]
fn who_waits_for_readers_is_woken_when_another_collects() {
    use std::task::{Context, Waker};
    let (geometry, space, readers) = space();
    reserve(&geometry, &space, 16);
    let blocks: Vec<u64> = space.take(Purpose::Data, 4, 0).into_iter().flatten().collect();
    let reading = readers.enter();
    space.let_go([space.pin(blocks)]);
    let counter = Arc::new(CountWakes::default());
    let waker = Waker::from(Arc::clone(&counter));
    let mut context = Context::from_waker(&waker);
    let mut drain = Box::pin(space.drain());
    assert!(drain.poll_unpin(&mut context).is_pending());
    drop(reading);
    assert!(counter.0.swap(0, std::sync::atomic::Ordering::SeqCst) > 0, "a reader ended");
    // It listens again, and before it looks another one collects.
    let second = readers.enter();
    space.let_go([space.pin(Vec::new())]);
    let mut late = Box::pin(space.drain());
    assert!(late.poll_unpin(&mut context).is_pending());
    readers.forget_waiters();
    drop(second);
    counter.0.store(0, std::sync::atomic::Ordering::SeqCst);
    space.collect();
    assert!(counter.0.load(std::sync::atomic::Ordering::SeqCst) > 0, "the one who collected woke the other");
}

#[test]
fn a_list_of_units_is_spent_only_when_a_superblock_could_list_fewer() {
    let (geometry, space, _readers) = space();
    while space.room(3) > 0 {
        reserve(&geometry, &space, 1);
    }
    assert!(!space.list_is_spent(3, ENOUGH), "another superblock would list the same, over and over");
    // The next one who takes some finds that the first unit has nothing left.
    space.take(Purpose::Data, u64::from(geometry.unit_blocks), 0);
    space.take(Purpose::Data, 1, 0);
    assert!(space.list_is_spent(3, ENOUGH) && !space.list_is_spent(4, ENOUGH));
    assert!(!space.list_is_spent(3, space.usable()), "what is left in the others will do");
    space.before_freeze();
    space.after_merge();
    space.published(&space.reserved(3));
    assert!(!space.list_is_spent(3, ENOUGH));
}

#[test]
fn data_of_a_thin_volume_waits_for_the_list_and_takes_no_unit_of_nodes() {
    let (geometry, space, _readers) = space_that(true);
    let most = u32::try_from(DATA_UNITS).expect("few");
    assert!(geometry.units() > most);
    make_usable(&geometry, &space, &space.choose_for_nodes(1, 1), &BTreeSet::new());
    while space.room(DATA_UNITS) > 0 {
        make_usable(&geometry, &space, &space.choose(1, 1), &BTreeSet::new());
    }
    let runs = space.take(Purpose::Data, space.usable_for(Purpose::Data), 0);
    let nodes = space.usable_for(Purpose::Nodes);
    assert!(nodes > 0 && space.take(Purpose::Data, 1, 0).is_empty());
    assert_eq!(space.usable_for(Purpose::Nodes), nodes);
    // What was taken is named by entries: these units need not be listed any more.
    space.placed(runs);
    make_usable(&geometry, &space, &space.choose(1, space.room(DATA_UNITS)), &BTreeSet::new());
    assert_eq!(space.take(Purpose::Data, 1, 0).len(), 1);
    assert_eq!(space.usable_for(Purpose::Nodes), nodes);
}

#[test]
fn a_unit_is_listed_until_all_writes_that_may_go_there_have_ended() {
    let (geometry, space, _readers) = space();
    reserve(&geometry, &space, 1);
    let first = space.reserved(100);
    assert_eq!(first.len(), 1);
    let slow = space.begin_write();
    space.take(Purpose::Data, u64::from(geometry.unit_blocks), 0);
    reserve(&geometry, &space, 1);
    space.take(Purpose::Data, 1, 0);
    // This superblock lists it, as it lists each that ran empty since the last one. The next one must, too, and the one behind that.
    for _ in 0..3 {
        let listed = space.reserved(100);
        assert!(listed.contains(&first[0]), "a write may still be on its way to it");
        space.published(&listed);
        drop(space.begin_write());
    }
    let later = space.begin_write();
    drop(slow);
    assert!(!space.reserved(100).contains(&first[0]), "what began later is not on its way to it");
    // It is like any other then: it may be reserved again when it has room.
    space.give_back(geometry.unit_range(first[0]).start..geometry.unit_range(first[0]).start + 1);
    reserve(&geometry, &space, space.free() - space.usable());
    assert!(space.reserved(100).contains(&first[0]));
    drop(later);
}

#[test]
fn a_full_list_waits_for_writes_under_way_and_for_nothing_else() {
    let (geometry, space, _readers) = space();
    while space.room(3) > 0 {
        reserve(&geometry, &space, 1);
    }
    assert!(space.waits_for_writes(3).is_none(), "no write holds it up");
    let slow = space.begin_write();
    space.take(Purpose::Data, u64::from(geometry.unit_blocks), 0);
    space.take(Purpose::Data, 1, 0);
    assert!(space.list_is_spent(3, ENOUGH));
    space.published(&space.reserved(3));
    assert!(!space.list_is_spent(3, ENOUGH), "another superblock would list the same");
    let mut ended = space.waits_for_writes(3).expect("the write under way");
    assert!((&mut ended).now_or_never().is_none());
    drop(slow);
    assert!(ended.now_or_never().is_some(), "nobody was told that it has ended");
    assert_eq!(space.room(3), 1);
}

#[test]
fn who_waits_for_room_is_woken_by_whoever_makes_some() {
    let geometry = Geometry::for_logical(4096, Shape::TINY).expect("a tiny volume");
    let (readers, progress) = (Arc::new(Readers::default()), Arc::new(Event::new()));
    let space = Space::new(geometry, Arc::clone(&readers), Arc::clone(&progress), 0, false, false);
    space.begin(&[geometry.unit_blocks; 4], &[3], &[]);
    // Says whether a waiter is told of what happens here.
    let told = |happens: &dyn Fn()| {
        let mut waits = progress.listen();
        happens();
        (&mut waits).now_or_never().is_some()
    };
    assert!(told(&|| reserve(&geometry, &space, 1)), "a unit became usable");
    let taken: Vec<u64> = space.take(Purpose::Data, 4, 0).into_iter().flatten().collect();
    assert!(told(&|| space.give_back(taken[0]..taken[0] + 1)), "a block was given back");
    assert!(told(&|| assert!(space.take_over())), "the predecessor's units are free");
    assert!(!told(&|| assert!(!space.take_over())));
    let reading = readers.enter();
    assert!(!told(&|| space.let_go([space.pin(taken[1..].to_vec())])), "a reader may hold them");
    drop(reading);
    assert!(told(&|| space.collect()), "somebody collected");
    assert!(!told(&|| space.collect()), "there was nothing");
}

#[derive(Default)]
struct CountWakes(std::sync::atomic::AtomicUsize);

impl std::task::Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}
