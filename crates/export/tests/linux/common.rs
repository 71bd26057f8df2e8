//! A device in memory, and a rig that leaves nothing behind.

use crate::attendant::Attendant;
use export::fuse::{Mount, Options};
use export::{Attend, Device, Done, Extent, Found, MAX_TRANSFER, Request, loopdev};
use rustix::io::Errno;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// What happened to a device.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    pub flushes: u32,
    pub fua: u32,
    pub discards: u32,
    pub zeroes: u32,
    pub reads: u32,
    pub in_flight: usize,
    pub most_in_flight: usize,
    pub largest: usize,
    /// Requests that came on a thread that the kernel does not know as serving block I/O.
    pub by_strangers: u32,
    /// Requests that a front end must never make.
    pub wrong: Vec<String>,
}

/// What a device does not do any more: it answers with `EIO`.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    #[default]
    Nothing,
    /// As a store does that fails.
    Flushes,
    /// As a volume does whose session is over.
    AllButReads,
}

impl Refused {
    fn has(self, request: &Request) -> bool {
        match self {
            Refused::Nothing => false,
            Refused::Flushes => *request == Request::Flush,
            Refused::AllButReads => !matches!(request, Request::Read { .. }),
        }
    }
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    /// What would be left after a crash.
    durable: Vec<u8>,
    /// Which blocks hold something.
    allocated: Vec<bool>,
    queue: Vec<(Request, Done)>,
    counts: Counts,
    gathering: usize,
    patience: Duration,
    /// How often somebody asked for it: who waits for one that is over must not end the next.
    gatherings: u32,
    fail: Option<Errno>,
    refused: Refused,
    /// A block that cannot be read.
    corrupt: Option<usize>,
    /// No write finds space.
    full: bool,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// A device in memory, served by two threads that take the newest request first.
pub struct Memory {
    shared: Arc<Shared>,
    size: u64,
    attendant: Option<Attendant>,
}

impl Memory {
    pub fn new(size: usize) -> Arc<Memory> {
        Self::made(size, None)
    }

    /// With a thread that serves clients, as a volume has.
    pub fn attended(size: usize) -> Arc<Memory> {
        Self::made(size, Some(Attendant::start()))
    }

    fn made(size: usize, attendant: Option<Attendant>) -> Arc<Memory> {
        let shared = Arc::new(Shared::default());
        {
            let mut state = shared.lock();
            (state.bytes, state.durable) = (vec![0; size], vec![0; size]);
            state.allocated = vec![false; size / 4096];
        }
        for _ in 0..2 {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.work());
        }
        Arc::new(Memory { shared, size: size as u64, attendant })
    }

    /// Ends the thread that serves clients.
    pub fn dismiss(&self) {
        self.attendant.as_ref().unwrap().end();
    }

    pub fn counts(&self) -> Counts {
        self.shared.lock().counts.clone()
    }

    pub fn bytes(&self, from: usize, length: usize) -> Vec<u8> {
        self.shared.lock().bytes[from..from + length].to_vec()
    }

    /// What would be left after a crash.
    pub fn durable(&self, from: usize, length: usize) -> Vec<u8> {
        self.shared.lock().durable[from..from + length].to_vec()
    }

    /// From now on this block cannot be read, and no write finds space.
    pub fn spoil(&self, block: usize) {
        let mut state = self.shared.lock();
        (state.corrupt, state.full) = (Some(block), true);
    }

    pub fn fail_with(&self, errno: Option<Errno>) {
        self.shared.lock().fail = errno;
    }

    pub fn refuse(&self, refused: Refused) {
        self.shared.lock().refused = refused;
    }

    /// Serves nothing until so many requests are in flight, or five seconds have passed.
    pub fn gather(&self, requests: usize) {
        self.gather_for(requests, Duration::from_secs(5));
    }

    /// Serves nothing until so many requests are in flight, or so much time has passed.
    pub fn gather_for(&self, requests: usize, patience: Duration) {
        let mut state = self.shared.lock();
        (state.gathering, state.patience) = (requests, patience);
        state.gatherings += 1;
        state.counts.most_in_flight = 0;
    }
}

impl Device for Memory {
    fn size(&self) -> u64 {
        self.size
    }

