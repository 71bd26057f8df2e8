//! One queue of a guest's disk, on its worker.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use virtqueue::block::{Kind, Status, parse};
use virtqueue::{Breach, Device, Part};

use crate::counters::{Counters, add};
use crate::disk::Disk;
use crate::inflight::Logs;
use crate::limits::Limits;
use crate::memory_map::{MemoryMap, Piece};
use crate::transfer::{From, Transfer};

/// What the session of a VMM and its lanes share.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    is_over: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Fate {
    /// Ends the session's service. The first reason counts.
    pub(crate) fn end(&self, reason: impl fmt::Display) -> bool {
        let mut known = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = known.is_none();
        known.get_or_insert_with(|| reason.to_string());
        self.is_over.store(true, Ordering::Release);
        is_first
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    pub(crate) fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What a lane is made of.
pub(crate) struct Start {
    pub(crate) device: Device<Piece>,
    pub(crate) memory: Arc<MemoryMap>,
    /// Of which the device has one.
    pub(crate) logs: Option<Logs>,
    pub(crate) disk: Arc<Disk>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) limits: Option<Arc<Limits>>,
    pub(crate) fate: Arc<Fate>,
    /// Signalled by the guest.
    pub(crate) kick: Option<OwnedFd>,
    /// Signalled for the guest.
    pub(crate) call: Option<OwnedFd>,
    /// Signalled when the queue is over.
    pub(crate) error: Option<OwnedFd>,
    pub(crate) spin: Option<Duration>,
    pub(crate) is_durable: bool,
    /// For messages.
    pub(crate) name: String,
}

/// One queue.
pub(crate) struct Lane {
    start: Start,
    parts: Vec<Part>,
    last_work: Instant,
    /// It waits for the guest's notification.
    is_listening: bool,
    /// Requests have ended that the guest does not know of.
    is_dirty: bool,
    /// Transfers of this lane that the worker has.
    transfers: usize,
    /// The number of the poll of its kick that is in flight.
    pub(crate) poll: Option<u64>,
    /// Not before: its disk's limits.
    pub(crate) not_before: Option<Instant>,
    /// Who is told when nothing is in flight any more; nothing new is taken from then on.
    pub(crate) draining: Option<SyncSender<u16>>,
}

/// What a lane has for its worker.
pub(crate) enum Taken {
    Nothing,
    /// It ended at once, or the lane is over.
    Done,
    Work(Box<Transfer>),
}

impl Lane {
    pub(crate) fn new(start: Start, now: Instant) -> Self {
        start.device.look();
        let lane = Self {
            start,
            parts: Vec::new(),
            last_work: now,
            is_listening: false,
            is_dirty: false,
            transfers: 0,
            poll: None,
            not_before: None,
            draining: None,
        };
        // A server that was killed may have shown what had ended, and interrupted nobody.
        lane.interrupt();
        lane
    }

    /// Takes the next request, if there is one and it may.
    pub(crate) fn take(&mut self, key: usize, now: Instant) -> Taken {
        if self.is_listening || self.draining.is_some() || self.start.fate.is_over() {
            return Taken::Nothing;
        }
        if self.is_held_back(now) {
            return Taken::Nothing;
        }
        match self.next(key) {
            Ok(Taken::Nothing) => Taken::Nothing,
            Ok(taken) => {
                self.last_work = now;
                taken
            }
            Err(breach) => {
                // What has gone reads as zeros, which may break any rule.
                self.look_after();
                self.end(format!("the guest broke the rules of its queue: {breach}"));
                Taken::Done
            }
        }
    }

    fn is_held_back(&mut self, now: Instant) -> bool {
        let Some(limits) = &self.start.limits else { return false };
        if self.not_before.is_some_and(|then| now < then) {
            return true;
        }
        let is_new = self.not_before.take().is_none();
        if !self.start.device.has_more() {
            return false;
        }
        if let Some(wait) = limits.wait(now) {
            self.not_before = Some(now + wait);
            if is_new {
                add(&self.start.counters.throttled, 1);
            }
        }
        self.not_before.is_some()
    }

    fn next(&mut self, key: usize) -> Result<Taken, Breach> {
        let Start { device, memory, disk, limits, is_durable, .. } = &mut self.start;
        let Some(head) = device.pop(&**memory, &mut self.parts)? else { return Ok(Taken::Nothing) };
        let request = parse(&**memory, &mut self.parts)?;
        // Without a place for its status nobody can be told how it ended.
        memory.find(request.status, 1).ok_or(Breach::NoMemory(request.status))?;
        if let Some(limits) = limits {
            limits.took(request.length);
        }
        if memory.is_lost() {
            // Zeros that nobody has sent: not to be acted upon.
            return Err(Breach::NoMemory(request.status));
        }
        let from = From { disk, memory, lane: key, head, is_durable: *is_durable };
        match Transfer::new(&from, &request, &mut self.parts) {
            Ok(transfer) => {
                self.transfers += 1;
                Ok(Taken::Work(Box::new(transfer)))
            }
            Err(status) => {
                let (status, written) = match request.kind {
                    Kind::Id => self.tell_id(),
                    _ => (status, 0),
                };
                self.start.memory.write(request.status, &[status as u8]);
                self.ended(head, request.kind, status, written, written + 1);
                Ok(Taken::Done)
            }
        }
    }

