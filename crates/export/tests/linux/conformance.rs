//! What every front end must do alike, over the same device in memory.

use crate::client::Client;
use crate::common::{Memory, Refused, Rig, Turn, turn, turn_with};
use export::fuse::Options;
use export::nbd::wire::{Command, Flags};
use export::nbd::{self, Listen, Server};
use export::ublk::{self, Recovery, Ublk};
use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const SIZE: usize = 8 << 20;

/// One who uses the device.
trait User: Send {
    fn read(&mut self, offset: usize, length: usize) -> Result<Vec<u8>, Errno>;
    fn write(&mut self, offset: usize, data: &[u8], fua: bool) -> Result<(), Errno>;
    fn flush(&mut self) -> Result<(), Errno>;
    fn discard(&mut self, offset: usize, length: usize) -> Result<(), Errno>;
    fn zero(&mut self, offset: usize, length: usize) -> Result<(), Errno>;
    /// Makes sure that what is read next comes from the device.
    fn forget(&mut self);
}

/// A device that is shown.
trait Shown {
    fn device(&self) -> &Memory;
    fn user(&self) -> Box<dyn User>;
    /// Somebody writes to the first megabyte, and is gone before he hears of it.
    fn abandon(&self);
    /// What a write says that finds no space.
    fn full(&self) -> Errno {
        Errno::NOSPC
    }
    /// Takes it away, with no request left behind.
    fn finish(self: Box<Self>);
}

/// A file, or a block device, through the kernel.
struct ByFile {
    file: File,
    synchronous: File,
}

impl ByFile {
    fn open(path: PathBuf) -> ByFile {
        let open = |flags: OFlags| {
            let flags = i32::try_from(flags.bits()).unwrap();
            OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap()
        };
        ByFile { file: open(OFlags::empty()), synchronous: open(OFlags::DSYNC) }
    }
}

/// A program that is killed while the kernel has its writes. The device serves nothing for so long.
fn abandon_by(path: &Path, device: &Memory) {
    device.gather_for(usize::MAX, Duration::from_millis(300));
    let mut writer = std::process::Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "count=1", "oflag=direct", "conv=notrunc", "status=none"])
        .arg(format!("of={}", path.display()))
        .spawn()
        .unwrap();
    crate::nbd::wait_for("a write", || device.counts().in_flight > 0);
    writer.kill().unwrap();
    assert!(!writer.wait().unwrap().success(), "it was killed before it heard of its writes");
}

fn errno(error: std::io::Error) -> Errno {
    // Past the end of a file nothing is read; a block device says so as well.
    Errno::from_io_error(&error).unwrap_or(Errno::INVAL)
}

impl User for ByFile {
    fn read(&mut self, offset: usize, length: usize) -> Result<Vec<u8>, Errno> {
        let mut data = vec![0; length];
        self.file.read_exact_at(&mut data, offset as u64).map_err(errno).map(|()| data)
    }

    fn write(&mut self, offset: usize, data: &[u8], fua: bool) -> Result<(), Errno> {
        let file = if fua { &self.synchronous } else { &self.file };
        file.write_all_at(data, offset as u64).map_err(errno)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        self.file.sync_data().map_err(errno)
    }

    fn discard(&mut self, offset: usize, length: usize) -> Result<(), Errno> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, mode, offset as u64, length as u64)
    }

    fn zero(&mut self, offset: usize, length: usize) -> Result<(), Errno> {
        let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, mode, offset as u64, length as u64)
    }

    fn forget(&mut self) {
        rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed).unwrap();
    }
}

struct Fuse(Rig, Option<PathBuf>);

impl Fuse {
    fn file() -> Box<dyn Shown> {
        Box::new(Fuse(Rig::new(SIZE, &Options::default()), None))
    }

    /// Served by the device's own thread.
    fn attended() -> Box<dyn Shown> {
        Box::new(Fuse(Rig::of(Memory::attended(SIZE), &Options::default()), None))
    }

    fn looped() -> Box<dyn Shown> {
        let mut rig = Rig::of(Memory::attended(SIZE), &Options::default());
        let device = rig.attach();
        Box::new(Fuse(rig, Some(device)))
    }

