//! A thread that serves lanes: it takes their requests, hands them to the kernel, and tells the guests how they ended.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use slab::Slab;
use uring::{Completion, Entry, Event, Ring, SetupError, Threads, opcode, types};

use crate::lane::{Lane, Start, Taken};
use crate::transfer::{Outcome, Transfer};

const ENTRIES: u32 = 1024;
/// Requests of a lane before the next has its turn.
const TURN: usize = 32;
/// How often the memory of lanes is looked after that have nothing to do, in rounds.
const CARE: u64 = 1024;

/// What the number of a completion is of, in its upper bits. Of a transfer it is 0.
const KIND: u64 = 0xff << 56;
const KICK: u64 = 1 << 56;
const BELL: u64 = 2 << 56;
const IGNORED: u64 = 3 << 56;

/// For poll(2).
const READABLE: u32 = 1;

enum Command {
    Start(Box<Start>, SyncSender<usize>),
    Stop(usize, SyncSender<u16>),
    Call(usize, Option<OwnedFd>),
    End,
}

/// A worker, for those who give it lanes.
#[derive(Debug)]
pub(crate) struct Worker {
    commands: Sender<Command>,
    bell: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

/// A lane of a worker. It must be given back by [`stop`](Self::stop).
#[derive(Debug)]
pub(crate) struct Handle {
    commands: Sender<Command>,
    bell: Arc<Event>,
    key: usize,
}

/// Why there is no worker.
#[derive(Debug)]
pub(crate) enum WorkerError {
    Ring(SetupError),
    System(io::Error),
    /// This core does not exist, or is not for this process; those that are.
    Core(usize, Vec<usize>),
}

/// The cores that this process may use.
fn allowed() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

impl Worker {
    /// Starts a thread, on a core if one is named.
    pub(crate) fn start(core: Option<usize>) -> Result<Self, WorkerError> {
        let allowed = allowed().map_err(WorkerError::System)?;
        if let Some(core) = core
            && !allowed.contains(&core)
        {
            return Err(WorkerError::Core(core, allowed));
        }
        let (commands, orders) = channel();
        let bell = Arc::new(Event::to_poll().map_err(WorkerError::System)?);
        let (ready, is_ready) = sync_channel(1);
        let rings = bell.clone();
        let work = move || {
            let begun = Engine::new(core, orders, rings);
            match begun {
                Ok(mut engine) => {
                    let _ = ready.send(Ok(()));
                    engine.run();
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        };
        let name = core.map_or("worker".into(), |core| format!("worker-{core}"));
        let thread = thread::Builder::new().name(name).spawn(work).map_err(WorkerError::System)?;
        let begun = is_ready.recv();
        begun.unwrap_or_else(|_| Err(WorkerError::System(io::Error::other("a worker died at once"))))?;
        Ok(Self { commands, bell, thread: Some(thread) })
    }

    /// Gives it a lane. `None` when it has ended.
    pub(crate) fn add(&self, start: Start) -> Option<Handle> {
        let (reply, key) = sync_channel(1);
        self.commands.send(Command::Start(Box::new(start), reply)).ok()?;
        self.bell.signal();
        let key = key.recv().ok()?;
        Some(Handle { commands: self.commands.clone(), bell: self.bell.clone(), key })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::End);
        self.bell.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Handle {
    /// Takes the lane back when all that it has in flight has ended. Says where it stands in the available ring.
    pub(crate) fn stop(self) -> Option<u16> {
        let (reply, at) = sync_channel(1);
        self.commands.send(Command::Stop(self.key, reply)).ok()?;
        self.bell.signal();
        at.recv().ok()
    }

    /// Gives the lane another descriptor for interrupts.
    pub(crate) fn set_call(&self, call: Option<OwnedFd>) {
        let _ = self.commands.send(Command::Call(self.key, call));
        self.bell.signal();
    }
}

/// What a worker's thread has.
struct Engine {
    ring: Ring,
    commands: Receiver<Command>,
    bell: Arc<Event>,
    lanes: Slab<Lane>,
    /// In boxes, since the kernel knows where their vectors are.
    transfers: Slab<Box<Transfer>>,
    /// Entries that found no room in the ring.
    waiting: VecDeque<Entry>,
    ended: Vec<Completion>,
    polls: u64,
    is_bell_polled: bool,
    is_ending: bool,
    rounds: u64,
}

impl Engine {
    fn new(core: Option<usize>, commands: Receiver<Command>, bell: Arc<Event>) -> Result<Self, WorkerError> {
        if let Some(core) = core {
            let mut set = CpuSet::new();
            set.set(core);
            rustix::thread::sched_setaffinity(None, &set)
                .map_err(|error| WorkerError::System(error.into()))?;
        }
        let ring = Ring::new(ENTRIES, Threads::One).map_err(WorkerError::Ring)?;
        Ok(Self {
            ring,
            commands,
            bell,
            lanes: Slab::new(),
            transfers: Slab::new(),
            waiting: VecDeque::new(),
            ended: Vec::new(),
            polls: 0,
            is_bell_polled: false,
            is_ending: false,
            rounds: 0,
        })
    }

    fn run(&mut self) {
        loop {
            let now = Instant::now();
            self.obey(now);
            let mut is_busy = self.serve(now);
            self.send();
            is_busy |= self.reap(now);
            self.show();
            self.let_go();
            if self.is_ending && self.lanes.is_empty() {
                return;
            }
            if !is_busy {
                self.rest(now);
            }
            self.rounds = self.rounds.wrapping_add(1);
            if self.rounds.is_multiple_of(CARE) {
                self.lanes.iter().for_each(|(_, lane)| lane.look_after());
            }
        }
    }

    fn obey(&mut self, now: Instant) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Start(start, reply) => {
                    let key = self.lanes.insert(Lane::new(*start, now));
                    self.watch(key);
                    let _ = reply.send(key);
                }
                Command::Stop(key, reply) => {
                    if let Some(lane) = self.lanes.get_mut(key) {
                        lane.draining = Some(reply);
                    }
                }
                Command::Call(key, call) => {
                    if let Some(lane) = self.lanes.get_mut(key) {
                        lane.set_call(call);
                    }
                }
                Command::End => self.is_ending = true,
            }
        }
    }

