//! Operations in, completions out.

use std::collections::VecDeque;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use memory::Arena;
use rustix::event::PollFlags;
use slab::Slab;
use uring::{Doorbell, EnterError, Entry, Reason, Ring, SetupError, Spinner, Threads, opcode, types};

use super::breakdown::Trouble;
use super::discard::{Discard, Discarder};
use super::transfer::{Direction, Outcome, Part, Transfer, merge};
use crate::file::Inner;
use crate::patience::{Clock, LOOK, is_late};
use crate::{Buffer, Completion, Error, ErrorKind, Operation, Queue};

/// The store's file, and the doorbell's event, in the ring's table.
const FILE: types::Fixed = types::Fixed(0);
const EVENT: types::Fixed = types::Fixed(1);

/// The number of the doorbell's read; no slot of `flying` has it.
const DOORBELL: u64 = u64::MAX;

/// The number of what ends a watch before its time.
const UNWATCH: u64 = DOORBELL - 1;

/// Entries of the ring for watches, and descriptors that are watched at a time: each has a beginning and an end.
const WATCH_ENTRIES: u32 = 128;
const WATCHES: usize = WATCH_ENTRIES as usize / 2;

/// More would serve no device, and the ring has a limit.
const MAX_DEPTH: u32 = 16 << 10;

/// What the kernel works on at a time.
#[derive(Debug)]
enum Job {
    Transfer(Transfer),
    Flush { token: u64 },
    Discard { token: u64, block: u64, blocks: u64 },
    Watch { token: u64, descriptor: Arc<OwnedFd> },
}

impl Job {
    /// What the host is to answer; nobody says when a watch ends.
    fn name(&self) -> Option<&'static str> {
        match self {
            Self::Transfer(transfer) => transfer.parts.first().map(|part| part.direction.name()),
            Self::Flush { .. } => Some("flush"),
            Self::Discard { .. } => Some("discard"),
            Self::Watch { .. } => None,
        }
    }
}

/// The queue of a file or device.
///
/// A dropped queue waits for what is in flight, since the kernel may still write to its buffers; what was
/// held back is never sent.
pub(crate) struct FileQueue {
    ring: Ring,
    store: Arc<Inner>,
    arena: Arc<Arena>,
    /// The arena's memory, if the kernel took its registration.
    registered: Option<(NonNull<u8>, usize)>,
    depth: usize,
    /// Reads and writes that wait for company.
    held: Vec<Part>,
    /// What waits for room in flight, first come, first served.
    ready: VecDeque<Job>,
    flying: Slab<Job>,
    /// When the request of each slot was sent, by the clock below.
    since: Vec<Duration>,
    clock: Clock,
    /// Of this queue among those of the store that find the host silent.
    number: u64,
    is_silent: bool,
    /// How many of those in flight are watches.
    watching: usize,
    ended: Vec<Completion>,
    results: Vec<uring::Completion>,
    doorbell: Arc<Doorbell>,
    /// Where the doorbell's read goes; on the heap, so that it stays put.
    doorbell_count: Box<[u8; 8]>,
    doorbell_armed: bool,
    /// From the first discard on that the ring cannot have.
    discarder: Option<Discarder>,
    /// What it has, and since when.
    discarding: Vec<(Discard, Duration)>,
    /// With a kernel that refuses to enter the ring.
    trouble: Trouble,
    spinner: Spinner,
}

impl FileQueue {
    pub(crate) fn new(store: Arc<Inner>, depth: u32) -> Result<Self, Error> {
        if let Some(reason) = store.ended() {
            return Err(Error::new(ErrorKind::Io, "open", &store.name, reason));
        }
        let depth = depth.clamp(1, MAX_DEPTH);
        let failed = |error: std::io::Error| {
            Error::from_errno(error.raw_os_error().unwrap_or(libc::EIO), "open", &store.name)
        };
        // One more for the doorbell.
        let ring = Ring::new(depth + 1 + WATCH_ENTRIES, Threads::One)
            .map_err(|error| no_ring(&error, &store.name))?;
        let doorbell = Doorbell::new().map_err(failed)?;
        ring.register_files(&[store.file.as_fd(), doorbell.event().as_fd()]).map_err(failed)?;
        let arena = Arena::for_depth(depth).map_err(failed)?;
        let registered = register(&ring, &arena);
        Ok(Self {
            ring,
            arena,
            registered,
            depth: usize::try_from(depth).unwrap_or(1),
            held: Vec::new(),
            ready: VecDeque::new(),
            flying: Slab::new(),
            since: Vec::new(),
            clock: Clock::new(),
            number: store.silences.number(),
            is_silent: false,
            watching: 0,
            ended: Vec::new(),
            results: Vec::new(),
            doorbell: Arc::new(doorbell),
            doorbell_count: Box::new([0; 8]),
            doorbell_armed: false,
            discarder: None,
            discarding: Vec::new(),
            trouble: Trouble::default(),
            spinner: Spinner::off(),
            store,
        })
    }

