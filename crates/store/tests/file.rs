//! What is particular to files and devices: opening, locking, and a host that changes them meanwhile.

#[path = "file/silent.rs"]
mod silent;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use memory::BLOCK_SIZE;
use store::{Completion, Error, ErrorKind, FileStore, Operation, Options, Queue, Store};
use tempfile::TempDir;

/// In the build directory: the system's temporary one may be a tmpfs.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn kind(path: &Path, options: Options) -> ErrorKind {
    FileStore::open(path, options).expect_err("must not open").kind
}

fn image(directory: &TempDir, blocks: u64) -> FileStore {
    let options = Options { create: Some(blocks), ..Options::default() };
    FileStore::open(directory.path().join("image"), options).unwrap()
}

fn run(queue: &mut dyn Queue, operations: Vec<Operation>) -> Vec<Completion> {
    let expected = operations.len();
    for (token, operation) in (0..).zip(operations) {
        queue.submit(token, operation);
    }
    let mut completions = Vec::new();
    while completions.len() < expected {
        queue.wait(Some(Duration::from_secs(10)), &mut completions);
    }
    completions.sort_by_key(|completion| completion.token);
    completions
}

#[test]
fn allocating_takes_the_space_and_keeps_the_content() {
    use std::os::unix::fs::MetadataExt;
    let directory = directory();
    let store = image(&directory, 64);
    let path = directory.path().join("image");
    let mut buffer = store.queue(1).unwrap().buffer(1);
    buffer.copy_from(0, &[7; BLOCK_SIZE]);
    let mut queue = store.queue(1).unwrap();
    run(&mut *queue, vec![Operation::Write { block: 5, buffer }]).remove(0).result.unwrap();
    let on_disk = || fs::metadata(&path).unwrap().blocks() * 512;
    assert!(on_disk() < 64 * 4096, "sparse");
    store.allocate().unwrap();
    assert!(on_disk() >= 64 * 4096);
    let content = fs::read(&path).unwrap();
    assert_eq!(&content[5 * 4096..6 * 4096], &[7; 4096]);
    assert!(content[..5 * 4096].iter().chain(&content[6 * 4096..]).all(|byte| *byte == 0));
    // More than any machine has: refused before anything is taken.
    let huge = Options { create: Some(1 << 31), ..Options::default() };
    let huge = FileStore::open(directory.path().join("huge"), huge).unwrap();
    assert_eq!(huge.allocate().unwrap_err().kind, ErrorKind::NoSpace);
    assert!(fs::metadata(directory.path().join("huge")).unwrap().blocks() * 512 < 1 << 20);
}

/// What was written and what was reserved is told apart from holes, also inside a page of the file, and behind more extents than one call names.
#[test]
fn a_file_knows_what_it_was_given() {
    let directory = directory();
    let store = image(&directory, 4096);
    assert_eq!(store.given(0..4096), Some(vec![]));
    let mut queue = store.queue(8).unwrap();
    let buffer = queue.buffer(2);
    run(&mut *queue, vec![Operation::Write { block: 5, buffer }]).remove(0).result.unwrap();
    store.allocate_range(100..164).unwrap();
    assert_eq!(store.given(0..4096), Some(vec![5..7, 100..164]));
    assert_eq!(store.given(6..120), Some(vec![6..7, 100..120]));
    assert_eq!(store.given(7..100), Some(vec![]));
    run(&mut *queue, vec![Operation::Discard { block: 110, blocks: 10 }]).remove(0).result.unwrap();
    assert_eq!(store.given(0..4096), Some(vec![5..7, 100..110, 120..164]));
    for block in (1000..2600).step_by(2) {
        store.allocate_range(block..block + 1).unwrap();
    }
    let expected: Vec<_> = (1000..2600).step_by(2).map(|block| block..block + 1).collect();
    assert_eq!(store.given(1000..u64::MAX), Some(expected));
    // Parts of a page of the file are not the page.
    let path = directory.path().join("image");
    let file = File::options().write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[1; 512], 3000 * 4096 + 512).unwrap();
    file.sync_all().unwrap();
    let told = store.given(2999..3002).unwrap();
    assert!(told.iter().all(|run| *run == (3000..3001)), "{told:?}");
}