    fn path(&self) -> PathBuf {
        self.1.clone().unwrap_or_else(|| self.0.file())
    }
}

impl Shown for Fuse {
    fn device(&self) -> &Memory {
        &self.0.device
    }

    fn user(&self) -> Box<dyn User> {
        Box::new(ByFile::open(self.path()))
    }

    fn abandon(&self) {
        abandon_by(&self.path(), self.device());
    }

    fn full(&self) -> Errno {
        // The loop driver knows of one error only.
        if self.1.is_some() { Errno::IO } else { Errno::NOSPC }
    }

    fn finish(mut self: Box<Self>) {
        if self.1.is_some() {
            self.0.detach();
        }
        self.0.finish();
    }
}

/// A ublk device, which goes when it is dropped, after the users of this test.
struct ByUblk {
    device: Arc<Memory>,
    ublk: Ublk,
    directory: tempfile::TempDir,
}

impl ByUblk {
    fn show(recoverable: bool) -> Box<dyn Shown> {
        let device = Memory::new(SIZE);
        // In memory in a guest, as the log wants it.
        let directory = tempfile::tempdir_in("/run").unwrap();
        let recovery = Recovery { path: directory.path().join("ublk"), owner: [7; 16] };
        let recovery = recoverable.then_some(recovery);
        let options = ublk::Options { queues: 2, depth: 64, read_only: false, recovery };
        let failed: ublk::Failed = Arc::new(|error| panic!("a queue has ended: {error}"));
        let ublk = Ublk::show(device.clone(), &options, &failed).unwrap();
        Box::new(ByUblk { device, ublk, directory })
    }
}

impl Shown for ByUblk {
    fn device(&self) -> &Memory {
        &self.device
    }

    fn user(&self) -> Box<dyn User> {
        Box::new(ByFile::open(self.ublk.path().into()))
    }

    fn abandon(&self) {
        abandon_by(self.ublk.path(), &self.device);
    }

    fn full(&self) -> Errno {
        // The kernel is told, and says so in its log; who wrote to a block device's page cache learns of one error only.
        Errno::IO
    }

    fn finish(self: Box<Self>) {
        self.ublk.stop().unwrap();
        assert!(!self.ublk.path().exists(), "the device is gone");
        assert!(std::fs::read_dir(self.directory.path()).unwrap().next().is_none(), "the log is gone");
        assert_eq!(self.device.counts().wrong, [""; 0]);
        assert_eq!(self.device.counts().in_flight, 0);
    }
}

/// NBD over a unix socket; each user has a connection of its own.
pub struct ByNbd {
    pub device: Arc<Memory>,
    pub server: Server,
    pub directory: tempfile::TempDir,
    structured: bool,
}

impl ByNbd {
    /// Of a device whose threads take the clients' requests.
    pub fn new(structured: bool) -> ByNbd {
        Self::of(Memory::attended(SIZE), structured)
    }

    /// Of a device that leaves that to others.
    fn unattended() -> ByNbd {
        Self::of(Memory::new(SIZE), true)
    }

    fn of(device: Arc<Memory>, structured: bool) -> ByNbd {
        let directory = tempfile::tempdir().unwrap();
        let listen = Listen::Unix(directory.path().join("nbd"));
        let options = nbd::Options { name: "volume".into(), listen, tls: None, read_only: false };
        let server = Server::start(device.clone(), &options).unwrap();
        ByNbd { device, server, directory, structured }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("nbd")
    }
}

impl Shown for ByNbd {
    fn device(&self) -> &Memory {
        &self.device
    }

    fn user(&self) -> Box<dyn User> {
        Box::new(Client::connect(&self.socket(), self.structured))
    }

    fn abandon(&self) {
        self.device.gather_for(usize::MAX, Duration::from_millis(300));
        let mut client = Client::connect(&self.socket(), self.structured);
        for part in 0..16 {
            client.send(Command::Write, Flags::default(), part << 16, 1 << 16, &[0; 1 << 16]);
        }
        crate::nbd::wait_for("a write", || self.device.counts().in_flight > 0);
    }