    /// Why an operation on this range can't be had at all.
    fn refusal(&self, operation: &'static str, block: u64, blocks: u64) -> Option<Error> {
        let size = self.store.blocks();
        let inside = block.checked_add(blocks).is_some_and(|end| end <= size);
        if blocks == 0 || !inside {
            return Some(Error::out_of_range(operation, self.store.name.clone(), block, blocks, size));
        }
        if self.store.read_only && operation != "read" {
            let message = "it was opened for reading only";
            let error = Error::new(ErrorKind::ReadOnly, operation, &self.store.name, message);
            return Some(error.at(block));
        }
        None
    }

    fn hold(&mut self, part: Part) {
        let blocks = u64::try_from(part.buffer.blocks()).unwrap_or(u64::MAX);
        match self.refusal(part.direction.name(), part.block, blocks) {
            Some(error) => self.end(part.token, Some(part.buffer), Err(error)),
            None => self.held.push(part),
        }
    }

    fn end(&mut self, token: u64, buffer: Option<Buffer>, result: Result<(), Error>) {
        self.ended.push(Completion { token, buffer, result });
    }

    /// Puts into the ring what there is room for. What must wait is merged when its turn comes, with what has come since.
    fn dispatch(&mut self) {
        self.note_end();
        if let Some(error) = self.trouble.for_good() {
            return self.fail_waiting(&error.clone());
        }
        while self.flying.len() - self.watching < self.depth {
            if self.ready.is_empty() {
                let ready = &mut self.ready;
                merge(&mut self.held, |transfer| ready.push_back(Job::Transfer(transfer)));
            }
            let Some(job) = self.ready.pop_front() else { break };
            let slot = self.flying.insert(job);
            self.send(slot);
        }
    }

    /// Puts the request of a job in flight into the ring.
    fn send(&mut self, slot: usize) {
        let entry = match &mut self.flying[slot] {
            Job::Transfer(transfer) => transfer.entry(FILE, self.registered),
            Job::Flush { .. } => opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build(),
            // For a device, too: the kernel makes it a write of zeroes that takes no space.
            Job::Discard { block, blocks, .. } => opcode::Fallocate::new(FILE, *blocks * 4096)
                .offset(*block * 4096)
                .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
                .build(),
            Job::Watch { descriptor, .. } => {
                let events = u32::from((PollFlags::IN | PollFlags::RDHUP).bits());
                opcode::PollAdd::new(types::Fd(descriptor.as_raw_fd()), events).build()
            }
        };
        if self.since.len() <= slot {
            self.since.resize(slot + 1, Duration::ZERO);
        }
        self.since[slot] = self.clock.time();
        let number = u64::try_from(slot).expect("an index fits 64 bits");
        // SAFETY: buffers, vectors and descriptors live in `flying` until the completion is reaped, `drop` included.
        unsafe { self.push(&entry.user_data(number)) };
    }

    /// # Safety
    /// What the entry points to must live until its completion.
    unsafe fn push(&mut self, entry: &Entry) {
        // SAFETY: by this function's contract.
        let pushed = unsafe { self.ring.push(entry) };
        // Each slot in flight and the doorbell have at most one request each in the ring, and each watch one that ends it.
        pushed.expect("the ring has room for all that may be in flight");
    }

    /// Tells the kernel of new requests, and lets it finish what it has put off.
    fn enter(&mut self) {
        if self.trouble.for_good().is_none() {
            let entered = self.ring.submit();
            self.note_entry(entered);
        }
    }

    /// Where the kernel does not let us into the ring for good, nothing that is in flight will ever be heard of: all of it fails.
    fn note_entry(&mut self, entered: Result<(), EnterError>) {
        if !self.trouble.note(entered, &self.store.name) {
            return;
        }
        if let Some(error) = self.trouble.for_good().cloned() {
            self.fail_all(&error);
        }
    }