#[test]
fn a_file_is_made_longer_sparsely_and_never_shorter() {
    use std::os::unix::fs::MetadataExt;
    let directory = directory();
    let store = image(&directory, 4);
    let path = directory.path().join("image");
    let length = || fs::metadata(&path).unwrap().len() / 4096;
    store.extend(3, false).unwrap();
    assert_eq!((store.blocks(), length()), (4, 4));
    let mut buffer = store.queue(1).unwrap().buffer(1);
    buffer.copy_from(0, &[7; BLOCK_SIZE]);
    let mut queue = store.queue(2).unwrap();
    run(&mut *queue, vec![Operation::Write { block: 3, buffer }]).remove(0).result.unwrap();
    store.extend(4096, false).unwrap();
    assert_eq!((store.blocks(), length()), (4096, 4096));
    assert!(fs::metadata(&path).unwrap().blocks() * 512 < 1 << 20, "sparse");
    let buffers = [3, 4095].map(|block| Operation::Read { block, buffer: queue.buffer(1) });
    let read = run(&mut *queue, buffers.into());
    let first = |completion: &Completion| {
        let mut bytes = [9; 1];
        completion.buffer.as_ref().unwrap().copy_to(0, &mut bytes);
        bytes[0]
    };
    assert_eq!(read.iter().map(first).collect::<Vec<_>>(), [7, 0], "also by a queue that was there before");
    assert!(store.extend(u64::MAX, false).is_err());
    assert_eq!((store.blocks(), length()), (4096, 4096));
    // More than any file system here has, and less than a file may be long.
    store.extend(1 << 31, true).unwrap_err();
    assert_eq!((store.blocks(), length()), (4096, 4096), "as long as it was");
    store.extend(8192, true).unwrap();
    assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 8192 * 4096, "its space is taken");
}

#[test]
fn what_a_file_takes_and_gives_back_is_what_the_system_says() {
    let directory = directory();
    let store = image(&directory, 256);
    let before = store.usage().unwrap();
    assert!(before.taken < 64 * 4096 && before.left > 0, "{before:?}");
    store.allocate_range(0..128).unwrap();
    let taken = store.usage().unwrap().taken;
    assert!((128 * 4096..256 * 4096).contains(&taken), "{taken}");
    store.allocate_range(250..1000).unwrap();
    assert_eq!(
        fs::metadata(directory.path().join("image")).unwrap().len(),
        256 * 4096,
        "no longer than it was"
    );
    let mut queue = store.queue(2).unwrap();
    run(&mut *queue, vec![Operation::Discard { block: 0, blocks: 256 }]).remove(0).result.unwrap();
    assert!(store.usage().unwrap().taken < 64 * 4096, "{:?}", store.usage());
}

#[test]
fn what_is_no_store_is_refused_by_kind() {
    let directory = directory();
    let path = directory.path().join("image");
    let defaults = Options::default();
    assert_eq!(kind(&path, defaults), ErrorKind::NotFound);
    assert_eq!(kind(directory.path(), defaults), ErrorKind::Directory);
    assert_eq!(kind(Path::new("/dev/null"), defaults), ErrorKind::Unsupported);
    fs::write(&path, "").unwrap();
    assert_eq!(kind(&path, defaults), ErrorKind::TooSmall);
    fs::write(&path, [7; 4095]).unwrap();
    assert_eq!(kind(&path, defaults), ErrorKind::TooSmall);
    fs::write(&path, [7; 5000]).unwrap();
    assert_eq!(FileStore::open(&path, defaults).unwrap().blocks(), 1, "what is over is left alone");
    let create = Options { create: Some(1), ..defaults };
    assert_eq!(kind(&path, create), ErrorKind::Exists);
    assert_eq!(kind(&path, Options { read_only: true, ..create }), ErrorKind::ReadOnly);
    assert_eq!(fs::read(&path).unwrap(), [7; 5000], "and left alone");
    let huge = Options { create: Some(u64::MAX / 2), ..defaults };
    let nowhere = FileStore::open(directory.path().join("none/image"), create).unwrap_err();
    assert_eq!(nowhere.kind, ErrorKind::NotFound);
    assert!(nowhere.message.contains("no such directory"), "{nowhere}");
    let path = directory.path().join("huge");
    assert_eq!(kind(&path, huge), ErrorKind::NoSpace);
    assert!(!path.exists(), "a file that got no size is gone again");
}

