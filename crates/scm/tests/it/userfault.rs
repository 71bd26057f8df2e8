//! A server and a VMM in one process: the mapping that is touched here is not the one that the server has.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use scm::client::{Attached, Region};
use scm::serve::{Limits, Server};
use scm::{Access, Engine, Error, Geometry, Mapping, Medium};
use seal::{Random, Suite, SystemRandom};

use crate::attacks::Failing;
use crate::campaign::credential;
use crate::forbidden::{BOTH, Forbidden};
use crate::starting;

pub const SIZE: usize = 4096;

pub struct Place {
    directory: tempfile::TempDir,
    pages: usize,
}

pub struct Running {
    pub server: Arc<Server>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), Error>>,
}

impl Place {
    pub fn new(parent: &Path, page_size: u64, pages: u64) -> Place {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let geometry =
            Geometry::new(page_size, pages, 4, Mapping::granule(directory.path()).unwrap()).unwrap();
        let random: Arc<dyn Random> = Arc::new(SystemRandom);
        let mapping = Mapping::create(&directory.path().join("region"), geometry.file_len()).unwrap();
        scm::create(&mapping, &geometry, Suite::Aes256Gcm, credential(), &random, &|_, _| {}).unwrap();
        Place { directory, pages: usize::try_from(pages).unwrap() }
    }

    pub fn region(&self) -> PathBuf {
        self.directory.path().join("region")
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn serve(&self, open_pages: u64, idle: Duration) -> Running {
        self.serve_within(Limits { open_pages, idle, threads: 2, ..Limits::default() })
    }

    pub fn serve_within(&self, limits: Limits) -> Running {
        self.serve_from(limits, |mapping| mapping)
    }

    /// The same, with an engine that has another medium in front of the mapping.
    fn serve_from(&self, limits: Limits, front: impl FnOnce(Arc<dyn Medium>) -> Arc<dyn Medium>) -> Running {
        let mapping = Arc::new(starting::open(&self.region(), Access::Exclusive).unwrap());
        Server::wait_for_vmm(&mapping, Duration::from_secs(5)).unwrap();
        let medium = front(Arc::clone(&mapping) as Arc<dyn Medium>);
        let (engine, _) = Engine::open(medium, &credential(), Arc::new(SystemRandom), &|_, _| {}).unwrap();
        let server = Server::new(Arc::new(engine), mapping, limits).unwrap();
        let _ = std::fs::remove_file(self.socket());
        let listener = UnixListener::bind(self.socket()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (server, stop) = (Arc::clone(&server), Arc::clone(&stop));
            std::thread::spawn(move || server.run(listener, &stop))
        };
        Running { server, stop, thread }
    }

    pub fn ask(&self) -> Region {
        Region::ask(&self.socket()).unwrap()
    }

    /// Maps the data, as a VMM does, with advice to use huge pages.
    pub fn map(&self, page_size: usize) -> Vmm {
        let region = self.ask();
        let len = self.pages * page_size;
        assert_eq!(region.length(), len as u64);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh shared mapping.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, region.file().as_raw_fd(), 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: the range was just mapped. Where there are no huge pages the advice is refused.
        unsafe { libc::madvise(base, len, libc::MADV_HUGEPAGE) };
        // SAFETY: a shared mapping of the region from its beginning, which stays until `Vmm` is dropped, behind `attached`.
        let attached = unsafe { region.attach(base.addr() as u64, len as u64, 0) };
        Vmm { attached: Some(attached.unwrap()), base: base.cast(), len }
    }
}

impl Running {
    pub fn open(&self) -> u64 {
        self.server.engine().status().open
    }

    pub fn stop(self) {
        self.end().unwrap();
    }

