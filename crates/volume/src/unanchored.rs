//! Which acknowledged changes the anchor never covered: what a session can say when another one has claimed its volume.
//!
//! A superblock covers only what is anchored. So every change that is not anchored is still in the overlay, or in the line of acknowledged
//! writes, and nothing has to be noted while the session works but the sequence number at which the anchored commit ended. At level
//! `transaction` a large transaction is spilled to the trees; the report says then that it is not complete.

use std::ops::Range;
use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::core::Core;
use crate::error::{Error, Kind};
use crate::format::protections::Freshness;

/// Most stretches that a report lists.
const MOST_STRETCHES: usize = 256;
/// Most of them that an error's message names.
const IN_MESSAGE: usize = 8;

/// Acknowledged changes that the anchor never covered. Requests that failed when the session ended may be among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Unanchored {
    /// Logical blocks that were written or discarded.
    pub blocks: u64,
    /// Where they are: the first block of a stretch, and how many there are. In ascending order, at most 256.
    pub stretches: Vec<(u64, u64)>,
    /// Whether `blocks` are all of them. A transaction that became too large for memory is no longer known block by block.
    pub complete: bool,
}

impl Unanchored {
    /// From stretches in any order, which may overlap.
    fn of(mut ranges: Vec<Range<u64>>, complete: bool) -> Self {
        ranges.sort_unstable_by_key(|range| range.start);
        let (mut blocks, mut stretches) = (0, Vec::new());
        let mut add = |range: &Range<u64>| {
            blocks += range.end - range.start;
            if stretches.len() < MOST_STRETCHES {
                stretches.push((range.start, range.end - range.start));
            }
        };
        let mut current: Option<Range<u64>> = None;
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            match &mut current {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => current.replace(range).iter().for_each(&mut add),
            }
        }
        current.iter().for_each(add);
        Self { blocks, stretches, complete }
    }

    /// Nothing was lost to the anchor.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks == 0 && self.complete
    }

    /// How many blocks, and the first of them: `4 blocks: 1-3, 7`.
    #[must_use]
    pub fn text(&self) -> String {
        let more = if self.complete { "" } else { "at least " };
        let named = self.stretches.iter().take(IN_MESSAGE).map(|(first, blocks)| match blocks {
            1 => first.to_string(),
            _ => format!("{first}-{}", first + blocks - 1),
        });
        let named = named.collect::<Vec<_>>().join(", ");
        let rest = if self.stretches.len() > IN_MESSAGE { ", ..." } else { "" };
        let (blocks, listed) = (self.blocks, if named.is_empty() { "" } else { ": " });
        format!("{more}{blocks} blocks{listed}{named}{rest}")
    }

    /// For the reason why a session ended.
    fn sentence(&self) -> String {
        if self.is_empty() {
            return "All that it acknowledged was anchored".into();
        }
        let text = self.text();
        format!("Acknowledged here and never anchored: {text}; the other session need not have them")
    }
}

impl Core {
    /// The changes that were acknowledged and that the anchor does not cover; `None` for a session that has no anchor or changes nothing.
    pub(crate) fn unanchored(&self) -> Option<Unanchored> {
        if self.header.freshness == Freshness::Off || self.read_only {
            return None;
        }
        // At this level nothing is acknowledged before it is anchored.
        if self.header.freshness == Freshness::Write {
            return Some(Unanchored::of(Vec::new(), true));
        }
        let mut ranges = self.overlay.changed_since(self.commit.anchored_sequence());
        ranges.extend(self.landing.blocks_behind().into_iter().map(|block| block..block + 1));
        Some(Unanchored::of(ranges, !self.spilled.load(Ordering::SeqCst)))
    }

    /// Has the reason why this session ended name what the anchor does not cover, if another session has claimed the volume. To be called
    /// when the session acknowledges nothing any more.
    pub(crate) fn name_unanchored(&self) {
        let Some(unanchored) = self.unanchored() else { return };
        self.commit.explain(|reason| (reason.kind() == Kind::Fenced).then(|| unanchored.sentence()));
    }

    /// The error that a failed commit's caller gets: the reason why the session has ended.
    pub(crate) fn reason(&self, error: Error) -> Error {
        match self.commit.poisoned() {
            Some(reason) if reason.kind() == error.kind() => reason,
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_merged_counted_and_bounded() {
        let of = |ranges: &[Range<u64>]| Unanchored::of(ranges.to_vec(), true);
        assert_eq!(of(&[]).sentence(), "All that it acknowledged was anchored");
        let some = of(&[7..8, 1..3, 3..4, 2..3, 9..9]);
        assert_eq!((some.blocks, some.stretches.as_slice()), (4, [(1, 3), (7, 1)].as_slice()));
        assert_eq!(
            some.sentence(),
            "Acknowledged here and never anchored: 4 blocks: 1-3, 7; the other session need not have them"
        );
        let many: Vec<_> = (0..1000).map(|at| 2 * at..2 * at + 1).collect();
        let many = of(&many);
        assert_eq!((many.blocks, many.stretches.len()), (1000, MOST_STRETCHES));
        assert!(
            many.sentence().contains("1000 blocks: 0, 2, 4, 6, 8, 10, 12, 14, ...;"),
            "{}",
            many.sentence()
        );
        let part = Unanchored::of(Vec::new(), false).sentence();
        assert!(part.contains("at least 0 blocks;"), "{part}");
    }
}
