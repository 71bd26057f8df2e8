//! Huge pages: those of hugetlbfs, which are opened whole, and transparent ones, which must not bring neighbours along.
//!
//! Both need root, to mount file systems of their own; huge pages are reserved for the test and given back.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use scm::serve::{Limits, Server};
use scm::{Access, Engine, Medium};
use seal::SystemRandom;

use crate::campaign::credential;
use crate::starting;
use crate::userfault::Place;

const HUGE: usize = 2 << 20;
const LIMITS: Limits = Limits {
    open_pages: 1000,
    idle: Duration::from_secs(600),
    hold: Duration::ZERO,
    read_ahead: 0,
    cpu_percent: 100,
    threads: 2,
};

/// A file system that is there for one test.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(kind: &str, options: &str) -> Option<Mounted> {
        let place = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", kind, "-o", options, kind]).arg(place.path());
        let output = starting::start(|| mount.output()).unwrap();
        if !output.status.success() {
            skipped(String::from_utf8_lossy(&output.stderr).trim());
            return None;
        }
        Some(Mounted(place))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = starting::start(|| Command::new("umount").arg("-l").arg(self.0.path()).status());
    }
}

/// Huge pages of 2 MiB that were taken from the machine, and are given back.
struct Reserved(u64);

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

impl Reserved {
    fn new(pages: u64) -> Option<Reserved> {
        let number = || fs::read_to_string(POOL).ok()?.trim().parse::<u64>().ok();
        let before = number()?;
        let written = fs::write(POOL, (before + pages).to_string());
        let reserved = Reserved(before);
        if written.is_err() || number()? < before + pages {
            skipped("no huge pages of 2 MiB can be reserved");
            return None;
        }
        Some(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = fs::write(POOL, self.0.to_string());
    }
}

fn skipped(reason: &str) {
    let thread = std::thread::current();
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {}: {reason}", thread.name().unwrap_or("a test"));
}

#[test]
fn a_region_on_hugetlbfs_is_served_by_huge_pages() {
    let Some(_pages) = Reserved::new(24) else { return };
    let Some(file_system) = Mounted::new("hugetlbfs", "pagesize=2M") else { return };
    let place = Place::new(file_system.0.path(), HUGE as u64, 4);
    for round in 0..2_u64 {
        let running = place.serve_within(LIMITS);
        let vmm = place.map(HUGE);
        for page in [3, 0] {
            for at in [0, HUGE / 2, HUGE - 8] {
                assert_eq!(vmm.load(page * HUGE + at), round * (page + at) as u64);
                vmm.store(page * HUGE + at, (page + at) as u64);
            }
        }
        assert_eq!(running.open(), 2);
        let present: Vec<usize> = (0..4).filter(|page| vmm.is_present(page * HUGE / 4096)).collect();
        assert_eq!(present, [0, 3], "neighbours are exposed");
        drop(vmm);
        running.stop();
    }
    // Its pages are taken back, too.
    let running = place.serve_within(Limits { idle: Duration::from_millis(20), ..LIMITS });
    let vmm = place.map(HUGE);
    assert_eq!(vmm.load(3 * HUGE + HUGE / 2), (3 + HUGE / 2) as u64);
    running.wait_until_closed();
    assert_eq!(vmm.load(3 * HUGE + HUGE / 2), (3 + HUGE / 2) as u64);
    drop(vmm);
    running.stop();
    drop(place);

    // One of its own, which has no more than two: the machine's are for everybody.
    let Some(small) = Mounted::new("hugetlbfs", "pagesize=2M,size=4M") else { return };
    let error = scm::Mapping::create(&small.0.path().join("large"), 1 << 26).unwrap_err();
    assert!(error.to_string().contains("the sysctl vm.nr_hugepages"), "{error}");
    // A touch there is of 2 MiB: pages of 4 KiB would bring their neighbours along.
    let place = Place::new(file_system.0.path(), 4096, 64);
    let mapping = Arc::new(starting::open(&place.region(), Access::Exclusive).unwrap());
    let medium: Arc<dyn Medium> = Arc::clone(&mapping) as Arc<dyn Medium>;
    let (engine, _) = Engine::open(medium, &credential(), Arc::new(SystemRandom), &|_, _| {}).unwrap();
    let error = Server::new(Arc::new(engine), mapping, LIMITS).unwrap_err();
    assert!(error.to_string().contains("neighbours would be exposed"), "{error}");
}

/// How many pages of a mapping are in the page tables.
fn present(is_present: impl Fn(usize) -> bool) -> usize {
    (0..1024).filter(|page| is_present(*page)).count()
}

/// The kernel would like to show 2 MiB at a time there. (Cloud Hypervisor's issue 8663 is a VMM that let it.)
#[test]
fn transparent_huge_pages_bring_no_neighbours_along() {
    let Some(file_system) = Mounted::new("tmpfs", "size=64m,huge=always") else { return };
    let place = Place::new(file_system.0.path(), 4096, 1024);
    if !has_huge_folios(&place.region()) {
        skipped("this kernel puts no huge pages into tmpfs");
        return;
    }
    let running = place.serve_within(LIMITS);
    let vmm = place.map(4096);
    for page in [5, 700] {
        assert_eq!(vmm.load(page * 4096), 0);
    }
    assert_eq!(present(|page| vmm.is_present(page)), 2, "neighbours are exposed");
    // Nor does the VMM's advice, or the kernel's own search for pages to put together, bring them.
    // SAFETY: advice about a mapping that is there; the content of shared memory stays.
    unsafe { libc::madvise(vmm.base.cast(), 4 << 20, libc::MADV_POPULATE_READ) };
    let exposed: Vec<usize> =
        (0..1024).filter(|page| vmm.is_present(*page) && vmm.load(page * 4096) != 0).collect();
    assert_eq!(exposed, [0; 0], "pages are exposed that are not open");
    drop(vmm);
    running.stop();
}

/// Whether a plain mapping of the file gets more than the page that was touched: what the test above is about.
fn has_huge_folios(region: &Path) -> bool {
    use std::os::fd::AsRawFd;
    let file = fs::File::open(region).unwrap();
    let len = 4 << 20;
    // SAFETY: a fresh mapping, read at its beginning while it is there.
    unsafe {
        let base =
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(base, libc::MAP_FAILED);
        base.cast::<u8>().read_volatile();
        let entry = |page: usize| {
            let mut word = [0; 8];
            let at = (base.addr() / 4096 + page) as u64 * 8;
            let pagemap = fs::File::open("/proc/self/pagemap").unwrap();
            std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut word, at).unwrap();
            u64::from_ne_bytes(word) >> 63 == 1
        };
        let count = present(entry);
        libc::munmap(base, len);
        count > 1
    }
}