/// What is left of a creation that was killed before it gave the file its length.
#[test]
fn an_empty_file_gets_its_length_like_a_new_one() {
    let directory = directory();
    let path = directory.path().join("image");
    fs::write(&path, "").unwrap();
    let create = |blocks| Options { create: Some(blocks), ..Options::default() };
    assert_eq!(kind(&path, create(u64::MAX / 2)), ErrorKind::NoSpace);
    assert!(path.exists(), "it was there before");
    assert_eq!(FileStore::open(&path, create(3)).unwrap().blocks(), 3);
    assert_eq!(kind(&path, create(1)), ErrorKind::Exists);
    assert_eq!(fs::metadata(&path).unwrap().len(), 3 * 4096);
}

/// Files of procfs refuse it on every kernel; what tmpfs says depends on its age.
#[test]
fn where_direct_io_is_refused_the_error_says_so() {
    let options = Options { read_only: true, ..Options::default() };
    let error = FileStore::open("/proc/version", options).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.message.contains("direct I/O"), "{error}");
}

#[test]
fn an_image_is_attached_once_and_read_by_many() {
    let directory = directory();
    let path = directory.path().join("image");
    let defaults = Options::default();
    let read_only = Options { read_only: true, ..defaults };
    let first = image(&directory, 2);
    assert_eq!(first.blocks(), 2);
    assert_eq!(kind(&path, defaults), ErrorKind::InUse);
    assert_eq!(kind(&path, read_only), ErrorKind::InUse);
    drop(FileStore::open(&path, Options { exclusive: false, ..defaults }).unwrap());
    let queue = first.queue(1).unwrap();
    drop(first);
    assert_eq!(kind(&path, defaults), ErrorKind::InUse, "a queue keeps it attached");
    drop(queue);
    let readers = [(); 2].map(|()| FileStore::open(&path, read_only).unwrap());
    assert_eq!(kind(&path, defaults), ErrorKind::InUse);
    drop(readers);
    drop(FileStore::open(&path, defaults).unwrap());
}

const CHILD_IMAGE: &str = "STORE_TEST_IMAGE";

#[test]
#[ignore = "the program that `a_killed_program_can_be_restarted_at_once` kills"]
fn child() {
    let path = std::env::var_os(CHILD_IMAGE).expect("started by its parent");
    let store = FileStore::open(path, Options::default()).unwrap();
    let mut queue = store.queue(16).unwrap();
    println!("attached");
    loop {
        let reads = (0..16).map(|block| Operation::Read { block, buffer: queue.buffer(1) });
        let reads = reads.collect();
        run(&mut *queue, reads);
    }
}

#[test]
fn a_killed_program_can_be_restarted_at_once() {
    let directory = directory();
    drop(image(&directory, 16));
    let path = directory.path().join("image");
    let mut program = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child", "--nocapture"])
        .env(CHILD_IMAGE, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("attached")));
    let refused = kind(&path, Options::default());
    program.kill().unwrap();
    program.wait().unwrap();
    assert_eq!(refused, ErrorKind::InUse);
    drop(FileStore::open(&path, Options::default()).unwrap());
}