    pub fn end(self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.join().unwrap();
        // Threads of clients have the region locked until they end.
        let begun = Instant::now();
        while Arc::strong_count(&self.server) > 1 {
            assert!(begun.elapsed() < Duration::from_secs(20), "a thread of a client goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        ended
    }

    pub fn wait_until_closed(&self) {
        let begun = Instant::now();
        while self.open() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "{} pages stay open", self.open());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub struct Vmm {
    attached: Option<Attached>,
    pub base: *mut u8,
    pub len: usize,
}

// SAFETY: plain memory, touched by volatile accesses only.
unsafe impl Sync for Vmm {}
// SAFETY: as above.
unsafe impl Send for Vmm {}

impl Vmm {
    fn word(&self, at: usize) -> *mut u64 {
        assert!(at + 8 <= self.len && at.is_multiple_of(8));
        self.base.wrapping_add(at).cast()
    }

    pub fn load(&self, at: usize) -> u64 {
        // SAFETY: in the mapping, aligned.
        unsafe { self.word(at).read_volatile() }
    }

    pub fn store(&self, at: usize, value: u64) {
        // SAFETY: in the mapping, aligned.
        unsafe { self.word(at).write_volatile(value) };
    }

    /// Whether a page is in this process's page tables (proc_pid_pagemap(5), bit 63).
    pub fn is_present(&self, page: usize) -> bool {
        let mut word = [0; 8];
        let at = (self.base.addr() / SIZE + page) as u64 * 8;
        std::os::unix::fs::FileExt::read_exact_at(&File::open("/proc/self/pagemap").unwrap(), &mut word, at)
            .unwrap();
        u64::from_ne_bytes(word) >> 63 == 1
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        self.attached = None;
        // SAFETY: mapped in `map`, and nobody touches it any more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

pub fn shm() -> &'static Path {
    Path::new("/dev/shm")
}

#[test]
fn a_touch_opens_its_page_and_no_neighbour_comes_with_it() {
    let place = Place::new(shm(), 4096, 1024);
    let running = place.serve(1000, Duration::from_secs(600));
    let vmm = place.map(SIZE);
    assert_eq!(vmm.load(700 * SIZE), 0);
    vmm.store(701 * SIZE + 8, 7);
    assert_eq!(running.open(), 2);
    let present: Vec<usize> = (0..1024).filter(|page| vmm.is_present(*page)).collect();
    assert_eq!(present, [700, 701], "neighbours are exposed");
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let ours = smaps.split("VmFlags:").filter(|part| part.contains(place.region().to_str().unwrap()));
    assert!(ours.count() >= 2, "the server and the VMM have a mapping each");
    let status = running.server.engine().status();
    assert!(status.faults >= 2 && status.fault_p50_ns > 0);
    drop(vmm);
    running.stop();
    let file = std::fs::read(place.region()).unwrap();
    assert!(file[..1024 * SIZE].chunks(8).all(|word| word != [0; 8]), "a page is in the clear");
}

#[test]
fn pages_are_taken_back_and_keep_what_was_stored() {
    let place = Place::new(shm(), 4096, 64);
    let running = place.serve(1000, Duration::from_millis(20));
    let vmm = place.map(SIZE);
    for round in 1..4 {
        for page in 0..64 {
            let at = page * SIZE + 8 * page;
            assert_eq!(vmm.load(at), if round == 1 { 0 } else { (page + round - 1) as u64 });
            vmm.store(at, (page + round) as u64);
        }
        running.wait_until_closed();
    }
    let status = running.server.engine().status();
    assert!(status.batches > 0 && status.closed >= 3 * 64);
    assert_eq!(status.unverified, 0);
    drop(vmm);
    running.stop();
}

#[test]
fn a_sequential_reader_has_its_pages_opened_ahead() {
    let place = Place::new(shm(), 4096, 512);
    let limits = Limits { open_pages: 1000, idle: Duration::from_secs(600), threads: 2, ..Limits::default() };
    let read = |read_ahead: u64| {
        let running = place.serve_within(Limits { read_ahead, ..limits });
        let vmm = place.map(SIZE);
        for page in 0..300 {
            let at = page * SIZE + 8;
            assert_eq!(vmm.load(at), if read_ahead == 0 { 0 } else { page as u64 });
            vmm.store(at, page as u64);
        }
        let status = running.server.engine().status();
        drop(vmm);
        running.stop();
        status
    };
    let without = read(0);
    assert_eq!((without.ahead, without.faults, without.opened), (0, 300, 300));
    let with = read(32);
    assert!(with.faults < 150 && with.ahead > 150, "{} faults, {} ahead", with.faults, with.ahead);
    assert!(with.opened <= 300 + 32, "{} pages were opened for 300", with.opened);
    // At the bound there is no room for it.
    let running = place.serve_within(Limits { read_ahead: 32, open_pages: 16, ..limits });
    let vmm = place.map(SIZE);
    (0..200).for_each(|page| assert_eq!(vmm.load(page * SIZE + 8), page as u64));
    assert!(running.open() <= 16);
    drop(vmm);
    running.stop();
}

/// A VMM touches all of its pages again and again, and each is taken back when it was idle for a millisecond.
#[test]
fn taking_pages_back_has_a_bound_of_processor_time() {
    let place = Place::new(shm(), 4096, 512);
    let idle = Duration::from_millis(1);
    let running =
        place.serve_within(Limits { open_pages: 10_000, idle, cpu_percent: 5, ..Limits::default() });
    let vmm = place.map(SIZE);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(800) {
        (0..512).for_each(|page| assert_eq!(vmm.load(page * SIZE), 0));
    }
    let (used, elapsed) = (running.server.engine().status().taking_cpu_ms, begun.elapsed().as_millis());
    assert!(running.server.engine().status().batches > 0);
    // A batch may be under way when the bound is reached.
    assert!(u128::from(used) <= elapsed / 20 + 30, "{used} ms of {elapsed} ms");
    drop(vmm);
    running.stop();
}

#[test]
fn huge_pages_are_opened_whole() {
    let place = Place::new(shm(), 2 << 20, 3);
    let running = place.serve(3, Duration::from_millis(50));
    let vmm = place.map(2 << 20);
    for page in [2, 0] {
        vmm.store((page << 21) + (1 << 20), 5);
        assert_eq!(vmm.load(page << 21), 0);
    }
    // The VMM drops a part of a page from its page tables: the rest of it is there when that part is touched.
    vmm.load(2 << 21);
    // SAFETY: a part of the mapping, whose content is shared memory and stays.
    unsafe {
        libc::madvise(vmm.base.wrapping_add((2 << 21) + (1 << 20)).cast(), 1 << 16, libc::MADV_DONTNEED)
    };
    assert_eq!(vmm.load((2 << 21) + (1 << 20)), 5);
    running.wait_until_closed();
    assert_eq!(vmm.load((2 << 21) + (1 << 20)), 5);
    assert_eq!(vmm.load(1 << 21), 0);
    drop(vmm);
    running.stop();
}

/// Threads count up in pages of which an eighth may be open: pages are taken back under them all the time.
#[test]
fn touches_in_the_middle_of_taking_back_lose_nothing() {
    let place = Place::new(shm(), 4096, 128);
    let running = place.serve(16, Duration::from_millis(1));
    let vmm = place.map(SIZE);
    let most = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for thread in 0..3_usize {
            let vmm = &vmm;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread as u64);
                let mut counts = vec![0_u64; 128];
                for _ in 0..1500 {
                    let page = if random.bool() { random.usize(..8) } else { random.usize(..128) };
                    let at = page * SIZE + 64 * thread;
                    assert_eq!(
                        vmm.load(at),
                        counts[page],
                        "page {page} has lost what thread {thread} stored"
                    );
                    counts[page] += 1;
                    vmm.store(at, counts[page]);
                }
            });
        }
        let (running, most) = (&running, &most);
        scope.spawn(move || {
            for _ in 0..100 {
                // Each thread may have one fault under way when the bound is reached.
                most.fetch_and(running.open() <= 16 + 4, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
    });
    assert!(most.into_inner(), "more pages were open than may be");
    let status = running.server.engine().status();
    assert!(status.closed > 100, "{status:?}");
    drop(vmm);
    running.stop();
}

#[test]
fn a_vmm_waits_for_the_next_server_and_goes_on() {
    let place = Place::new(shm(), 4096, 16);
    let running = place.serve(16, Duration::from_secs(600));
    let vmm = place.map(SIZE);
    vmm.store(3 * SIZE, 33);
    // Another VMM, another server.
    let error = unsafe_attach(&place).unwrap_err();
    assert!(error.to_string().contains("one VMM at a time"), "{error}");
    assert!(matches!(starting::open(&place.region(), Access::Exclusive), Err(Error::Busy(_))));
    running.stop();
    let toucher = std::thread::scope(|scope| {
        let touched = scope.spawn(|| vmm.load(3 * SIZE));
        std::thread::sleep(Duration::from_millis(200));
        assert!(!touched.is_finished(), "a touch went on without a server");
        let running = place.serve(16, Duration::from_secs(600));
        assert_eq!(touched.join().unwrap(), 33);
        running
    });
    assert_eq!(toucher.server.engine().status().unverified, 0);
    drop(vmm);
    toucher.stop();
}

/// A VMM waits for the next server, at a page that has 33. `serve` is in the place of that server: it gets the connection, and what shows the VMM
/// the page. Behind it, with the connection closed and the lease given back, nothing must be in the page tables: the next server recovers and
/// encrypts, and the VMM would see ciphertext, or write into it.
fn served_by(serve: impl FnOnce(&Place, &mut UnixStream, &dyn Fn())) {
    let place = Place::new(shm(), 4096, 16);
    let running = place.serve(16, Duration::from_secs(600));
    let vmm = place.map(SIZE);
    vmm.store(3 * SIZE, 33);
    running.stop();
    std::fs::remove_file(place.socket()).unwrap();
    let listener = UnixListener::bind(place.socket()).unwrap();
    std::thread::scope(|scope| {
        let touching = scope.spawn(|| vmm.load(3 * SIZE));
        let (mut stream, _) = listener.accept().unwrap();
        let uffd = receive(&stream);
        drop(listener);
        let mut events = Vec::new();
        while events.is_empty() {
            scm::uffd::read(uffd.as_fd(), &mut events).unwrap();
        }
        let touched = (vmm.base.addr() + 3 * SIZE) as u64;
        assert_eq!(events[0], scm::uffd::Event::Fault { address: touched, is_missing: false });
        let show = || {
            while !touching.is_finished() {
                scm::uffd::resume(uffd.as_fd(), touched, SIZE as u64).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(vmm.is_present(3), "the VMM took out what it was shown, before its server had ended");
        };
        serve(&place, &mut stream, &show);
    });
    let mapping = starting::open(&place.region(), Access::Exclusive).unwrap();
    Server::wait_for_vmm(&mapping, Duration::from_secs(5)).unwrap();
    assert!(!vmm.is_present(3), "the VMM sees a page that nobody serves");
    drop(mapping);
    let running = place.serve(16, Duration::from_secs(600));
    assert_eq!(vmm.load(3 * SIZE), 33);
    drop(vmm);
    running.stop();
}

#[test]
fn a_server_that_dies_before_it_answers_leaves_nothing_in_page_tables() {
    served_by(|_, _, show| show());
}

/// The VMM hangs up, but the server has not noticed yet, and shows a page: the VMM waits for its end.
#[test]
fn a_server_that_is_not_understood_leaves_nothing_in_page_tables() {
    for said in ["{\"zap\":{\"id\":1,\"ranges\":[]}}\n", "{\"ok\":{\"hold_ms\":0}}\nnonsense\n"] {
        served_by(|place, stream, show| {
            stream.write_all(said.as_bytes()).unwrap();
            assert_eq!(std::io::read_to_string(&mut *stream).unwrap(), "", "the VMM hangs up");
            show();
            let mapping = starting::open(&place.region(), Access::Exclusive).unwrap();
            let free = Server::wait_for_vmm(&mapping, Duration::from_millis(300));
            assert!(matches!(free, Err(Error::Busy(_))), "{said}: the lease was given back too early");
        });
    }
}

/// While its client has said hello to the next server, and has no answer yet: that server must not have it for good.
#[test]
fn a_vmm_that_unmaps_the_region_between_two_servers_hangs_up() {
    let place = Place::new(shm(), 4096, 16);
    let running = place.serve(16, Duration::from_secs(600));
    let vmm = place.map(SIZE);
    running.stop();
    std::fs::remove_file(place.socket()).unwrap();
    let listener = UnixListener::bind(place.socket()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    drop(receive(&stream));
    drop(vmm);
    stream.write_all(b"{\"ok\":{\"hold_ms\":0}}\n").unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(std::io::read_to_string(stream).unwrap(), "");
    let mapping = starting::open(&place.region(), Access::Exclusive).unwrap();
    Server::wait_for_vmm(&mapping, Duration::from_secs(5)).unwrap();
}

/// The descriptor that comes with a client's first message.
fn receive(stream: &UnixStream) -> OwnedFd {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 256];
    let mut data = [std::io::IoSliceMut::new(&mut bytes)];
    rustix::net::recvmsg(stream, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.unwrap()
}

fn unsafe_attach(place: &Place) -> Result<Attached, Error> {
    let region = Region::ask(&place.socket())?;
    let (len, file) = (place.pages * SIZE, region.file().as_raw_fd());
    // SAFETY: a fresh shared mapping, which stays to the end of the process.
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file, 0);
        region.attach(base.addr() as u64, len as u64, 0)
    }
}

#[test]
fn what_is_no_message_is_refused_and_the_others_are_served() {
    let place = Place::new(shm(), 4096, 16);
    let running = place.serve(16, Duration::from_secs(600));
    let found = std::fs::metadata(place.region()).unwrap();
    let attach = format!(
        "{{\"version\":2,\"attach\":{{\"address\":4096,\"length\":4096,\"offset\":0,\"device\":{},\"inode\":{}}}}}\n",
        found.dev(),
        found.ino()
    );
    for (said, about) in [
        ("{\"version\":1,\"status\":{}}\n", "speaks version 2"),
        ("nonsense\n", "no message"),
        (&attach, "without a userfaultfd"),
        (&attach.replace("\"inode\":", "\"inode\":1"), "of another file"),
        (&attach.replace("4096,\"offset", "1,\"offset"), "whole pages"),
        (
            "[{\"base_host_virt_addr\":4096,\"size\":4096,\"offset\":0,\"page_size\":4096}]",
            "without a userfaultfd",
        ),
    ] {
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        let answer = std::io::read_to_string(&mut stream).unwrap();
        assert!(answer.contains("error") && answer.contains(about), "{said}: {answer}");
    }
    // What is said behind a message that was good: this VMM is let go, and the next one has its place.
    for said in ["nonsense\n", &attach] {
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        send(&stream, attach.as_bytes(), scm::uffd::open_minor().unwrap().as_raw_fd());
        stream.write_all(said.as_bytes()).unwrap();
        assert_eq!(std::io::read_to_string(&mut stream).unwrap(), "{\"ok\":{\"hold_ms\":0}}\n");
    }
    let vmm = place.map(SIZE);
    assert_eq!(vmm.load(0), 0);
    drop(vmm);
    running.stop();
}

#[test]
fn a_region_where_touches_are_not_told_of_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let place = Place::new(directory.path(), 4096, 4);
    let mapping = Arc::new(starting::open(&place.region(), Access::Exclusive).unwrap());
    if mapping.has_minor_faults() {
        return;
    }
    let medium: Arc<dyn Medium> = Arc::clone(&mapping) as Arc<dyn Medium>;
    let (engine, _) = Engine::open(medium, &credential(), Arc::new(SystemRandom), &|_, _| {}).unwrap();
    let limits = Limits::default();
    let error = Server::new(Arc::new(engine), mapping, limits).unwrap_err();
    assert!(error.to_string().contains("tmpfs and hugetlbfs only"), "{error}");
}

/// Whatever the machine allows: the thread's own filter denies it. One of the two ways is enough where it is there.
#[test]
fn where_userfaultfd_is_forbidden_the_error_says_what_to_change_and_nothing_is_lost() {
    let place = Place::new(shm(), 4096, 16);
    let running = place.serve(16, Duration::from_secs(600));
    let region = std::fs::read(place.region()).unwrap();
    let open_under = |forbidden: Forbidden| {
        let open = move || forbidden.filter()().map(|()| scm::uffd::open_minor()).unwrap();
        std::thread::spawn(open).join().unwrap()
    };
    let is_told = |error: &Error| {
        let text = error.to_string();
        let remedies =
            ["/dev/userfaultfd", "sysctl vm.unprivileged_userfaultfd", "CAP_SYS_PTRACE", "seccomp profile"];
        assert!(matches!(error, Error::Usage(_)) && remedies.iter().all(|it| text.contains(it)), "{text}");
    };
    is_told(&open_under(BOTH).unwrap_err());
    // Root may do both; the device is there with CONFIG_USERFAULTFD, since Linux 6.1.
    let by_system_call = open_under(Forbidden { system_call: false, device: true });
    assert!(by_system_call.is_ok(), "{by_system_call:?}");
    let by_device = open_under(Forbidden { system_call: true, device: false });
    if File::options().read(true).write(true).open("/dev/userfaultfd").is_ok() {
        assert!(by_device.is_ok(), "{by_device:?}");
    } else {
        is_told(&by_device.unwrap_err());
    }
    // A VMM without the right, and behind it one that has it.
    std::thread::scope(|scope| {
        let attaching = scope.spawn(|| BOTH.filter()().map(|()| unsafe_attach(&place)).unwrap());
        is_told(&attaching.join().unwrap().unwrap_err());
    });
    assert!(std::fs::read(place.region()).unwrap() == region, "the region was changed");
    assert_eq!(running.open(), 0);
    let vmm = place.map(SIZE);
    vmm.store(3 * SIZE, 3);
    assert_eq!((vmm.load(3 * SIZE), vmm.load(4 * SIZE)), (3, 0));
    drop(vmm);
    running.stop();
}

/// What the kernel says when it reads a word of the VMM's memory: a memory error is no signal then.
pub fn copied_by_the_kernel(vmm: &Vmm, at: usize) -> std::io::Result<()> {
    let (_reader, writer) = std::io::pipe().unwrap();
    // SAFETY: in the mapping; the kernel reads from there, or fails.
    if unsafe { libc::write(writer.as_raw_fd(), vmm.word(at).cast(), 8) } == 8 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error())
}

/// A page of the data fails at its first access, or behind some: while it is read, transformed or written back.
#[test]
fn a_medium_that_fails_a_page_under_a_vmm_ends_the_service_and_loses_no_page() {
    for left in [0, 1, 2] {
        let place = Place::new(shm(), 4096, 16);
        let limits = Limits { open_pages: 16, idle: Duration::from_secs(600), ..Limits::default() };
        let running = place.serve_within(limits);
        (0..16).for_each(|page| running.server.engine().write(page, 0, &[7; SIZE]).unwrap());
        running.stop();
        let bad = 5 * SIZE as u64..6 * SIZE as u64;
        let failing = |medium| Arc::new(Failing { medium, bad, left: left.into() }) as Arc<dyn Medium>;
        let running = place.serve_from(limits, failing);
        let vmm = place.map(SIZE);
        vmm.store(4 * SIZE, 44);
        let error = copied_by_the_kernel(&vmm, 5 * SIZE).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "access {left}: {error}");
        assert!(running.server.engine().status().stopped);
        // No other page is opened any more, and those that are open stay usable.
        assert!(copied_by_the_kernel(&vmm, 6 * SIZE).is_err());
        assert_eq!((vmm.load(4 * SIZE), running.open()), (44, 1));
        drop(vmm);
        let ended = running.end().unwrap_err();
        assert!(matches!(ended, Error::Stopped), "{ended}");
        // The medium is mended, with what it had.
        let running = place.serve_within(limits);
        let engine = running.server.engine();
        for page in 0..16 {
            let (mut found, mut expected) = ([0; SIZE], [7; SIZE]);
            if page == 4 {
                expected[..8].copy_from_slice(&44_u64.to_le_bytes());
            }
            engine.read(page, 0, &mut found).unwrap();
            assert!(found == expected, "access {left}: page {page} is lost");
            assert_eq!(engine.is_unverified(page), page == 4);
        }
        running.stop();
    }
}

/// Anonymous memory from a multiple of 2 MiB on, whose missing pages a userfaultfd tells of, as Firecracker has it.
fn anonymous(len: usize) -> (*mut u8, i32) {
    const HUGE: usize = 2 << 20;
    let (flags, protection) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a fresh mapping, and a userfaultfd for it (struct uffdio_api, struct uffdio_register with mode 1).
    unsafe {
        let base = libc::mmap(std::ptr::null_mut(), len + HUGE, protection, flags, -1, 0);
        assert_ne!(base, libc::MAP_FAILED);
        let base = base.byte_add(base.addr().next_multiple_of(HUGE) - base.addr());
        libc::madvise(base, len, libc::MADV_NOHUGEPAGE);
        let uffd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK);
        let uffd = i32::try_from(uffd).unwrap();
        assert!(uffd >= 0, "{}", std::io::Error::last_os_error());
        let mut api = [0xaa_u64, 0, 0];
        assert_eq!(libc::ioctl(uffd, 0xc018_aa3f, api.as_mut_ptr()), 0);
        let mut register = [base.addr() as u64, len as u64, 1, 0];
        assert_eq!(libc::ioctl(uffd, 0xc020_aa00, register.as_mut_ptr()), 0);
        (base.cast(), uffd)
    }
}

