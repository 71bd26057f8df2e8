//! What operations do to the disk when they end.

use std::sync::Arc;

use super::super::NAME;
use super::super::fault::Event;
use super::super::image::Block;
use super::{Disk, Pending, length_of};
use memory::{BLOCK_SIZE, Buffer};
use store::Error;

/// What a transfer is cut in.
const SECTOR: usize = 512;

impl Disk {
    pub(super) fn strikes(&mut self, name: &'static str, probability: f64, block: u64) -> bool {
        let strikes = self.chance.strikes(probability);
        if strikes {
            self.tell(&Event::Fault { name, block });
        }
        strikes
    }

    /// Errors that do not depend on chance.
    pub(super) fn check(&mut self, operation: &'static str, block: u64, blocks: u64) -> Result<(), Error> {
        let size = self.visible.blocks();
        let end = block.checked_add(blocks).filter(|&end| blocks > 0 && end <= size);
        let Some(end) = end else {
            return Err(Error::out_of_range(operation, NAME.into(), block, blocks, size));
        };
        let bad = self.bad.iter().find(|(range, _)| range.start < end && block < range.end);
        if let Some(&(_, errno)) = bad {
            self.tell(&Event::Fault { name: "bad", block });
            return Err(Error::from_errno(errno, operation, NAME).at(block));
        }
        Ok(())
    }

    pub(super) fn read(&mut self, block: u64, buffer: &mut Buffer) -> Result<(), Error> {
        self.check("read", block, length_of(buffer))?;
        if self.strikes("read_error", self.faults.read_error, block) {
            return Err(Error::from_errno(libc::EIO, "read", NAME).at(block));
        }
        let mut rest = Vec::new();
        if self.strikes("short_read", self.faults.short_read, block) {
            rest = vec![0; buffer.len() - self.chance.below(buffer.len() / SECTOR) * SECTOR];
            buffer.copy_to(buffer.len() - rest.len(), &mut rest);
        }
        for (at, offset) in (block..).zip((0..buffer.len()).step_by(BLOCK_SIZE)) {
            if self.strikes("unstable_read", self.faults.unstable_read, at) {
                let previous = self.previous.get(&at).filter(|_| self.chance.coin()).cloned();
                let lie = previous.map_or_else(|| self.chance.flip(self.visible.block(at)), |block| *block);
                buffer.copy_from(offset, &lie);
            } else {
                buffer.copy_from(offset, self.visible.block(at));
            }
        }
        buffer.copy_from(buffer.len() - rest.len(), &rest);
        Ok(())
    }

    /// Changes what the host can change of a write that it has done.
    pub(super) fn scribble(&mut self, block: u64, buffer: &mut Buffer) {
        if buffer.is_shared() && self.strikes("scribble", self.faults.scribble, block) {
            let mut content = [0; BLOCK_SIZE];
            for offset in (0..buffer.len()).step_by(BLOCK_SIZE) {
                buffer.copy_to(offset, &mut content);
                buffer.copy_from(offset, &self.chance.flip(&content));
            }
        }
    }

    pub(super) fn write(&mut self, block: u64, buffer: &Buffer) -> Result<(), Error> {
        self.check("write", block, length_of(buffer))?;
        if self.strikes("no_space", self.faults.no_space, block) {
            return Err(Error::from_errno(libc::ENOSPC, "write", NAME).at(block));
        }
        let failed = self.strikes("write_error", self.faults.write_error, block);
        for pending in blocks_of(block, buffer) {
            if !failed {
                self.store_or_not(pending);
            } else if self.chance.coin() {
                self.store_in_part(pending);
            }
        }
        if failed { Err(Error::from_errno(libc::EIO, "write", NAME).at(block)) } else { Ok(()) }
    }

    pub(super) fn flush(&mut self, after: u64) -> Result<(), Error> {
        if self.strikes("flush_error", self.faults.flush_error, 0) {
            return Err(Error::from_errno(libc::EIO, "flush", NAME));
        }
        if self.strikes("lying_flush", self.faults.lying_flush, 0) {
            return Ok(());
        }
        // As little as a flush must do: what ended after it was submitted stays in doubt.
        let covered = self.cache.partition_point(|pending| pending.number <= after);
        for Pending { block, content, .. } in self.cache.drain(..covered) {
            self.durable.put(block, content);
        }
        Ok(())
    }

    pub(super) fn discard(&mut self, block: u64, blocks: u64) -> Result<(), Error> {
        self.check("discard", block, blocks)?;
        let failed = self.strikes("write_error", self.faults.write_error, block);
        for block in self.visible.written_in(block..block + blocks) {
            if !failed || self.chance.coin() {
                let content = self.remains(block);
                self.store(block, content);
            }
        }
        if failed { Err(Error::from_errno(libc::EIO, "discard", NAME).at(block)) } else { Ok(()) }
    }

    /// What is in a block after a discard: what was there, zeroes, or anything.
    pub(super) fn remains(&mut self, block: u64) -> Option<Arc<Block>> {
        match self.chance.below(3) {
            0 => self.visible.get(block),
            1 => None,
            _ => Some(Arc::new(self.chance.garbage())),
        }
    }

    /// Stores a block of a write that succeeds, if all goes well.
    pub(super) fn store_or_not(&mut self, pending: Pending) {
        let block = pending.block;
        if self.strikes("lost_write", self.faults.lost_write, block) {
        } else if self.strikes("torn_write", self.faults.torn_write, block) {
            self.store_in_part(pending);
        } else if self.strikes("misdirected_write", self.faults.misdirected_write, block) {
            let elsewhere = self.chance.block_below(self.visible.blocks());
            self.store(elsewhere, pending.content);
        } else {
            self.store(block, pending.content);
        }
    }

    pub(super) fn store_in_part(&mut self, pending: Pending) {
        let torn = self.chance.tear(self.visible.block(pending.block), pending.bytes());
        self.store(pending.block, Some(Arc::new(torn)));
    }

    /// Makes a block visible, and in the end durable.
    pub(super) fn store(&mut self, block: u64, content: Option<Arc<Block>>) {
        self.stored += 1;
        if let Some(before) = self.visible.put(block, content.clone()) {
            self.previous.insert(block, before);
        }
        self.cache.push(Pending { number: self.stored, block, content });
    }
}

/// The blocks of a write, copied out of its buffer.
pub(super) fn blocks_of(block: u64, buffer: &Buffer) -> Vec<Pending> {
    let copy = |(block, offset)| {
        let mut content = Arc::new([0; BLOCK_SIZE]);
        if let Some(content) = Arc::get_mut(&mut content) {
            buffer.copy_to(offset, content);
        }
        Pending { number: 0, block, content: Some(content) }
    };
    (block..).zip((0..buffer.len()).step_by(BLOCK_SIZE)).map(copy).collect()
}