#[test]
fn what_is_opened_for_reading_is_not_written() {
    let directory = directory();
    drop(image(&directory, 2));
    let path = directory.path().join("image");
    let store = FileStore::open(&path, Options { read_only: true, ..Options::default() }).unwrap();
    let mut queue = store.queue(4).unwrap();
    let operations = vec![
        Operation::Write { block: 0, buffer: queue.buffer(1) },
        Operation::Discard { block: 0, blocks: 1 },
        Operation::Read { block: 0, buffer: queue.buffer(1) },
        Operation::Flush,
    ];
    let kinds: Vec<_> =
        run(&mut *queue, operations).into_iter().map(|c| c.result.err().map(|error| error.kind)).collect();
    assert_eq!(kinds, [Some(ErrorKind::ReadOnly), Some(ErrorKind::ReadOnly), None, None]);
}

/// The four reads go out as one transfer, which fails; what is still there must not fail with the rest.
#[test]
fn a_cut_off_file_fails_where_it_was_cut() {
    let directory = directory();
    let store = image(&directory, 4);
    let mut queue = store.queue(8).unwrap();
    let file = File::options().write(true).open(directory.path().join("image")).unwrap();
    let cut = u64::try_from(2 * BLOCK_SIZE + 512).unwrap();
    file.set_len(cut).unwrap();
    let reads = (0..4).map(|block| Operation::Read { block, buffer: queue.buffer(1) });
    let reads = reads.collect();
    let results: Vec<_> = run(&mut *queue, reads)
        .into_iter()
        .map(|c| c.result.map_err(|Error { kind, block, .. }| (kind, block)))
        .collect();
    let expected = [Ok(()), Ok(()), Err((ErrorKind::Io, Some(2))), Err((ErrorKind::Io, Some(3)))];
    assert_eq!(results, expected);
    assert_eq!(store.blocks(), 2, "the size is what the host says now");
    let write = Operation::Write { block: 2, buffer: queue.buffer(1) };
    let error = run(&mut *queue, vec![write]).remove(0).result.unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutOfRange);
    assert_eq!(file.metadata().unwrap().len(), cut, "a write does not make it grow again");
}

#[test]
fn a_grown_file_can_be_used_once_its_size_was_asked_for() {
    let directory = directory();
    let store = image(&directory, 1);
    let mut queue = store.queue(1).unwrap();
    let file = File::options().write(true).open(directory.path().join("image")).unwrap();
    file.set_len(2 * u64::try_from(BLOCK_SIZE).unwrap()).unwrap();
    assert_eq!(store.blocks(), 2);
    let read = Operation::Read { block: 1, buffer: queue.buffer(1) };
    assert_eq!(run(&mut *queue, vec![read]).remove(0).result, Ok(()));
}

#[test]
fn a_discard_gives_space_back() {
    use std::os::unix::fs::MetadataExt;
    let directory = directory();
    let store = image(&directory, 256);
    let mut queue = store.queue(4).unwrap();
    let write = Operation::Write { block: 0, buffer: queue.buffer(256) };
    run(&mut *queue, vec![write]).remove(0).result.unwrap();
    run(&mut *queue, vec![Operation::Flush]).remove(0).result.unwrap();
    let used = || fs::metadata(directory.path().join("image")).unwrap().blocks();
    let before = used();
    run(&mut *queue, vec![Operation::Discard { block: 0, blocks: 256 }]).remove(0).result.unwrap();
    assert!(used() + 1024 <= before, "{} of {before} sectors are left", used());
}

/// The kernel writes into buffers of a dropped queue until their transfers end; were they freed before,
/// whoever gets that memory next would see it change.
#[test]
fn a_dropped_queue_keeps_its_buffers_until_the_kernel_is_done() {
    let directory = directory();
    let store = image(&directory, 2048);
    let mut queue = store.queue(64).unwrap();
    let mut buffer = queue.buffer(2048);
    buffer.copy_from(0, &vec![0xaa; 2048 * BLOCK_SIZE]);
    run(&mut *queue, vec![Operation::Write { block: 0, buffer }]).remove(0).result.unwrap();
    for _ in 0..20 {
        let mut queue = store.queue(64).unwrap();
        for n in 0..64 {
            let buffer = memory::Buffer::private_zeroed(16);
            queue.submit(n, Operation::Read { block: n * 32, buffer });
        }
        queue.poll(&mut Vec::new());
        drop(queue);
        let mut fresh: Vec<_> = (0..64).map(|_| memory::Buffer::private_zeroed(16)).collect();
        std::thread::sleep(Duration::from_millis(1));
        assert!(fresh.iter_mut().all(|b| b.private_mut().unwrap().iter().all(|&byte| byte == 0)));
    }
}

