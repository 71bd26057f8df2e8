//! The exported file, as programs see it.

use crate::common::{Memory, Page, Rig, can_be_io_flusher, run, turn};
use export::Error;
use export::fuse::{Mount, Options};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

const SIZE: usize = 8 << 20;

fn open(path: &Path, flags: OFlags) -> std::io::Result<File> {
    let flags = i32::try_from(flags.bits()).unwrap();
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&result.unwrap_err()).unwrap()
}

#[test]
fn one_file_of_the_devices_size_and_nothing_else() {
    let Some(_turn) = turn(false) else { return };
    let rig = Rig::new(SIZE, &Options::default());
    let point = rig.directory.path().join("export");
    let names: Vec<_> = std::fs::read_dir(&point).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["volume"]);
    let metadata = rig.file().metadata().unwrap();
    assert!(metadata.is_file());
    assert_eq!((metadata.len(), metadata.mode() & 0o777, metadata.blksize()), (SIZE as u64, 0o600, 4096));
    assert_eq!(errno(File::open(point.join("other"))), Errno::NOENT);
    assert!(File::create(point.join("other")).is_err());
    assert!(std::fs::remove_file(rig.file()).is_err());
    rig.finish();
}

/// A program that makes what it does not find, as QEMU does, makes no directory: without the mount it has no place for a file.
#[test]
fn in_a_directory_the_file_is_nowhere_without_the_mount() {
    let Some(_turn) = turn(false) else { return };
    let options = Options { directory: Some("region"), ..Options::default() };
    let rig = Rig::new(SIZE, &options);
    let point = rig.directory.path().join("export");
    let path = point.join("region/volume");
    assert_eq!(rig.file(), path);
    let names = |at: &Path| {
        let entries = std::fs::read_dir(at).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    assert_eq!((names(&point), names(&point.join("region"))), (vec!["region".into()], vec!["volume".into()]));
    assert!(point.join("region").metadata().unwrap().is_dir() && path.metadata().unwrap().is_file());
    for other in ["volume", "other", "region/region", "region/other"] {
        assert_eq!(errno(File::open(point.join(other))), Errno::NOENT, "{other}");
        assert!(File::create(point.join(other)).is_err(), "{other}");
    }
    open(&path, OFlags::empty()).unwrap().write_all_at(&[3; 4096], 4096).unwrap();
    assert_eq!(rig.device.bytes(4095, 2), [0, 3]);
    rig.finish();
    assert_eq!(errno(File::create(&path)), Errno::NOENT);
}

#[test]
fn bytes_of_any_alignment_are_stored_and_read_back() {
    let Some(_turn) = turn(false) else { return };
    let rig = Rig::new(SIZE, &Options::default());
    let file = open(&rig.file(), OFlags::empty()).unwrap();
    let mut model = vec![0_u8; SIZE];
    for (at, length) in [(0, SIZE), (5, 1), (4095, 2), (100_000, 70_000), (512, 512), (SIZE - 1, 1)] {
        let data: Vec<u8> = (0..length).map(|index| (index * 7 + at).to_le_bytes()[0]).collect();
        file.write_all_at(&data, at as u64).unwrap();
        model[at..at + length].copy_from_slice(&data);
        let mut back = vec![0; length];
        file.read_exact_at(&mut back, at as u64).unwrap();
        assert!(back == data, "{length} bytes at {at}");
    }
    assert!(rig.device.bytes(0, SIZE) == model);
    assert!(rig.device.counts().largest >= 1 << 20, "the kernel must send requests of 1 MiB");
    drop(file);
    rig.finish();
}

#[test]
fn the_end_is_the_end() {
    let Some(_turn) = turn(false) else { return };
    let rig = Rig::new(SIZE, &Options::default());
    let file = open(&rig.file(), OFlags::empty()).unwrap();
    let end = SIZE as u64;
    assert_eq!(file.read_at(&mut [0; 10], end).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 10], end - 4).unwrap(), 4);
    assert_eq!(file.write_at(&[1; 10], end - 4).unwrap(), 4);
    assert_eq!(errno(file.write_at(&[1; 10], end)), Errno::NOSPC);
    assert_eq!(rig.file().metadata().unwrap().len(), end);
    assert_eq!(errno(file.set_len(0)), Errno::PERM);
    assert_eq!(errno(OpenOptions::new().write(true).truncate(true).open(rig.file())), Errno::PERM);
    file.set_len(end).unwrap();
    drop(file);
    rig.finish();
}