    /// Nothing that is in flight will ever be heard of.
    fn fail_all(&mut self, error: &Error) {
        let flying = mem::take(&mut self.flying);
        self.watching = 0;
        for (_, job) in &flying {
            let parts = match job {
                Job::Transfer(transfer) => {
                    transfer.parts.iter().map(|part| (part.token, Some(part.block))).collect()
                }
                Job::Discard { token, block, .. } => vec![(*token, Some(*block))],
                Job::Flush { token } | Job::Watch { token, .. } => vec![(*token, None)],
            };
            for (token, block) in parts {
                self.end(token, None, Err(Error { block, ..error.clone() }));
            }
        }
        // The kernel may have some of them, and write to their buffers: better lost than given to somebody else.
        mem::forget(flying);
        mem::forget(mem::take(&mut self.doorbell_count));
        if let Some(discarder) = self.discarder.take() {
            discarder.abandon();
        }
        for (Discard { token, block, .. }, _) in mem::take(&mut self.discarding) {
            self.end(token, None, Err(error.clone().at(block)));
        }
        self.fail_waiting(error);
    }

    /// Ends the session with a host that has left a request without an answer for too long.
    fn check_deadlines(&mut self) {
        if self.clock.look(Instant::now()) || self.is_silent {
            self.look_for_silence();
        }
        self.note_end();
    }

    /// Once the session with the host has ended, on whatever queue, nothing is asked or heard of it any more.
    fn note_end(&mut self) {
        if self.trouble.for_good().is_none()
            && let Some(reason) = self.store.ended()
        {
            let error = Error::new(ErrorKind::Io, "submit", &self.store.name, reason);
            self.trouble.give_up(error.clone());
            self.fail_all(&error);
        }
    }

    /// Looks what has been in flight for longest, and whether that is too long.
    fn look_for_silence(&mut self) {
        let flying = self.flying.iter().filter_map(|(slot, job)| Some((*self.since.get(slot)?, job.name()?)));
        let discarding = self.discarding.iter().map(|(_, since)| (*since, "discard"));
        let oldest = flying.chain(discarding).min();
        let silent = oldest.map_or(Duration::ZERO, |(since, _)| self.clock.time().saturating_sub(since));
        self.is_silent = self.store.silences.note(self.number, silent);
        if let Some((_, operation)) = oldest
            && is_late(silent, self.store.deadline)
        {
            self.store.end(silence(operation, self.store.deadline));
        }
    }

    /// For how long this may sleep: while the host has something, not longer than until the next look.
    fn at_most(&self, timeout: Option<Duration>) -> Option<Duration> {
        if self.flying.len() == self.watching && self.discarding.is_empty() {
            return timeout;
        }
        Some(timeout.map_or(LOOK, |timeout| timeout.min(LOOK)))
    }

    /// Ends what the kernel has never seen.
    fn fail_waiting(&mut self, error: &Error) {
        for part in mem::take(&mut self.held) {
            self.end(part.token, Some(part.buffer), Err(error.clone().at(part.block)));
        }
        for job in mem::take(&mut self.ready) {
            match job {
                Job::Transfer(transfer) => {
                    for part in transfer.parts {
                        self.end(part.token, Some(part.buffer), Err(error.clone().at(part.block)));
                    }
                }
                Job::Discard { token, .. } | Job::Flush { token } | Job::Watch { token, .. } => {
                    self.end(token, None, Err(error.clone()));
                }
            }
        }
    }

    /// Takes note of what has ended.
    fn reap(&mut self) {
        let mut results = mem::take(&mut self.results);
        results.extend(self.ring.completions());
        for uring::Completion { token: number, result } in results.drain(..) {
            if number == DOORBELL {
                self.doorbell_armed = false;
            } else if let Some(slot) = usize::try_from(number).ok().filter(|&n| self.flying.contains(n)) {
                self.settle(slot, result);
            }
        }
        self.results = results;
        let discarded = self.discarder.as_ref().map(Discarder::ended).unwrap_or_default();
        for (Discard { token, block, .. }, result) in discarded {
            self.discarding.retain(|(discard, _)| discard.token != token);
            self.end_with(token, "discard", Some(block), result);
        }
    }

    fn settle(&mut self, slot: usize, result: i32) {
        if let Job::Transfer(transfer) = &mut self.flying[slot] {
            let outcome = transfer.settle(result);
            if outcome == Outcome::More {
                return self.send(slot);
            }
            let Job::Transfer(transfer) = self.flying.remove(slot) else { return };
            return self.finish(transfer, &outcome);
        }
        let (operation, token, block) = match self.flying.remove(slot) {
            Job::Flush { token } => ("flush", token, None),
            Job::Discard { token, block, blocks } => {
                if result == -libc::EOPNOTSUPP && self.store.is_device {
                    // It cannot write zeros without taking space, but it may forget.
                    return self.discard_device(token, block, blocks);
                }
                ("discard", token, Some(block))
            }
            Job::Watch { token, .. } => {
                self.watching -= 1;
                ("watch", token, None)
            }
            Job::Transfer(_) => return,
        };
        self.end_with(token, operation, block, result);
    }