/// A loop device over a file, for as long as it lives.
struct LoopDevice(String);

impl LoopDevice {
    /// Nothing where this user may not make one, or there are none.
    fn over(path: &Path) -> Option<Self> {
        Self::with(&[], path)
    }

    fn with(options: &[&str], path: &Path) -> Option<Self> {
        let output =
            Command::new("losetup").args(["--find", "--show"]).args(options).arg(path).output().ok()?;
        output.status.success().then(|| Self(String::from_utf8(output.stdout).unwrap().trim().to_owned()))
    }

    fn path(&self) -> &Path {
        Path::new(&self.0)
    }
}

/// Straight to the stream: what `eprintln!` says is shown only when a test fails. `scripts/test` counts these lines.
fn skipped(test: &str) {
    let _ = writeln!(
        std::io::stderr(),
        "\nSKIPPED {test}: no loop device to be had (needs root and /dev/loop-control)"
    );
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let status = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(status.is_ok_and(|status| status.success()), "{} is left over", self.0);
    }
}

#[test]
fn a_device_that_is_write_protected_is_opened_for_reading_only() {
    let directory = directory();
    let path = directory.path().join("disk");
    File::create(&path).unwrap().set_len(64 * 4096).unwrap();
    let Some(device) = LoopDevice::with(&["--read-only"], &path) else {
        skipped("a_device_that_is_write_protected_is_opened_for_reading_only");
        return;
    };
    let error = FileStore::open(device.path(), Options::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ReadOnly);
    assert!(error.message.contains("for reading only"), "{error}");
    let options = Options { read_only: true, ..Options::default() };
    assert_eq!(FileStore::open(device.path(), options).unwrap().blocks(), 64);
}

#[test]
fn the_last_sectors_of_a_device_that_make_no_block_are_left_alone() {
    let directory = directory();
    let path = directory.path().join("disk");
    File::create(&path).unwrap().set_len(64 * 4096 + 3 * 512).unwrap();
    let Some(device) = LoopDevice::over(&path) else {
        skipped("the_last_sectors_of_a_device_that_make_no_block_are_left_alone");
        return;
    };
    let store = FileStore::open(device.path(), Options::default()).unwrap();
    assert_eq!((store.blocks(), store.rest()), (64, Ok(vec![0; 3 * 512])));
}

#[test]
fn what_is_behind_the_last_block_can_be_read() {
    let directory = directory();
    let path = directory.path().join("disk");
    fs::write(&path, [&[1; 2 * BLOCK_SIZE][..], b"appended"].concat()).unwrap();
    for direct in [true, false] {
        let store = FileStore::open(&path, Options { direct, ..Options::default() }).unwrap();
        assert_eq!((store.blocks(), store.rest()), (2, Ok(b"appended".to_vec())));
    }
    File::options().write(true).open(&path).unwrap().set_len(2 * 4096).unwrap();
    assert_eq!(FileStore::open(&path, Options::default()).unwrap().rest(), Ok(Vec::new()));
}

