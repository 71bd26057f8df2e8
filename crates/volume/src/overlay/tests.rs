//! The overlay against a map that remembers every change.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::Overlay;
use crate::format::entry::Entry;
use crate::format::item::Item;

const SIZE: u64 = 600;

fn entry(physical: u64) -> Entry {
    Entry { physical, epoch: 1, nonce: physical, flags: 0, tag: [1; 16] }
}

#[derive(Debug, Clone)]
enum Step {
    Write { logical: u64, blocks: u64 },
    Discard { logical: u64, blocks: u64 },
    Cut,
    Freeze,
}

fn step() -> impl Strategy<Value = Step> {
    let place = (0..SIZE, 1..200u64).prop_map(|(logical, blocks)| (logical, blocks.min(SIZE - logical)));
    prop_oneof![
        4 => (0..SIZE, 1..20u64).prop_map(|(logical, blocks)| Step::Write { logical, blocks: blocks.min(SIZE - logical) }),
        2 => place.prop_map(|(logical, blocks)| Step::Discard { logical, blocks }),
        1 => Just(Step::Cut),
        1 => Just(Step::Freeze),
    ]
}

/// What the tree below the overlay would hold, and what the journal would.
#[derive(Default)]
struct Below {
    tree: BTreeMap<u64, Entry>,
    journal: BTreeMap<u64, Entry>,
}

impl Below {
    fn replay(&mut self, items: &[Item]) {
        for item in items {
            match *item {
                Item::Write { logical, entry } => drop(self.journal.insert(logical, entry)),
                Item::Discard { logical, blocks } => {
                    self.journal.retain(|at, _| !(logical..logical + blocks).contains(at))
                }
                _ => panic!("an overlay makes only writes and discards"),
            }
        }
    }

    fn merge(&mut self, overlay: &Overlay) -> Vec<u64> {
        let frozen = overlay.frozen();
        let mut freed = frozen.void;
        for range in &frozen.discards {
            let gone: Vec<u64> = self.tree.range(range.clone()).map(|(at, _)| *at).collect();
            freed.extend(gone.into_iter().filter_map(|at| self.tree.remove(&at)).map(|entry| entry.physical));
        }
        for (logical, entry) in frozen.entries {
            freed.extend(self.tree.remove(&logical).map(|entry| entry.physical));
            if !entry.is_absent() {
                self.tree.insert(logical, entry);
            }
        }
        overlay.thaw();
        freed
    }
}

proptest! {
    /// Look-ups, the journal's replay and the merged tree all agree with the changes in their order; and each place is in the end
    /// either named by the tree or given up, exactly once.
    #[test]
    fn it_agrees_with_a_map(steps in prop::collection::vec(step(), 1..80)) {
        let overlay = Overlay::new();
        let (mut model, mut below) = (BTreeMap::new(), Below::default());
        let (mut next, mut frozen) = (1, false);
        let mut given_up: Vec<u64> = Vec::new();
        for step in steps {
            match step {
                Step::Write { logical, blocks } => {
                    let entries: Vec<Entry> = (0..blocks).map(|at| entry(next + at)).collect();
                    next += blocks;
                    overlay.insert(logical, &entries);
                    model.extend((logical..).zip(entries));
                }
                Step::Discard { logical, blocks } => {
                    overlay.discard(logical..logical + blocks);
                    model.retain(|at, _| !(logical..logical + blocks).contains(at));
                }
                Step::Cut => {
                    let cut = overlay.cut(false);
                    below.replay(&cut.items);
                    given_up.extend(cut.superseded);
                    prop_assert_eq!(&below.journal, &model);
                    prop_assert_eq!(overlay.pending(), 0);
                }
                Step::Freeze => {
                    if frozen {
                        given_up.extend(below.merge(&overlay));
                    }
                    let cut = overlay.cut(true);
                    below.replay(&cut.items);
                    given_up.extend(cut.superseded);
                    prop_assert_eq!(overlay.active(), 0);
                    frozen = true;
                }
            }
            for logical in 0..SIZE {
                let found = overlay.find(logical).unwrap_or_else(|| below.tree.get(&logical).copied().unwrap_or(Entry::ABSENT));
                prop_assert_eq!(found, model.get(&logical).copied().unwrap_or(Entry::ABSENT), "block {}", logical);
            }
        }
        if frozen {
            given_up.extend(below.merge(&overlay));
        }
        given_up.extend(overlay.cut(true).superseded);
        given_up.extend(below.merge(&overlay));
        prop_assert_eq!(&below.tree, &model);
        let mut all: Vec<u64> = below.tree.values().map(|entry| entry.physical).chain(given_up).collect();
        all.sort_unstable();
        prop_assert_eq!(all, (1..next).collect::<Vec<_>>());
    }
}
