//! The disk itself: medium, write cache, and operations in flight.

mod crash;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::fault::{Chance, Event, Faults, Trace};
use super::image::{Block, Image};
use super::{Guests, NAME, RESIDENT};
use crate::{BLOCK_SIZE, Buffer, Completion, Error, Operation};

/// An operation in flight.
#[derive(Debug)]
struct Flight {
    session: u64,
    queue: u64,
    token: u64,
    operation: Operation,
    /// How many stores had happened when it was submitted: as far as a flush must reach.
    after: u64,
}

/// One block that is to be stored.
#[derive(Debug)]
struct Pending {
    /// Its place in the order of all stores.
    number: u64,
    block: u64,
    /// Zeroes, if there is none.
    content: Option<Arc<Block>>,
}

impl Pending {
    fn bytes(&self) -> &Block {
        self.content.as_deref().unwrap_or(&[0; BLOCK_SIZE])
    }
}

pub(super) struct Disk {
    pub(super) faults: Faults,
    pub(super) bad: Vec<(Range<u64>, i32)>,
    chance: Chance,
    trace: Option<Trace>,
    guests: Guests,
    /// The open queues, and the completions that wait there to be polled.
    queues: BTreeMap<u64, (u64, Vec<Completion>)>,
    last_queue: u64,
    flights: Vec<Flight>,
    /// What a read sees.
    visible: Image,
    /// What survives for certain.
    durable: Image,
    /// What lies between the two, in the order in which it became visible.
    cache: Vec<Pending>,
    stored: u64,
    /// What each block was before it was last written, for reads that lie.
    previous: BTreeMap<u64, Arc<Block>>,
}

impl Disk {
    pub(super) fn new(image: Image, seed: u64, faults: Faults) -> Self {
        Self {
            faults,
            bad: Vec::new(),
            chance: Chance::new(seed),
            trace: None,
            guests: Guests::default(),
            queues: BTreeMap::new(),
            last_queue: 0,
            flights: Vec::new(),
            durable: image.clone(),
            visible: image,
            cache: Vec::new(),
            stored: 0,
            previous: BTreeMap::new(),
        }
    }

    pub(super) fn visible(&self) -> &Image {
        &self.visible
    }

    pub(super) fn set_trace(&mut self, trace: Option<Trace>) {
        self.trace = trace;
    }

    fn tell(&mut self, event: &Event) {
        if let Some(trace) = &mut self.trace {
            trace(event);
        }
    }

    pub(super) fn attach(&mut self) -> u64 {
        self.guests.last += 1;
        self.guests.living.insert(self.guests.last);
        self.guests.last
    }

    pub(super) fn hold(&mut self, session: u64, hold: bool) {
        if hold {
            self.guests.held.insert(session);
        } else {
            self.guests.held.remove(&session);
        }
    }

    /// A queue's number; none for the dead.
    pub(super) fn open_queue(&mut self, session: u64) -> Option<u64> {
        if session != RESIDENT && !self.guests.living.contains(&session) {
            return None;
        }
        self.last_queue += 1;
        self.queues.insert(self.last_queue, (session, Vec::new()));
        Some(self.last_queue)
    }

    pub(super) fn close_queue(&mut self, queue: u64) {
        self.queues.remove(&queue);
    }

    /// Takes what a queue has for the disk, and gives what the disk has for the queue. A dead queue's
    /// operations vanish.
    pub(super) fn exchange(
        &mut self,
        queue: u64,
        held: &mut Vec<(u64, Operation)>,
        completions: &mut Vec<Completion>,
    ) {
        let Some((session, ended)) = self.queues.get_mut(&queue) else {
            held.clear();
            return;
        };
        let session = *session;
        completions.append(ended);
        for (token, operation) in held.drain(..) {
            let (name, block, blocks) = describe(&operation);
            self.tell(&Event::Submitted { session, token, operation: name, block, blocks });
            self.flights.push(Flight { session, queue, token, operation, after: self.stored });
        }
    }

    pub(super) fn in_flight(&self, session: Option<u64>) -> usize {
        self.flights.iter().filter(|flight| session.is_none_or(|session| session == flight.session)).count()
    }

