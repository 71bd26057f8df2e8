//! The rules of a volume by name, so that a test build can break one of them and see whether anybody notices.
//!
//! A build with the feature `mutations` can be told, on one thread, to break one rule ([`break_rule`]). In every other build
//! [`mutated`] is `false` at compile time, and nothing of this is left. A build without debug assertions refuses the feature.

#[cfg(all(feature = "mutations", not(debug_assertions)))]
compile_error!(
    "the feature `mutations` breaks a volume on demand: it is for test builds, never for a release"
);

macro_rules! mutations {
    ($($variant:ident, $name:literal, $rule:literal;)*) => {
        /// A rule that can be broken.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutation {
            $(#[doc = $rule] $variant,)*
        }

        #[cfg(feature = "mutations")]
        impl Mutation {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Those that a test of their own breaks: the simulator's small volumes and quick anchors do not show them.
            pub const BY_TESTS: &[Self] = &[Self::ThinSpreads, Self::SegmentNotAnchored];

            /// Those that the simulator must notice.
            pub fn for_simulator() -> impl Iterator<Item = Self> {
                Self::ALL.iter().copied().filter(|mutation| !Self::BY_TESTS.contains(mutation))
            }

            /// What the broken volume does, in a few words with hyphens.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The rule that it breaks.
            #[must_use]
            pub fn rule(self) -> &'static str {
                match self { $(Self::$variant => $rule,)* }
            }
        }
    };
}