/// Firecracker's protocol: anonymous memory, missing pages, of either size.
#[test]
fn anonymous_memory_is_filled_from_the_region() {
    let place = Place::new(shm(), 4096, 1024);
    let running = place.serve(16, Duration::from_secs(600));
    for page in [9, 512 + 9] {
        running.server.engine().write(page, 0, &[9; SIZE]).unwrap();
    }
    // The length, where in the region it begins, and bytes of a page.
    for (len, offset, unit) in [(16 * SIZE, 8 * SIZE, SIZE), (2 << 20, 2 << 20, 2 << 20)] {
        let (base, uffd) = anonymous(len);
        let stream = UnixStream::connect(place.socket()).unwrap();
        let message = format!(
            "[{{\"base_host_virt_addr\":{},\"size\":{len},\"offset\":{offset},\"page_size\":{unit},\"page_size_kib\":{unit}}}]",
            base.addr()
        );
        let before = running.server.engine().status().faults;
        send(&stream, message.as_bytes(), uffd);
        // SAFETY: in the mapping.
        let load = |page: usize| unsafe { base.add(page * SIZE + 100).read_volatile() };
        let ours = |page: usize| load(page - offset / SIZE);
        if unit == SIZE {
            assert_eq!((ours(9), ours(10), ours(23)), (9, 0, 0));
        } else {
            assert_eq!((ours(512), ours(512 + 9), ours(1023)), (0, 9, 0));
        }
        assert_eq!(running.open(), 0, "a page was opened on the medium");
        drop(stream);
        // The last one is counted behind its answer.
        let wanted = if unit == SIZE { 2 } else { 0 };
        let faults = running.server.engine().status().faults - before;
        assert!(
            (wanted..=3).contains(&faults) && (unit == SIZE || faults <= 1),
            "{faults} touches were told of"
        );
        // SAFETY: nobody uses it any more. The mapping stays to the end of the process.
        unsafe { libc::close(uffd) };
    }
    running.stop();
}

/// Sends bytes with a descriptor.
fn send(stream: &UnixStream, bytes: &[u8], descriptor: i32) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // SAFETY: the descriptor is open until the test ends.
    let borrowed = [unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) }];
    assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    let data = [std::io::IoSlice::new(bytes)];
    rustix::net::sendmsg(stream, &data, &mut control, SendFlags::empty()).unwrap();
}