    fn end_with(&mut self, token: u64, operation: &'static str, block: Option<u64>, result: i32) {
        let result = if result >= 0 {
            Ok(())
        } else {
            Err(Error { block, ..Error::from_errno(-result, operation, &self.store.name) })
        };
        self.end(token, None, result);
    }

    fn discard_device(&mut self, token: u64, block: u64, blocks: u64) {
        let (store, doorbell) = (&self.store, &self.doorbell);
        let started = match &mut self.discarder {
            Some(discarder) => Ok(discarder),
            none => Discarder::start(Arc::clone(store), Arc::clone(doorbell)).map(|new| none.insert(new)),
        };
        match started {
            Ok(discarder) => {
                let discard = Discard { token, block, blocks };
                self.discarding.push((discard, self.clock.time()));
                discarder.submit(discard);
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                self.end_with(token, "discard", Some(block), -errno);
            }
        }
    }

    fn finish(&mut self, transfer: Transfer, outcome: &Outcome) {
        if *outcome != Outcome::Done && transfer.parts.len() > 1 {
            for alone in transfer.split().rev() {
                self.ready.push_front(Job::Transfer(alone));
            }
            return;
        }
        for part in transfer.parts {
            let result = match outcome {
                Outcome::Done => Ok(()),
                failure => Err(explain(failure, &part, &self.store.name)),
            };
            self.end(part.token, Some(part.buffer), result);
        }
    }

    /// Keeps a read of the doorbell in flight.
    fn arm(&mut self) {
        if mem::replace(&mut self.doorbell_armed, true) {
            return;
        }
        let target = self.doorbell_count.as_mut_ptr();
        let entry = opcode::Read::new(EVENT, target, 8).build().user_data(DOORBELL);
        // SAFETY: the target lives on the heap until `drop` has seen the completion, and nobody reads it.
        unsafe { self.push(&entry) };
    }

    /// Sends what the ring holds, and sleeps until something ends or the doorbell rings.
    fn sleep(&mut self, timeout: Option<Duration>) {
        let broken = self.trouble.for_good().is_some();
        if broken {
            return self.fall_asleep(timeout);
        }
        self.arm();
        if self.spinner.would_look() && self.ring.has_unsent() {
            self.enter();
        }
        let (ring, doorbell) = (&mut self.ring, &self.doorbell);
        let look = self.spinner.look(timeout, || doorbell.has_rung() || ring.has_news());
        match look.found() {
            // Whoever rang is heard: the caller looks for what it was now.
            true => self.doorbell.awake(),
            false => self.fall_asleep(look.left(timeout)),
        }
        self.spinner.end(look);
    }

    fn fall_asleep(&mut self, timeout: Option<Duration>) {
        let broken = self.trouble.for_good().is_some();
        if !self.doorbell.fall_asleep() {
            return;
        }
        if broken {
            self.trouble.sleep(self.doorbell.event(), timeout);
            return self.doorbell.awake();
        }
        let waited = self.ring.wait(self.at_most(timeout));
        self.doorbell.awake();
        if waited.is_err() {
            self.trouble.pause();
        }
        self.note_entry(waited);
    }

    /// Ends all watches: what they wait for may never come.
    fn unwatch(&mut self) {
        let watches = self.flying.iter().filter(|(_, job)| matches!(job, Job::Watch { .. }));
        let slots: Vec<usize> = watches.map(|(slot, _)| slot).collect();
        for slot in slots {
            let entry = opcode::PollRemove::new(slot as u64).build().user_data(UNWATCH);
            // SAFETY: it points to nothing.
            unsafe { self.push(&entry) };
        }
    }

    /// Waits until nothing is in flight. Says whether it came to that.
    fn drain(&mut self) -> bool {
        if self.trouble.for_good().is_some() {
            return false;
        }
        if self.doorbell_armed {
            self.doorbell.ring();
        }
        self.unwatch();
        loop {
            let results: Vec<_> = self.ring.completions().map(|ended| ended.token).collect();
            for number in results {
                if number == DOORBELL {
                    self.doorbell_armed = false;
                } else if let Ok(slot) = usize::try_from(number) {
                    self.flying.try_remove(slot);
                }
            }
            if self.flying.is_empty() && !self.doorbell_armed {
                return true;
            }
            if self.clock.look(Instant::now()) {
                self.look_for_silence();
            }
            if self.trouble.for_good().is_some() || self.store.ended().is_some() {
                return false;
            }
            let waited = self.ring.wait(Some(LOOK));
            if waited.is_err() {
                self.trouble.pause();
            }
            self.trouble.note(waited, &self.store.name);
        }
    }
}

