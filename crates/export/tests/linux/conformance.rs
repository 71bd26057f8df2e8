//! What every front end must do alike, over the same device in memory.

use crate::client::Client;
use crate::common::{Memory, Rig, Turn, turn, turn_with};
use export::fuse::Options;
use export::nbd::wire::{Command, Flags};
use export::nbd::{self, Listen, Server};
use export::ublk::{self, Recovery, Ublk};
use rustix::fs::{Advice, FallocateFlags, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

const SIZE: usize = 8 << 20;

/// One who uses the device.
trait User {
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

    fn looped() -> Box<dyn Shown> {
        let mut rig = Rig::new(SIZE, &Options::default());
        let device = rig.attach();
        Box::new(Fuse(rig, Some(device)))
    }
}

impl Shown for Fuse {
    fn device(&self) -> &Memory {
        &self.0.device
    }

    fn user(&self) -> Box<dyn User> {
        Box::new(ByFile::open(self.1.clone().unwrap_or_else(|| self.0.file())))
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
        let options = ublk::Options { queues: 2, depth: 64, recovery: recoverable.then_some(recovery) };
        let ublk = Ublk::show(device.clone(), &options).unwrap();
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
    pub fn new(structured: bool) -> ByNbd {
        let directory = tempfile::tempdir().unwrap();
        let device = Memory::new(SIZE);
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

fn who_leaves_disturbs_nobody(shown: &dyn Shown) {
    let mut stays = shown.user();
    for round in 0..20_u8 {
        let mut leaves = shown.user();
        leaves.write(usize::from(round) * 5000, &[round; 5000], false).unwrap();
        drop(leaves);
        assert_eq!(stays.read(usize::from(round) * 5000, 5000).unwrap(), [round; 5000]);
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
            nothing_is_beyond_the_end,
            a_corrupt_block_is_an_error_there_and_nowhere_else,
            who_leaves_disturbs_nobody
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
conforms!(loop_device, turn(true), Fuse::looped);
conforms!(nbd_structured, Some(crate::common::alone()), || Box::new(ByNbd::new(true)));
conforms!(nbd_simple, Some(crate::common::alone()), || Box::new(ByNbd::new(false)));

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