#[test]
fn sync_flushes_and_holes_discard() {
    let Some(_turn) = turn(false) else { return };
    let rig = Rig::new(SIZE, &Options::default());
    let file = open(&rig.file(), OFlags::empty()).unwrap();
    file.write_all_at(&[0xff; 65536], 0).unwrap();
    assert_eq!((rig.device.counts().flushes, rig.device.counts().fua), (0, 0));
    file.sync_data().unwrap();
    file.sync_all().unwrap();
    assert_eq!(rig.device.counts().flushes, 2);

    let keep = FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, 4096, 8192).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE | keep, 16384, 4096).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | keep, 30000, 100).unwrap();
    assert_eq!(rustix::fs::fallocate(&file, keep, 0, 4096), Err(Errno::OPNOTSUPP));
    let mut model = vec![0xff; 65536];
    for zero in [4096..12288, 16384..20480, 30000..30100] {
        model[zero].fill(0);
    }
    assert!(rig.device.bytes(0, 65536) == model);
    let counts = rig.device.counts();
    assert_eq!((counts.discards, counts.zeroes), (1, 1), "the small hole is patched");

    let synchronous = open(&rig.file(), OFlags::DSYNC).unwrap();
    synchronous.write_all_at(&[1; 4096], 0).unwrap();
    assert!(rig.device.counts().fua > 0);
    drop((file, synchronous));
    rig.finish();
}

#[test]
fn errors_of_the_device_reach_the_program() {
    let Some(_turn) = turn(false) else { return };
    let rig = Rig::new(SIZE, &Options::default());
    let file = open(&rig.file(), OFlags::empty()).unwrap();
    for expected in [Errno::IO, Errno::NOSPC, Errno::ROFS] {
        rig.device.fail_with(Some(expected));
        assert_eq!(errno(file.write_at(&[1; 4096], 0)), expected);
        assert_eq!(errno(file.read_at(&mut [0; 4096], 0)), expected);
        assert_eq!(errno(file.sync_data()), expected);
    }
    rig.device.fail_with(None);
    file.sync_data().unwrap();
    drop(file);
    rig.finish();
}

#[test]
fn a_read_only_export_refuses_writers() {
    let Some(_turn) = turn(false) else { return };
    let rig = Rig::new(SIZE, &Options { read_only: true, ..Options::default() });
    assert_eq!(errno(open(&rig.file(), OFlags::empty())), Errno::ROFS);
    let file = File::open(rig.file()).unwrap();
    assert_eq!(file.read_at(&mut [1; 16], 0).unwrap(), 16);
    drop(file);
    rig.finish();
}

#[test]
fn no_more_is_in_flight_than_there_is_memory_for() {
    let Some(_turn) = turn(false) else { return };
    const MIB: usize = 1 << 20;
    let rig = Rig::new(16 * MIB, &Options { threads: 4, ..Options::default() });
    let file = open(&rig.file(), OFlags::DIRECT).unwrap();
    // As soon as eight are there; and then no ninth for a while.
    let rounds = [(8, Duration::from_secs(20)), (9, Duration::from_secs(1))];
    for (write, (wanted, patience)) in [true, false].into_iter().flat_map(|write| rounds.map(|r| (write, r)))
    {
        rig.device.gather_for(wanted, patience);
        std::thread::scope(|scope| {
            for number in 0..16 {
                let file = &file;
                scope.spawn(move || {
                    let at = u64::from(number) * MIB as u64;
                    let mut pages = vec![Page([if write { number } else { 99 }; 4096]); MIB / 4096];
                    let done = if write {
                        let pieces: Vec<_> = pages.iter().map(|page| IoSlice::new(&page.0)).collect();
                        rustix::io::pwritev(file, &pieces, at)
                    } else {
                        let mut pieces: Vec<_> =
                            pages.iter_mut().map(|page| IoSliceMut::new(&mut page.0)).collect();
                        rustix::io::preadv(file, &mut pieces, at)
                    };
                    assert_eq!(done, Ok(MIB));
                    assert!(pages.iter().all(|page| page.0 == [number; 4096]));
                });
            }
        });
        let counts = rig.device.counts();
        assert!(counts.most_in_flight <= 8 && counts.largest == MIB, "write: {write}, {counts:?}");
        assert!(wanted > 8 || counts.most_in_flight == 8, "write: {write}, {counts:?}");
    }
    drop(file);
    rig.finish();
}

#[test]
fn direct_reads_and_writes_are_in_flight_together() {
    let Some(_turn) = turn(false) else { return };
    const THREADS: u64 = 12;
    let rig = Rig::new(SIZE, &Options::default());
    let file = open(&rig.file(), OFlags::DIRECT).unwrap();
    let each = |act: &(dyn Fn(u64) + Sync)| {
        rig.device.gather(usize::try_from(THREADS).unwrap());
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                scope.spawn(move || act(number));
            }
        });
        assert_eq!(rig.device.counts().most_in_flight, usize::try_from(THREADS).unwrap());
    };
    let page = |number: u64| Page([number.to_le_bytes()[0] + 1; 4096]);
    each(&|number| file.write_all_at(&page(number).0, number * 4096).unwrap());
    each(&|number| {
        let mut back = Page([0; 4096]);
        file.read_exact_at(&mut back.0, number * 4096).unwrap();
        assert!(back == page(number));
    });
    if can_be_io_flusher() {
        assert_eq!(rig.device.counts().by_strangers, 0);
    }
    drop(file);
    rig.finish();
}

