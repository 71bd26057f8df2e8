//! A store that becomes smaller while a volume is attached, and reads that bring less than they claim: an error, at once, and never a byte
//! that was not written there.
#![expect(clippy::disallowed_methods, reason = "what hangs is found by the time that it takes")]

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Bench, Session, options, page};
use memory::BLOCK_SIZE;
use store::{FileStore, Options, Store};
use testkit::hostile::{Faults, HostileStore};
use testkit::{InterceptingStore, Interceptor};
use volume::Kind;
use volume::format::protections::Freshness;
use volume::geometry::Shape;

const STORE: u64 = 5400;
/// Blocks that are written before the store changes.
const WRITTEN: u64 = 400;
/// As many for one request.
const PIECE: usize = 40;

/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// On this hostile disk, all that was submitted ends at the next poll.
struct Prompt(HostileStore);

impl Interceptor for Prompt {
    fn polled(&self, _queue: usize) -> bool {
        self.0.complete_all();
        true
    }
}

fn prompt(disk: &HostileStore) -> Arc<dyn Store> {
    InterceptingStore::new(Arc::new(disk.clone()), &Arc::new(Prompt(disk.clone())))
}

fn bench(freshness: Freshness, store: Arc<dyn Store>) -> Bench {
    let mut bench = Bench::new(crate::common::options_at(freshness), 1);
    bench.environment.store = store;
    bench
}

fn write_all(session: &mut Session, fill: u8) -> Result<(), Kind> {
    for block in (0..WRITTEN).step_by(PIECE) {
        session.write(block, PIECE, fill).map_err(|error| error.kind())?;
    }
    session.flush().map_err(|error| error.kind())
}

/// Reads each block, of which it may be said that it is `fill`, or what is wrong. How many were said to be what.
fn look(session: &mut Session, fills: &[u8], kinds: &[Kind], what: &str) -> (u64, u64) {
    let (mut right, mut refused) = (0, 0);
    for block in 0..WRITTEN {
        match session.read(block, 1) {
            Ok(bytes) => {
                assert!(
                    fills.iter().any(|fill| bytes == page(*fill)),
                    "{what}: block {block} is {}",
                    bytes[0]
                );
                right += 1;
            }
            Err(error) => {
                assert!(kinds.contains(&error.kind()), "{what}: {error}");
                refused += 1;
            }
        }
    }
    (right, refused)
}

/// Ends a session that may not be able to. It must not wait for what will never be.
fn end(mut session: Session, what: &str) {
    session.volume.stop();
    let begun = Instant::now();
    while session.is_maintained() {
        session.step();
        assert!(begun.elapsed() < PATIENCE, "{what}: the end never comes");
    }
}

fn checkpoint(session: &mut Session) {
    let before = session.volume.status().checkpoints;
    session.volume.checkpoint_soon();
    let begun = Instant::now();
    while session.volume.status().checkpoints == before {
        session.settle();
        assert!(begun.elapsed() < PATIENCE, "the checkpoint never comes");
    }
}

/// Attaches, cuts the store off after `blocks` with `cut`, and works on; `kinds` are those of the errors.
fn shrink_under_a_session(
    freshness: Freshness,
    store: Arc<dyn Store>,
    blocks: u64,
    kinds: &[Kind],
    cut: impl FnOnce(),
) {
    let what = format!("{freshness}, cut off at block {blocks}");
    let bench = bench(freshness, store);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    write_all(&mut session, 1).expect("written");
    checkpoint(&mut session);
    cut();
    let before = look(&mut session, &[1], kinds, &what);
    let written = write_all(&mut session, 2);
    let after = look(&mut session, &[1, 2], kinds, &what);
    assert!(matches!(written, Ok(()) | Err(Kind::Io)), "{what}: {written:?}");
    let noticed = before.1 + after.1 + u64::from(written.is_err());
    assert!(noticed > 0, "{what}: nobody noticed");
    end(session, &what);
    let error = bench.attach(&policy).err().expect("refused");
    // Blank, where not even the header is left.
    assert!(kinds.contains(&error.kind()) || error.kind() == Kind::Usage, "{what}: {error}");
}

/// Where to cut: in the data, in the bitmap, in the journal, behind the superblocks, behind the header, and all of it.
fn cuts() -> [u64; 6] {
    let geometry = options(4096, Shape::STANDARD).geometry(STORE).expect("a size that is allowed");
    let data = geometry.data_start();
    [data + 3, geometry.bitmap_start() + 1, geometry.journal_start() + 2, geometry.journal_start(), 4, 0]
}

#[test]
fn a_store_that_shrinks_under_a_session_gives_errors_and_nothing_else() {
    for freshness in [Freshness::Strict, Freshness::Interval, Freshness::Off] {
        for blocks in cuts() {
            let disk = HostileStore::new(STORE, blocks, Faults::default());
            let store = prompt(&disk);
            shrink_under_a_session(freshness, store, blocks, &[Kind::Io], || disk.truncate(blocks));
        }
    }
}

/// The same on a file, by io_uring: what the kernel then says is that a transfer was short. Where a write was on its way behind the cut, the
/// file has grown again, and has holes.
#[test]
fn a_file_that_shrinks_under_a_session_gives_errors_and_nothing_else() {
    for blocks in cuts() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let size = |blocks: u64| blocks * BLOCK_SIZE as u64;
        file.as_file().set_len(size(STORE)).expect("sized");
        let options = Options { direct: false, ..Options::default() };
        let store = match FileStore::open(file.path(), options) {
            Err(error) if error.kind == store::ErrorKind::Forbidden => {
                // Straight to the stream, where `scripts/test` counts it: what `eprintln!` says is shown only when a test fails.
                let name = "a_file_that_shrinks_under_a_session_gives_errors_and_nothing_else";
                let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: {error}");
                return;
            }
            store => store.expect("opened"),
        };
        let other = File::options().write(true).open(file.path()).expect("opened");
        let kinds = [Kind::Io, Kind::Corrupt];
        shrink_under_a_session(Freshness::Strict, Arc::new(store), blocks, &kinds, || {
            other.set_len(size(blocks)).expect("cut off");
        });
    }
}

#[test]
fn reads_that_bring_less_than_they_claim_are_found_out() {
    let (mut right, mut refused) = (0, 0);
    for seed in 0..4 {
        let disk = HostileStore::new(STORE, seed, Faults::default());
        let bench = bench(Freshness::Strict, prompt(&disk));
        let policy = bench.create();
        let mut session = bench.attach(&policy).expect("attached");
        write_all(&mut session, 1).expect("written");
        checkpoint(&mut session);
        disk.set_faults(Faults { short_read: 0.2, ..Faults::default() });
        let seen = look(&mut session, &[1], &[Kind::Corrupt], "short reads");
        (right, refused) = (right + seen.0, refused + seen.1);
        disk.set_faults(Faults::default());
        assert_eq!(look(&mut session, &[1], &[Kind::Corrupt], "no longer").1, 0, "nothing was lost");
        session.detach().expect("detached");
        disk.set_faults(Faults { short_read: 0.02, ..Faults::default() });
        if let Ok(mut session) = bench.attach(&policy) {
            look(&mut session, &[1], &[Kind::Corrupt], "attached by short reads");
            end(session, "attached by short reads");
        }
    }
    assert!(right > 100 && refused > 100, "{right} right, {refused} refused");
}