    /// Writes the disk's name into the guest's memory.
    fn tell_id(&self) -> (Status, u32) {
        let id = self.start.disk.id();
        let mut rest = id.as_slice();
        for part in &self.parts {
            let length = usize::try_from(part.length).unwrap_or(usize::MAX).min(rest.len());
            if !self.start.memory.write(part.address, &rest[..length]) {
                return (Status::Error, 0);
            }
            rest = &rest[length..];
        }
        (Status::Ok, u32::try_from(id.len() - rest.len()).unwrap_or(0))
    }

    /// A request has ended; the guest learns of it at the next [`show`](Self::show).
    pub(crate) fn ended(&mut self, head: u16, kind: Kind, status: Status, bytes: u32, written: u32) {
        let counters = &self.start.counters;
        let (counter, moved) = match kind {
            Kind::Read => (&counters.reads, Some(&counters.read_bytes)),
            Kind::Write => (&counters.writes, Some(&counters.written_bytes)),
            Kind::Flush => (&counters.flushes, None),
            Kind::Discard | Kind::WriteZeroes => (&counters.discards, None),
            Kind::Id | Kind::Other(_) => (&counters.others, None),
        };
        add(counter, 1);
        match moved {
            Some(moved) if status == Status::Ok => add(moved, bytes.into()),
            _ => {}
        }
        if status == Status::Error {
            add(&counters.errors, 1);
        }
        self.start.device.complete(head, written);
        self.is_dirty = true;
    }

    /// Takes up the end of a transfer.
    pub(crate) fn finish(&mut self, transfer: &Transfer, status: Status, now: Instant) {
        self.transfers -= 1;
        let written = transfer.answer(status);
        let bytes = u32::try_from(transfer.length).unwrap_or(u32::MAX);
        self.ended(transfer.head, transfer.kind, status, bytes, written);
        self.last_work = now;
        // The guest will soon have more, and need not notify us of it.
        if self.is_listening && self.start.spin != Some(Duration::ZERO) {
            self.wake();
        }
    }

    /// Shows the guest what has ended, and interrupts it if it wants that.
    pub(crate) fn show(&mut self) {
        if !std::mem::take(&mut self.is_dirty) {
            return;
        }
        self.look_after();
        self.start.device.publish();
        if self.start.device.wants_interrupt() {
            self.interrupt();
        }
    }

    pub(crate) fn interrupt(&self) {
        if let Some(call) = &self.start.call {
            add(&self.start.counters.interrupts, 1);
            signal(call);
        }
    }

    /// Another descriptor for interrupts. What was to be told by the one before may be lost, so the guest is told once more.
    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>) {
        self.start.call = call;
        self.interrupt();
    }

    /// Whether it may sleep now, from having had nothing to do for long enough. Asks for notifications.
    pub(crate) fn rest(&mut self, now: Instant) -> bool {
        if self.is_listening || self.start.fate.is_over() || self.draining.is_some() {
            return true;
        }
        if self.not_before.is_some_and(|then| now < then) {
            return true;
        }
        let Some(spin) = self.start.spin else { return false };
        if now.saturating_duration_since(self.last_work) < spin {
            return false;
        }
        if self.start.kick.is_none() {
            // Nobody could wake it.
            return false;
        }
        self.is_listening = self.start.device.listen();
        if self.is_listening {
            add(&self.start.counters.sleeps, 1);
        } else {
            self.start.device.look();
        }
        self.is_listening
    }

    /// It was notified.
    pub(crate) fn kicked(&mut self, now: Instant) {
        add(&self.start.counters.kicks, 1);
        if let Some(kick) = &self.start.kick {
            // How often it was signalled does not matter.
            let _ = rustix::io::read(kick, &mut [0; 8]);
        }
        self.last_work = now;
        self.wake();
    }

    fn wake(&mut self) {
        if std::mem::take(&mut self.is_listening) {
            self.start.device.look();
        }
    }

    pub(crate) fn kick(&self) -> Option<&OwnedFd> {
        self.start.kick.as_ref()
    }

    /// Ends the session of this lane.
    fn end(&self, reason: impl fmt::Display) {
        if self.start.fate.end(&reason) {
            add(&self.start.counters.breaches, 1);
            log::error!(
                "{}: {reason}; this disk is no longer served, until the guest or its VMM begins anew",
                self.start.name
            );
        }
        if let Some(error) = &self.start.error {
            signal(error);
        }
    }

    /// Notices that its memory has gone, also when nothing has ended.
    pub(crate) fn look_after(&self) {
        let is_lost = self.start.memory.is_lost() || self.start.logs.as_ref().is_some_and(Logs::is_lost);
        if !self.start.fate.is_over() && is_lost {
            self.end("its VMM has cut the guest's memory short");
        }
    }

    /// Whether the kernel works on none of its requests.
    pub(crate) fn is_still(&self) -> bool {
        self.transfers == 0
    }

    /// Where it stands in the available ring.
    pub(crate) fn leave(self) -> u16 {
        // All that it had taken has ended, but for a chain that broke the rules.
        self.start.device.next_available().wrapping_sub(self.start.device.in_flight())
    }
}

/// Adds one to an eventfd. It does not block, and one that is full wakes its reader anyway.
fn signal(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// What a VMM gives to be signalled must not hold up a worker.
pub(crate) fn unblocked(event: OwnedFd) -> OwnedFd {
    let flags = rustix::fs::fcntl_getfl(event.as_fd());
    let _ =
        flags.and_then(|flags| rustix::fs::fcntl_setfl(event.as_fd(), flags | rustix::fs::OFlags::NONBLOCK));
    event
}
