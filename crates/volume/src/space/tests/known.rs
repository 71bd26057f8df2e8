//! Units of nodes, and what is known of what the store has given.

use std::collections::BTreeSet;

use super::{make_usable, space, space_on};
use crate::space::Purpose;

/// A superblock's list is for data, too: nodes keep half of it, the units in which the store has given the most, and whatever is on its way.
#[test]
fn units_of_nodes_leave_data_its_part_of_the_list() {
    const LIST: usize = 8;
    let (geometry, space, _readers) = space();
    let units: Vec<u32> = (0..6).collect();
    space.keep_for_nodes(&units);
    make_usable(&geometry, &space, &units, &BTreeSet::new());
    assert_eq!((space.room(LIST), space.room_for_nodes(LIST)), (2, 0));
    let on_its_way = space.take(Purpose::Nodes, 1, 0);
    assert_eq!(geometry.unit_of(on_its_way[0].start), 0);
    let start = |unit| geometry.unit_range(unit).start;
    let given = [start(2)..start(2) + 5, start(3)..start(3) + 1, start(4)..start(5) + 3];
    space.give_up_node_units(LIST, Some(&given));
    assert_eq!(space.reserved(LIST), [0, 2, 4, 5], "1 has nothing that was given, and 3 the least");
    assert_eq!((space.room(LIST), space.room_for_nodes(LIST)), (4, 0));
    space.give_up_node_units(LIST, Some(&given));
    assert_eq!(space.reserved(LIST), [0, 2, 4, 5], "that is half of it");
}

/// What was written to the store has it, until it is discarded: also where nothing was in use when the session began.
#[test]
fn what_the_store_has_given_is_noted_and_told_from_what_it_may_not_have() {
    let (geometry, space, _readers) = space_on(false, true);
    let range = geometry.unit_range(3);
    let at = |offset: std::ops::Range<u64>| range.start + offset.start..range.start + offset.end;
    space.keep_for_nodes(&[3]);
    make_usable(&geometry, &space, &[3], &at(0..2).collect());
    assert_eq!(
        (space.known_to_nodes(), space.unknown(3).as_slice()),
        (0, std::slice::from_ref(&(range.start + 2..range.end)))
    );
    // Found there, or written to: taken meanwhile, so that nobody else is given the places.
    space.note_given(range.start + 9, true);
    let filled = space.take_unknown(4).expect("free");
    assert_eq!((filled.clone(), space.take_unknown(3)), (at(2..6), Some(at(6..9))));
    filled.clone().for_each(|block| space.note_given(block, true));
    space.give_back(filled);
    space.give_back(at(6..9));
    assert_eq!((space.known_to_nodes(), space.known_in(3)), (5, 5));
    assert_eq!(space.unknown(3), [at(6..9), range.start + 10..range.end]);
    // What a checkpoint frees was written to. What was never written comes back as it was.
    let free = space.free();
    let places: Vec<u64> = std::iter::from_fn(|| space.take_known_place()).collect();
    assert_eq!((places.clone(), free - space.free()), (at(2..6).chain(at(9..10)).collect(), 5));
    space.note_given(places[0], false);
    space.give_node_places_back(&places[..2]);
    let pin = space.pin(vec![range.start, places[4]]);
    space.let_go([pin]);
    space.collect();
    assert_eq!(space.take_known_place(), Some(range.start));
    assert_eq!((space.take_known_place(), space.take_known_place()), (Some(places[1]), Some(places[4])));
    assert_eq!((space.take_known_place(), space.known_in(3)), (None, 0));
}

/// Units are searched once, and again when something became free there, first those with the most of it; those whose view is not in memory, too.
#[test]
fn a_search_begins_where_the_most_became_free() {
    let (geometry, space, _readers) = space_on(false, true);
    let all: Vec<u32> = (0..geometry.units()).collect();
    assert_eq!(space.to_search(), all);
    let used: BTreeSet<u64> = [1, 2, 4].into_iter().flat_map(|unit| geometry.unit_range(unit)).collect();
    make_usable(&geometry, &space, &[], &used);
    all.iter().for_each(|unit| space.searched(*unit));
    assert_eq!(space.to_search(), [0_u32; 0]);
    let start = |unit| geometry.unit_range(unit).start;
    let pin = space.pin(vec![start(2), start(4), start(4) + 1]);
    space.let_go([pin]);
    space.collect();
    assert_eq!(space.to_search(), [4, 2]);
    // One that is searched and not chosen is named again, by what was found there.
    space.load(1, vec![0; 1]);
    (0..3).for_each(|block| space.note_given(start(1) + block, true));
    space.searched(1);
    space.unload(1);
    assert!(!space.is_resident(1));
    assert_eq!(space.to_search(), [1, 4, 2]);
    space.keep_for_nodes(&[1]);
    assert_eq!(space.to_search(), [4, 2]);
}