    fn submit(&self, request: Request, done: Done) {
        let mut state = self.shared.lock();
        if let Some(complaint) = complain(&request, self.size) {
            state.counts.wrong.push(complaint);
        }
        let counts = &mut state.counts;
        counts.by_strangers += u32::from(rustix::process::is_io_flusher() != Ok(true));
        counts.in_flight += 1;
        counts.most_in_flight = counts.most_in_flight.max(counts.in_flight);
        state.queue.push((request, done));
        self.shared.changed.notify_all();
    }

    fn allocated(&self, offset: u64, length: u64, found: Found) {
        let blocks = |bytes: u64| usize::try_from(bytes / 4096).expect("64 bit");
        let range = blocks(offset)..blocks(offset + length);
        let each = self.shared.lock().allocated[range].to_vec();
        found(Ok(each.into_iter().map(|allocated| Extent { length: 4096, allocated }).collect()));
    }

    fn attendant(&self) -> Option<&dyn Attend> {
        self.attendant.as_ref().map(|attendant| attendant as _)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
    }
}

fn complain(request: &Request, size: u64) -> Option<String> {
    let (offset, length) = match request {
        Request::Flush => return None,
        Request::Read { offset, length } => (*offset, u64::from(*length)),
        Request::Write { offset, data, .. } => (*offset, data.len() as u64),
        Request::Discard { offset, length } | Request::WriteZeroes { offset, length } => (*offset, *length),
    };
    let inside = offset.checked_add(length).is_some_and(|end| end <= size);
    let whole = offset.is_multiple_of(4096) && length.is_multiple_of(4096) && length > 0;
    let small = length <= MAX_TRANSFER || !matches!(request, Request::Read { .. } | Request::Write { .. });
    (!inside || !whole || !small).then(|| format!("offset {offset}, length {length}"))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let state = self.lock();
            let mut state =
                self.changed.wait_while(state, |state| !state.stop && state.queue.is_empty()).unwrap();
            if state.stop {
                return;
            }
            if state.gathering > 0 {
                let too_few = |state: &mut State| !state.stop && state.counts.in_flight < state.gathering;
                let (patience, this) = (state.patience, state.gatherings);
                state = self.changed.wait_timeout_while(state, patience, too_few).unwrap().0;
                if state.gatherings == this {
                    state.gathering = 0;
                }
            }
            let Some((request, done)) = state.queue.pop() else { continue };
            let result = state.execute(request);
            state.counts.in_flight -= 1;
            drop(state);
            done(result.map(Into::into));
        }
    }
}

impl State {
    fn execute(&mut self, request: Request) -> Result<Vec<u8>, Errno> {
        if let Some(errno) = self.fail {
            return Err(errno);
        }
        if self.refused.has(&request) {
            return Err(Errno::IO);
        }
        if self.full && matches!(request, Request::Write { .. }) {
            return Err(Errno::NOSPC);
        }
        let range = |offset: u64, length: usize| {
            let offset = usize::try_from(offset).expect("64 bit");
            offset..offset + length
        };
        let zeroed = |bytes: &mut Vec<u8>, offset: u64, length: u64| {
            bytes[range(offset, usize::try_from(length).expect("64 bit"))].fill(0);
        };
        let blocks = |range: std::ops::Range<usize>| range.start / 4096..range.end.div_ceil(4096);
        match request {
            Request::Read { offset, length } => {
                let read = blocks(range(offset, usize::try_from(length).expect("64 bit")));
                if self.corrupt.is_some_and(|corrupt| read.contains(&corrupt)) {
                    return Err(Errno::IO);
                }
                self.counts.reads += 1;
                let length = usize::try_from(length).expect("64 bit");
                self.counts.largest = self.counts.largest.max(length);
                return Ok(self.bytes[range(offset, length)].to_vec());
            }
            Request::Write { offset, data, fua } => {
                self.counts.largest = self.counts.largest.max(data.len());
                self.counts.fua += u32::from(fua);
                let range = range(offset, data.len());
                if fua {
                    self.durable[range.clone()].copy_from_slice(&data);
                }
                self.allocated[blocks(range.clone())].fill(true);
                self.bytes[range].copy_from_slice(&data);
            }
            Request::Flush => {
                self.counts.flushes += 1;
                self.durable = self.bytes.clone();
            }
            Request::Discard { offset, length } => {
                self.counts.discards += 1;
                let discarded = range(offset, usize::try_from(length).expect("64 bit"));
                self.allocated[blocks(discarded)].fill(false);
                zeroed(&mut self.bytes, offset, length);
            }
            Request::WriteZeroes { offset, length } => {
                self.counts.zeroes += 1;
                zeroed(&mut self.bytes, offset, length);
            }
        }
        Ok(Vec::new())
    }
}

