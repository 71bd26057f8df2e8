//! Volumes with one rule broken, and how soon a simulation notices.

use fastrand::Rng;
use volume::format::protections::{Freshness, Provision};
pub use volume::mutation::Mutation;
use volume::mutation::break_rule;

use crate::plan::Plan;
use crate::running::{PANIC, run_caught};

/// How a mutant fared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hunt {
    /// The rule that was broken.
    pub mutation: Mutation,
    /// The seed that noticed, and what it said.
    pub caught: Option<(u64, String)>,
    /// Seeds that were run. The others are of volumes or hosts for which the rule makes no difference.
    pub runs: u64,
    /// Runs that panicked. A panic is no evidence: a later seed has to do better.
    pub panics: u64,
}

/// Breaks one rule, and runs seeds until one notices.
#[must_use]
pub fn hunt(mutation: Mutation, seeds: impl IntoIterator<Item = u64>, operations: u64) -> Hunt {
    let _broken = break_rule(mutation);
    let mut hunt = Hunt { mutation, caught: None, runs: 0, panics: 0 };
    for seed in seeds {
        if !is_worth_a_run(mutation, &Plan::of(&mut Rng::with_seed(seed))) {
            continue;
        }
        hunt.runs += 1;
        match run_caught(seed, operations).failure {
            Some(what) if what.starts_with(PANIC) => hunt.panics += 1,
            Some(what) => {
                hunt.caught = Some((seed, what));
                break;
            }
            None => {}
        }
    }
    hunt
}

/// Whether the rule makes a difference to such a volume with such a host.
fn is_worth_a_run(mutation: Mutation, plan: &Plan) -> bool {
    let host = &plan.mischief;
    match mutation.name().ends_with("-unlooked") {
        // What a command must look at is an image that is not the volume.
        true => (host.rollback || host.fork) && plan.create.freshness != Freshness::Off,
        false => matters(mutation, plan),
    }
}

fn matters(mutation: Mutation, plan: &Plan) -> bool {
    use Mutation as M;
    let (volume, mischief) = (&plan.create, &plan.mischief);
    let level = volume.freshness;
    let anchored = level != Freshness::Off;
    // A host whose deeds excuse every error hides what the volume does wrong by itself.
    let honest = !(mischief.tamper || mischief.lies || mischief.errors || mischief.anchor || mischief.undead);
    match mutation {
        M::DataNotFlushed => honest && !volume.integrity,
        M::LastCommitUnverified => honest && volume.integrity && level != Freshness::Transaction,
        M::TransactionLeaks => honest && level == Freshness::Transaction,
        M::FailedCommitGoesOn => mischief.errors,
        M::HeaderWithoutData => honest && mischief.keys,
        M::LaterSuperblockCounts => (mischief.rollback || mischief.fork) && anchored,
        M::WindowIgnored => honest && level == Freshness::Interval,
        M::HeadNotCompared => mischief.fork,
        M::AnySessionContinues | M::ReuseBeforeAnchor | M::CheckpointUnanchored => {
            mischief.rollback && level == Freshness::Interval
        }
        // Elsewhere whoever was replaced is told at its next commit.
        M::ClaimNotConfirmed => {
            honest && mischief.zombies && matches!(level, Freshness::Interval | Freshness::Transaction)
        }
        M::ForeignUnitsTaken
        | M::UsedBeforeReserved
        | M::WritersForgotten
        | M::ForeignSegmentsTaken
        | M::PairShared => honest && anchored && (mischief.zombies || mischief.late),
        M::AcceptedNotFlushed => honest && anchored && level != Freshness::Transaction,
        M::PolicyIgnored => mischief.tamper,
        M::HeaderUnverified => mischief.tamper && !anchored,
        M::ParentTagUnchecked | M::BlockTagUnchecked => mischief.tamper && volume.integrity,
        M::StampUnverified => mischief.anchor,
        M::OldBackupTaken => honest && plan.backups && anchored,
        M::ForgottenOffered => honest && plan.moves && (mischief.zombies || mischief.late),
        M::OldAnchorGoesOn | M::NewAnchorFirst | M::LeftAnchorAttached | M::TakenAnchorTaken => {
            honest && plan.moves
        }
        M::OthersFollowed => honest && anchored,
        M::DigestNotCompared => mischief.rollback && mischief.keys && anchored,
        M::EvictedEarly | M::StaleFill => honest && plan.attach.memory <= 1 << 15,
        // A whole path must have been let go.
        M::StalePath => honest && plan.attach.memory == 1 << 12 && plan.hot <= 64 && !plan.streams,
        // With integrity, what is another block does not open.
        M::StaleBlockCached => honest && !volume.integrity && plan.attach.block_cache > 0,
        M::FreedBeforeSuperblock | M::NodesNotFlushed | M::SuperblockInPlace => {
            honest && plan.crashes_when_publishing
        }
        M::BlankedStoreFormatted => honest && plan.named && anchored,
        M::ClaimBeforeSuperblock => plan.cut_creations > 0 && anchored,
        M::BothCopiesFirst | M::CachedCopyTrusted | M::CopiesLeftApart => {
            (mischief.keys || mischief.rekey || plan.growths > 0) && anchored
        }
        // Only many large requests at once fill a journal.
        M::InFlightNotCounted => {
            honest && plan.longest == 160 && volume.logical_blocks.is_none_or(|blocks| blocks >= 256)
        }
        M::OverwritesNotKept => honest && volume.provision == Provision::Thin && !plan.scarce,
        M::RootNotLifted | M::PlacesAreData | M::PolicyBeforeHeader => honest && plan.growths > 0,
        M::GrowthForgotten => mischief.rollback && !anchored && plan.growths > 0,
        M::ClaimedNotSeen => honest && plan.streams && anchored,
        M::StreamOfTwoStates | M::CutStreamEnds => honest && plan.streams,
        M::StreamHolesLeft | M::KeptUnread | M::ImportMissesBehind | M::ImportNotDurable => {
            honest && (plan.streams || plan.copy)
        }
        M::OldKeyGoesOn | M::RekeyEndsEarly | M::RekeyDropsOverwrite => honest && mischief.rekey,
        _ => honest,
    }
}
