//! The rules of the engine by name, so that a test build can break one of them and see whether anybody notices.
//!
//! A build with the feature `mutations` can be told, on one thread, to break one rule (`break_rule`). In every other build `mutated` is
//! `false` at compile time, and nothing of this is left. A build without debug assertions refuses the feature.

#[cfg(all(feature = "mutations", not(debug_assertions)))]
compile_error!(
    "the feature `mutations` breaks a region on demand: it is for test builds, never for a release"
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

            /// What the broken engine does, in a few words with hyphens.
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
    CopyNotFenced, "copy-not-fenced", "the buffer and the log are durable before copy-finish is stored";
    CopyMarkNotFenced, "copy-mark-not-fenced", "copy-finish is durable before the page is overwritten";
    CopyMarkNotWrittenBack, "copy-mark-not-written-back", "a progress field is written back before its fence";
    TransformNotWrittenBack, "transform-not-written-back", "the page is durable before its progress field is cleared";
    UpdateBeforeTransform, "update-before-transform", "entry, root and bitmap change after copy-finish is durable";
    UpdateNotFenced, "update-not-fenced", "entry, root and bitmap are durable before the progress field is cleared";
    BufferReusedEarly, "buffer-reused-early", "a buffer is used again when its worker's progress field is durably clear";
    RootInPlace, "root-in-place", "a root does not overwrite the one in force";
    RecoveryClearsFirst, "recovery-clears-first", "recovery clears the progress fields when all else is durable";
    NonceTwice, "nonce-twice", "a nonce is used once under each key";
    EpochTwice, "epoch-twice", "each opening of a region begins an epoch with a fresh salt";
    SaltKept, "salt-kept", "an epoch whose nonces are used up is followed by one with a fresh salt";
    TagUnchecked, "tag-unchecked", "a page is the one whose tag the table holds";
    RootUnchecked, "root-unchecked", "the table and the bitmap are those that the root vouches for";
    LogUnchecked, "log-unchecked", "a log that encrypts counts only with this session's MAC";
    UnverifiedForgotten, "unverified-forgotten", "a page that was open at a crash is marked";
    StopLeavesOpen, "stop-leaves-open", "a clean stop leaves no page open";
    CorruptCalledOpen, "corrupt-called-open", "an encrypted page that neither its buffer nor its place opens is corrupt";
    OldStateBelieved, "old-state-believed", "recovery gives a page no state for which neither root nor log vouches";
    RootBeforeKept, "root-before-kept", "behind a clean stop no root vouches for another state than the last one";
    RootOfAnySession, "root-of-any-session", "a root belongs to the session whose logs count";
    PlaintextInBuffer, "plaintext-in-buffer", "a page buffer holds ciphertext only";
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

    /// Breaks a rule, for engines that are driven on the calling thread.
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
