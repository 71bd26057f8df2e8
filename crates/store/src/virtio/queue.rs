//! One thread's queue of such a disk.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use memory::Arena;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uring::Event;
use virtqueue::Part;
use virtqueue::block::{Kind, header};

use super::region::{Lease, MOST_ENTRIES, MOST_SLOTS, Region, STATUS};
use super::{BASE, GONE, Inner, SECTORS, Started};
use crate::patience::{Clock, LOOK, is_late};
use crate::{BLOCK_SIZE, Buffer, Completion, Error, ErrorKind, Operation, Queue};

/// What a status byte is before the host has written it.
const NOTHING: u8 = 0xff;
/// Most blocks that are copied through the region at once.
const STAGE: u64 = 64;
/// Bytes of a range of a discard.
const SEGMENT: usize = 16;

/// Ends the sleep of a queue.
struct Bell(Event);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.signal();
    }
}

/// A request under way, in private memory.
struct Flight {
    token: u64,
    head: u16,
    operation: &'static str,
    kind: Kind,
    block: u64,
    blocks: u64,
    /// Blocks that have ended, and those that the host has now: a large one may go in several parts.
    done: u64,
    now: u64,
    buffer: Option<Buffer>,
    /// A piece of the region in the place of a buffer that lies elsewhere, or for the ranges of a discard.
    stage: Option<Lease>,
    /// By the queue's clock.
    since: Duration,
}

/// A queue.
pub(super) struct RingQueue {
    inner: Arc<Inner>,
    ring: Started,
    arena: Arc<Arena>,
    waiting: VecDeque<(u64, Operation)>,
    /// Requests of which a part has ended, or that found no room.
    again: VecDeque<Flight>,
    flights: Vec<Option<Flight>>,
    /// Completions that need no host.
    ended: Vec<Completion>,
    bell: Arc<Bell>,
    clock: Clock,
    /// Of this queue among those of the store that find the host silent.
    number: u64,
    is_silent: bool,
}

impl RingQueue {
    pub(super) fn new(inner: Arc<Inner>, depth: u32) -> Result<Self, Error> {
        let depth = usize::try_from(depth)
            .unwrap_or(MOST_SLOTS)
            .clamp(1, usize::from(MOST_ENTRIES / 3).min(MOST_SLOTS));
        let entries =
            u16::try_from((3 * depth).next_power_of_two().max(4)).unwrap_or(MOST_ENTRIES).min(MOST_ENTRIES);
        let system = |error: std::io::Error| inner.error(ErrorKind::Io, "open", error.to_string());
        let arena = Arena::for_depth(u32::try_from(depth).unwrap_or(1)).map_err(system)?;
        let bell = Arc::new(Bell(Event::to_poll().map_err(system)?));
        let ring = inner.start(entries)?;
        // It looks by itself until it sleeps.
        ring.driver.look();
        Ok(Self {
            ring,
            arena,
            waiting: VecDeque::new(),
            again: VecDeque::new(),
            flights: (0..depth).map(|_| None).collect(),
            ended: Vec::new(),
            bell,
            clock: Clock::new(),
            number: inner.silences.number(),
            is_silent: false,
            inner,
        })
    }

    /// Sends what there is room for.
    fn send(&mut self) {
        while let Some(number) = self.flights.iter().position(Option::is_none) {
            let next = match self.again.pop_front() {
                Some(flight) => Some(flight),
                None => {
                    let Some((token, operation)) = self.waiting.pop_front() else { break };
                    self.prepare(token, operation)
                }
            };
            let Some(flight) = next else { continue };
            let Some(flight) = self.launch(number, flight) else { continue };
            if !self.is_idle() {
                self.again.push_front(flight);
                break;
            }
            // Nothing that ends would make room.
            let message = "its region is full of buffers that are not in use";
            let error = self.inner.error(ErrorKind::Io, flight.operation, message);
            let Flight { token, block, buffer, .. } = flight;
            self.ended.push(Completion { token, buffer, result: Err(error.at(block)) });
        }
        if self.ring.driver.publish() && self.ring.driver.wants_kick() {
            // It fails only when the counter is full, and then the host has been told.
            let _ = self.ring.kick.write(1);
        }
    }

