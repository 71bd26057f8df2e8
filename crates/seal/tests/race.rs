//! The staged path against a host that changes the shared memory meanwhile: a thread flips one byte of it,
//! as fast as it can, through a second mapping of the same pages.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use seal::{BlockKey, Corrupt, DataMode, Suite, VolumeKey};

const SIZE: usize = 4096;
/// For each of four suites and two directions: a second in all.
const TIME: Duration = Duration::from_millis(125);

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

    fn read(&self) -> Vec<u8> {
        // SAFETY: offsets below SIZE are inside the mapping.
        (0..SIZE).map(|i| unsafe { self.guest.add(i).read_volatile() }).collect()
    }

    fn write(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), SIZE);
        // SAFETY: offsets below SIZE are inside the mapping.
        bytes.iter().enumerate().for_each(|(i, byte)| unsafe { self.guest.add(i).write_volatile(*byte) });
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

/// Runs `guest` for [`TIME`] while a host writes `values`, in turn, to the byte at `offset`.
fn race(shared: &Shared, offset: usize, values: [u8; 2], mut guest: impl FnMut()) {
    struct HostByte(*mut u8);
    // SAFETY: the mapping lives until the scope below ends; the byte is only written volatile.
    unsafe impl Send for HostByte {}
    let stop = AtomicBool::new(false);
    assert!(offset < SIZE);
    // SAFETY: the offset is inside the mapping.
    let byte = HostByte(unsafe { shared.host.add(offset) });
    std::thread::scope(|scope| {
        let stop = &stop;
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
        let end = Instant::now() + TIME;
        while Instant::now() < end {
            (0..16).for_each(|_| guest());
        }
        stop.store(true, Ordering::Relaxed);
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

fn plaintext() -> Vec<u8> {
    (0..=255).cycle().take(SIZE).collect()
}

/// A forged seal: a tag for anything but the ciphertext of our plaintext.
#[test]
fn the_host_gets_no_tag_for_what_it_wrote() {
    for (i, key) in keys().iter().enumerate() {
        let mut ciphertext = vec![0; SIZE];
        let tag = key.seal(i as u64, b"ad", &plaintext(), &mut ciphertext);
        let shared = Shared::new();
        let (mut seals, mut met) = (0, 0);
        let offset = 1500;
        race(&shared, offset, [!ciphertext[offset], 0x77], || {
            // SAFETY: the mapping has SIZE bytes, no reference covers it, and only the host writes it.
            let found = unsafe { key.seal_shared(i as u64, b"ad", &plaintext(), shared.guest) };
            assert_eq!(found, tag, "{key:?}: the tag covers bytes of the host's");
            let mut left = shared.read();
            met += usize::from(left[offset] != ciphertext[offset]);
            left[offset] = ciphertext[offset];
            assert!(left == ciphertext, "{key:?}: something but ciphertext in shared memory");
            seals += 1;
        });
        assert!(met > 0, "{key:?}: the host never met one of {seals} seals");
    }
}

/// An open returns what was sealed, or nothing; never what the host put there after the tag was checked.
#[test]
fn the_host_changes_no_plaintext_that_opens() {
    for (i, key) in keys().iter().enumerate() {
        let mut ciphertext = vec![0; SIZE];
        let tag = key.seal(i as u64, b"ad", &plaintext(), &mut ciphertext);
        let shared = Shared::new();
        shared.write(&ciphertext);
        let (mut opened, mut refused) = (0, 0);
        // The last line: what is checked first is fetched a second time last.
        let offset = SIZE - 60;
        race(&shared, offset, [ciphertext[offset] ^ 1, ciphertext[offset]], || {
            let mut out = vec![0xEE; SIZE];
            // SAFETY: the mapping has SIZE bytes, no reference covers it, and only the host writes it.
            match unsafe { key.open_shared(i as u64, b"ad", shared.guest, &tag, &mut out) } {
                Ok(()) => {
                    assert!(out == plaintext(), "{key:?}: opened to what was never sealed");
                    opened += 1;
                }
                Err(Corrupt) => {
                    assert!(out == [0; SIZE], "{key:?}: plaintext let out in spite of the failure");
                    refused += 1;
                }
            }
        });
        assert!(opened > 0 && refused > 0, "{key:?}: no race: {opened} opened, {refused} refused");
    }
}
