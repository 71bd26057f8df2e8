//! A host that changes the shared memory meanwhile: a thread flips one byte of it, as fast as it can, through
//! a second mapping of the same page.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memory::{Buffer, FileMapping};

use crate::page::{self, Block, SIZE, content, private};
use crate::subject::{Subject, Work, plaintext};

/// As long as a busy machine may take to let host and guest meet.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a race ended.
#[derive(Default)]
pub struct Tally {
    pub operations: u64,
    /// Operations in which the host's byte was seen: in the page that was sealed to, or as a refused (or
    /// garbled) block. Without them it was no race.
    pub met: u64,
    /// Seals whose tag is valid for bytes that the host wrote; opens to what was never sealed.
    pub forged: u64,
}

/// Races until `enough`, or until patience ends.
///
/// # Panics
/// If anything else than ciphertext is left in the page, or a result is wrong in a way that is no forgery.
pub fn race(subject: &dyn Subject, work: Work, enough: impl Fn(&Tally) -> bool) -> Tally {
    let file = page::file();
    let (guest, host) = (page::shared(&file), page::mapping(&file));
    let mut tally = Tally::default();
    match work {
        Work::Seal => race_seals(subject, guest, &host, &mut tally, enough),
        Work::Open => race_opens(subject, guest, &host, &mut tally, enough),
    }
    tally
}

fn seal(subject: &dyn Subject) -> (Block, [u8; 16]) {
    let mut ciphertext = Buffer::private_zeroed(1);
    let tag = subject.seal(&plaintext(), &mut ciphertext);
    (content(&ciphertext), tag)
}

/// What a private block opens to.
fn open(subject: &dyn Subject, ciphertext: &Block, tag: &[u8; 16]) -> (bool, Block) {
    let mut out = [0; SIZE];
    let opened = subject.open(&private(ciphertext), tag, &mut out);
    (opened, out)
}

fn with_byte(block: &Block, offset: usize, value: u8) -> Block {
    let mut changed = *block;
    changed[offset] = value;
    changed
}

fn race_seals(
    subject: &dyn Subject,
    mut guest: Buffer,
    host: &FileMapping,
    tally: &mut Tally,
    enough: impl Fn(&Tally) -> bool,
) {
    let (ciphertext, tag) = seal(subject);
    let plaintext = plaintext();
    let offset = 1500;
    let values = [!ciphertext[offset], !plaintext[offset]];
    against_host(host, offset, values, || {
        let found = subject.seal(&plaintext, &mut guest);
        let left = content(&guest);
        tally.operations += 1;
        tally.met += u64::from(left[offset] != ciphertext[offset]);
        assert!(
            with_byte(&left, offset, ciphertext[offset]) == ciphertext,
            "something but ciphertext was left"
        );
        if found != tag {
            let opens = |value| open(subject, &with_byte(&ciphertext, offset, value), &found).0;
            assert!(values.into_iter().any(opens), "a tag that fits nothing");
            tally.forged += 1;
        }
        enough(tally)
    });
}

fn race_opens(
    subject: &dyn Subject,
    mut guest: Buffer,
    host: &FileMapping,
    tally: &mut Tally,
    enough: impl Fn(&Tally) -> bool,
) {
    let (ciphertext, tag) = seal(subject);
    guest.copy_from(0, &ciphertext);
    // The last line: what is checked first is fetched a second time last.
    let offset = SIZE - 60;
    let values = [ciphertext[offset] ^ 1, ciphertext[offset]];
    // What a block opens to that is fetched once: either of two.
    let [changed, whole] = values.map(|value| open(subject, &with_byte(&ciphertext, offset, value), &tag));
    assert!(whole == (true, plaintext()) && changed != whole);
    let mut out = [0; SIZE];
    against_host(host, offset, values, || {
        out.fill(0xEE);
        let opened = subject.open(&guest, &tag, &mut out);
        tally.operations += 1;
        let like = |(may_open, to): &(bool, Block)| opened == *may_open && (!opened || out == *to);
        match (like(&whole), like(&changed)) {
            (true, _) => {}
            (_, true) => tally.met += 1,
            _ => tally.forged += 1,
        }
        enough(tally)
    });
}

/// Runs `guest` until it has had enough, while the host writes `values`, in turn, to the byte at `offset`.
fn against_host(host: &FileMapping, offset: usize, values: [u8; 2], mut guest: impl FnMut() -> bool) {
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
    let byte = HostByte(unsafe { host.as_ptr().add(offset) });
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
        while !guest() && start.elapsed() < PATIENCE {}
    });
}