    fn is_idle(&self) -> bool {
        self.flights.iter().all(Option::is_none)
    }

    /// Checks an operation. `None` if it has ended.
    fn prepare(&mut self, token: u64, operation: Operation) -> Option<Flight> {
        let (kind, blocks) = match &operation {
            Operation::Read { buffer, .. } => (Kind::Read, buffer.blocks()),
            Operation::Write { buffer, .. } => (Kind::Write, buffer.blocks()),
            Operation::Flush => (Kind::Flush, 0),
            Operation::Discard { blocks, .. } => {
                (Kind::Discard, usize::try_from(*blocks).unwrap_or(usize::MAX))
            }
        };
        let (name, block, buffer) = parts(operation);
        let blocks = u64::try_from(blocks).unwrap_or(u64::MAX);
        let size = self.inner.blocks();
        let is_inside = block.checked_add(blocks).is_some_and(|end| end <= size) && blocks > 0;
        let error = match kind {
            Kind::Flush => None,
            Kind::Write | Kind::Discard if self.inner.options.read_only => {
                Some(self.inner.error(ErrorKind::ReadOnly, name, "it was opened for reading only"))
            }
            Kind::Discard if !self.inner.can_discard => {
                Some(self.inner.error(ErrorKind::Unsupported, name, "the server knows no discards"))
            }
            _ if !is_inside => Some(Error::out_of_range(name, self.inner.name.clone(), block, blocks, size)),
            _ => None,
        };
        if let Some(error) = error {
            self.ended.push(Completion { token, buffer, result: Err(error) });
            return None;
        }
        let since = self.clock.time();
        let (done, now) = (0, 0);
        Some(Flight {
            token,
            head: 0,
            operation: name,
            kind,
            block,
            blocks,
            done,
            now,
            buffer,
            stage: None,
            since,
        })
    }

    /// Puts a request into the ring. It comes back if there is no room for it.
    fn launch(&mut self, number: usize, mut flight: Flight) -> Option<Flight> {
        let slot = Region::slot(self.ring.index, number);
        let Some(data) = self.aim(&mut flight) else { return Some(flight) };
        // A discard says it in its ranges.
        let sector = if flight.kind == Kind::Discard { 0 } else { (flight.block + flight.done) * SECTORS };
        self.inner.region.write(slot, &header(flight.kind, sector));
        self.inner.region.write(slot + STATUS, &[NOTHING]);
        let part = |offset: usize, length: usize, is_writable| Part {
            address: BASE + u64::try_from(offset).unwrap_or(0),
            length: u32::try_from(length).unwrap_or(0),
            is_writable,
        };
        let mut parts = vec![part(slot, virtqueue::block::HEADER_LENGTH, false)];
        parts.extend(data.map(|(offset, length)| part(offset, length, flight.kind == Kind::Read)));
        parts.push(part(slot + STATUS, 1, true));
        match self.ring.driver.push(&parts) {
            Some(head) => {
                flight.head = head;
                flight.since = self.clock.time();
                self.flights[number] = Some(flight);
                None
            }
            None => Some(flight),
        }
    }

    /// Where the data of a request lies in the region. `None` while there is no room.
    #[expect(clippy::option_option, reason = "no room is another thing than no data")]
    fn aim(&mut self, flight: &mut Flight) -> Option<Option<(usize, usize)>> {
        if flight.kind == Kind::Discard {
            let stage = self.inner.region.lease(1)?;
            flight.now = covered(flight, &self.inner.config.discard);
            let bytes = segments(flight, &self.inner.config.discard);
            self.inner.region.write(stage.offset(), &bytes);
            let data = (stage.offset(), bytes.len());
            flight.stage = Some(stage);
            return Some(Some(data));
        }
        let Some(buffer) = &flight.buffer else { return Some(None) };
        if let Some(offset) = self.inner.region.offset_of(buffer) {
            flight.now = flight.blocks;
            return Some(Some((offset, buffer.len())));
        }
        let now = (flight.blocks - flight.done).min(STAGE);
        let count = usize::try_from(now).ok()?;
        let begin = usize::try_from(flight.done).ok()? * BLOCK_SIZE;
        let stage = self.inner.region.lease(count)?;
        if flight.kind == Kind::Write {
            let mut block = [0; BLOCK_SIZE];
            for at in (0..count * BLOCK_SIZE).step_by(BLOCK_SIZE) {
                buffer.copy_to(begin + at, &mut block);
                self.inner.region.write(stage.offset() + at, &block);
            }
        }
        let data = (stage.offset(), count * BLOCK_SIZE);
        flight.now = now;
        flight.stage = Some(stage);
        Some(Some(data))
    }

