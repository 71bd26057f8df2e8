//! Numbered records, written and synced by threads that remember what was acknowledged: the proof that a crash lost none of it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::OFlags;

const BLOCK: usize = 4096;
/// Blocks written before each sync, at most.
const BATCH: usize = 12;
const HEADER: usize = 24;

/// What may be on one block.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// The latest version that a sync acknowledged.
    acknowledged: u64,
    /// The latest version that was ever begun.
    begun: u64,
}

/// A file of records, one a block, as it must be after a crash. It lives in this process, which is not the one that is killed.
pub struct Records {
    seed: u64,
    known: Vec<Known>,
}

impl Records {
    pub fn new(seed: u64, blocks: usize) -> Self {
        Self { seed, known: vec![Known::default(); blocks] }
    }

    /// Version `version` of a block: says what it is, and is all different from every other.
    fn block(&self, index: usize, version: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK);
        for number in [self.seed, index as u64, version] {
            bytes.extend(number.to_le_bytes());
        }
        let mut random = fastrand::Rng::with_seed(self.seed ^ version << 24 ^ index as u64);
        bytes.extend(
            std::iter::repeat_with(|| random.u64(..).to_le_bytes()).take((BLOCK - HEADER) / 8).flatten(),
        );
        bytes
    }

    /// Overwrites records with `threads` threads until an error or `stop`; how many records were acknowledged.
    pub fn write(&mut self, path: &Path, threads: usize, direct: bool, seed: u64, stop: &AtomicBool) -> u64 {
        let flags = if direct { OFlags::DIRECT.bits().cast_signed() } else { 0 };
        let Ok(file) = OpenOptions::new().write(true).custom_flags(flags).open(path) else { return 0 };
        let acknowledged = AtomicU64::new(0);
        let known = Mutex::new(std::mem::take(&mut self.known));
        let blocks = known.lock().unwrap().len();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                // Ranges of their own: two writes of one block in flight have no order.
                let range = blocks * thread / threads..blocks * (thread + 1) / threads;
                let mut random = fastrand::Rng::with_seed(seed ^ thread as u64);
                let (this, file, known, acknowledged) = (&*self, &file, &known, &acknowledged);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let Some(count) = this.batch(file, known, range.clone(), &mut random) else { return };
                        acknowledged.fetch_add(count, Ordering::Relaxed);
                    }
                });
            }
        });
        self.known = known.into_inner().unwrap();
        acknowledged.into_inner()
    }

    /// Some writes and a sync. `None` when the device is gone.
    fn batch(
        &self,
        file: &File,
        known: &Mutex<Vec<Known>>,
        range: std::ops::Range<usize>,
        random: &mut fastrand::Rng,
    ) -> Option<u64> {
        let mut written = Vec::new();
        for _ in 0..random.usize(1..=BATCH) {
            let index = random.usize(range.clone());
            let version = {
                let mut known = known.lock().unwrap();
                known[index].begun += 1;
                known[index].begun
            };
            let bytes = Aligned::new(&self.block(index, version));
            file.write_all_at(bytes.get(), (index * BLOCK) as u64).ok()?;
            written.push((index, version));
        }
        file.sync_data().ok()?;
        let mut known = known.lock().unwrap();
        for &(index, version) in &written {
            known[index].acknowledged = known[index].acknowledged.max(version);
        }
        Some(written.len() as u64)
    }

    /// Looks at every block: none is older than what was acknowledged, and each is whole. What is there now has to stay. The number of
    /// blocks with a version that had been acknowledged.
    pub fn check(&mut self, path: &Path) -> u64 {
        let file = File::open(path).unwrap();
        let mut bytes = vec![0; self.known.len() * BLOCK];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let mut checked = 0;
        for (index, block) in bytes.chunks_exact(BLOCK).enumerate() {
            let Known { acknowledged, begun } = self.known[index];
            let version = u64::from_le_bytes(block[16..HEADER].try_into().unwrap());
            assert!(
                (acknowledged..=begun).contains(&version),
                "block {index} has version {version}; {acknowledged} was acknowledged, {begun} begun"
            );
            let expected = if version == 0 { vec![0; BLOCK] } else { self.block(index, version) };
            assert!(block == expected, "block {index} is torn, or not what was written as version {version}");
            checked += u64::from(acknowledged > 0);
            self.known[index] = Known { acknowledged: version, begun: version };
        }
        checked
    }
}

/// Bytes where direct I/O accepts them.
struct Aligned {
    room: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new(bytes: &[u8]) -> Self {
        let mut room = vec![0; bytes.len() + BLOCK];
        let start = room.as_ptr().align_offset(BLOCK);
        room[start..start + bytes.len()].copy_from_slice(bytes);
        Self { room, start }
    }

    fn get(&self) -> &[u8] {
        &self.room[self.start..self.start + self.room.len() - BLOCK]
    }
}
