//! The node cache's rules.

use std::sync::Arc;

use super::{Cache, NodeKey, Page};
use crate::format::ad::Tree;

fn key(index: u64) -> NodeKey {
    NodeKey { tree: Tree::Map, level: 0, index }
}

fn page(fill: u8) -> Arc<Page> {
    Arc::new([fill; memory::BLOCK_SIZE])
}

#[test]
fn it_holds_no_more_than_it_may() {
    let cache = Cache::new(64 * 4096);
    for index in 0..10_000 {
        let version = cache.version(key(index));
        assert!(cache.fill(key(index), &page(1), version));
    }
    assert!(cache.len() <= 64);
    assert!((0..10_000).any(|index| cache.get(key(index)).is_some()));
}

#[test]
fn a_node_read_before_its_parent_changed_is_not_kept() {
    let cache = Cache::new(1 << 20);
    let version = cache.version(key(5));
    cache.pin(key(5), page(2));
    assert_eq!(cache.get(key(5)).expect("pinned")[0], 2);
    assert!(cache.fill(key(5), &page(1), version), "its parent's entry has not changed yet");
    assert_eq!(cache.get(key(5)).expect("pinned")[0], 2, "a pinned node is the newer one");
    cache.unpin(key(5), true);
    assert!(!cache.fill(key(5), &page(1), version));
    assert_eq!(cache.get(key(5)).expect("cached")[0], 2, "the slow reader's copy is stale");
    assert!(cache.fill(key(5), &page(3), cache.version(key(5))));
    assert_eq!(cache.get(key(5)).expect("cached")[0], 3);
}

#[test]
fn pinned_nodes_are_never_evicted() {
    let cache = Cache::new(0);
    for index in 0..500 {
        cache.pin(key(index), page(7));
    }
    assert!((0..500).all(|index| cache.get(key(index)).is_some()));
    for index in 0..500 {
        cache.unpin(key(index), index % 2 == 0);
    }
    assert!((0..500).filter(|index| index % 2 == 1).all(|index| cache.get(key(index)).is_none()));
    assert!(cache.len() <= 32);
}

#[test]
fn what_is_gone_is_forgotten() {
    let cache = Cache::new(64 << 20);
    for index in 0..300 {
        assert!(cache.fill(key(index), &page(1), cache.version(key(index))));
    }
    for index in (0..300).step_by(3) {
        cache.forget(key(index));
    }
    for index in 0..300 {
        assert_eq!(cache.get(key(index)).is_some(), index % 3 != 0, "node {index}");
    }
}
