use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A disk with a volatile cache: what was written counts at once, and is lost at a cut unless it was flushed.
#[derive(Default)]
struct Disk {
    content: Mutex<[Vec<u8>; 2]>,
    flushes: AtomicU64,
    held: Mutex<Vec<(Request, Done)>>,
    holding: AtomicBool,
    /// There is no room for what would begin here.
    full_at: AtomicU64,
}

const SIZE: usize = 8 << 20;

impl Disk {
    fn new() -> Arc<Self> {
        let content = Mutex::new([vec![0; SIZE], vec![0; SIZE]]);
        Arc::new(Self { content, full_at: AtomicU64::new(u64::MAX), ..Self::default() })
    }

    /// What its server's death does to it.
    fn cut(&self) {
        let [now, durable] = &mut *self.content.lock().unwrap();
        now.clone_from(durable);
    }

    fn block(&self, number: usize) -> u8 {
        self.content.lock().unwrap()[0][number * 4096]
    }

    fn execute(&self, request: Request) {
        let [now, durable] = &mut *self.content.lock().unwrap();
        let at = |offset: u64, length: usize| {
            usize::try_from(offset).unwrap()..usize::try_from(offset).unwrap() + length
        };
        match request {
            Request::Write { offset, data, .. } => now[at(offset, data.len())].copy_from_slice(&data),
            Request::Discard { offset, length } | Request::WriteZeroes { offset, length } => {
                now[at(offset, usize::try_from(length).unwrap())].fill(0);
            }
            Request::Flush => {
                self.flushes.fetch_add(1, Ordering::Relaxed);
                durable.clone_from(now);
            }
            Request::Read { .. } => {}
        }
    }

    /// Executes what was held back.
    fn let_go(&self) {
        self.holding.store(false, Ordering::Relaxed);
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        for (request, done) in held {
            self.execute(request);
            done(Ok(Bytes::new()));
        }
    }
}

impl Device for Disk {
    fn size(&self) -> u64 {
        SIZE as u64
    }

    fn submit(&self, request: Request, done: Done) {
        if self.holding.load(Ordering::Relaxed) && request != Request::Flush {
            return self.held.lock().unwrap().push((request, done));
        }
        let full = self.full_at.load(Ordering::Relaxed);
        if matches!(&request, Request::Write { offset, .. } if *offset == full) {
            return done(Err(Errno::NOSPC));
        }
        self.execute(request);
        done(Ok(Bytes::new()));
    }
}

const RECORD: Record = Record { number: 3, servers: [1, 2], owner: [9; 16] };

/// A log in memory.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn begin(disk: &Arc<Disk>, directory: &tempfile::TempDir) -> RecoveryLog {
    let log = Log::create(&directory.path().join("log"), &RECORD).unwrap();
    RecoveryLog::new(Arc::clone(disk) as Arc<dyn Device>, log).unwrap()
}

/// What the next server does.
fn go_on(disk: &Arc<Disk>, directory: &tempfile::TempDir) -> RecoveryLog {
    let (log, record) = Log::open(&directory.path().join("log")).unwrap().unwrap();
    assert_eq!(record, RECORD);
    RecoveryLog::new(Arc::clone(disk) as Arc<dyn Device>, log).unwrap()
}

fn try_write(recovery: &RecoveryLog, block: u64, value: u8) -> Result<Bytes, Errno> {
    let request = Request::Write { offset: block * 4096, data: vec![value; 4096].into(), fua: false };
    finish(&(Arc::new(recovery.clone()) as Arc<dyn Device>), request)
}

fn write(recovery: &RecoveryLog, block: u64, value: u8) {
    try_write(recovery, block, value).unwrap();
}

fn flush(recovery: &RecoveryLog) {
    finish(&(Arc::new(recovery.clone()) as Arc<dyn Device>), Request::Flush).unwrap();
}

