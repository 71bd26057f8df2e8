//! How fast a store is by itself: the ceiling for whatever is built on it.
//!
//! `raw PATH [GIB]` measures a file (created, filled and removed) or a block device (overwritten!),
//! `raw memory [GIB]` the store in memory.

use std::path::Path;
use std::time::{Duration, Instant};

use memory::{BLOCK_SIZE, Buffer};
use store::{Completion, Error, FileStore, MemoryStore, Operation, Options, Store};

const RUN: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: raw PATH|memory [GIB]")?;
    let gib: u64 = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let blocks = gib << 18;
    let existed = Path::new(&path).exists();
    let store: Box<dyn Store> = if path == "memory" {
        Box::new(MemoryStore::new(blocks)?)
    } else {
        let create = (!existed).then_some(blocks);
        Box::new(FileStore::open(&path, Options { create, ..Options::default() })?)
    };
    let result = measure(&*store);
    if !existed && path != "memory" {
        std::fs::remove_file(&path)?;
    }
    Ok(result?)
}

fn measure(store: &dyn Store) -> Result<(), Error> {
    // 128 KiB each; the first pass allocates all blocks.
    let fill = Load { write: true, blocks: 32, depth: 128, random: false };
    let first = fill.run(store, store.blocks() / 32)?;
    println!("first fill   128K q128  {first}");
    let small = |write| Load { write, blocks: 1, depth: 32, random: true };
    println!("randread       4K q32   {}", small(false).run(store, u64::MAX)?);
    println!("randwrite      4K q32   {}", small(true).run(store, u64::MAX)?);
    println!("randread       4K q1    {}", Load { depth: 1, ..small(false) }.run(store, u64::MAX)?);
    println!("randwrite      4K q1    {}", Load { depth: 1, ..small(true) }.run(store, u64::MAX)?);
    println!("seqread      128K q128  {}", Load { write: false, ..fill }.run(store, u64::MAX)?);
    println!("seqwrite     128K q128  {}", fill.run(store, u64::MAX)?);
    println!("seqwrite       4K q128  {}", Load { blocks: 1, ..fill }.run(store, u64::MAX)?);
    flushes(store)
}

/// A steady load, as the tool fio would make it.
struct Load {
    write: bool,
    blocks: usize,
    depth: u32,
    random: bool,
}

struct Figures {
    operations: u64,
    bytes: u64,
    elapsed: Duration,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Exact enough for a figure on a screen.
        let per_second = |count: u64| u128::from(count) * 1_000_000 / self.elapsed.as_micros().max(1);
        let mib = per_second(self.bytes) >> 20;
        let micros = self.elapsed.as_nanos() / u128::from(self.operations.max(1));
        write!(
            f,
            "{:>9} IOPS  {mib:>6} MiB/s  {:>6}.{:03} us per operation",
            per_second(self.operations),
            micros / 1000,
            micros % 1000
        )
    }
}

impl Load {
    /// Runs for a while, or for `limit` operations.
    fn run(&self, store: &dyn Store, limit: u64) -> Result<Figures, Error> {
        let mut queue = store.queue(self.depth)?;
        let mut random = fastrand::Rng::with_seed(1);
        let slots = store.blocks() / u64::try_from(self.blocks).unwrap_or(1);
        let (mut issued, mut ended, mut next) = (0, 0, 0);
        let mut idle: Vec<Buffer> = (0..self.depth).map(|_| queue.buffer(self.blocks)).collect();
        for buffer in &mut idle {
            buffer.private_mut().into_iter().for_each(|content| random.fill(content));
        }
        let mut completions: Vec<Completion> = Vec::new();
        let start = Instant::now();
        loop {
            let go_on = issued < limit && (limit < u64::MAX || start.elapsed() < RUN);
            if !go_on && issued == ended {
                break;
            }
            for buffer in if go_on { idle.drain(..) } else { idle.drain(..0) } {
                let slot = if self.random { random.u64(..slots) } else { next % slots };
                next += 1;
                let block = slot * u64::try_from(self.blocks).unwrap_or(1);
                let operation = if self.write {
                    Operation::Write { block, buffer }
                } else {
                    Operation::Read { block, buffer }
                };
                queue.submit(issued, operation);
                issued += 1;
            }
            queue.wait(None, &mut completions);
            for completion in completions.drain(..) {
                completion.result?;
                idle.extend(completion.buffer);
                ended += 1;
            }
        }
        let bytes = ended * u64::try_from(self.blocks * BLOCK_SIZE).unwrap_or(0);
        Ok(Figures { operations: ended, bytes, elapsed: start.elapsed() })
    }
}

/// One block written and flushed at a time.
fn flushes(store: &dyn Store) -> Result<(), Error> {
    let mut queue = store.queue(1)?;
    let mut random = fastrand::Rng::with_seed(2);
    let mut buffer = Some(queue.buffer(1));
    let mut completions = Vec::new();
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < RUN {
        let begin = Instant::now();
        let taken = buffer.take().unwrap_or_else(|| Buffer::private_zeroed(1));
        let write = Operation::Write { block: random.u64(..store.blocks()), buffer: taken };
        for operation in [write, Operation::Flush] {
            queue.submit(0, operation);
            while completions.is_empty() {
                queue.wait(None, &mut completions);
            }
            for completion in completions.drain(..) {
                completion.result?;
                buffer = completion.buffer.or(buffer);
            }
        }
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!("write+flush    4K q1    median {:?}, 99th percentile {:?}", at(50), at(99));
    Ok(())
}
