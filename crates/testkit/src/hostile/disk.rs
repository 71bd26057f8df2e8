//! The disk itself: medium, write cache, and operations in flight.

mod crash;
mod effect;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::fault::{Chance, Event, Faults, Trace};
use super::image::{Block, Image};
use super::{Guests, RESIDENT};
use memory::{BLOCK_SIZE, Buffer};
use store::{Completion, Operation, Usage};

/// An operation in flight.
#[derive(Debug)]
struct Flight {
    session: u64,
    queue: u64,
    token: u64,
    operation: Operation,
    /// How many stores had happened when it was submitted: as far as a flush must reach.
    after: u64,
    slow: bool,
}

/// How often one that is slow takes part when some operations end.
const SLOW: f64 = 1.0 / 16.0;

/// Blocks that it says it has left when nobody else takes any: more than any of these volumes has.
const ENOUGH: u64 = 1 << 24;

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
    pub(super) shared_buffers: bool,
    pub(super) bad: Vec<(Range<u64>, i32)>,
    /// Blocks for which there is room.
    pub(super) room: Option<u64>,
    /// Whether it says what it has given, and what is left.
    pub(super) tells: bool,
    /// Blocks that were given room, whatever they hold.
    given: BTreeSet<u64>,
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
            shared_buffers: false,
            bad: Vec::new(),
            room: None,
            tells: false,
            given: image.written().collect(),
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

    pub(super) fn taken(&self) -> u64 {
        self.given.len() as u64
    }

    /// The blocks of these that have room, if it says so.
    pub(super) fn given(&self, blocks: Range<u64>) -> Option<Vec<Range<u64>>> {
        self.tells.then(|| crate::runs(self.given.range(blocks).copied()))
    }

    /// What it has given, and what is left, if it says so.
    pub(super) fn usage(&self) -> Option<Usage> {
        let (taken, block) = (self.taken(), BLOCK_SIZE as u64);
        let left = self.room.unwrap_or(ENOUGH).saturating_sub(taken);
        self.tells.then_some(Usage { taken: taken * block, left: left * block })
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
            let write = matches!(operation, Operation::Write { .. } | Operation::Discard { .. });
            let slow = write && self.strikes("slow_write", self.faults.slow_write, block);
            self.flights.push(Flight { session, queue, token, operation, after: self.stored, slow });
        }
    }

    pub(super) fn in_flight(&self, session: Option<u64>) -> usize {
        self.flights.iter().filter(|flight| session.is_none_or(|session| session == flight.session)).count()
    }

    /// Ends operations of one guest, or of all that are not held.
    pub(super) fn complete(&mut self, session: Option<u64>, all: bool) -> usize {
        let (held, chance) = (&self.guests.held, &mut self.chance);
        let chosen = |flight: &Flight| match session {
            Some(session) => flight.session == session,
            None => !held.contains(&flight.session) && (all || !flight.slow || chance.strikes(SLOW)),
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
        let Flight { session, queue, token, operation, after, slow: _ } = flight;
        let (buffer, result) = match operation {
            Operation::Read { block, mut buffer } => {
                let result = self.read(block, &mut buffer);
                (Some(buffer), result)
            }
            Operation::Write { block, mut buffer } => {
                let result = self.write(block, &buffer);
                self.scribble(block, &mut buffer);
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

    pub(super) fn restore(&mut self, image: &Image) {
        self.visible = image.clone();
        self.durable = image.clone();
        self.given.extend(image.written());
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