    /// Takes requests of all lanes. Says whether there were any.
    fn serve(&mut self, now: Instant) -> bool {
        let mut is_busy = false;
        for (key, lane) in &mut self.lanes {
            for _ in 0..TURN {
                match lane.take(key, now) {
                    Taken::Nothing => break,
                    Taken::Done => {}
                    Taken::Work(transfer) => {
                        let token = self.transfers.insert(transfer);
                        let entry = self.transfers[token].entry().user_data(number(token));
                        self.waiting.push_back(entry);
                    }
                }
                is_busy = true;
            }
        }
        is_busy
    }

    /// Hands everything to the kernel that it has room for.
    fn send(&mut self) {
        while let Some(entry) = self.waiting.front() {
            // SAFETY: an entry names memory of a transfer, which stays in its box until the completion was taken; its file is open as long
            // as the transfer has its disk. Or it names none.
            if unsafe { self.ring.push(entry) }.is_err() {
                break;
            }
            self.waiting.pop_front();
        }
        // What fails now is tried again in the next round.
        let _ = self.ring.submit();
    }

    /// Takes up what has ended. Says whether something has.
    fn reap(&mut self, now: Instant) -> bool {
        let mut ended = std::mem::take(&mut self.ended);
        ended.extend(self.ring.completions());
        let is_busy = !ended.is_empty();
        for Completion { token, result } in ended.drain(..) {
            match token & KIND {
                0 => self.settle(token, result, now),
                KICK => self.kicked(token, result, now),
                BELL => {
                    self.bell.clear();
                    self.is_bell_polled = false;
                }
                _ => {}
            }
        }
        self.ended = ended;
        is_busy
    }

    fn settle(&mut self, token: u64, result: i32, now: Instant) {
        let Some(key) = usize::try_from(token).ok().filter(|key| self.transfers.contains(*key)) else {
            return;
        };
        match self.transfers[key].settle(result) {
            Outcome::More => {
                let entry = self.transfers[key].entry().user_data(token);
                self.waiting.push_back(entry);
            }
            Outcome::Ended(status) => {
                let transfer = self.transfers.remove(key);
                if let Some(lane) = self.lanes.get_mut(transfer.lane) {
                    lane.finish(&transfer, status, now);
                }
            }
        }
    }

    fn kicked(&mut self, token: u64, result: i32, now: Instant) {
        let Some((key, lane)) = self.lanes.iter_mut().find(|(_, lane)| lane.poll == Some(token)) else {
            return;
        };
        lane.poll = None;
        if result >= 0 {
            lane.kicked(now);
            self.watch(key);
        }
    }

    /// Lets the ring watch the guest's notifications, also while nobody waits for them: they are counted.
    fn watch(&mut self, key: usize) {
        let lane = &mut self.lanes[key];
        if let Some(kick) = lane.kick() {
            let poll = opcode::PollAdd::new(types::Fd(kick.as_raw_fd()), READABLE);
            self.polls += 1;
            let token = KICK | self.polls & !KIND;
            self.waiting.push_back(poll.build().user_data(token));
            lane.poll = Some(token);
        }
    }

    fn show(&mut self) {
        self.lanes.iter_mut().for_each(|(_, lane)| lane.show());
    }

    /// Gives lanes back that have nothing in flight.
    fn let_go(&mut self) {
        let is_done = |(_, lane): &(usize, &Lane)| lane.draining.is_some() && lane.is_still();
        while let Some((key, _)) = self.lanes.iter().find(is_done) {
            let mut lane = self.lanes.remove(key);
            if let Some(poll) = lane.poll.take() {
                self.waiting.push_back(opcode::PollRemove::new(poll).build().user_data(IGNORED));
            }
            let reply = lane.draining.take();
            let at = lane.leave();
            if let Some(reply) = reply {
                let _ = reply.send(at);
            }
        }
    }

    /// Sleeps, if every lane may.
    fn rest(&mut self, now: Instant) {
        let mut may_sleep = true;
        for (_, lane) in &mut self.lanes {
            may_sleep &= lane.rest(now);
        }
        if !may_sleep {
            std::hint::spin_loop();
            return;
        }
        if !self.is_bell_polled {
            let poll = opcode::PollAdd::new(types::Fd(self.bell.as_fd().as_raw_fd()), READABLE);
            self.waiting.push_back(poll.build().user_data(BELL));
            self.is_bell_polled = true;
        }
        self.send();
        let wait = self.lanes.iter().filter_map(|(_, lane)| lane.not_before).min();
        let wait = wait.map(|then| then.saturating_duration_since(now).max(Duration::from_micros(1)));
        if self.waiting.is_empty() {
            // It ends early for a signal or with its time: then there is a round too many.
            let _ = self.ring.wait(wait);
        }
    }
}

fn number(token: usize) -> u64 {
    u64::try_from(token).unwrap_or(IGNORED)
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The kernel may still use the memory of what is in flight: after a panic it is never given back.
        for transfer in self.transfers.drain() {
            std::mem::forget(transfer);
        }
    }
}