/// Why the session ends with a host that says nothing.
fn silence(operation: &str, deadline: Duration) -> String {
    format!(
        "the host has not answered a {operation} in {} s; it is asked nothing more",
        deadline.as_secs_f32()
    )
}

/// Registers the pool, so that the kernel need not pin its pages for each transfer. It may refuse (the limit
/// of locked memory, mostly); then it goes without.
fn register(ring: &Ring, arena: &Arena) -> Option<(NonNull<u8>, usize)> {
    let (base, length) = arena.range();
    // SAFETY: the arena's memory is mapped as long as any buffer of it lives, and a request points into it
    // only while it owns such a buffer.
    unsafe { ring.register_buffer(base, length) }.ok().map(|()| (base, length))
}

/// Why there is no ring, of this store.
fn no_ring(error: &SetupError, store: &str) -> Error {
    let Some(errno) = error.source.as_ref().map(|source| source.raw_os_error().unwrap_or(libc::EIO)) else {
        return Error::new(ErrorKind::Unsupported, "open", store, &error.message);
    };
    let said = Error::from_errno(errno, "open", store);
    let kind = match error.reason {
        Reason::Forbidden => ErrorKind::Forbidden,
        Reason::TooOld => ErrorKind::Unsupported,
        Reason::Memory => ErrorKind::Io,
        Reason::Other => said.kind,
    };
    Error { kind, message: error.message.clone(), ..said }
}

fn explain(failure: &Outcome, part: &Part, store: &str) -> Error {
    let operation = part.direction.name();
    let message = match (failure, part.direction) {
        (Outcome::Refused(errno), _) => {
            return Error::from_errno(*errno, operation, store).at(part.block);
        }
        (Outcome::Short(_), Direction::Read) => "it ends here now; has somebody cut it off?".to_owned(),
        (Outcome::Short(bytes), Direction::Write) => format!("only {bytes} bytes more were accepted"),
        (other, _) => format!("the kernel claims what cannot be: {other:?}"),
    };
    Error::new(ErrorKind::Io, operation, store, message).at(part.block)
}

impl Queue for FileQueue {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        self.arena.buffer(blocks)
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        match operation {
            Operation::Read { block, buffer } => {
                self.hold(Part { direction: Direction::Read, block, token, buffer });
            }
            Operation::Write { block, buffer } => {
                self.hold(Part { direction: Direction::Write, block, token, buffer });
            }
            Operation::Flush => self.ready.push_back(Job::Flush { token }),
            Operation::Discard { block, blocks } => match self.refusal("discard", block, blocks) {
                Some(error) => self.end(token, None, Err(error)),
                None => self.ready.push_back(Job::Discard { token, block, blocks }),
            },
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.dispatch();
        self.enter();
        self.reap();
        // Room has become free, or a transfer goes on: the device need not wait for the next poll.
        self.dispatch();
        if self.ring.has_unsent() {
            self.enter();
        }
        // Behind what was heard: an answer that is there is not late.
        self.check_deadlines();
        completions.append(&mut self.ended);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        self.dispatch();
        self.reap();
        if self.ended.is_empty() && timeout != Some(Duration::ZERO) {
            self.sleep(timeout);
        }
        self.poll(completions);
    }

    fn waker(&self) -> Waker {
        Waker::from(self.doorbell.clone())
    }

    fn spin(&mut self, spinner: Spinner) {
        self.spinner = spinner;
    }

    fn watch(&mut self, token: u64, descriptor: Arc<OwnedFd>) -> bool {
        if self.watching == WATCHES || self.trouble.for_good().is_some() {
            return false;
        }
        self.watching += 1;
        let slot = self.flying.insert(Job::Watch { token, descriptor });
        self.send(slot);
        true
    }
}

impl Drop for FileQueue {
    fn drop(&mut self) {
        // Waits for the one under way: another session must not find its blocks discarded. Where it does not end, its thread keeps the store's
        // lock, so that there is no other session.
        if let Some(discarder) = self.discarder.take() {
            discarder.leave(self.store.deadline);
        }
        if self.drain() {
            // A device is free for others once the ring lets go of it, which it would do too late by itself.
            let _ = self.ring.unregister_files();
        } else {
            // The kernel may still write there: better lost than given to somebody else.
            mem::forget(self.store.clone());
            mem::forget(mem::take(&mut self.flying));
            mem::forget(mem::take(&mut self.doorbell_count));
        }
        self.store.silences.note(self.number, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests;