    /// Takes up what the host has ended.
    fn hear(&mut self, completions: &mut Vec<Completion>) {
        loop {
            match self.ring.driver.pop() {
                Ok(None) => return,
                Ok(Some(head)) => {
                    let number = self
                        .flights
                        .iter()
                        .position(|flight| flight.as_ref().is_some_and(|flight| flight.head == head));
                    if let Some((number, flight)) =
                        number.and_then(|number| Some((number, self.flights[number].take()?)))
                    {
                        self.finish(number, flight, completions);
                    }
                }
                Err(lie) => {
                    self.inner.end(&format!("the host says what can't be: {lie}"));
                    return;
                }
            }
        }
    }

    fn finish(&mut self, number: usize, mut flight: Flight, completions: &mut Vec<Completion>) {
        let mut status = [NOTHING];
        self.inner.region.read(Region::slot(self.ring.index, number) + STATUS, &mut status);
        let fail =
            |kind, message: &str| Err(self.inner.error(kind, flight.operation, message).at(flight.block));
        let result = match status[0] {
            0 => Ok(()),
            1 => fail(ErrorKind::Io, "the host failed it"),
            2 => fail(ErrorKind::Unsupported, "the host does not know such requests"),
            _ => fail(ErrorKind::Io, "the host ended it without saying how"),
        };
        if let (Kind::Read, Some(stage), Some(buffer)) = (flight.kind, &flight.stage, &mut flight.buffer) {
            let mut block = [0; BLOCK_SIZE];
            let place = |block: u64| usize::try_from(block).unwrap_or(0) * BLOCK_SIZE;
            for at in (0..place(flight.now)).step_by(BLOCK_SIZE) {
                self.inner.region.read(stage.offset() + at, &mut block);
                buffer.copy_from(place(flight.done) + at, &block);
            }
        }
        flight.done += flight.now;
        if result.is_ok() && flight.done < flight.blocks {
            flight.stage = None;
            self.again.push_back(flight);
            return;
        }
        completions.push(Completion { token: flight.token, buffer: flight.buffer, result });
    }

    /// Ends the session if a request takes too long, or the server is gone.
    fn check_deadlines(&mut self) {
        if !self.clock.look(Instant::now()) && !self.is_silent {
            return;
        }
        if self.inner.is_server_gone() {
            return self.inner.end(GONE);
        }
        let oldest = self.flights.iter().flatten().min_by_key(|flight| flight.since);
        let silent = oldest.map_or(Duration::ZERO, |flight| self.clock.time().saturating_sub(flight.since));
        self.is_silent = self.inner.silences.note(self.number, silent);
        let deadline = self.inner.options.deadline;
        if let Some(flight) = oldest.filter(|_| is_late(silent, deadline)) {
            let seconds = deadline.as_secs_f32();
            self.inner.end(&format!("the host has not answered a {} in {seconds} s", flight.operation));
        }
    }

    /// Fails everything once the session has ended.
    fn fail(&mut self, completions: &mut Vec<Completion>) {
        let Some(reason) = self.inner.end.get() else { return };
        let error = |name, block| Err(self.inner.error(ErrorKind::Io, name, reason.clone()).at(block));
        let flights = self.flights.iter_mut().filter_map(Option::take);
        for flight in flights.chain(self.again.drain(..)) {
            let result = error(flight.operation, flight.block);
            if let Some(stage) = flight.stage {
                // The host may still use it.
                std::mem::forget(stage);
            }
            completions.push(Completion { token: flight.token, buffer: flight.buffer, result });
        }
        for (token, operation) in self.waiting.drain(..) {
            let (name, block, buffer) = parts(operation);
            completions.push(Completion { token, buffer, result: error(name, block) });
        }
    }
}