/// A page that direct I/O accepts.
#[repr(C, align(4096))]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page(pub [u8; 4096]);

/// A test's turn to run.
pub type Turn = MutexGuard<'static, ()>;

/// Waits for this test's turn if FUSE (and loop devices, if `loops`) can be tested here; says why not.
///
/// One test at a time: a process that another test starts holds copies of all open files until it runs its own
/// program, so an unmount would now and then find the mount in use.
pub fn turn(loops: bool) -> Option<Turn> {
    turn_with(if loops { &["/dev/fuse", "/dev/loop-control"] } else { &["/dev/fuse"] })
}

/// The same for what needs these devices.
pub fn turn_with(devices: &[&str]) -> Option<Turn> {
    let missing = if !rustix::process::geteuid().is_root() {
        "mounting needs root".into()
    } else {
        match devices.iter().find(|device| std::fs::File::open(device).is_err()) {
            Some(device) => format!("there is no {device}"),
            None => return Some(alone()),
        }
    };
    // Straight to the stream: what `println!` says is shown only when a test fails. `scripts/test` counts these lines.
    let thread = std::thread::current();
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {}: {missing}", thread.name().unwrap_or("a test"));
    None
}

/// Waits for this test's turn.
pub fn alone() -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process may mark its threads as serving block I/O. Says why not.
pub fn can_be_io_flusher() -> bool {
    let marked = std::thread::spawn(export::set_io_flusher).join().unwrap();
    if let Err(error) = &marked {
        println!("not checked: {error}");
    }
    marked.is_ok()
}

/// A mounted device in memory, taken down also when a test panics.
pub struct Rig {
    pub device: Arc<Memory>,
    pub mount: Option<Mount>,
    pub loops: Vec<PathBuf>,
    pub mounted: Vec<PathBuf>,
    pub directory: TempDir,
}

impl Rig {
    pub fn new(size: usize, options: &Options) -> Rig {
        Self::of(Memory::new(size), options)
    }

    pub fn of(device: Arc<Memory>, options: &Options) -> Rig {
        let directory = tempfile::tempdir().unwrap();
        let point = directory.path().join("export");
        std::fs::create_dir(&point).unwrap();
        let mount = Mount::new(&point, "volume", device.clone(), options).unwrap();
        Rig { device, mount: Some(mount), loops: Vec::new(), mounted: Vec::new(), directory }
    }

    pub fn mount(&self) -> &Mount {
        self.mount.as_ref().unwrap()
    }

    pub fn file(&self) -> PathBuf {
        self.mount().file().to_path_buf()
    }

    pub fn attach(&mut self) -> PathBuf {
        let path = loopdev::attach(&self.file(), false).unwrap();
        self.loops.push(path.clone());
        path
    }

    pub fn detach(&mut self) {
        loopdev::detach(&self.loops[0]).unwrap();
        self.loops.remove(0);
    }

    /// Unmounts in order, and checks that no request was out of order.
    pub fn finish(mut self) {
        self.mount.take().unwrap().unmount().unwrap();
        assert_eq!(self.device.counts().wrong, [""; 0]);
        assert_eq!(self.device.counts().in_flight, 0);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for path in self.mounted.drain(..) {
            let _ = rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH);
        }
        for path in self.loops.drain(..) {
            let _ = loopdev::detach(&path);
        }
        self.mount = None;
    }
}

/// Runs a program that must succeed, and returns what it printed.
pub fn run(program: &str, arguments: &[&Path]) -> String {
    let output =
        Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}: {}: {text}", output.status);
    text
}