#[test]
fn a_block_device_is_a_store() {
    let directory = directory();
    let path = directory.path().join("disk");
    File::create(&path).unwrap().set_len(64 * 4096).unwrap();
    let Some(device) = LoopDevice::over(&path) else {
        skipped("a_block_device_is_a_store");
        return;
    };
    let open = || FileStore::open(device.path(), Options::default());
    let store = open().unwrap();
    assert_eq!(store.blocks(), 64);
    assert_eq!(open().unwrap_err().kind, ErrorKind::InUse);
    let mut queue = store.queue(4).unwrap();
    let mut buffer = queue.buffer(2);
    buffer.copy_from(0, &[0x5a; 2 * BLOCK_SIZE]);
    run(&mut *queue, vec![Operation::Write { block: 62, buffer }]).remove(0).result.unwrap();
    run(&mut *queue, vec![Operation::Flush]).remove(0).result.unwrap();
    assert_eq!(fs::read(&path).unwrap()[62 * 4096..], [0x5a; 2 * BLOCK_SIZE]);
    run(&mut *queue, vec![Operation::Discard { block: 0, blocks: 62 }]).remove(0).result.unwrap();
    let read = Operation::Read { block: 62, buffer: queue.buffer(2) };
    let back = run(&mut *queue, vec![read]).remove(0).buffer.unwrap();
    assert_eq!(back.private().unwrap(), [0x5a; 2 * BLOCK_SIZE]);
    let beyond = Operation::Read { block: 63, buffer: queue.buffer(2) };
    assert_eq!(run(&mut *queue, vec![beyond]).remove(0).result.unwrap_err().kind, ErrorKind::OutOfRange);
    let read_only = Options { read_only: true, ..Options::default() };
    assert_eq!(kind(device.path(), read_only), ErrorKind::InUse, "somebody writes there");
    drop((store, queue));
    drop(open().expect("free again at once"));
}

#[test]
fn a_block_device_is_read_by_many_and_written_by_nobody_meanwhile() {
    let directory = directory();
    let path = directory.path().join("disk");
    File::create(&path).unwrap().set_len(64 * 4096).unwrap();
    let Some(device) = LoopDevice::over(&path) else {
        skipped("a_block_device_is_read_by_many_and_written_by_nobody_meanwhile");
        return;
    };
    let read_only = Options { read_only: true, ..Options::default() };
    let readers = [(); 3].map(|()| FileStore::open(device.path(), read_only).unwrap());
    assert_eq!(kind(device.path(), Options::default()), ErrorKind::InUse);
    let mut queue = readers[2].queue(1).unwrap();
    let read = Operation::Read { block: 63, buffer: queue.buffer(1) };
    run(&mut *queue, vec![read]).remove(0).result.unwrap();
    drop(readers);
    assert_eq!(kind(device.path(), Options::default()), ErrorKind::InUse, "a queue keeps it");
    drop(queue);
    let writer = FileStore::open(device.path(), Options::default()).unwrap();
    assert_eq!(kind(device.path(), read_only), ErrorKind::InUse);
    assert!(shares_lock(device.path()), "who writes keeps no lock: udev would leave the device alone");
    drop(writer);
    // As a mount has it: alone, and without a lock.
    let mounted = rustix::fs::open(
        device.path(),
        // Or programs that other tests start have it, too, until they end.
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::EXCL | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    assert_eq!(kind(device.path(), read_only), ErrorKind::InUse);
    drop(mounted);
    drop(FileStore::open(device.path(), read_only).unwrap());
}

/// Whether a shared lock is to be had, as udev takes one.
fn shares_lock(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).is_ok()
}

/// As in a container with a strict seccomp profile, on one thread only.
#[test]
fn where_io_uring_is_forbidden_the_error_says_what_to_do() {
    let directory = directory();
    let store = image(&directory, 1);
    let forbidden = std::thread::spawn(move || {
        forbid_io_uring();
        store.queue(1).err()
    });
    let error = forbidden.join().unwrap().expect("no ring to be had");
    assert_eq!((error.kind, error.errno), (ErrorKind::Forbidden, Some(libc::EPERM)));
    assert!(error.message.contains("kernel.io_uring_disabled") && error.message.contains("allow"), "{error}");
}

/// Makes `io_uring_setup` fail with EPERM for this thread, by a classic BPF filter (see seccomp(2)).
fn forbid_io_uring() {
    let statement = |code: u32, jump_false, value| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf: jump_false,
        k: value,
    };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            u32::try_from(libc::SYS_io_uring_setup).unwrap(),
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).unwrap(),
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: both calls concern this thread only; the program and its four statements outlive the calls,
    // which copy them.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(libc::syscall(libc::SYS_seccomp, set, 0, &raw const program), 0);
    }
}