    fn finish(self: Box<Self>) {
        crate::nbd::wait_for("the clients to be gone", || self.server.close().is_ok());
        assert_eq!(self.device.counts().wrong, [""; 0]);
        assert_eq!(self.device.counts().in_flight, 0);
    }
}

impl User for Client {
    fn read(&mut self, offset: usize, length: usize) -> Result<Vec<u8>, Errno> {
        self.call(Command::Read, Flags::default(), offset as u64, u32::try_from(length).unwrap(), &[])
            .map_err(by_code)
    }

    fn write(&mut self, offset: usize, data: &[u8], fua: bool) -> Result<(), Errno> {
        let flags = if fua { Flags::FUA } else { Flags::default() };
        let length = u32::try_from(data.len()).unwrap();
        self.call(Command::Write, flags, offset as u64, length, data).map(drop).map_err(by_code)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        self.call(Command::Flush, Flags::default(), 0, 0, &[]).map(drop).map_err(by_code)
    }

    fn discard(&mut self, offset: usize, length: usize) -> Result<(), Errno> {
        let length = u32::try_from(length).unwrap();
        self.call(Command::Trim, Flags::default(), offset as u64, length, &[]).map(drop).map_err(by_code)
    }

    fn zero(&mut self, offset: usize, length: usize) -> Result<(), Errno> {
        let length = u32::try_from(length).unwrap();
        self.call(Command::WriteZeroes, Flags::NO_HOLE, offset as u64, length, &[]).map(drop).map_err(by_code)
    }

    fn forget(&mut self) {}
}

fn by_code(code: u32) -> Errno {
    // The protocol's numbers are Linux's.
    Errno::from_raw_os_error(i32::try_from(code).unwrap())
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251 + seed * 13 + 1).to_le_bytes()[0]).collect()
}

/// Places of odd sizes, inside and at both ends.
const PLACES: [(usize, usize); 8] = [
    (0, SIZE),
    (5, 1),
    (4095, 2),
    (100_000, 70_000),
    (512, 512),
    (4096, 4096),
    ((1 << 20) - 3, (1 << 20) + 9),
    (SIZE - 1, 1),
];

/// The longest request that all take in one piece.
const LONGEST: usize = 4 << 20;

fn content_of_any_size_and_place(shown: &dyn Shown) {
    let (mut user, mut model) = (shown.user(), vec![0; SIZE]);
    for (number, (at, length)) in PLACES.into_iter().enumerate() {
        let data = pattern(number, length);
        for (index, part) in data.chunks(LONGEST).enumerate() {
            user.write(at + index * LONGEST, part, false).unwrap();
        }
        model[at..at + length].copy_from_slice(&data);
    }
    user.flush().unwrap();
    user.forget();
    assert!(shown.device().bytes(0, SIZE) == model);
    for (at, length) in PLACES {
        let length = length.min(LONGEST);
        assert!(user.read(at, length).unwrap() == model[at..at + length], "{length} bytes at {at}");
    }
}

fn the_last_write_counts(shown: &dyn Shown) {
    let (mut user, mut other) = (shown.user(), shown.user());
    for round in 0..50_u8 {
        user.write(3000, &[round; 3000], false).unwrap();
        user.write(4000, &[round + 100; 100], false).unwrap();
        let seen = other.read(3000, 3000).unwrap();
        assert!(seen[..1000] == [round; 1000] && seen[1000..1100] == [round + 100; 100], "round {round}");
    }
}

fn a_flush_covers_what_others_wrote(shown: &dyn Shown) {
    let (mut writer, mut flusher) = (shown.user(), shown.user());
    let data = pattern(1, 300_000);
    writer.write(8192, &data, false).unwrap();
    flusher.flush().unwrap();
    assert!(shown.device().durable(8192, data.len()) == data);
}

fn fua_is_durable_at_once(shown: &dyn Shown) {
    let mut user = shown.user();
    for (at, length) in [(0, 4096), (10_000, 3), (65_536, 200_000), (3 << 20, 2 << 20)] {
        let data = pattern(at, length);
        user.write(at, &data, true).unwrap();
        assert!(shown.device().durable(at, length) == data, "{length} bytes at {at}");
    }
}

