//! The block cache's rules.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn entry(physical: u64, nonce: u64) -> Entry {
    Entry { physical, epoch: 1, nonce, flags: 0, tag: [0; 16] }
}

fn sealed(fill: u8) -> Vec<u8> {
    vec![fill; BLOCK_SIZE]
}

fn cache(blocks: u64) -> BlockCache {
    BlockCache::new(blocks * HELD_BYTES).unwrap()
}

/// The first byte of what is held under an entry.
fn held(cache: &BlockCache, entry: &Entry) -> Option<u8> {
    let mut first = None;
    let open = |sealed: &[u8]| {
        assert!(sealed.len() == BLOCK_SIZE && sealed.iter().all(|byte| *byte == sealed[0]));
        first = Some(sealed[0]);
        true
    };
    cache.open(entry, open).then_some(first).flatten()
}

#[test]
fn a_place_that_is_used_again_is_not_taken_for_what_was_there() {
    let cache = cache(8);
    cache.keep(&entry(5, 1), &sealed(1));
    assert_eq!(held(&cache, &entry(5, 1)), Some(1));
    assert_eq!(held(&cache, &entry(5, 2)), None, "it has been written since");
    assert_eq!(held(&cache, &Entry { epoch: 2, ..entry(5, 1) }), None, "another key's nonce");
    cache.keep(&entry(5, 2), &sealed(2));
    assert_eq!((held(&cache, &entry(5, 2)), held(&cache, &entry(5, 1)), cache.len()), (Some(2), None, 1));
}

#[test]
fn what_does_not_open_was_not_found() {
    let cache = cache(8);
    cache.keep(&entry(5, 1), &sealed(1));
    assert!(!cache.open(&entry(5, 1), |_| false));
    assert_eq!((cache.hits.into_inner(), cache.misses.into_inner()), (0, 1));
}

#[test]
fn with_room_for_a_few_blocks_it_is_off() {
    let cache = BlockCache::new(8 * HELD_BYTES - 1).unwrap();
    cache.keep(&entry(5, 1), &sealed(1));
    assert!(cache.is_off() && cache.len() == 0 && held(&cache, &entry(5, 1)).is_none());
}

#[test]
fn more_than_the_system_has_is_refused() {
    let refused = BlockCache::new(u64::MAX).err().expect("no machine has so much");
    assert!(refused.kind() == Kind::Usage && refused.to_string().contains("allow fewer"), "{refused}");
}

#[test]
fn what_is_read_once_does_not_drive_out_what_is_used_again() {
    let sets = PIECE_SETS as u64;
    let cache = cache(sets * 8);
    let hot = || (1..=sets).map(|physical| entry(physical, 1));
    hot().for_each(|entry| cache.keep(&entry, &sealed(1)));
    for round in 1..20 {
        assert!(hot().all(|entry| held(&cache, &entry).is_some()), "round {round}");
        for physical in 0..2 * sets {
            cache.keep(&entry(round * 1000 * sets + physical, 1), &sealed(2));
        }
    }
}

#[test]
fn all_that_is_allowed_is_used_and_no_more() {
    for (allowed, least) in
        [(8, 8), (100, 96), (511, 504), (512, 512), (1500, 1024), (9000, 8704), (100_000, 99_840)]
    {
        let cache = cache(allowed);
        (1..2 * allowed).for_each(|physical| cache.keep(&entry(physical, 1), &sealed(1)));
        assert_eq!(cache.len(), least, "of {allowed}");
    }
}

proptest! {
    /// Whatever is kept: what is found is what was kept last under just this entry, and no more is held than may be. What was kept last
    /// of all is found.
    #[test]
    fn it_tells_no_lies(
        blocks in 8..3000_u64,
        kept in prop::collection::vec((1..6000_u64, 0..3_u64, any::<u8>(), (1..6000_u64, 0..3_u64)), 1..600),
    ) {
        let cache = cache(blocks);
        let mut model = HashMap::new();
        for (physical, nonce, fill, (asked, asked_nonce)) in kept {
            cache.keep(&entry(physical, nonce), &sealed(fill));
            model.insert((physical, nonce), fill);
            prop_assert_eq!(held(&cache, &entry(physical, nonce)), Some(fill));
            if let Some(found) = held(&cache, &entry(asked, asked_nonce)) {
                prop_assert_eq!(Some(&found), model.get(&(asked, asked_nonce)));
            }
            prop_assert!(cache.len() as u64 <= blocks);
        }
    }
}