mutations! {
    // Commits.
    DataNotFlushed, "journal-before-data", "with integrity off, data is durable before the record that names it";
    LastCommitUnverified, "journal-without-verification", "the last commit counts only if its data opens";
    RecordNotFlushed, "flush-before-journal", "a flush is answered when the record is durable";
    AnchorBeforeJournal, "anchor-before-journal", "the anchor moves when the record is durable";
    CommitJoinsRunning, "commit-misses-another-queue", "a flush is satisfied by a commit that began after it";
    HeaderWithoutData, "header-without-data", "a commit that changes the header brings what a flush beside it waits for";
    FailedCommitGoesOn, "failed-commit-goes-on", "a session whose commit failed commits no more";
    FuaNotDurable, "fua-not-durable", "a write with FUA is answered when it is durable";
    DiscardNotJournalled, "discard-not-journalled", "a discard is a change like any other";
    VisibleBeforeStored, "visible-before-stored", "a write is visible when its block is on the store";
    LandsOutOfOrder, "lands-out-of-order", "what was acknowledged first is in every commit that has what was asked for later";
    FlushMissesBehind, "flush-misses-acknowledged", "a flush waits for the acknowledged writes that the store does not have";
    ReaderMissesBehind, "read-misses-acknowledged", "a read waits for the acknowledged write of its block";
    TransactionLeaks, "transaction-leaks", "nothing of a transaction counts before its end";
    WindowIgnored, "window-ignored", "at level interval the anchor follows within the window";
    InFlightNotCounted, "in-flight-not-counted", "no more is admitted than the journal can take";
    // Freshness.
    HeadNotCompared, "head-not-compared", "the chain passes through the stamp's head, not only its generation";
    LaterSuperblockCounts, "later-superblock-counts", "a superblock that covers more than the stamp vouches for does not count";
    AnySessionContinues, "any-session-continues", "behind the stamp only the session that claimed last counts";
    ReplayOutOfOrder, "replay-out-of-order", "changes are replayed in their order";
    AttachWithoutClaim, "attach-without-claim", "whoever attaches claims the volume first";
    OldAnchorGoesOn, "old-anchor-goes-on", "a volume that moves ends its old anchor";
    ForgottenOffered, "forgotten-offered", "what is offered as the latest is what an attach would begin from";
    NewAnchorFirst, "new-anchor-first", "it does so before the new one vouches for it";
    LeftAnchorAttached, "left-anchor-attached", "nobody attaches by an anchor that the volume has left";
    KeysUnlooked, "keys-unlooked", "a change of the key slots begins with a look at whether the store stands where the anchor says";
    GrowthUnlooked, "growth-unlooked", "so does a growth";
    RekeyUnlooked, "rekey-unlooked", "so does a change of the volume key";
    RestoreUnlooked, "restore-unlooked", "so does a header that comes back from a backup";
    MigrationUnlooked, "migration-unlooked", "so does a move to another anchor";
    SecondMigrationUnlooked, "second-migration-unlooked", "so does one that was cut short, and is done again";
    TakenAnchorTaken, "taken-anchor-taken", "an anchor that another volume lives by is not taken";
    OthersFollowed, "others-followed", "a session that follows another one follows no other";
    ClaimNotConfirmed, "claim-not-confirmed", "what others may rely on is used after the claim was confirmed";
    AcceptedNotFlushed, "accepted-not-flushed", "what an attach accepts is durable before the claim vouches for it";
    // What is on the disk is not believed.
    PolicyIgnored, "header-over-policy", "the header is compared with the policy";
    HeaderUnverified, "header-mac-unchecked", "the header's MAC holds";
    StampUnverified, "stamp-mac-unchecked", "the stamp's MAC holds";
    DigestNotCompared, "slot-digest-not-compared", "header and key slots are those that the anchor vouches for";
    ParentTagUnchecked, "parent-tag-unchecked", "a node is the one whose tag its parent holds";
    BlockTagUnchecked, "block-tag-unchecked", "a data block is the one whose tag the map holds";
    LogicalLeftOut, "logical-block-left-out", "a data block is bound to its logical block";
    NonceTwice, "nonce-twice", "a nonce is used once under each key";
    // Space.
    ReuseBeforeCommit, "reuse-before-commit", "a block is used again when the commit that freed it is durable";
    ReuseBeforeAnchor, "reuse-before-anchor", "a block is used again when the commit that freed it is anchored";
    FreedBeforeSuperblock, "freed-before-superblock", "what a superblock reaches is free when its successor is durable";
    ReaderIgnored, "reader-ignored", "a freed block waits for the readers that may hold it";
    ReplayedBlocksFree, "replayed-blocks-free", "blocks that only the journal names are in use";
    ForeignUnitsTaken, "foreign-units-taken", "the predecessor's units are left alone";
    UsedBeforeReserved, "used-before-reserved", "a unit is written to when its reservation is durable";
    WritersForgotten, "writers-forgotten", "a superblock lists a unit until no write can be on its way there";
    DiscardUnreserved, "discard-unreserved", "a discard goes only to units that are reserved, as a write does";
    OverwritesNotKept, "overwrites-not-kept", "new data on a thin volume leaves room for overwrites of what is there";
    ThinSpreads, "thin-spreads", "a thin volume takes new space near what it has";
    SegmentNotAnchored, "segment-not-anchored", "a segment is written to when the anchor vouches for its reservation";
    ForeignSegmentsTaken, "foreign-segments-taken", "the predecessor's journal segments are left alone";
    PairShared, "superblock-pair-shared", "a session has a superblock pair of its own";
    // Trees and superblocks.
    EvictedEarly, "evicted-with-stale-parent", "a new node may be evicted when its parent holds its entry";
    StaleFill, "stale-node-cached", "a node is cached only if its parent's entry is still the one it was read by";
    StalePath, "stale-path-cached", "nor is one that was found through a node that has changed meanwhile";
    BitmapInPlace, "bitmap-in-place", "a bitmap node goes to the place that the superblock does not reach";
    NodesNotFlushed, "superblock-before-nodes", "what a superblock reaches is durable before it";
    CheckpointUnanchored, "superblock-before-anchor", "a superblock covers only what is anchored";
    SuperblockInPlace, "superblock-in-place", "a superblock does not overwrite the one in force";
    StaleBlockCached, "stale-block-cached", "a cached block is the one that its entry names";
    // Creation and keys.
    BlankedStoreFormatted, "blanked-store-formatted", "a store becomes a volume only if its anchor was never claimed";
    ClaimBeforeSuperblock, "claim-before-superblock", "a volume's anchor is claimed when the volume is complete";
    OldKeyGoesOn, "old-key-after-boundary", "from the boundary on everything is sealed under the new key";
    RekeyDropsOverwrite, "rekey-drops-overwrite", "re-sealing loses against a write that came in between";
    RekeyEndsEarly, "rekey-ends-early", "the old key is given up when nothing needs it";
    CachedCopyTrusted, "cached-copy-trusted", "one copy of header and key slots is durable before the other is written";
    CopiesLeftApart, "copies-left-apart", "a session makes both copies of header and key slots the pair in force before it serves anybody";
    BothCopiesFirst, "both-copies-before-anchor", "one copy of header and key slots is always the one in force";
    OldBackupTaken, "old-backup-taken", "a header backup is the pair that the anchor vouches for";
    // Readers and streams.
    ClaimedNotSeen, "claimed-not-seen", "a reader that is to be alone is refused while a session may be writing";
    StreamOfTwoStates, "stream-of-two-states", "an export is gone on with only in the state that it began in";
    CutStreamEnds, "cut-stream-ends", "a stream ends with its last chunk";
    StreamHolesLeft, "stream-holes-left", "an import discards what its stream does not have";
    KeptUnread, "kept-unread", "what an import keeps has been compared with its stream";
    ImportMissesBehind, "import-misses-acknowledged", "an import sees the acknowledged writes that the store does not have";
    ImportNotDurable, "import-not-durable", "what was imported is durable when the import ends";
    // Growing.
    RootNotLifted, "root-not-lifted", "a root of before a growth stays what its tree reaches below the new one";
    PlacesAreData, "places-are-data", "the places of an extent's bitmap nodes hold no data";
    PolicyBeforeHeader, "policy-before-header", "the policy follows when the header with the new size is in force";
    GrowthForgotten, "growth-forgotten", "a header that knows fewer growths than a superblock is refused";
}

#[cfg(not(feature = "mutations"))]
pub(crate) const fn mutated(_: Mutation) -> bool {
    false
}

#[cfg(feature = "mutations")]
mod switch {
    use std::cell::Cell;

    use super::Mutation;

    std::thread_local! {
        static BROKEN: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    pub(crate) fn mutated(mutation: Mutation) -> bool {
        BROKEN.get() == Some(mutation)
    }

    /// The rule is broken on this thread while this lives.
    #[derive(Debug)]
    #[must_use = "the rule holds again when this is dropped"]
    pub struct Broken(());

    /// Breaks a rule, for volumes that are driven on the calling thread.
    pub fn break_rule(mutation: Mutation) -> Broken {
        BROKEN.set(Some(mutation));
        Broken(())
    }

    impl Drop for Broken {
        fn drop(&mut self) {
            BROKEN.set(None);
        }
    }
}

#[cfg(feature = "mutations")]
pub(crate) use switch::mutated;
#[cfg(feature = "mutations")]
pub use switch::{Broken, break_rule};
