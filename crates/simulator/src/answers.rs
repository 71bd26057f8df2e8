//! What is answered, against what may be.

use memory::{BLOCK_SIZE, Buffer};
use volume::format::protections::Freshness;
use volume::{Completion, Extent, Kind, Request};

use crate::content::{Content, parse};
use crate::guest::{Asked, Guest, Outstanding};
use crate::simulation::{Failure, Outcomes, Simulation, say};

impl Simulation {
    /// A request was answered: compares with the model, and tells it.
    pub(crate) fn answered(&mut self, zombie: bool, completion: Completion) -> Outcomes {
        let Completion { token, buffer, extents, result } = completion;
        let guest = if zombie { &mut self.zombie } else { &mut self.guest };
        let Some(guest) = guest else { return Ok(()) };
        let Some(outstanding) = guest.outstanding.remove(&token) else {
            return Err(Failure(format!("#{token} was answered, and nobody had asked")));
        };
        let what = format!("#{token} ({}) of guest {}", outstanding.asked, guest.name);
        match &result {
            Ok(()) => say!(self, "{what} succeeds"),
            Err(error) => say!(self, "{what} fails: {error}"),
        }
        if let Err(error) = &result {
            self.coverage.no_space += u64::from(error.kind() == Kind::NoSpace);
            self.coverage.fenced += u64::from(zombie && error.kind() == Kind::Fenced);
            self.may_fail(zombie, outstanding, error.kind(), &what, error)?;
        }
        if outstanding.late || self.is_replaced(zombie) {
            return self.answered_late(outstanding, result.is_ok(), buffer.as_ref(), &what);
        }
        let success = result.is_ok();
        self.note(zombie, outstanding, success);
        match outstanding.asked {
            Asked::Read { block, .. } if success => {
                let Some(buffer) = buffer else {
                    return Err(Failure(format!("{what}: no buffer came back")));
                };
                self.coverage.reads += 1;
                self.compare(block, &buffer, outstanding.begin, &what)
            }
            Asked::Allocation { block, blocks } if success => {
                self.coverage.allocations += 1;
                self.compare_extents(block, blocks, &extents, outstanding.begin)
                    .map_err(|wrong| Failure(format!("{what}: {wrong}")))
            }
            _ => Ok(()),
        }
    }

    fn is_replaced(&self, zombie: bool) -> bool {
        zombie && self.zombie.as_ref().is_some_and(|guest| guest.replaced)
    }

    fn may_fail(
        &self,
        zombie: bool,
        outstanding: Outstanding,
        kind: Kind,
        what: &str,
        error: &volume::Error,
    ) -> Outcomes {
        let guest = if zombie { self.zombie.as_ref() } else { self.guest.as_ref() };
        let excused = match kind {
            Kind::NoSpace => {
                // A transaction keeps the state before it; there is no promise that a large one fits beside it.
                let transaction = self.plan.create.freshness == Freshness::Transaction;
                match outstanding.asked {
                    Asked::Write { block, blocks, .. } => {
                        let begin = outstanding.begin;
                        let overwrites = !zombie && self.model.all_held_something(block, blocks, begin);
                        transaction || (self.is_thin() && !overwrites)
                    }
                    Asked::Discard { .. } => self.is_thin() || transaction,
                    _ => false,
                }
            }
            Kind::Usage => guest.is_some_and(|guest| guest.stopping),
            Kind::Fenced => zombie,
            Kind::Corrupt => zombie && guest.is_some_and(|guest| guest.claimed_away),
            _ => false,
        };
        if excused { Ok(()) } else { self.expect(error, what) }
    }

    /// Tells the model.
    fn note(&mut self, zombie: bool, outstanding: Outstanding, success: bool) {
        let freshness = self.plan.create.freshness;
        let guest = if zombie { &mut self.zombie } else { &mut self.guest };
        let Some(guest) = guest else { return };
        let generation = guest.volume.status().generation;
        let Outstanding { asked, begin, .. } = outstanding;
        match asked {
            Asked::Read { .. } | Asked::Allocation { .. } => {}
            Asked::Write { block, blocks, fua, .. } => {
                let durable = (fua && freshness != Freshness::Transaction) || freshness == Freshness::Write;
                if success && !durable {
                    guest.changed = self.model.tick();
                }
                self.model.end_change(block, blocks, begin, success, durable.then_some(generation));
            }
            Asked::Discard { block, blocks } => {
                let durable = freshness == Freshness::Write;
                if success && !durable {
                    guest.changed = self.model.tick();
                }
                self.model.end_change(block, blocks, begin, success, durable.then_some(generation));
            }
            Asked::Flush => {
                if success && freshness != Freshness::Transaction {
                    guest.flushed = guest.flushed.max(begin);
                    self.model.end_flush(begin, generation);
                }
            }
            Asked::Commit => {
                if success {
                    guest.flushed = guest.flushed.max(begin);
                    self.model.end_flush(begin, generation);
                    self.coverage.transactions += u64::from(freshness == Freshness::Transaction);
                }
                self.model.end_commit(begin, success);
            }
        }
    }

