//! Requests, as they are made.

use memory::{BLOCK_SIZE, Buffer};
use volume::Request;

use crate::content::stamp;
use crate::guest::{Asked, Outstanding};
use crate::simulation::{Outcomes, Simulation, say};

/// Requests that may wait for their answers at a time.
const DEPTH: usize = 24;

impl Simulation {
    /// Makes a request, of the guest or of the one that is believed dead.
    pub(crate) fn request(&mut self, zombie: bool) -> Outcomes {
        let asked = if zombie && self.plan.quiet_zombies { self.ask_quietly() } else { self.ask(zombie) };
        match asked {
            Asked::Write { block, blocks, .. } | Asked::Discard { block, blocks }
                if !zombie && self.is_importing() =>
            {
                self.submit(zombie, Asked::Read { block, blocks })
            }
            asked => self.submit(zombie, asked),
        }
    }

    /// Makes this request of the guest.
    pub(crate) fn request_of(&mut self, asked: Asked) -> Outcomes {
        self.submit(false, asked)
    }

    /// Leaves one block below a node of the map, discards that too, and reads beside it while a checkpoint takes the node away: what is
    /// looked for there is in the old tree or in none.
    pub(crate) fn read_what_goes(&mut self) -> Outcomes {
        if self.is_importing() {
            return Ok(());
        }
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
        let mut left =
            self.rng.u32(..mix.read + mix.write + mix.flush + mix.discard + mix.allocation + mix.commit);
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
            (mix.allocation, Asked::Allocation { block, blocks }),
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

    fn begin(&mut self, asked: Asked) -> u64 {
        match asked {
            Asked::Read { .. } | Asked::Flush | Asked::Allocation { .. } => self.model.tick(),
            Asked::Write { block, blocks, first_version, .. } => {
                self.model.begin_change(block, blocks, |offset| first_version + offset)
            }
            Asked::Discard { block, blocks } => self.model.begin_change(block, blocks, |_| 0),
            Asked::Commit => self.model.begin_commit(),
        }
    }
}

pub(crate) fn request_of(asked: Asked) -> Request {
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
        Asked::Allocation { block, blocks } => Request::Allocation { block, blocks },
        Asked::Commit => Request::Commit,
    }
}
