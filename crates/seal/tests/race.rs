//! The staged path against a host that changes the shared memory meanwhile: a thread flips one byte of it,
//! as fast as it can, through a second mapping of the same pages.

use std::ffi::c_void;
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use seal::{BlockKey, Corrupt, DataMode, Suite, VolumeKey};

const SIZE: usize = 4096;
/// For each of four suites and two directions: a second in all.
const TIME: Duration = Duration::from_millis(125);
/// As long as a busy machine may take to let host and guest meet.
const PATIENCE: Duration = Duration::from_secs(20);

/// The same page mapped twice, as guest and host have it.
struct Shared {
    guest: *mut u8,
    host: *mut u8,
}

impl Shared {
    fn new() -> Shared {
        let file = memfd_create("race", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, SIZE as u64).unwrap();
        let map = || {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
            unsafe { mmap(null_mut(), SIZE, access, MapFlags::SHARED, &file, 0) }.unwrap().cast::<u8>()
        };
        Shared { guest: map(), host: map() }
    }

    fn read(&self, bytes: &mut [u8; SIZE]) {
        // SAFETY: both sides have SIZE bytes, and `bytes` are private.
        unsafe { copy_nonoverlapping(self.guest, bytes.as_mut_ptr(), SIZE) };
    }

    fn write(&self, bytes: &[u8; SIZE]) {
        // SAFETY: both sides have SIZE bytes, and `bytes` are private.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), self.guest, SIZE) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for start in [self.guest, self.host] {
            // SAFETY: our own mapping, which nobody uses any more.
            unsafe { munmap(start.cast::<c_void>(), SIZE) }.unwrap();
        }
    }
}

/// Runs `guest` for [`TIME`], and on until it says that it has met the host, while the host writes `values`,
/// in turn, to the byte at `offset`.
fn race(shared: &Shared, offset: usize, values: [u8; 2], mut guest: impl FnMut() -> bool) {
    /// Stops the host also when the guest's assertions fail.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    struct HostByte(*mut u8);
    // SAFETY: the mapping lives until the scope below ends; the byte is only written volatile.
    unsafe impl Send for HostByte {}
    let stop = AtomicBool::new(false);
    assert!(offset < SIZE);
    // SAFETY: the offset is inside the mapping.
    let byte = HostByte(unsafe { shared.host.add(offset) });
    std::thread::scope(|scope| {
        let stop = &stop;
        let _stop = Stop(stop);
        scope.spawn(move || {
            let byte = byte;
            let mut turn = 0_usize;
            while !stop.load(Ordering::Relaxed) {
                // SAFETY: as for Send above.
                unsafe { byte.0.write_volatile(values[turn % 2]) };
                // Now long, now short: every point of the guest's work is to be met.
                (0..turn % 97).for_each(|_| std::hint::spin_loop());
                turn += 1;
            }
        });
        let start = Instant::now();
        let mut met = false;
        while start.elapsed() < TIME || !met {
            assert!(start.elapsed() < PATIENCE, "host and guest never met");
            (0..64).for_each(|_| met = guest());
        }
    });
}

fn keys() -> [BlockKey; 4] {
    let volume = VolumeKey::from_bytes([3; 32]);
    [
        volume.epoch(DataMode::Aead, Suite::Aes256Gcm, &[4; 32]).data,
        volume.epoch(DataMode::Aead, Suite::Aegis128x2, &[4; 32]).data,
        volume.epoch(DataMode::Aead, Suite::Aegis256x2, &[4; 32]).data,
        volume.epoch(DataMode::Gmac, Suite::Aes256Gcm, &[4; 32]).data,
    ]
}

fn plaintext() -> [u8; SIZE] {
    std::array::from_fn(|i| u8::try_from(i % 251).unwrap())
}

fn sealed(key: &BlockKey) -> ([u8; SIZE], [u8; 16]) {
    let mut ciphertext = [0; SIZE];
    let tag = key.seal(1, b"ad", &plaintext(), &mut ciphertext);
    (ciphertext, tag)
}

/// A forged seal: a tag for anything but the ciphertext of our plaintext.
fn the_host_gets_no_tag_for_what_it_wrote(key: &BlockKey) {
    let (plaintext, (ciphertext, tag)) = (plaintext(), sealed(key));
    let shared = Shared::new();
    let offset = 1500;
    let mut left = [0; SIZE];
    let mut met = false;
    race(&shared, offset, [!ciphertext[offset], !plaintext[offset]], || {
        // SAFETY: the mapping has SIZE bytes, no reference covers it, and only the host writes it.
        let found = unsafe { key.seal_shared(1, b"ad", &plaintext, shared.guest) };
        assert_eq!(found, tag, "{key:?}: the tag covers bytes of the host's");
        shared.read(&mut left);
        met |= left[offset] != ciphertext[offset];
        left[offset] = ciphertext[offset];
        assert!(left == ciphertext, "{key:?}: something but ciphertext in shared memory");
        met
    });
}

/// An open returns what was sealed, or nothing; never what the host put there after the tag was checked.
fn the_host_changes_no_plaintext_that_opens(key: &BlockKey) {
    let (plaintext, (ciphertext, tag)) = (plaintext(), sealed(key));
    let shared = Shared::new();
    shared.write(&ciphertext);
    // The last line: what is checked first is fetched a second time last.
    let offset = SIZE - 60;
    let mut out = [0; SIZE];
    let (mut opened, mut refused) = (false, false);
    race(&shared, offset, [ciphertext[offset] ^ 1, ciphertext[offset]], || {
        out.fill(0xEE);
        // SAFETY: the mapping has SIZE bytes, no reference covers it, and only the host writes it.
        match unsafe { key.open_shared(1, b"ad", shared.guest, &tag, &mut out) } {
            Ok(()) => {
                assert!(out == plaintext, "{key:?}: opened to what was never sealed");
                opened = true;
            }
            Err(Corrupt) => {
                assert!(out == [0; SIZE], "{key:?}: plaintext let out in spite of the failure");
                refused = true;
            }
        }
        opened && refused
    });
}

/// One after the other: host and guest need a core each.
#[test]
fn the_host_gains_nothing_by_racing() {
    for key in &keys() {
        the_host_gets_no_tag_for_what_it_wrote(key);
        the_host_changes_no_plaintext_that_opens(key);
    }
}