    /// Ends operations of one guest, or of all that are not held.
    pub(super) fn complete(&mut self, session: Option<u64>, all: bool) -> usize {
        let held = &self.guests.held;
        let chosen = |flight: &Flight| match session {
            Some(session) => flight.session == session,
            None => !held.contains(&flight.session),
        };
        let (mut chosen, mut rest): (Vec<_>, Vec<_>) = self.flights.drain(..).partition(chosen);
        self.chance.shuffle(&mut chosen);
        if !all && !chosen.is_empty() {
            let count = 1 + self.chance.below(chosen.len());
            rest.extend(chosen.drain(count..));
        }
        self.flights = rest;
        let count = chosen.len();
        for flight in chosen {
            self.finish(flight);
        }
        count
    }

    fn finish(&mut self, flight: Flight) {
        let Flight { session, queue, token, operation, after } = flight;
        let (buffer, result) = match operation {
            Operation::Read { block, mut buffer } => {
                let result = self.read(block, &mut buffer);
                (Some(buffer), result)
            }
            Operation::Write { block, buffer } => {
                let result = self.write(block, &buffer);
                (Some(buffer), result)
            }
            Operation::Flush => (None, self.flush(after)),
            Operation::Discard { block, blocks } => (None, self.discard(block, blocks)),
        };
        self.tell(&Event::Completed { session, token, success: result.is_ok() });
        if let Some((_, completions)) = self.queues.get_mut(&queue) {
            completions.push(Completion { token, buffer, result });
        }
    }

    fn strikes(&mut self, name: &'static str, probability: f64, block: u64) -> bool {
        let strikes = self.chance.strikes(probability);
        if strikes {
            self.tell(&Event::Fault { name, block });
        }
        strikes
    }

    /// Errors that do not depend on chance.
    fn check(&mut self, operation: &'static str, block: u64, blocks: u64) -> Result<(), Error> {
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

    fn read(&mut self, block: u64, buffer: &mut Buffer) -> Result<(), Error> {
        self.check("read", block, length_of(buffer))?;
        if self.strikes("read_error", self.faults.read_error, block) {
            return Err(Error::from_errno(libc::EIO, "read", NAME).at(block));
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
        Ok(())
    }

    fn write(&mut self, block: u64, buffer: &Buffer) -> Result<(), Error> {
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

    fn flush(&mut self, after: u64) -> Result<(), Error> {
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

    fn discard(&mut self, block: u64, blocks: u64) -> Result<(), Error> {
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
    fn remains(&mut self, block: u64) -> Option<Arc<Block>> {
        match self.chance.below(3) {
            0 => self.visible.get(block),
            1 => None,
            _ => Some(Arc::new(self.chance.garbage())),
        }
    }

    /// Stores a block of a write that succeeds, if all goes well.
    fn store_or_not(&mut self, pending: Pending) {
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

    fn store_in_part(&mut self, pending: Pending) {
        let torn = self.chance.tear(self.visible.block(pending.block), pending.bytes());
        self.store(pending.block, Some(Arc::new(torn)));
    }

    /// Makes a block visible, and in the end durable.
    fn store(&mut self, block: u64, content: Option<Arc<Block>>) {
        self.stored += 1;
        if let Some(before) = self.visible.put(block, content.clone()) {
            self.previous.insert(block, before);
        }
        self.cache.push(Pending { number: self.stored, block, content });
    }

    pub(super) fn restore(&mut self, image: &Image) {
        self.visible = image.clone();
        self.durable = image.clone();
        self.cache.clear();
        self.tell(&Event::Tampered);
    }

    pub(super) fn tamper(&mut self, mut change: impl FnMut(&mut Image)) {
        change(&mut self.visible);
        change(&mut self.durable);
        self.tell(&Event::Tampered);
    }
}

fn length_of(buffer: &Buffer) -> u64 {
    u64::try_from(buffer.blocks()).expect("a length fits 64 bits")
}

/// Name, first block and length of an operation.
fn describe(operation: &Operation) -> (&'static str, u64, u64) {
    match operation {
        Operation::Read { block, buffer } => ("read", *block, length_of(buffer)),
        Operation::Write { block, buffer } => ("write", *block, length_of(buffer)),
        Operation::Flush => ("flush", 0, 0),
        Operation::Discard { block, blocks } => ("discard", *block, *blocks),
    }
}

/// The blocks of a write, copied out of its buffer.
fn blocks_of(block: u64, buffer: &Buffer) -> Vec<Pending> {
    let copy = |(block, offset)| {
        let mut content = [0; BLOCK_SIZE];
        buffer.copy_to(offset, &mut content);
        Pending { number: 0, block, content: Some(Arc::new(content)) }
    };
    (block..).zip((0..buffer.len()).step_by(BLOCK_SIZE)).map(copy).collect()
}