    /// Compares what was read with what may be read.
    fn compare(&mut self, first: u64, buffer: &Buffer, begin: u64, what: &str) -> Outcomes {
        if !self.contents_count() {
            return Ok(());
        }
        let bytes = buffer.private().unwrap_or_default();
        for (block, page) in (first..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            let version = version_of(block, page).map_err(|wrong| Failure(format!("{what}: {wrong}")))?;
            self.model
                .check_read(block, version, begin)
                .map_err(|wrong| Failure(format!("{what}: {wrong}")))?;
        }
        Ok(())
    }

    /// Compares where something is said to be with where something may be.
    fn compare_extents(&self, first: u64, blocks: u64, extents: &[Extent], begin: u64) -> Result<(), String> {
        let told = extents.iter().map(|extent| extent.blocks).sum::<u64>();
        if told != blocks {
            return Err(format!("{told} blocks are told of"));
        }
        if self.tainted {
            // What does not open is there, and nobody knows what it is.
            return Ok(());
        }
        let mut each =
            extents.iter().flat_map(|extent| (0..extent.blocks).map(|_| extent.allocated)).zip(first..);
        each.try_for_each(|(allocated, block)| self.model.check_allocation(block, allocated, begin))
    }

    /// Reads one stretch of the guest's volume, with nothing else going on. Versions, or the kind of the error.
    pub(crate) fn read_now(&mut self, block: u64, blocks: u64) -> Result<Result<Vec<u64>, Kind>, Failure> {
        let token = self.next_token;
        self.next_token += 1;
        let Some(Guest { queues, .. }) = &mut self.guest else {
            return Err(Failure("nobody is attached".into()));
        };
        let buffer = spoilt(self.scratch.take(), usize::try_from(blocks).unwrap_or(1));
        queues[0].submit(token, Request::Read { block, buffer });
        let mut completions = Vec::new();
        for _ in 0..1000 {
            if let Some(Guest { queues, .. }) = &mut self.guest {
                queues[0].poll(&mut completions);
            }
            if let Some(completion) = completions.pop() {
                return match completion.result {
                    Err(error) => {
                        self.expect(
                            &error,
                            &format!("reading blocks {block}..{} after recovery", block + blocks),
                        )?;
                        Ok(Err(error.kind()))
                    }
                    Ok(()) => {
                        self.scratch = completion.buffer;
                        let bytes = self.scratch.as_ref().and_then(Buffer::private).unwrap_or_default();
                        let pages = (block..).zip(bytes.chunks_exact(BLOCK_SIZE));
                        let count = self.contents_count();
                        let versions: Result<Vec<u64>, String> = pages
                            .map(|(block, page)| if count { version_of(block, page) } else { Ok(0) })
                            .collect();
                        versions.map(Ok).map_err(|wrong| Failure(format!("after recovery: {wrong}")))
                    }
                };
            }
            self.store.complete_all();
        }
        Err(Failure(format!("reading blocks {block}..{} after recovery does not end", block + blocks)))
    }
}

/// A buffer of this size in which each page is garbage until it is read: the one before, if it fits.
fn spoilt(before: Option<Buffer>, blocks: usize) -> Buffer {
    let fits = |buffer: &Buffer| buffer.blocks() == blocks && !buffer.is_shared();
    let mut buffer = before.filter(fits).unwrap_or_else(|| Buffer::private_zeroed(blocks));
    for page in buffer.private_mut().unwrap_or_default().chunks_exact_mut(BLOCK_SIZE) {
        page[..8].fill(0xee);
    }
    buffer
}

pub(crate) fn version_of(block: u64, page: &[u8]) -> Result<u64, String> {
    match parse(page) {
        Content::Zero => Ok(0),
        Content::Written { block: of, version } if of == block => Ok(version),
        Content::Written { block: of, version } => {
            Err(format!("block {block} reads as block {of}, version {version}"))
        }
        Content::Garbage => Err(format!("block {block} reads as garbage")),
    }
}