fn what_was_discarded_or_zeroed_reads_as_zeros(shown: &dyn Shown) {
    let (mut user, mut model) = (shown.user(), pattern(2, 1 << 20));
    user.write(0, &model, false).unwrap();
    user.discard(8192, 65_536).unwrap();
    user.zero(131_072, 40_960).unwrap();
    model[8192..8192 + 65_536].fill(0);
    model[131_072..131_072 + 40_960].fill(0);
    user.flush().unwrap();
    user.forget();
    assert!(user.read(0, model.len()).unwrap() == model);
    assert!(shown.device().bytes(0, model.len()) == model);
    assert!(shown.device().counts().discards > 0, "the space is given back");
}

/// A device that knows whole blocks only says so, and changes nothing; else it is exact.
fn what_is_discarded_or_zeroed_in_odd_sizes_harms_nothing_beside(shown: &dyn Shown) {
    let (mut user, mut model) = (shown.user(), pattern(4, SIZE));
    for (index, part) in model.chunks(LONGEST).enumerate() {
        user.write(index * LONGEST, part, false).unwrap();
    }
    user.flush().unwrap();
    for (at, length) in [(5, 1), (4095, 2), (100_000, 70_000), (512, 512), ((1 << 20) - 3, 9), (SIZE - 1, 1)]
    {
        match user.zero(at, length) {
            Ok(()) => model[at..at + length].fill(0),
            Err(errno) => assert_eq!(errno, Errno::INVAL, "{length} bytes at {at}"),
        }
        user.flush().unwrap();
        user.forget();
        assert!(shown.device().bytes(0, SIZE) == model, "zeroed {length} bytes at {at}");
        // What is discarded may stay as it was, or be zeros.
        let (at, length) = (at ^ (2 << 20), length.min(SIZE - (at ^ (2 << 20))));
        user.discard(at, length).unwrap_or_else(|errno| assert_eq!(errno, Errno::INVAL));
        let after = shown.device().bytes(0, SIZE);
        let range = at..at + length;
        let legal = |at: usize| after[at] == model[at] || after[at] == 0 && range.contains(&at);
        assert!((0..SIZE).all(legal), "discarded {length} bytes at {at}");
        model = after;
    }
}

/// A kernel may cut such a request at the end of its block device; what is asked for behind the end alone is refused by all.
fn nothing_is_discarded_or_zeroed_beyond_the_end(shown: &dyn Shown) {
    let mut user = shown.user();
    let data = pattern(5, 64 << 10);
    let start = SIZE - data.len();
    user.write(start, &data, true).unwrap();
    for (at, length) in [(SIZE, 4096), (SIZE + (1 << 40), 4096)] {
        assert!(user.discard(at, length).is_err(), "discard of {length} at {at}");
        assert!(user.zero(at, length).is_err(), "zero of {length} at {at}");
    }
    for (at, length) in [(SIZE - 4096, 8192), (SIZE - 8192, 1 << 31)] {
        for zero in [false, true] {
            let done = if zero { user.zero(at, length) } else { user.discard(at, length) };
            user.flush().unwrap();
            user.forget();
            let now = user.read(start, data.len()).unwrap();
            let (before, behind) = now.split_at(at - start);
            assert!(*before == data[..before.len()], "{length} bytes at {at}");
            let is_cut = done.is_ok() && behind.iter().all(|byte| *byte == 0);
            assert!(is_cut || *behind == data[before.len()..], "{length} bytes at {at}");
            user.write(start, &data, true).unwrap();
        }
    }
}

