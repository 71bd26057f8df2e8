//! Time to seal and to open one 4 KiB block, by suite and mode: with everything in the L1 cache ("hot"),
//! and with plaintext and ciphertext in memory ("cold"). `cargo run --release -p seal --example speed`.

use std::hint::black_box;
use std::time::Instant;

use memory::{BLOCK_SIZE, Buffer};
use seal::slot::{Argon2Params, Credential, KeySlots, SlotLimits};
use seal::{BlockKey, DataMode, SALT_SIZE, SecretBytes, Suite, SystemRandom, VolumeKey};

const BLOCK: usize = BLOCK_SIZE;
/// Blocks of a cold run: more than any cache has room for.
const COLD: usize = 256 * 1024 * 1024 / BLOCK;
/// Blocks follow each other at this distance, as on a disk with random accesses. Prime, so that all come up.
const STRIDE: usize = 40_009;
/// Blocks that are timed together. Of all such windows the lower quartile is shown: the others were disturbed.
const WINDOW: usize = 128;
const WINDOWS: usize = COLD / WINDOW;

fn main() {
    let key = VolumeKey::from_bytes([7; 32]);
    let cases = [
        (Suite::Aes256Gcm, DataMode::Aead),
        (Suite::Aegis128x2, DataMode::Aead),
        (Suite::Aegis256x2, DataMode::Aead),
        (Suite::Aes256Xts, DataMode::Xts),
        (Suite::Aes256Gcm, DataMode::Gmac),
        (Suite::Aes256Gcm, DataMode::Plain),
    ];
    println!("ns per 4 KiB block, lower quartile: hot / cold");
    println!("{:<20} {:>14} {:>14} {:>14} {:>14}", "", "seal", "seal staged", "open", "open staged");
    for (suite, mode) in cases {
        let keys = key.epoch(mode, suite, &[1; SALT_SIZE]);
        let hot = Timing::new(&keys.data, 1).run();
        let cold = Timing::new(&keys.data, COLD).run();
        print!("{:<20}", format!("{suite} {mode:?}").to_lowercase());
        for (hot, cold) in hot.into_iter().zip(cold) {
            print!(" {:>14}", format!("{hot:.0} / {cold:.0}"));
        }
        println!();
    }
    println!("opening a key slot with the default costs: {:.2} s", unlock());
}

/// Seconds that a passphrase costs.
fn unlock() -> f64 {
    let mut slots = KeySlots::new();
    let passphrase = || Credential::Passphrase(SecretBytes::from_slice(b"correct horse"));
    let (id, params) = ([1; 16], Argon2Params::default());
    let key = VolumeKey::generate(&SystemRandom);
    slots.add(&id, &key, passphrase(), "speed", params, &SystemRandom).expect("there is room for a slot");
    let start = Instant::now();
    slots.unlock(&id, &passphrase(), &SlotLimits::default()).expect("it was added so");
    start.elapsed().as_secs_f64()
}

#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Page([u8; BLOCK]);

struct Timing<'a> {
    key: &'a BlockKey,
    plaintext: Vec<Page>,
    ciphertext: Buffer,
    tags: Vec<[u8; 16]>,
}

impl<'a> Timing<'a> {
    fn new(key: &'a BlockKey, blocks: usize) -> Self {
        Timing {
            key,
            plaintext: vec![Page([5; BLOCK]); blocks],
            ciphertext: touched(blocks),
            tags: vec![[0; 16]; blocks],
        }
    }

    /// Nanoseconds per block to seal, seal staged, open and open staged. Each block has its index as nonce
    /// again and again, which only a benchmark may do.
    fn run(mut self) -> [f64; 4] {
        let seal = self.time(Self::seal);
        let open = self.time(Self::open);
        self.ciphertext = self.ciphertext.into_shared();
        [seal, self.time(Self::seal), open, self.time(Self::open)]
    }

    fn time(&mut self, work: fn(&mut Self, usize)) -> f64 {
        let blocks = self.tags.len();
        let window = |window| {
            let first = window * WINDOW;
            let start = Instant::now();
            (first..first + WINDOW).for_each(|i| work(self, i * STRIDE % blocks));
            start.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(WINDOW).unwrap())
        };
        let mut times: Vec<f64> = (0..WINDOWS).map(window).collect();
        times.sort_by(f64::total_cmp);
        times[WINDOWS / 4]
    }

    fn seal(&mut self, i: usize) {
        let out = self.ciphertext.target(i * BLOCK..(i + 1) * BLOCK);
        self.tags[i] =
            self.key.seal_into(i as u64, &[9; 24], black_box(&self.plaintext[i].0), out, |_, _| ());
    }

    fn open(&mut self, i: usize) {
        let (ciphertext, out) =
            (self.ciphertext.source(i * BLOCK..(i + 1) * BLOCK), &mut self.plaintext[i].0);
        let result = self.key.open_from(i as u64, &[9; 24], ciphertext, &self.tags[i], out, |_| ());
        result.expect("it was sealed so");
        black_box(out);
    }
}

/// Memory that the system has given.
fn touched(blocks: usize) -> Buffer {
    let mut buffer = Buffer::private_zeroed(blocks);
    buffer.private_mut().expect("it is private").fill(6);
    buffer
}
