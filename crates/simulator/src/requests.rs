//! Requests and their answers.

use store::{BLOCK_SIZE, Buffer};
use volume::format::protections::Freshness;
use volume::{Completion, Kind, Request};

use crate::content::{Content, parse, stamp};
use crate::guest::{Asked, Guest, Outstanding};
use crate::simulation::{Failure, Outcomes, Simulation, say};

/// Requests that may wait for their answers at a time.
const DEPTH: usize = 24;

impl Simulation {
    /// Makes a request, of the guest or of the one that is believed dead.
    pub(crate) fn request(&mut self, zombie: bool) -> Outcomes {
        let asked = if zombie && self.plan.quiet_zombies { self.ask_quietly() } else { self.ask(zombie) };
        self.submit(zombie, asked)
    }

    /// Makes this request of the guest.
    pub(crate) fn request_of(&mut self, asked: Asked) -> Outcomes {
        self.submit(false, asked)
    }

    /// Leaves one block below a node of the map, discards that too, and reads beside it while a checkpoint takes the node away: what is
    /// looked for there is in the old tree or in none.
    pub(crate) fn read_what_goes(&mut self) -> Outcomes {
        let size = self.size(false);
        let span = 1 << (self.geometry.fan_out_bits * self.rng.u8(1..4));
        let begin = self.rng.u64(..self.plan.hot.min(size)) / span * span;
        let end = size.min(begin + span);
        let first_version = self.next_version;
        self.next_version += 1;
        self.submit(false, Asked::Discard { block: begin, blocks: end - begin })?;
        self.settle("before a node is left to one block")?;
        self.submit(false, Asked::Write { block: begin, blocks: 1, fua: false, first_version })?;
        self.settle("before a checkpoint of that")?;
        self.checkpoint_and_read(begin, end, false)?;
        self.submit(false, Asked::Discard { block: begin, blocks: 1 })?;
        self.settle("before the node goes")?;
        self.checkpoint_and_read(begin, end, true)?;
        // A leaf that stayed would still have it.
        self.submit(false, Asked::Read { block: begin, blocks: 1 })
    }

    /// A checkpoint; and reads in a stretch meanwhile, but not of its first block.
    fn checkpoint_and_read(&mut self, begin: u64, end: u64, reads: bool) -> Outcomes {
        let Some(guest) = &self.guest else { return Ok(()) };
        let before = guest.checkpoints;
        guest.volume.checkpoint_soon();
        for _ in 0..400 {
            if self.guest.as_ref().is_none_or(|guest| guest.checkpoints > before) {
                return Ok(());
            }
            let (block, queue) = (self.rng.u64(begin..end), self.rng.usize(..self.plan.queues));
            match self.rng.u32(..4) {
                0 if reads && block > begin => self.submit(false, Asked::Read { block, blocks: 1 })?,
                0..=1 => drop(self.poll_queue(queue)?),
                2 => self.poll_maintenance()?,
                _ => {
                    let _ = self.store.complete_some();
                    self.move_anchor();
                }
            }
        }
        Ok(())
    }

    fn submit(&mut self, zombie: bool, asked: Asked) -> Outcomes {
        let queue = self.rng.usize(..self.plan.queues);
        let guest = if zombie { &self.zombie } else { &self.guest };
        let Some(guest) = guest else { return Ok(()) };
        if guest.outstanding.len() >= DEPTH || guest.stopping {
            return if zombie { Ok(()) } else { self.poll_queue(queue).map(drop) };
        }
        let replaced = guest.replaced;
        let begin = if replaced { self.begin_late(asked) } else { self.begin(asked) };
        let token = self.next_token;
        self.next_token += 1;
        let guest = if zombie { &mut self.zombie } else { &mut self.guest };
        let Some(guest) = guest else { return Ok(()) };
        say!(self, "guest {} queue {queue} submits #{token}: {asked}", guest.name);
        let outstanding = Outstanding { asked, begin, queue, late: replaced, changed: guest.changed };
        guest.submit(token, request_of(asked), outstanding);
        Ok(())
    }