/// Several write to the same blocks at once: each block is in the end what somebody wrote there last, whole, and everybody sees it.
fn of_writes_at_the_same_time_one_counts(shown: &dyn Shown) {
    const BLOCKS: usize = 16;
    const ROUNDS: usize = 40;
    let lasts: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let users: Vec<_> = (0..4).map(|number| (number, shown.user())).collect();
        let writers = users.into_iter().map(|(number, mut user)| {
            scope.spawn(move || {
                let mut last = vec![0; BLOCKS];
                for round in 0..ROUNDS {
                    let at = (round * (2 * number + 1)) % BLOCKS;
                    // Each value once: 1 to 160.
                    last[at] = u8::try_from(number * ROUNDS + round + 1).unwrap();
                    user.write(at * 4096, &[last[at]; 4096], round % 8 == 0).unwrap();
                }
                user.flush().unwrap();
                last
            })
        });
        writers.collect::<Vec<_>>().into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let (mut one, mut other) = (shown.user(), shown.user());
    one.forget();
    let seen = one.read(0, BLOCKS * 4096).unwrap();
    assert!(other.read(0, BLOCKS * 4096).unwrap() == seen);
    assert!(shown.device().durable(0, BLOCKS * 4096) == seen, "all have flushed");
    for (at, block) in seen.chunks(4096).enumerate() {
        assert!(block.iter().all(|byte| *byte == block[0]), "block {at} is of several writes");
        assert!(lasts.iter().any(|last| last[at] == block[0]), "block {at} is {}, of {lasts:?}", block[0]);
    }
}

fn nothing_is_beyond_the_end(shown: &dyn Shown) {
    let mut user = shown.user();
    assert!(user.read(SIZE - 100, 101).is_err());
    assert!(user.read(SIZE, 1).is_err());
    assert_eq!(user.write(SIZE, &[1], true), Err(Errno::NOSPC));
    assert_eq!(user.write(SIZE + (1 << 40), &[1; 4096], true), Err(Errno::NOSPC));
    user.write(SIZE - 1, &[7], true).unwrap();
    assert_eq!(user.read(SIZE - 1, 1).unwrap(), [7]);
}

fn a_corrupt_block_is_an_error_there_and_nowhere_else(shown: &dyn Shown) {
    let mut user = shown.user();
    user.write(0, &pattern(3, 1 << 20), true).unwrap();
    user.forget();
    shown.device().spoil(100);
    assert_eq!(user.read(100 * 4096 + 17, 5), Err(Errno::IO));
    assert_eq!(user.read(99 * 4096, 8192), Err(Errno::IO));
    assert!(user.read(0, 4096).unwrap() == pattern(3, 1 << 20)[..4096]);
    let next = user.read(101 * 4096, 4096).unwrap();
    assert!(next == pattern(3, 1 << 20)[101 * 4096..102 * 4096]);
    assert_eq!(user.write(200 * 4096, &[1; 4096], true), Err(shown.full()));
}

/// Also for the second who asks; and the device is asked again, so that what it can do later counts.
fn a_flush_that_fails_is_an_error_for_who_asked(shown: &dyn Shown) {
    let (mut one, mut other) = (shown.user(), shown.user());
    let data = pattern(9, 8192);
    one.write(0, &data, false).unwrap();
    shown.device().refuse(Refused::Flushes);
    assert_eq!(one.flush(), Err(Errno::IO));
    assert_eq!(other.flush(), Err(Errno::IO));
    shown.device().refuse(Refused::Nothing);
    one.write(4096, &data, false).unwrap();
    one.flush().unwrap();
    assert!(shown.device().durable(4096, data.len()) == data);
}

/// As with a volume that another session has claimed: no change is ever acknowledged for good, and what is there can be read.
fn a_session_that_is_over_is_an_error_for_all_but_readers(shown: &dyn Shown) {
    let mut user = shown.user();
    let data = pattern(10, 1 << 16);
    user.write(0, &data, true).unwrap();
    user.flush().unwrap();
    shown.device().refuse(Refused::AllButReads);
    assert_eq!(user.write(0, &[1; 4096], true), Err(Errno::IO));
    assert_eq!(user.discard(8192, 4096), Err(Errno::IO));
    assert_eq!(user.zero(16384, 4096), Err(Errno::IO));
    assert_eq!(user.flush(), Err(Errno::IO));
    // The kernel may take a write into its cache; then the flush says that it went no further.
    let _ = user.write(20480, &[2; 4096], false);
    assert_eq!(user.flush(), Err(Errno::IO));
    user.forget();
    let mut reader = shown.user();
    assert!(reader.read(32768, 32768).unwrap() == data[32768..]);
    assert!(shown.device().bytes(0, data.len()) == data, "something was changed all the same");
    assert!(shown.device().durable(0, data.len()) == data);
}

