//! Time to seal and to open one 4 KiB block, by suite and mode: with everything in the L1 cache ("hot"),
//! and with plaintext and ciphertext in memory ("cold"). `cargo run --release -p seal --example speed`.

use std::hint::black_box;
use std::time::Instant;

use seal::{BlockKey, DataMode, SALT_SIZE, Suite, VolumeKey};

const BLOCK: usize = 4096;
/// Blocks of a cold run: more than any cache has room for.
const COLD: usize = 128 * 1024 * 1024 / BLOCK;
const HOT: usize = 500;
/// Many and short: the fastest is one that nobody disturbed.
const HOT_ROUNDS: usize = 200;
const COLD_ROUNDS: usize = 7;

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
    println!("ns per 4 KiB block, best run: hot / cold");
    println!("{:<20} {:>14} {:>14} {:>14} {:>14}", "", "seal", "seal staged", "open", "open staged");
    for (suite, mode) in cases {
        let keys = key.epoch(mode, suite, &[1; SALT_SIZE]);
        let hot = Bench::new(&keys.data, 1).run(HOT, HOT_ROUNDS);
        let cold = Bench::new(&keys.data, COLD).run(COLD, COLD_ROUNDS);
        print!("{:<20}", format!("{suite} {mode:?}").to_lowercase());
        for (hot, cold) in hot.into_iter().zip(cold) {
            print!(" {:>14}", format!("{hot:.0} / {cold:.0}"));
        }
        println!();
    }
}

struct Bench<'a> {
    key: &'a BlockKey,
    plaintext: Vec<u8>,
    ciphertext: Vec<u8>,
    tags: Vec<[u8; 16]>,
}

impl<'a> Bench<'a> {
    fn new(key: &'a BlockKey, blocks: usize) -> Self {
        Bench {
            key,
            plaintext: vec![5; blocks * BLOCK],
            ciphertext: vec![6; blocks * BLOCK],
            tags: vec![[0; 16]; blocks],
        }
    }

    /// Nanoseconds per block to seal, seal staged, open and open staged. Each block has its index as nonce
    /// again and again, which only a benchmark may do.
    fn run(mut self, count: usize, rounds: usize) -> [f64; 4] {
        [
            self.time(count, rounds, Self::seal),
            self.time(count, rounds, Self::seal_staged),
            self.time(count, rounds, Self::open),
            self.time(count, rounds, Self::open_staged),
        ]
    }

    fn time(&mut self, count: usize, rounds: usize, work: fn(&mut Self, usize)) -> f64 {
        let blocks = self.tags.len();
        let round = |_| {
            let start = Instant::now();
            (0..count).for_each(|i| work(self, i % blocks));
            start.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(count).unwrap())
        };
        (0..rounds).map(round).fold(f64::INFINITY, f64::min)
    }

    fn seal(&mut self, block: usize) {
        let range = block * BLOCK..(block + 1) * BLOCK;
        let out = &mut self.ciphertext[range.clone()];
        self.tags[block] = self.key.seal(block as u64, &[9; 24], black_box(&self.plaintext[range]), out);
    }

    fn seal_staged(&mut self, block: usize) {
        let range = block * BLOCK..(block + 1) * BLOCK;
        let out = self.ciphertext[range.clone()].as_mut_ptr();
        // SAFETY: `out` has BLOCK bytes; the borrow that it comes from is not used again.
        self.tags[block] =
            unsafe { self.key.seal_shared(block as u64, &[9; 24], black_box(&self.plaintext[range]), out) };
    }

    fn open(&mut self, block: usize) {
        let range = block * BLOCK..(block + 1) * BLOCK;
        let (ciphertext, out) = (&self.ciphertext[range.clone()], &mut self.plaintext[range]);
        self.key.open(block as u64, &[9; 24], ciphertext, &self.tags[block], out).expect("it was sealed so");
        black_box(out);
    }

    fn open_staged(&mut self, block: usize) {
        let range = block * BLOCK..(block + 1) * BLOCK;
        let ciphertext = self.ciphertext[range.clone()].as_ptr();
        let out = &mut self.plaintext[range];
        // SAFETY: `ciphertext` has BLOCK bytes, which nobody writes meanwhile.
        unsafe { self.key.open_shared(block as u64, &[9; 24], ciphertext, &self.tags[block], out) }
            .expect("it was sealed so");
        black_box(out);
    }
}