    fn ask(&mut self, zombie: bool) -> Asked {
        let mix = self.plan.mix;
        let mut left = self.rng.u32(..mix.read + mix.write + mix.flush + mix.discard + mix.commit);
        let (block, blocks) = self.stretch(zombie);
        for (weight, asked) in [
            (mix.read, Asked::Read { block, blocks }),
            (
                mix.write,
                Asked::Write {
                    block,
                    blocks,
                    fua: self.rng.u32(..10) == 0,
                    first_version: self.next_version,
                },
            ),
            (mix.flush, Asked::Flush),
            (mix.discard, self.discard(zombie, block, blocks)),
        ] {
            if left < weight {
                if matches!(asked, Asked::Write { .. }) {
                    self.next_version += blocks;
                }
                return asked;
            }
            left -= weight;
        }
        Asked::Commit
    }

    /// Something that asks nobody whether the volume still is the guest's.
    fn ask_quietly(&mut self) -> Asked {
        let (block, blocks) = self.stretch(true);
        let first_version = self.next_version;
        self.next_version += blocks;
        Asked::Write { block, blocks, fua: false, first_version }
    }

    /// Of the guest's volume; to one that is believed dead it has the size that it had.
    fn size(&self, zombie: bool) -> u64 {
        let guest = if zombie { &self.zombie } else { &self.guest };
        guest.as_ref().map_or(self.geometry.logical_blocks, |guest| guest.volume.blocks())
    }

    fn stretch(&mut self, zombie: bool) -> (u64, u64) {
        let size = self.size(zombie);
        let limit = if self.rng.u32(..8) == 0 { size } else { self.plan.hot.min(size) };
        let block = self.rng.u64(..limit);
        let guest = if zombie { &self.zombie } else { &self.guest };
        let most = guest.as_ref().map_or(1, |guest| guest.volume.largest_change());
        let blocks = self.rng.u64(1..=self.plan.longest).min(most).min(size - block);
        (block, blocks)
    }

    /// Small ones, ones that are kept as ranges, and all of the volume.
    fn discard(&mut self, zombie: bool, block: u64, blocks: u64) -> Asked {
        let size = self.size(zombie);
        match self.rng.u32(..8) {
            0 => Asked::Discard { block: 0, blocks: size },
            1..=3 => Asked::Discard { block, blocks: self.rng.u64(1..=size - block) },
            _ => Asked::Discard { block, blocks },
        }
    }

    /// For a guest that has been replaced: it has no say, but what it writes may be found where nothing is promised.
    fn begin_late(&mut self, asked: Asked) -> u64 {
        if let Asked::Write { block, blocks, first_version, .. } = asked {
            self.model.note_late(block, blocks, first_version);
        }
        self.model.tick()
    }

    fn begin(&mut self, asked: Asked) -> u64 {
        match asked {
            Asked::Read { .. } | Asked::Flush => self.model.tick(),
            Asked::Write { block, blocks, first_version, .. } => {
                self.model.begin_change(block, blocks, |offset| first_version + offset)
            }
            Asked::Discard { block, blocks } => self.model.begin_change(block, blocks, |_| 0),
            Asked::Commit => self.model.begin_commit(),
        }
    }