fn parts(operation: Operation) -> (&'static str, u64, Option<Buffer>) {
    match operation {
        Operation::Read { block, buffer } => ("read", block, Some(buffer)),
        Operation::Write { block, buffer } => ("write", block, Some(buffer)),
        Operation::Flush => ("flush", 0, None),
        Operation::Discard { block, .. } => ("discard", block, None),
    }
}

/// Blocks of one range, and how many ranges a request has at most.
fn limits(discard: &[u32; 3]) -> (u64, usize) {
    let ranges = usize::try_from(discard[1]).unwrap_or(usize::MAX).clamp(1, BLOCK_SIZE / SEGMENT);
    ((u64::from(discard[0]) / SECTORS).max(1), ranges)
}

/// Blocks that one request of a discard covers.
fn covered(flight: &Flight, discard: &[u32; 3]) -> u64 {
    let (each, ranges) = limits(discard);
    (flight.blocks - flight.done).min(each.saturating_mul(u64::try_from(ranges).unwrap_or(1)))
}

/// The ranges of a discard, as many as a request may have.
fn segments(flight: &Flight, discard: &[u32; 3]) -> Vec<u8> {
    let (each, _) = limits(discard);
    let mut block = flight.block + flight.done;
    let end = block + flight.now;
    let mut bytes = Vec::new();
    while block < end {
        let blocks = each.min(end - block);
        bytes.extend((block * SECTORS).to_le_bytes());
        bytes.extend(u32::try_from(blocks * SECTORS).unwrap_or(0).to_le_bytes());
        bytes.extend([0; 4]);
        block += blocks;
    }
    bytes
}

impl Queue for RingQueue {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        match self.inner.region.lease(blocks) {
            Some(lease) => lease.into_buffer(),
            None => self.arena.buffer(blocks),
        }
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        self.waiting.push_back((token, operation));
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if self.inner.end.get().is_none() {
            self.send();
            self.hear(completions);
            // What has ended has made room.
            self.send();
            self.check_deadlines();
        }
        completions.append(&mut self.ended);
        self.fail(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        let (begun, before) = (Instant::now(), completions.len());
        let spin = if self.is_idle() && self.waiting.is_empty() && self.again.is_empty() {
            Duration::ZERO
        } else {
            self.inner.options.spin
        };
        loop {
            self.poll(completions);
            let passed = begun.elapsed();
            if completions.len() > before || timeout.is_some_and(|timeout| passed >= timeout) {
                return;
            }
            if passed >= spin {
                break;
            }
            std::hint::spin_loop();
        }
        if self.ring.driver.listen() {
            let left = timeout.map_or(LOOK, |timeout| timeout.saturating_sub(begun.elapsed())).min(LOOK);
            // SAFETY: the event is open as long as this queue.
            let call = unsafe { BorrowedFd::borrow_raw(self.ring.call.as_raw_fd()) };
            let mut waiting = [
                PollFd::from_borrowed_fd(call, PollFlags::IN),
                PollFd::from_borrowed_fd(self.bell.0.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.inner.line.as_fd(), PollFlags::RDHUP),
            ];
            let time = Timespec::try_from(left).ok();
            // Whatever wakes it, it looks.
            let _ = poll(&mut waiting, time.as_ref());
            let _ = self.ring.call.read();
            self.bell.0.clear();
            if !waiting[2].revents().is_empty() {
                self.inner.end(GONE);
            }
        }
        self.ring.driver.look();
        self.poll(completions);
    }

    fn waker(&self) -> Waker {
        Waker::from(self.bell.clone())
    }
}

impl Drop for RingQueue {
    fn drop(&mut self) {
        if self.inner.end.get().is_none() {
            self.inner.stop(self.ring.index);
        }
        self.inner.silences.note(self.number, Duration::ZERO);
        for flight in self.flights.iter_mut().filter_map(Option::take) {
            if let (Some(_), Some(stage)) = (self.inner.end.get(), flight.stage) {
                std::mem::forget(stage);
            }
        }
    }
}