#[test]
fn what_had_ended_is_there_again() {
    let (disk, directory) = (Disk::new(), directory());
    let recovery = begin(&disk, &directory);
    write(&recovery, 0, 1);
    write(&recovery, 1, 1);
    write(&recovery, 0, 2);
    recovery.submit(Request::WriteZeroes { offset: 4096, length: 4096 }, Box::new(|_| ()));
    disk.cut();
    assert_eq!(disk.block(0), 0, "the disk has forgotten it");
    let recovery = go_on(&disk, &directory);
    assert_eq!((disk.block(0), disk.block(1)), (2, 0));
    // And so it stays, also if that server dies as well.
    write(&recovery, 5, 5);
    disk.cut();
    let recovery = go_on(&disk, &directory);
    assert_eq!((disk.block(0), disk.block(5)), (2, 5));
    recovery.remove();
    assert!(Log::open(&directory.path().join("log")).unwrap().is_none());
}

#[test]
fn what_was_flushed_is_not_repeated() {
    let (disk, directory) = (Disk::new(), directory());
    let recovery = begin(&disk, &directory);
    write(&recovery, 0, 1);
    flush(&recovery);
    // Behind our back, to see whether the write comes again.
    disk.execute(Request::Write { offset: 0, data: vec![7; 4096].into(), fua: false });
    go_on(&disk, &directory);
    assert_eq!(disk.block(0), 7);
}

#[test]
fn what_was_refused_or_had_not_ended_is_not_repeated() {
    let (disk, directory) = (Disk::new(), directory());
    let recovery = begin(&disk, &directory);
    disk.full_at.store(7 * 4096, Ordering::Relaxed);
    assert_eq!(try_write(&recovery, 7, 1), Err(Errno::NOSPC));
    write(&recovery, 8, 1);
    disk.holding.store(true, Ordering::Relaxed);
    for block in [7, 9] {
        recovery.submit(
            Request::Write { offset: block * 4096, data: vec![1; 4096].into(), fua: false },
            Box::new(|_| ()),
        );
    }
    disk.cut();
    disk.holding.store(false, Ordering::Relaxed);
    // What was refused once would be refused again, and the device could never go on.
    go_on(&disk, &directory);
    assert_eq!([7, 8, 9].map(|block| disk.block(block)), [0, 1, 0]);
}

#[test]
fn a_write_that_ends_during_a_flush_is_kept() {
    let (disk, directory) = (Disk::new(), directory());
    let recovery = begin(&disk, &directory);
    disk.holding.store(true, Ordering::Relaxed);
    recovery.submit(Request::Write { offset: 0, data: vec![4; 4096].into(), fua: false }, Box::new(|_| ()));
    flush(&recovery);
    disk.let_go();
    disk.cut();
    go_on(&disk, &directory);
    assert_eq!(disk.block(0), 4);
}

#[test]
fn more_is_written_than_the_log_holds() {
    let (disk, directory) = (Disk::new(), directory());
    let recovery = begin(&disk, &directory);
    let begun = disk.flushes.load(Ordering::Relaxed);
    let done = Arc::new(AtomicU64::new(0));
    let submit = |number: u64| {
        let done = Arc::clone(&done);
        let data = vec![u8::try_from(number % 251).unwrap(); 1 << 20];
        let end = move |result: Result<Bytes, Errno>| {
            result.unwrap();
            done.fetch_add(1, Ordering::Relaxed);
        };
        recovery.submit(
            Request::Write { offset: (number % 8) << 20, data: data.into(), fua: false },
            Box::new(end),
        );
    };
    (0..200).for_each(submit);
    assert_eq!(done.load(Ordering::Relaxed), 200);
    let flushes = disk.flushes.load(Ordering::Relaxed) - begun;
    assert!((3..=10).contains(&flushes), "{flushes} flushes for three times the log");
    // All of them at once, which have to wait for room.
    disk.holding.store(true, Ordering::Relaxed);
    (200..400).for_each(submit);
    assert_eq!(done.load(Ordering::Relaxed), 200);
    disk.let_go();
    assert_eq!(done.load(Ordering::Relaxed), 400);
    disk.cut();
    go_on(&disk, &directory);
    for number in 392..400_u64 {
        let place = usize::try_from(number % 8).unwrap() * 256;
        assert_eq!(u64::from(disk.block(place)), number % 251);
    }
}

#[test]
fn nothing_is_kept_on_a_disk() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = directory.path().join("log");
    if !is_memory(&rustix::fs::statfs(directory.path()).unwrap()) {
        assert!(matches!(Log::create(&path, &RECORD), Err(Error::Usage(_))));
        assert!(!path.exists());
    }
}