    /// A request was answered: compares with the model, and tells it.
    pub(crate) fn answered(&mut self, zombie: bool, completion: Completion) -> Outcomes {
        let Completion { token, buffer, result, .. } = completion;
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
                let may = self.is_thin() || self.plan.create.freshness == Freshness::Transaction;
                may && matches!(outstanding.asked, Asked::Write { .. } | Asked::Discard { .. })
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
            Asked::Read { .. } => {}
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

    /// An answer to a guest that has been replaced. It may read what was there before, and must not be told that something is safe.
    fn answered_late(
        &mut self,
        outstanding: Outstanding,
        success: bool,
        buffer: Option<&Buffer>,
        what: &str,
    ) -> Outcomes {
        let freshness = self.plan.create.freshness;
        let count = self.contents_count();
        let Some(guest) = &mut self.zombie else { return Ok(()) };
        let anchors = matches!(freshness, Freshness::Strict | Freshness::Write);
        if !success {
            return Ok(());
        }
        let broken = match outstanding.asked {
            Asked::Read { .. } if !count => false,
            Asked::Read { block, .. } => {
                let bytes = buffer.and_then(Buffer::private).unwrap_or_default();
                for (block, page) in (block..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
                    version_of(block, page).map_err(|wrong| Failure(format!("{what}: {wrong}")))?;
                }
                false
            }
            Asked::Write { fua, .. } => {
                // What was committed before it was answered leaves nothing for a later flush.
                if !(fua || freshness == Freshness::Write) {
                    guest.changed = self.model.tick();
                }
                outstanding.late && ((fua && anchors) || freshness == Freshness::Write)
            }
            Asked::Discard { .. } => {
                if freshness != Freshness::Write {
                    guest.changed = self.model.tick();
                }
                outstanding.late && freshness == Freshness::Write
            }
            Asked::Flush | Asked::Commit => {
                // One that was made in time may have been anchored in time, and a later one with nothing to add is right to succeed.
                if !outstanding.late {
                    guest.flushed = guest.flushed.max(outstanding.begin);
                }
                let timely = |other: &Outstanding| {
                    !other.late
                        && matches!(
                            other.asked,
                            Asked::Flush | Asked::Commit | Asked::Write { fua: true, .. }
                        )
                };
                let explained =
                    guest.outstanding.values().any(timely) || outstanding.changed <= guest.flushed;
                let anchors = match outstanding.asked {
                    Asked::Flush => anchors,
                    _ => freshness != Freshness::Off,
                };
                outstanding.late && anchors && !explained
            }
        };
        if broken {
            return Err(Failure(format!("{what} succeeded, although another session has the volume")));
        }
        Ok(())
    }

    /// The guest that is believed dead goes on.
    pub(crate) fn zombie_step(&mut self) -> Outcomes {
        let Some(guest) = &mut self.zombie else { return Ok(()) };
        match self.rng.u32(..11) {
            10 => {
                // Whatever it says, a guest that was replaced has nothing to say.
                drop(guest.poll_reseal());
                Ok(())
            }
            0..=2 => self.request(true),
            3..=4 => {
                let queue = self.rng.usize(..self.plan.queues);
                let (completions, _) = guest.poll_queue(queue);
                completions.into_iter().try_for_each(|completion| self.answered(true, completion))
            }
            5..=6 => {
                let _ = guest.session.complete_some();
                Ok(())
            }
            7 => {
                guest.volume.checkpoint_soon();
                Ok(())
            }
            _ => {
                let ended = guest.poll_maintenance();
                match ended {
                    Some(Err(error)) if matches!(error.kind(), Kind::Fenced | Kind::Corrupt) => {
                        say!(self, "the sleeper's maintenance job ends: {error}");
                        Ok(())
                    }
                    Some(Err(error)) => self.expect(&error, "the sleeper's maintenance job"),
                    _ => Ok(()),
                }
            }
        }
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

fn version_of(block: u64, page: &[u8]) -> Result<u64, String> {
    match parse(page) {
        Content::Zero => Ok(0),
        Content::Written { block: of, version } if of == block => Ok(version),
        Content::Written { block: of, version } => {
            Err(format!("block {block} reads as block {of}, version {version}"))
        }
        Content::Garbage => Err(format!("block {block} reads as garbage")),
    }
}

fn request_of(asked: Asked) -> Request {
    match asked {
        Asked::Read { block, blocks } => {
            Request::Read { block, buffer: Buffer::private_zeroed(usize::try_from(blocks).unwrap_or(1)) }
        }
        Asked::Write { block, blocks, fua, first_version } => {
            let mut data = vec![0; usize::try_from(blocks).unwrap_or(1) * BLOCK_SIZE];
            for (offset, page) in (0u64..).zip(data.chunks_exact_mut(BLOCK_SIZE)) {
                stamp(page, block + offset, first_version + offset);
            }
            Request::Write { block, data: data.into(), fua }
        }
        Asked::Flush => Request::Flush,
        Asked::Discard { block, blocks } => Request::Discard { block, blocks },
        Asked::Commit => Request::Commit,
    }
}