#[test]
fn a_mount_in_use_stays_and_a_second_one_is_refused() {
    let Some(_turn) = turn(false) else { return };
    let rig = Rig::new(SIZE, &Options::default());
    let point = rig.directory.path().join("export");
    let file = File::open(rig.file()).unwrap();
    assert!(matches!(rig.mount().unmount(), Err(Error::Busy(_))));
    let mut byte = [1];
    assert_eq!(file.read_at(&mut byte, 0).unwrap(), 1, "still served");
    let second = Mount::new(&point, "volume", Memory::new(4096), &Options::default());
    assert!(matches!(second, Err(Error::Busy(_))), "{second:?}");
    drop(file);
    rig.mount().unmount().unwrap();
    rig.mount().unmount().unwrap();
    rig.mount().wait().unwrap();
    let again = Mount::new(&point, "volume", Memory::new(4096), &Options::default()).unwrap();
    assert!(again.file().exists());
    again.unmount().unwrap();
}

#[test]
fn what_cannot_be_mounted_on_is_refused_with_a_reason() {
    let Some(_turn) = turn(false) else { return };
    let directory = tempfile::tempdir().unwrap();
    let refusal = |point: &Path| match Mount::new(point, "volume", Memory::new(4096), &Options::default()) {
        Err(Error::Usage(why) | Error::Busy(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(refusal(&directory.path().join("missing")).contains("no such directory"));
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(refusal(&file).contains("not a directory"));
    assert!(refusal(Path::new("/proc")).contains("mounted here already"));
}

#[test]
fn waiting_ends_when_somebody_else_unmounts() {
    let Some(_turn) = turn(false) else { return };
    let rig = Rig::new(SIZE, &Options::default());
    let point = rig.directory.path().join("export");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| rig.mount().wait());
        run("umount", &[&point]);
        assert_eq!(waiting.join().unwrap(), Ok(()));
    });
    rig.finish();
}

#[test]
fn dropping_takes_the_mount_away_but_serves_who_still_has_the_file() {
    let Some(_turn) = turn(false) else { return };
    let mut rig = Rig::new(SIZE, &Options::default());
    let file = open(&rig.file(), OFlags::empty()).unwrap();
    rig.mount = None;
    assert_eq!(std::fs::read_dir(rig.directory.path().join("export")).unwrap().count(), 0);
    file.write_all_at(&[9; 4096], 0).unwrap();
    assert_eq!(rig.device.bytes(0, 1), [9]);
}

#[test]
fn the_devices_threads_serve_and_when_they_end_another_does() {
    let Some(_turn) = turn(false) else { return };
    let device = Memory::attended(SIZE);
    let rig = Rig::of(device.clone(), &Options::default());
    let file = open(&rig.file(), OFlags::empty()).unwrap();
    file.write_all_at(&[3; 70_000], 5).unwrap();
    wait_for_servers(0);
    device.dismiss();
    let mut back = vec![0; 70_000];
    file.read_exact_at(&mut back, 5).unwrap();
    assert!(back.iter().all(|byte| *byte == 3));
    wait_for_servers(1);
    file.write_all_at(&[4; 4096], 0).unwrap();
    drop(file);
    rig.finish();
}

/// Threads of an earlier test end a moment after it.
fn wait_for_servers(wanted: usize) {
    let start = Instant::now();
    let is_server = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim_end() == "fuse")
    };
    let count = || std::fs::read_dir("/proc/self/task").unwrap().flatten().map(is_server);
    while count().filter(|is| *is).count() != wanted {
        assert!(start.elapsed() < Duration::from_secs(20), "threads of our own serve");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "not a test of its own: the next one runs it, and kills it"]
fn crashing_daemon() {
    let point = std::env::var("CVMIO_TEST_MOUNT").expect("run by another test");
    let _mount = Mount::new(Path::new(&point), "volume", Memory::new(4096), &Options::default()).unwrap();
    println!("mounted");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_crash_leaves_no_dead_mount_and_no_place_to_write_to() {
    let Some(_turn) = turn(false) else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut daemon = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "file::crashing_daemon", "--ignored", "--nocapture"])
        .env("CVMIO_TEST_MOUNT", directory.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = std::io::BufReader::new(daemon.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("mounted") {
        line.clear();
        assert!(std::io::BufRead::read_line(&mut output, &mut line).unwrap() > 0, "it ended too early");
    }
    assert!(directory.path().join("volume").exists());
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let start = Instant::now();
    while std::fs::read_dir(directory.path()).is_err() {
        assert!(start.elapsed() < Duration::from_secs(10), "the dead mount is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
    for name in ["volume", "other"] {
        assert!(std::fs::write(directory.path().join(name), "in the clear").is_err(), "{name}");
    }
    export::fuse::open_left(directory.path(), "volume").unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}
