//! What a VMM, its kernel and its devices do to a region beside touching it: pages whose memory is gone, memory that is locked, children of the
//! process, requests that are under way, servers that stop at work.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scm::Error;
use scm::serve::{LEAST_OPEN, Limits};

use crate::forbidden::{install, statement};
use crate::userfault::{Place, Running, SIZE, Vmm, copied_by_the_kernel, shm};

const LONG: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_millis(20);

fn limits(idle: Duration) -> Limits {
    Limits { open_pages: 1000, idle, threads: 2, ..Limits::default() }
}

/// Takes a page's memory away, as a sparse restore, or somebody who punches a hole, does.
fn punch(place: &Place, page: usize) {
    let file = std::fs::File::options().write(true).open(place.region()).unwrap();
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, flags, (page * SIZE) as u64, SIZE as u64).unwrap();
}

fn is_refused(vmm: &Vmm, page: usize) -> bool {
    copied_by_the_kernel(vmm, page * SIZE).is_err_and(|error| error.raw_os_error() == Some(libc::EFAULT))
}

fn is_corrupt(place: &Place, page: u64) -> bool {
    let running = place.serve_within(limits(LONG));
    let mut content = [0; SIZE];
    let read = running.server.engine().read(page, 0, &mut content);
    running.stop();
    matches!(read, Err(Error::CorruptPage { .. }))
}

/// A hole would read as zeros, and what the guest writes there would stay in the clear.
#[test]
fn a_page_that_the_file_lacks_is_an_error_and_never_zeros() {
    let place = Place::new(shm(), 4096, 16);
    let running = place.serve_within(limits(SOON));
    (0..16).for_each(|page| running.server.engine().write(page, 0, &[7; SIZE]).unwrap());
    let vmm = place.map(SIZE);
    // Before its first touch.
    punch(&place, 3);
    assert!(is_refused(&vmm, 3), "a hole was shown to the VMM");
    // While it is open, and in no page table any more.
    vmm.store(5 * SIZE, 5);
    punch(&place, 5);
    assert!(is_refused(&vmm, 5), "what was lost was shown as zeros");
    // While it is open, and nobody touches it again.
    vmm.store(6 * SIZE, 6);
    punch(&place, 6);
    running.wait_until_closed();
    assert_eq!(vmm.load(4 * SIZE), u64::from_ne_bytes([7; 8]));
    assert!(running.server.engine().status().corrupt >= 3);
    drop(vmm);
    running.stop();
    for page in [3, 5, 6] {
        assert!(is_corrupt(&place, page), "page {page} has content that nobody wrote");
    }
    assert!(!is_corrupt(&place, 4));
}

/// A page that cannot be taken out of the page tables would be encrypted under the VMM. (`-overcommit mem-lock` of QEMU.)
#[test]
fn locked_memory_is_taken_back_all_the_same() {
    let place = Place::new(shm(), 4096, 16);
    let running = place.serve_within(limits(SOON));
    let vmm = place.map(SIZE);
    locked(&vmm, true);
    for round in 1..4 {
        (0..16).for_each(|page| vmm.store(page * SIZE, round + page as u64));
        running.wait_until_closed();
        (0..16).for_each(|page| assert_eq!(vmm.load(page * SIZE), round + page as u64));
    }
    drop(vmm);
    running.stop();
    assert_eq!(place.serve_within(limits(LONG)).server.engine().status().unverified, 0);
}

fn locked(vmm: &Vmm, on: bool) {
    // SAFETY: the mapping is there.
    let done = unsafe {
        if on { libc::mlock(vmm.base.cast(), vmm.len) } else { libc::munlock(vmm.base.cast(), vmm.len) }
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// Denies this thread, and what it starts, an advice of madvise(2).
fn forbid_advice(advice: i32) {
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), offset);
    let is = |value, jumps| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jumps, value);
    let end = |value| statement(libc::BPF_RET | libc::BPF_K, (0, 0), value);
    install([
        load(0),
        is(u32::try_from(libc::SYS_madvise).unwrap(), (0, 3)),
        // The low half of the third argument.
        load(32),
        is(advice.cast_unsigned(), (0, 1)),
        end(libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()),
        end(libc::SECCOMP_RET_ALLOW),
    ])
    .unwrap();
}

