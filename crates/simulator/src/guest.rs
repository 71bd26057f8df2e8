//! One attached guest: a volume, its queues, its maintenance job, and what it waits for.

use std::collections::BTreeMap;

use crate::importing::Importing;
use crate::keyring::ChangingKeys;
use testkit::hostile::Session;
use volume::{CheckReport, Completion, Driven, Error, Queue, Request, ResealReport, Volume};

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Read { block: u64, blocks: u64 },
    Write { block: u64, blocks: u64, fua: bool, first_version: u64 },
    Flush,
    Discard { block: u64, blocks: u64 },
    Allocation { block: u64, blocks: u64 },
    Commit,
}

impl Asked {
    /// Blocks that it writes.
    pub(crate) fn written(&self) -> u64 {
        if let Self::Write { blocks, .. } = self { *blocks } else { 0 }
    }
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Read { block, blocks } => write!(f, "read of blocks {block}..{}", block + blocks),
            Self::Write { block, blocks, fua, first_version } => write!(
                f,
                "{}write of blocks {block}..{} as versions {first_version}..{}",
                if fua { "FUA " } else { "" },
                block + blocks,
                first_version + blocks
            ),
            Self::Flush => f.write_str("flush"),
            Self::Discard { block, blocks } => write!(f, "discard of blocks {block}..{}", block + blocks),
            Self::Allocation { block, blocks } => write!(f, "what is in blocks {block}..{}", block + blocks),
            Self::Commit => f.write_str("commit of the transaction"),
        }
    }
}

/// A request that has not been answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outstanding {
    pub(crate) asked: Asked,
    /// The model's moment.
    pub(crate) begin: u64,
    pub(crate) queue: usize,
    /// It was made after another session had taken the volume over.
    pub(crate) late: bool,
    /// The model's moment of the last change that its guest had been told of.
    pub(crate) changed: u64,
}

/// A guest from attach to death.
pub(crate) struct Guest {
    pub(crate) name: u64,
    pub(crate) session: Session,
    pub(crate) volume: Volume,
    pub(crate) queues: Vec<Queue>,
    pub(crate) maintenance: Option<Driven<Result<(), Error>>>,
    /// The rest of a change of key.
    pub(crate) reseal: Option<Driven<Result<ResealReport, Error>>>,
    /// A check of everything.
    pub(crate) scrub: Option<Driven<Result<CheckReport, Error>>>,
    /// A stream on its way into it.
    pub(crate) import: Option<Importing>,
    /// A change of its key slots.
    pub(crate) keys: Option<ChangingKeys>,
    pub(crate) outstanding: BTreeMap<u64, Outstanding>,
    /// Another session has the volume now.
    pub(crate) replaced: bool,
    /// Another session has claimed the volume, and may write where this one did before it has attached.
    pub(crate) claimed_away: bool,
    /// It does not wake up while another one attaches.
    pub(crate) deep: bool,
    /// And then it has much to do at once.
    pub(crate) wakes_busy: bool,
    /// The model's moment of the last change that was answered and not durable, and of the last flush that was answered (its begin).
    pub(crate) changed: u64,
    pub(crate) flushed: u64,
    pub(crate) stopping: bool,
    pub(crate) checkpoints: u64,
    /// Commits, and how many there were when the anchor moved last.
    pub(crate) commits: u64,
    pub(crate) commits_anchored: u64,
    pub(crate) anchored: Option<u64>,
    /// Blocks that it has discarded, and how often it has waited for room.
    pub(crate) discarded: u64,
    pub(crate) waits_for_store: u64,
    pub(crate) evictions: u64,
    pub(crate) block_cache_hits: u64,
    /// Units of its predecessor that it leaves alone, and that it does not any more.
    pub(crate) foreign: u64,
    pub(crate) taken: u64,
}

impl Guest {
    pub(crate) fn submit(&mut self, token: u64, request: Request, outstanding: Outstanding) {
        self.queues[outstanding.queue].submit(token, request);
        self.outstanding.insert(token, outstanding);
    }

    /// Polls one queue: what has completed, and whether there is more to do at once.
    pub(crate) fn poll_queue(&mut self, queue: usize) -> (Vec<Completion>, bool) {
        let mut completions = Vec::new();
        let more = self.queues[queue].poll(&mut completions);
        (completions, more)
    }

    /// Polls the re-sealing; its result, once it has ended.
    pub(crate) fn poll_reseal(&mut self) -> Option<Result<ResealReport, Error>> {
        let ended = self.reseal.as_mut()?.poll();
        if ended.is_some() {
            self.reseal = None;
        }
        ended
    }

    /// Polls the maintenance job; its result, once it has ended.
    pub(crate) fn poll_maintenance(&mut self) -> Option<Result<(), Error>> {
        let ended = self.maintenance.as_mut()?.poll();
        if ended.is_some() {
            self.maintenance = None;
        }
        ended
    }
}
