//! What runs reached: a simulation that never gets anywhere finds nothing.

use std::fmt;
use std::ops::AddAssign;

macro_rules! coverage {
    ($($(#[$doc:meta])* $field:ident: $name:literal,)*) => {
        /// Counts over one run, or over many.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Coverage {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Coverage {
            /// Each count with its name.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$(($name, self.$field)),*]
            }
        }

        impl AddAssign for Coverage {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

coverage! {
    /// Requests submitted.
    requests: "requests",
    /// Reads that returned data, and were compared.
    reads: "reads compared",
    /// Answers to where something is, compared.
    allocations: "extents compared",
    /// Crashes of guest or host.
    crashes: "crashes",
    /// Of those, while an attach was under way.
    crashes_in_recovery: "crashes inside recovery",
    /// Of those, while the attach before had been cut short as well.
    crashes_in_recovery_of_recovery: "crashes inside recovery of a recovery",
    /// Of those, while a superblock was on its way to the disk.
    crashes_when_publishing: "crashes around a superblock",
    /// Creations of the volume that were cut short.
    cut_creations: "creations cut short",
    /// Disks that the host had blanked, and that were not made into the volume again.
    blanked: "blanked disks refused",
    /// Times the disk had little room left.
    rooms: "times with little room",
    /// Steps at which the bound on what a thin volume takes was below the size of its store.
    bounds: "steps with a bound on the space",
    /// Times something waited for room.
    waits_for_room: "waits for room",
    /// Free blocks that the disk was told to forget.
    discarded: "free blocks discarded",
    /// Changes of the key slots, and those that were cut short.
    key_changes: "key changes",
    /// Changes of the key slots of an attached volume.
    key_changes_beside: "key changes beside users",
    /// Changes of the key slots that were cut short.
    cut_key_changes: "key changes cut short",
    /// Jobs of the owner's that were killed while their machine lived on.
    killed_jobs: "jobs killed",
    /// Header backups made.
    header_backups: "header backups",
    /// Headers that the host had destroyed, and that came back from a backup.
    headers_restored: "headers restored",
    /// Backups of an earlier header, refused.
    old_header_backups: "old header backups refused",
    /// Restorations that were cut short.
    cut_restorations: "restorations cut short",
    /// Checks of everything beside users that ended.
    scrubs: "scrubs",
    /// Growths of the volume.
    growths: "growths",
    /// Growths that were cut short.
    cut_growths: "growths cut short",
    /// Growths of a volume whose last guest may be alive.
    growths_under_zombies: "growths under zombies",
    /// Trees that got a level more.
    lifts: "trees lifted",
    /// Moves of the volume to another anchor.
    moves: "moves to another anchor",
    /// Looks at the latest state, compared with what an attach would begin from.
    looks: "latest states compared",
    /// Those that were cut short.
    cut_moves: "moves cut short",
    /// Moves while the last guest may be alive.
    moves_under_zombies: "moves under zombies",
    /// Moves without the old anchor.
    lost_anchors: "lost anchors replaced",
    /// Anchors of other volumes that were not taken.
    taken_anchors: "taken anchors refused",
    /// Attaches by an anchor that the volume has left, refused.
    left_anchors: "anchors left behind refused",
    /// Exports that ended.
    exports: "exports",
    /// Of those, beside a guest that writes.
    exports_beside: "exports beside users",
    /// Exports that were cut short, and those of them that were gone on with.
    cut_exports: "exports cut short",
    /// Exports that were gone on with.
    exports_gone_on: "exports gone on with",
    /// Halves of streams of a state that is no longer the volume's.
    other_states: "streams of another state",
    /// Readers that were refused because a guest might be writing.
    unpinned: "readers refused",
    /// Imports that ended.
    imports: "imports",
    /// Imports that were done again after they had been cut short.
    imports_gone_on: "imports gone on with",
    /// Blocks that an import found already.
    kept_blocks: "blocks kept by imports",
    /// Streams that were changed or cut, and refused.
    damaged_streams: "damaged streams refused",
    /// Streams that were compared with the volume.
    comparisons: "streams compared",
    /// Attaches that were to follow the last session and no other.
    followed: "sessions followed",
    /// The same of sessions that others had come after, refused.
    not_followed: "sessions too old to follow",
    /// Changes of the volume key that have begun.
    rekeys: "changes of key",
    /// Beginnings that were cut short.
    cut_rekeys: "changes of key cut short",
    /// Changes of the volume key that have ended.
    rekeys_ended: "changes of key ended",
    /// Attaches.
    attaches: "attaches",
    /// Attaches that were refused.
    refusals: "refusals",
    /// Clean detaches.
    detaches: "clean detaches",
    /// Attacks and faults that were set up.
    attacks: "attacks",
    /// Whole images put back.
    rollbacks: "rollbacks",
    /// Those that were accepted, lawfully.
    rollbacks_accepted: "rollbacks lawfully accepted",
    /// Commands of the owner's on an image that is not the volume, refused.
    refused_commands: "commands on other images refused",
    /// Moves that were cut short, and done again on an old image, refused.
    refused_second_moves: "cut moves on old images refused",
    /// States that the owner chose after a refusal.
    reanchors: "reanchored",
    /// Choices that came to nothing.
    cut_reanchors: "reanchoring cut short",
    /// Attacks that need more than blocks of the disk: other volumes, changed headers, forged stamps, old key slots.
    forgeries: "forgeries",
    /// Journals without what the anchor does not cover.
    suffixes: "dropped suffixes",
    /// Jumps of the clock.
    clock_jumps: "clock jumps",
    /// Moments at which level interval had to have everything anchored.
    windows: "windows checked",
    /// Forks presented.
    forks: "forks",
    /// Sessions that went on after another had claimed the volume.
    zombies: "zombies",
    /// Of those, sessions that went on when yet another had.
    old_zombies: "zombies of two claims ago",
    /// Requests of such sessions that were answered with `Fenced`.
    fenced: "requests fenced",
    /// Anchor moves that failed before or after they happened.
    anchor_failures: "anchor failures",
    /// Runs on a map of six levels with data in it.
    depth_six: "depth six",
    /// Nodes read again because the cache had let them go.
    evictions: "cache evictions",
    /// Data blocks that a read found in the cache.
    block_cache_hits: "block cache hits",
    /// Journal segments used again.
    ring_wraps: "journal ring wraps",
    /// Bitmap nodes read again in the session that wrote them.
    bitmap_evictions: "bitmap evictions",
    /// Checkpoints.
    checkpoints: "checkpoints",
    /// Checkpoints that ended while requests were waiting.
    checkpoints_under_load: "checkpoints under load",
    /// Checkpoints without a superblock, at level `transaction`.
    spills: "spills",
    /// Attaches that found changes in the journal, and so list closed legs.
    closed_legs: "closed legs",
    /// Requests that were answered with `NoSpace`.
    no_space: "no space",
    /// Attaches after a session that may still be alive, whose units are foreign.
    foreign_units: "take-overs with foreign units",
    /// Transactions that ended.
    transactions: "transactions",
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, count)) in self.list().into_iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}{name} {count}")?;
        }
        Ok(())
    }
}