fn who_leaves_disturbs_nobody(shown: &dyn Shown) {
    let mut stays = shown.user();
    for round in 0..20_u8 {
        let mut leaves = shown.user();
        leaves.write(usize::from(round) * 5000, &[round; 5000], false).unwrap();
        drop(leaves);
        assert_eq!(stays.read(usize::from(round) * 5000, 5000).unwrap(), [round; 5000]);
    }
}

fn who_leaves_with_requests_under_way_disturbs_nobody(shown: &dyn Shown) {
    let mut stays = shown.user();
    let data = pattern(6, 1 << 20);
    stays.write(2 << 20, &data, true).unwrap();
    for round in 0..3 {
        shown.abandon();
        assert!(stays.read(2 << 20, data.len()).unwrap() == data, "round {round}");
        stays.write(0, &data, true).unwrap();
        stays.forget();
        assert!(stays.read(2 << 20, data.len()).unwrap() == data, "round {round}");
    }
}

fn run(turn: Option<Turn>, show: fn() -> Box<dyn Shown>, check: fn(&dyn Shown)) {
    if turn.is_none() {
        return;
    }
    let shown = show();
    check(shown.as_ref());
    shown.finish();
}

/// Hands a list of all checks to another macro, behind what else it wants.
macro_rules! with_all_checks {
    ($other:ident, $($more:tt)*) => {
        $other!($($more)* [
            content_of_any_size_and_place,
            the_last_write_counts,
            a_flush_covers_what_others_wrote,
            fua_is_durable_at_once,
            what_was_discarded_or_zeroed_reads_as_zeros,
            what_is_discarded_or_zeroed_in_odd_sizes_harms_nothing_beside,
            nothing_is_discarded_or_zeroed_beyond_the_end,
            of_writes_at_the_same_time_one_counts,
            nothing_is_beyond_the_end,
            a_corrupt_block_is_an_error_there_and_nowhere_else,
            a_flush_that_fails_is_an_error_for_who_asked,
            a_session_that_is_over_is_an_error_for_all_but_readers,
            who_leaves_disturbs_nobody,
            who_leaves_with_requests_under_way_disturbs_nobody
        ]);
    };
}

/// All checks for one front end.
macro_rules! conforms {
    ($name:ident, $turn:expr, $show:expr, [$($check:ident),*]) => {
        mod $name {
            use super::*;
            $(#[test]
            fn $check() {
                run($turn, $show, super::$check);
            })*
        }
    };
    ($name:ident, $turn:expr, $show:expr) => {
        with_all_checks!(conforms, $name, $turn, $show,);
    };
}

conforms!(fuse_file, turn(false), Fuse::file);
conforms!(fuse_attended, turn(false), Fuse::attended);
conforms!(loop_device, turn(true), Fuse::looped);
conforms!(nbd_structured, Some(crate::common::alone()), || Box::new(ByNbd::new(true)));
conforms!(nbd_simple, Some(crate::common::alone()), || Box::new(ByNbd::new(false)));
conforms!(nbd_unattended, Some(crate::common::alone()), || Box::new(ByNbd::unattended()));

macro_rules! table {
    ([$($check:ident),*]) => {
        const CHECKS: &[(&str, fn(&dyn Shown))] = &[$((stringify!($check), $check)),*];
    };
}
with_all_checks!(table,);

/// One test, since most machines lack the driver. The crate `guest` runs it where there is one.
#[test]
fn ublk_devices() {
    for (name, check) in CHECKS {
        for (kind, show) in
            [("plain", (|| ByUblk::show(false)) as fn() -> _), ("kept", || ByUblk::show(true))]
        {
            let turn = turn_with(&["/dev/ublk-control"]);
            if turn.is_none() {
                return;
            }
            println!("{kind}: {name}");
            run(turn, show, *check);
        }
    }
}