#[test]
fn a_page_that_stays_in_page_tables_stays_open_and_is_told_of() {
    let place = Place::new(shm(), 4096, 16);
    let running = place.serve_within(limits(SOON));
    // The client's thread inherits the filter: as a kernel before 5.18, it takes no locked pages out.
    let vmm = std::thread::scope(|scope| {
        let mapping = scope.spawn(|| {
            forbid_advice(libc::MADV_DONTNEED_LOCKED);
            place.map(SIZE)
        });
        mapping.join().unwrap()
    });
    locked(&vmm, true);
    vmm.store(3 * SIZE, 3);
    let begun = Instant::now();
    while running.server.engine().status().kept < 3 {
        assert!(begun.elapsed() < Duration::from_secs(20), "no error came to the server");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(running.open(), 16);
    assert_eq!(vmm.load(3 * SIZE), 3, "a page was encrypted under the VMM");
    locked(&vmm, false);
    running.wait_until_closed();
    assert_eq!(vmm.load(3 * SIZE), 3);
    drop(vmm);
    running.stop();
    // One that may not take anything out is refused.
    let running = place.serve_within(limits(LONG));
    let attaching = std::thread::scope(|scope| {
        let attaching = scope.spawn(|| {
            forbid_advice(libc::MADV_DONTNEED);
            std::panic::catch_unwind(|| drop(place.map(SIZE))).is_err()
        });
        attaching.join().unwrap()
    });
    assert!(attaching, "a VMM that takes nothing out was served");
    running.stop();
}

/// A child of the VMM has page tables of its own, from which nobody takes pages out.
#[test]
fn a_child_of_the_vmm_does_not_have_the_mapping() {
    let place = Place::new(shm(), 4096, 16);
    let running = place.serve_within(limits(LONG));
    let vmm = place.map(SIZE);
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let ours = format!("{:x}-", vmm.base.addr());
    let (_, behind) = smaps.split_once(&ours).expect("it is mapped");
    let flags = behind.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
    assert!(flags.split(' ').any(|flag| flag == "dc"), "{flags}");
    drop(vmm);
    running.stop();
}

/// A request into a page holds the page, not its mapping. So what was out of the page tables for less than its time is not encrypted, also
/// where room is short.
#[test]
fn a_page_is_encrypted_when_no_request_into_it_can_be_under_way() {
    let hold = Duration::from_millis(400);
    let place = Place::new(shm(), 4096, 64);
    let running = place.serve_within(Limits { hold, open_pages: LEAST_OPEN, ..limits(Duration::ZERO) });
    let vmm = place.map(SIZE);
    let begun = Instant::now();
    for page in 0..3 * LEAST_OPEN {
        vmm.store(usize::try_from(page).unwrap() * SIZE, page);
        let closed = running.server.engine().status().closed;
        let possible = u128::from(LEAST_OPEN) * (begun.elapsed().as_nanos() / hold.as_nanos());
        assert!(u128::from(closed) <= possible, "{closed} pages were encrypted within {:?}", begun.elapsed());
    }
    // At a clean stop, too.
    vmm.store(0, 1);
    let stopping = Instant::now();
    running.stop();
    assert!(stopping.elapsed() >= hold, "the stop took {:?}", stopping.elapsed());
    drop(vmm);
}

fn work(vmm: &Vmm, is_over: &AtomicBool, thread: usize) {
    let mut random = fastrand::Rng::with_seed(thread as u64);
    let mut counts = [0; 128];
    while !is_over.load(Ordering::Relaxed) {
        let page = random.usize(..128);
        let at = page * SIZE + 64 * thread;
        assert_eq!(vmm.load(at), counts[page], "page {page} has lost what thread {thread} stored");
        counts[page] += 1;
        vmm.store(at, counts[page]);
    }
}

/// The VMM asks for its next server while this one waits for it: that must not keep the lease from it.
#[test]
fn servers_stop_cleanly_under_load() {
    let place = Place::new(shm(), 4096, 128);
    let start = || place.serve_within(Limits { open_pages: 64, ..limits(Duration::from_millis(1)) });
    let mut running: Option<Running> = Some(start());
    let vmm = place.map(SIZE);
    let is_over = AtomicBool::new(false);
    let is_over = &is_over;
    std::thread::scope(|scope| {
        (0..3).for_each(|thread| {
            drop(scope.spawn({
                let vmm = &vmm;
                move || work(vmm, is_over, thread)
            }))
        });
        for round in 0..12 {
            std::thread::sleep(Duration::from_millis(30));
            let ended = running.take().unwrap().end();
            if let Err(error) = ended {
                is_over.store(true, Ordering::Relaxed);
                panic!("round {round}: {error}");
            }
            running = Some(start());
            assert_eq!(running.as_ref().unwrap().server.engine().status().unverified, 0);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    drop(vmm);
    running.unwrap().stop();
}

/// One instruction needs two pages of each of its operands at once.
#[test]
fn the_least_number_of_open_pages_is_enough_for_every_instruction() {
    let place = Place::new(shm(), 4096, 64);
    let running = place.serve_within(Limits { open_pages: 1, ..limits(Duration::ZERO) });
    let vmm = place.map(SIZE);
    let begun = Instant::now();
    for round in 0..50_usize {
        let (from, to) = ((round % 31 + 1) * SIZE - 4, (round % 30 + 33) * SIZE - 4);
        // SAFETY: both are in the mapping, and nobody else touches them; two bytes of eight are on each side.
        unsafe { copy_words(vmm.base.wrapping_add(from), vmm.base.wrapping_add(to)) };
    }
    println!("50 copies with {LEAST_OPEN} open pages: {:?}", begun.elapsed());
    drop(vmm);
    running.stop();
}

/// # Safety
/// Eight bytes from each of both on are mapped.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_words(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's; `movsq` reads eight bytes and writes them, in one instruction.
    unsafe {
        std::arch::asm!("movsq", inout("rsi") from => _, inout("rdi") to => _, options(nostack, preserves_flags));
    }
}

/// # Safety
/// Eight bytes from each of both on are mapped.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_words(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's.
    unsafe { to.cast::<u64>().write_unaligned(from.cast::<u64>().read_unaligned()) };
}

/// The descriptor that a VMM gets is another open file than the server's, whose lock it must not share.
#[test]
fn a_vmm_has_the_region_s_file_from_its_server_and_nobody_else_can_open_it() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let place = Place::new(shm(), 4096, 16);
    let mode = || std::fs::metadata(place.region()).unwrap().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    // A copy may have another one.
    std::fs::set_permissions(place.region(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let running = place.serve_within(limits(LONG));
    assert_eq!(mode(), 0o600);
    let region = place.ask();
    let other = rustix::fs::flock(region.file(), rustix::fs::FlockOperation::NonBlockingLockExclusive);
    assert!(other.is_err(), "the VMM has the server's own lock ({})", region.file().as_raw_fd());
    drop(region);
    running.stop();
}
