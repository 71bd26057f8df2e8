//! Time to copy one 4 KiB block by `memcpy` (private memory) and byte by byte once (shared memory): with everything in the L1 cache
//! ("hot"), and with both sides in memory ("cold"). `cargo run --release -p memory --example copies`.

use std::hint::black_box;
use std::time::Instant;

use memory::{BLOCK_SIZE, Buffer};

/// Blocks of a cold run: more than any cache has room for.
const COLD: usize = 256 * 1024 * 1024 / BLOCK_SIZE;
/// Blocks follow each other at this distance, as on a disk with random accesses. Prime, so that all come up.
const STRIDE: usize = 40_009;
/// Copies that are timed together. Of all such windows the lower quartile is shown: the others were disturbed.
const WINDOW: usize = 128;

fn main() {
    println!("ns per 4 KiB block, lower quartile: hot / cold");
    for (name, shared) in [("memcpy (private)", false), ("copy_once (shared)", true)] {
        let [hot, cold] = [1, COLD].map(|blocks| run(blocks, shared));
        println!("{name:<20} from {:.0} / {:.0}, to {:.0} / {:.0}", hot[0], cold[0], hot[1], cold[1]);
    }
}

/// Nanoseconds to copy a block from the buffer and to it.
fn run(blocks: usize, shared: bool) -> [f64; 2] {
    let mut buffer = Buffer::private_zeroed(blocks);
    buffer.private_mut().expect("it is private").fill(6);
    if shared {
        buffer = buffer.into_shared();
    }
    // Aligned as the buffer is: at another distance, loads may wait for unrelated stores (4 KiB aliasing).
    let mut private = Buffer::private_zeroed(blocks);
    let private = private.private_mut().expect("it is private");
    private.fill(7);
    let from = time(blocks, |at| buffer.copy_to(at, black_box(&mut private[at..at + BLOCK_SIZE])));
    let to = time(blocks, |at| buffer.copy_from(at, black_box(&private[at..at + BLOCK_SIZE])));
    [from, to]
}

fn time(blocks: usize, mut copy: impl FnMut(usize)) -> f64 {
    let mut times: Vec<f64> = (0..COLD / WINDOW)
        .map(|window| {
            let start = Instant::now();
            (window * WINDOW..(window + 1) * WINDOW).for_each(|i| copy(i * STRIDE % blocks * BLOCK_SIZE));
            start.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(WINDOW).unwrap_or(u32::MAX))
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}
