//! Streams: exported, imported, cut anywhere, changed in every way, and crashed on.

mod common;

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anchor::MemoryAnchor;
use common::medium::{Stopping, image, put, put_back};
use common::{Bench, Session, credential, options, page};
use proptest::prelude::*;
use seal::SecretBytes;
use seal::slot::{Argon2Params, Credential, SlotLimits};
use store::{BLOCK_SIZE, MemoryStore};
use volume::format::protections::{Freshness, Provision, SuiteCode};
use volume::format::stream::{CHUNK_BLOCKS, FRAME_SIZE, SALT_SIZE, START};
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;
use volume::{
    AttachOptions, Driven, Environment, Error, Extent, Imported, Kind, Reading, Request, Result,
    StreamProgress, StreamReader, StreamWriter, Tail, Volume, attach_read_only,
};

const CHEAP: Argon2Params = Argon2Params { memory_kib: 8, passes: 1, lanes: 1 };
const BLOCKS: u64 = Shape::STANDARD.min_logical;

fn stream_key(fill: u8) -> Credential {
    Credential::KeyFile(SecretBytes::from_slice(&[fill; 64]))
}

fn bench_of(logical: u64) -> Bench {
    let geometry = Geometry::for_logical(logical, Shape::STANDARD).expect("a size");
    Bench::new(options(logical, Shape::STANDARD), geometry.physical_blocks)
}

fn reading(bench: &Bench, policy: &Policy) -> Result<Volume> {
    let options = AttachOptions { reading: Reading::Pinned, ..bench.attach };
    attach_read_only(bench.environment.clone(), policy.clone(), credential(), options)?.block()
}

fn begin<W: Write>(volume: &Volume, bench: &Bench, out: W) -> StreamWriter<W> {
    let random = &*bench.environment.random;
    StreamWriter::begin(out, volume.stream_header(), stream_key(9), CHEAP, random).expect("begun")
}

fn export(bench: &Bench, policy: &Policy) -> Vec<u8> {
    let volume = reading(bench, policy).expect("attached");
    let writer = begin(&volume, bench, Vec::new());
    volume.export(writer, Arc::default()).expect("a queue").block().expect("exported")
}

fn tail(stream: &[u8]) -> Result<Tail> {
    StreamReader::open(stream, &stream_key(9), &SlotLimits::default())?.tail(|_| ())
}

/// Goes on with what is whole of a stream.
fn resume(bench: &Bench, policy: &Policy, stream: &[u8]) -> Vec<u8> {
    let volume = reading(bench, policy).expect("attached");
    let tail = tail(stream).expect("a beginning");
    volume.check_continues(&tail).expect("the same state");
    let kept = stream[..usize::try_from(tail.bytes).expect("small")].to_vec();
    let writer = StreamWriter::resume(kept, tail, &*bench.environment.random).expect("begun");
    volume.export(writer, Arc::default()).expect("a queue").block().expect("exported")
}

/// Reads all of a stream, and says what it holds: the ranges of its chunks, and their data.
fn open_all(stream: &[u8], key: u8) -> Result<Vec<(std::ops::Range<u64>, Vec<u8>)>> {
    let mut reader = StreamReader::open(stream, &stream_key(key), &SlotLimits::default())?;
    let mut found = Vec::new();
    while let Some(opened) = reader.chunk()? {
        found.push((opened.chunk.range.clone(), opened.data().to_vec()));
    }
    Ok(found)
}

fn import_into(session: &mut Session, stream: &[u8]) -> Result<Imported> {
    let reader =
        StreamReader::open(io::Cursor::new(stream.to_vec()), &stream_key(9), &SlotLimits::default())?;
    let mut job = session.volume.import(reader, Arc::<StreamProgress>::default())?;
    drive(session, &mut job)
}

fn drive<T>(session: &mut Session, job: &mut Driven<Result<T>>) -> Result<T> {
    for _ in 0..1_000_000 {
        if let Some(ended) = job.poll() {
            return ended;
        }
        session.step();
        if !session.is_maintained() {
            return Err(session.volume.failure().unwrap_or(Error::new(Kind::Io, "the session ended")));
        }
    }
    panic!("the import does not end: {:#?}", session.volume.status());
}

type Content = (Vec<Extent>, Vec<u8>);

/// Holes and data.
fn content(session: &mut Session, blocks: u64) -> Content {
    let ended = session.one(Request::Allocation { block: 0, blocks });
    ended.result.expect("allocation");
    (ended.extents, session.read(0, usize::try_from(blocks).expect("small")).expect("readable"))
}

/// Data and holes in every way that matters to a chunk: at both ends, single blocks, longer than a chunk, more stretches than a chunk has.
fn fill(session: &mut Session) {
    session.write(0, 1, 1).expect("written");
    for block in (10..700).step_by(2) {
        session.write(block, 1, u8::try_from(block % 251).expect("small")).expect("written");
    }
    for (block, fill) in [(1000, 30), (1200, 31), (1400, 32)] {
        session.write(block, 200, fill).expect("written");
    }
    session.write(2000, 3, 0).expect("written");
    session.discard(1100, 50).expect("discarded");
    session.write(BLOCKS - 1, 1, 99).expect("written");
    session.flush().expect("flushed");
}

fn filled_volume(bench: &Bench) -> (Policy, Content) {
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    fill(&mut session);
    let content = content(&mut session, BLOCKS);
    session.detach().expect("detached");
    (policy, content)
}

/// A small one: two chunks, so that every byte of its stream can be tried.
fn small_stream() -> (Bench, Policy, Vec<u8>) {
    let bench = bench_of(BLOCKS);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.write(5, CHUNK_BLOCKS, 5).expect("written");
    session.write(3000, 2, 6).expect("written");
    session.detach().expect("detached");
    let stream = export(&bench, &policy);
    assert_eq!(open_all(&stream, 9).expect("whole").len(), 2);
    (bench, policy, stream)
}

/// Where the frames of a stream begin: leg, chunk, chunk, ...
fn frames(stream: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = START;
    while at < stream.len() {
        found.push(at);
        let length = u32::from_le_bytes(stream[at + 4..at + 8].try_into().expect("four bytes"));
        let tag = if stream[at] == 1 { 0 } else { 16 };
        at += FRAME_SIZE + usize::try_from(length).expect("small") + tag;
    }
    assert_eq!(at, stream.len());
    found
}

#[test]
fn what_was_exported_is_imported_with_its_holes_under_every_suite_and_level() {
    let suites = [
        (SuiteCode::Aes256Gcm, true, true),
        (SuiteCode::Aegis128x2, true, true),
        (SuiteCode::Aegis256x2, true, true),
        (SuiteCode::Aes256Xts, true, false),
        (SuiteCode::Aes256Gcm, false, true),
        (SuiteCode::Aegis128x2, false, false),
    ];
    let levels = [
        Freshness::Strict,
        Freshness::Write,
        Freshness::Transaction,
        Freshness::Off,
        Freshness::Interval,
        Freshness::Off,
    ];
    let from = bench_of(BLOCKS);
    let (policy, expected) = filled_volume(&from);
    assert!(expected.0.len() > 2 * CHUNK_BLOCKS, "the volume has few holes");
    let mut stream = export(&from, &policy);
    for ((suite, confidentiality, integrity), freshness) in suites.into_iter().zip(levels) {
        let options = volume::CreateOptions {
            suite,
            confidentiality,
            integrity,
            freshness,
            provision: Provision::Thin,
            ..options(BLOCKS, Shape::STANDARD)
        };
        let to = Bench::new(options, from.environment.store.blocks());
        let policy = to.create();
        let mut session = to.attach(&policy).expect("attached");
        let imported = import_into(&mut session, &stream).expect("imported");
        assert_eq!(imported.kept, 0, "{suite}");
        assert!(content(&mut session, BLOCKS) == expected, "{suite} {freshness}: another content");
        session.detach().expect("detached");
        // From here on to the next: each suite is exported, too.
        stream = export(&to, &policy);
        let mut session = to.attach(&policy).expect("attached");
        assert!(content(&mut session, BLOCKS) == expected, "{suite} {freshness}: not durable");
        session.detach().expect("detached");
    }
}

#[test]
fn an_empty_volume_has_a_stream_and_a_larger_volume_takes_it() {
    let bench = bench_of(BLOCKS);
    let policy = bench.create();
    let stream = export(&bench, &policy);
    assert_eq!(open_all(&stream, 9).expect("whole"), vec![(0..BLOCKS, Vec::new())]);
    let larger = bench_of(BLOCKS + 100);
    let policy = larger.create();
    let mut session = larger.attach(&policy).expect("attached");
    session.write(BLOCKS + 7, 3, 8).expect("written");
    import_into(&mut session, &stream).expect("imported");
    let (extents, bytes) = content(&mut session, BLOCKS + 100);
    assert_eq!(extents, [Extent { blocks: BLOCKS + 100, allocated: false }]);
    assert!(bytes.iter().all(|byte| *byte == 0));
    session.detach().expect("detached");
    let stream = export(&larger, &policy);
    let mut session = bench.attach(&bench_policy(&bench)).expect("attached");
    let error = import_into(&mut session, &stream).expect_err("too large");
    assert_eq!(error.kind(), Kind::Usage, "{error}");
}

/// The policy of a bench's volume: the first one that its randomness makes.
fn bench_policy(bench: &Bench) -> Policy {
    let again = bench_of(bench.options.logical_blocks.expect("a size"));
    let anchor = bench.environment.anchor.as_ref().map(|anchor| anchor.address());
    Policy { anchor, ..again.create() }
}

#[test]
fn every_flipped_bit_is_refused() {
    let (_, _, stream) = small_stream();
    let frames = frames(&stream);
    // All of the short parts, and of the long ones some bytes, at both ends and in between.
    let mut places: Vec<usize> = (0..200).chain(4064..START.min(4096 + 300)).collect();
    places.extend((START..stream.len()).step_by(997));
    for frame in &frames {
        places.extend((frame.saturating_sub(20)..frame + 80).filter(|at| *at < stream.len()));
    }
    places.extend([300, 4063, START - 1, stream.len() - 1]);
    let mut kinds = std::collections::BTreeSet::new();
    for at in places {
        for bit in 0..8 {
            let mut changed = stream.clone();
            changed[at] ^= 1 << bit;
            let error = open_all(&changed, 9).expect_err("a changed bit was accepted");
            let right = match at {
                0..8 => error.kind() == Kind::Usage,
                // The beginning of the slot: what it is, its costs and its salt decide whether the key fits.
                4096..4352 => matches!(error.kind(), Kind::Corrupt | Kind::Locked),
                // A length may lead behind the end.
                _ if at >= START => matches!(error.kind(), Kind::Corrupt | Kind::Io),
                _ => error.kind() == Kind::Corrupt,
            };
            assert!(right, "bit {bit} of byte {at}: {:?}: {error}", error.kind());
            // What stands in front is refused before anything is made of it.
            let opened = StreamReader::open(&changed[..], &stream_key(9), &SlotLimits::default());
            assert_eq!(opened.is_ok(), at >= START, "bit {bit} of byte {at}");
            kinds.insert(format!("{:?}", error.kind()));
            let chunk = frames.iter().skip(1).rposition(|frame| *frame <= at);
            if let (Some(chunk), Kind::Corrupt) = (chunk, error.kind()) {
                assert!(error.to_string().contains(&format!("chunk {chunk} of")), "{at}: {error}");
            }
        }
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["Corrupt", "Io", "Locked", "Usage"]);
}

#[test]
fn every_cut_is_told_from_an_end() {
    let (_, _, stream) = small_stream();
    let frames = frames(&stream);
    let mut places: Vec<usize> = (0..stream.len()).step_by(499).collect();
    for frame in frames.iter().copied().chain([8, 4096, START, stream.len()]) {
        places.extend(frame.saturating_sub(3)..(frame + 3).min(stream.len()));
    }
    for length in places {
        let error = open_all(&stream[..length], 9).expect_err("a cut stream was taken for a whole one");
        let kind = if length == 0 { Kind::Usage } else { Kind::Io };
        assert_eq!(error.kind(), kind, "{length}: {error}");
    }
    for more in [&[0][..], &stream[START..], &stream] {
        let error = open_all(&[&stream, more].concat(), 9).expect_err("something behind the end");
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    }
}

#[test]
fn chunks_do_not_move_within_a_stream_or_between_streams() {
    let (bench, policy, stream) = small_stream();
    let other = export(&bench, &policy);
    let parts = |stream: &[u8]| {
        let mut bounds = frames(stream);
        bounds.push(stream.len());
        let mut parts = vec![stream[..START].to_vec()];
        parts.extend(bounds.windows(2).map(|two| stream[two[0]..two[1]].to_vec()));
        parts
    };
    // Header, leg, chunk, last chunk.
    let (a, b) = (parts(&stream), parts(&other));
    assert_eq!((a.len(), b.len()), (4, 4));
    let refused = |what: &str, parts: &[&Vec<u8>]| {
        let joined: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let error = open_all(&joined, 9).expect_err(what);
        assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
    };
    refused("swapped", &[&a[0], &a[1], &a[3], &a[2]]);
    refused("left out", &[&a[0], &a[1], &a[3]]);
    refused("twice", &[&a[0], &a[1], &a[2], &a[2], &a[3]]);
    refused("no leg", &[&a[0], &a[2], &a[3]]);
    refused("two legs", &[&a[0], &a[1], &a[1], &a[2], &a[3]]);
    refused("a leg again", &[&a[0], &a[1], &a[2], &a[1], &a[3]]);
    refused("the end of another stream", &[&a[0], &a[1], &a[2], &b[3]]);
    refused("leg and end of another stream", &[&a[0], &a[1], &a[2], &b[1], &b[3]]);
    refused("the header of another stream", &[&b[0], &a[1], &a[2], &a[3]]);
    // Half a header: its key slots are another's.
    let mixed = [&a[0][..BLOCK_SIZE], &b[0][BLOCK_SIZE..]].concat();
    refused("the key slots of another stream", &[&mixed, &a[1], &a[2], &a[3]]);
    // Two ways in which one cut stream went on: each is whole, and they are no parts of each other.
    let cut = [&a[0][..], &a[1], &a[2]].concat();
    let (first, second) = (resume(&bench, &policy, &cut), resume(&bench, &policy, &cut));
    assert!(open_all(&first, 9).expect("whole") == open_all(&second, 9).expect("whole"));
    let (first, second) = (parts(&first), parts(&second));
    refused("the end of another leg", &[&first[0], &first[1], &first[2], &first[3], &second[4]]);
}

#[test]
fn an_export_that_was_cut_anywhere_goes_on() {
    let bench = bench_of(BLOCKS);
    let (policy, _) = filled_volume(&bench);
    let stream = export(&bench, &policy);
    let whole = open_all(&stream, 9).expect("whole");
    assert!(whole.len() >= 4);
    let mut places: Vec<usize> = (START..stream.len()).step_by(200_003).collect();
    for frame in frames(&stream) {
        places.extend(frame..frame + 3);
        places.push(frame + FRAME_SIZE + SALT_SIZE);
    }
    for length in places {
        let again = resume(&bench, &policy, &stream[..length]);
        assert!(open_all(&again, 9).expect("whole") == whole, "cut at {length}");
        // And cut again, in the leg that was added, before and behind its salt.
        let added = again.len() - (again.len() - length.min(again.len())) / 2;
        let third = resume(&bench, &policy, &again[..added]);
        assert!(open_all(&third, 9).expect("whole") == whole, "cut at {length}, then at {added}");
    }
    // What was damaged is replaced, with all that follows.
    let mut damaged = stream.clone();
    damaged[frames(&stream)[3] + 100] ^= 1;
    let found = tail(&damaged).expect("a beginning");
    assert!(found.damage.is_some_and(|error| error.to_string().contains("chunk 2")));
    assert!(open_all(&resume(&bench, &policy, &damaged), 9).expect("whole") == whole);
    let complete = tail(&stream).expect("whole");
    assert!(complete.complete && complete.bytes == stream.len() as u64 && complete.damage.is_none());
}

#[test]
fn no_key_and_nonce_are_used_twice_when_an_export_goes_on() {
    let (bench, policy, stream) = small_stream();
    let legs = frames(&stream);
    // Cut within the last chunk: the host has kept what was written of it.
    let again = resume(&bench, &policy, &stream[..stream.len() - 10]);
    let salts = |stream: &[u8]| -> Vec<Vec<u8>> {
        let legs = frames(stream).into_iter().filter(|at| stream[*at] == 1);
        legs.map(|at| stream[at + FRAME_SIZE..at + FRAME_SIZE + SALT_SIZE].to_vec()).collect()
    };
    let (before, after) = (salts(&stream), salts(&again));
    assert_eq!((before.len(), after.len()), (1, 2));
    assert!(after[0] == before[0] && after[1] != before[0]);
    let last = *legs.last().expect("a chunk");
    assert!(again[last..] != stream[last..]);
}

#[test]
fn a_stream_goes_on_for_its_volume_in_its_state_only() {
    let (bench, policy, stream) = small_stream();
    let cut = tail(&stream[..stream.len() - 1]).expect("a beginning");
    let (other, other_policy, _) = {
        let other = bench_of(BLOCKS);
        let mut renamed = [3; 16];
        other.environment.random.fill(&mut renamed);
        let policy = other.create();
        (other, policy, ())
    };
    let volume = reading(&other, &other_policy).expect("attached");
    assert_eq!(volume.check_continues(&cut).expect_err("another volume").kind(), Kind::Usage);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(1, 1, 1).expect("written");
    let error = reading(&bench, &policy).err().expect("a session is writing");
    assert_eq!(error.kind(), Kind::Usage, "{error}");
    session.detach().expect("detached");
    let volume = reading(&bench, &policy).expect("attached");
    let error = volume.check_continues(&cut).expect_err("another state");
    assert!(error.kind() == Kind::Usage && error.to_string().contains("begin a new one"), "{error}");
    let session = bench.attach(&policy).expect("attached");
    let writer = begin(&session.volume, &bench, Vec::new());
    assert_eq!(session.volume.export(writer, Arc::default()).err().expect("it writes").kind(), Kind::Usage);
}

#[test]
fn what_is_no_stream_or_has_another_key_is_refused() {
    let (_, _, stream) = small_stream();
    for (bytes, kind) in [
        (vec![0; 100_000], Kind::Usage),
        (b"cvmioVOL".repeat(2000), Kind::Usage),
        (b"hello".to_vec(), Kind::Usage),
        (Vec::new(), Kind::Usage),
    ] {
        assert_eq!(open_all(&bytes, 9).expect_err("no stream").kind(), kind);
    }
    assert_eq!(open_all(&stream, 8).expect_err("another key").kind(), Kind::Locked);
    let bench = bench_of(BLOCKS);
    let policy = bench.create();
    let volume = reading(&bench, &policy).expect("attached");
    let weak = Credential::KeyFile(SecretBytes::from_slice(&[1; 8]));
    let random = &*bench.environment.random;
    let error = StreamWriter::begin(Vec::new(), volume.stream_header(), weak, CHEAP, random).err();
    assert_eq!(error.expect("too short").kind(), Kind::Usage);
}

#[test]
fn an_import_that_was_cut_anywhere_keeps_what_it_has_and_goes_on() {
    let from = bench_of(BLOCKS);
    let (policy, expected) = filled_volume(&from);
    let stream = export(&from, &policy);
    let frames = frames(&stream);
    let to = bench_of(BLOCKS);
    let policy = to.create();
    let mut session = to.attach(&policy).expect("attached");
    let mut kept = 0;
    for frame in frames.iter().skip(1) {
        let error = import_into(&mut session, &stream[..frame + 5]).expect_err("cut");
        assert_eq!(error.kind(), Kind::Io, "{error}");
        // The machine stops right then: what was told is there.
        drop(session);
        session = to.attach(&policy).expect("attached");
    }
    let mut changed = stream.clone();
    let last = *frames.last().expect("a chunk");
    changed[last + 50] ^= 1;
    let error = import_into(&mut session, &changed).expect_err("damaged");
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains("chunk 3"), "{error}");
    let imported = import_into(&mut session, &stream).expect("imported");
    kept += imported.kept;
    assert!(kept > 0 && kept < imported.blocks, "{imported:?}");
    assert!(content(&mut session, BLOCKS) == expected);
    // Once more, and over something else: a volume that was used becomes the stream again, holes included.
    assert_eq!(import_into(&mut session, &stream).expect("imported").kept, imported.blocks);
    session.write(1, 20, 77).expect("written");
    session.write(1000, 2, 77).expect("written");
    session.discard(1300, 5).expect("discarded");
    import_into(&mut session, &stream).expect("imported");
    assert!(content(&mut session, BLOCKS) == expected);
    session.detach().expect("detached");
}

#[test]
fn an_import_on_a_machine_that_stops_at_any_write_can_be_done_again() {
    let from = bench_of(BLOCKS);
    let (policy, expected) = filled_volume(&from);
    let stream = export(&from, &policy);
    for (freshness, strides) in [(Freshness::Strict, 7), (Freshness::Off, 11)] {
        let mut bench = bench_of(BLOCKS);
        bench.options.freshness = freshness;
        if freshness == Freshness::Off {
            bench.environment.anchor = None;
        }
        let policy = bench.create();
        let blank = image(&*bench.environment.store);
        let fresh = bench.environment.clone();
        let mut steps = 0;
        let mut stopped = 0;
        loop {
            steps += strides;
            // A copy of the volume as it was created, with an anchor that says so.
            let store = Arc::new(MemoryStore::new(fresh.store.blocks()).expect("memory"));
            put_back(&*store, &blank);
            let anchor = match &fresh.anchor {
                None => None,
                Some(anchor) => {
                    let copy = MemoryAnchor::new();
                    let stamp = futures_block(anchor.read()).expect("readable").expect("claimed");
                    futures_block(anchor::Anchor::advance(&copy, None, &stamp)).expect("claimed");
                    Some(Arc::new(copy) as Arc<dyn anchor::Anchor>)
                }
            };
            let left = Arc::new(AtomicI64::new(i64::MAX));
            let stopping = Arc::new(Stopping { medium: store.clone(), left: Arc::clone(&left) });
            let environment = Environment { store: stopping, anchor, ..fresh.clone() };
            bench.environment = environment.clone();
            let mut session = bench.attach(&policy).expect("attached");
            left.store(steps, Ordering::Relaxed);
            let ended = import_into(&mut session, &stream);
            drop(session);
            bench.environment = Environment { store, ..environment };
            let mut session = bench.attach(&policy).expect("attached again");
            if ended.is_err() {
                stopped += 1;
                import_into(&mut session, &stream).expect("imported at the second try");
            }
            assert!(content(&mut session, BLOCKS) == expected, "{freshness}: stopped after {steps}");
            if ended.is_ok() {
                break;
            }
        }
        assert!(stopped > 10, "{freshness}: the machine stopped {stopped} times only");
    }
}

/// What a memory anchor answers at once.
fn futures_block<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("a memory anchor waits"),
    }
}

#[test]
fn damaged_blocks_are_named_and_the_stream_has_no_end() {
    let bench = bench_of(BLOCKS);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.write(600, 8, 1).expect("written");
    session.detach().expect("detached");
    let before = image(&*bench.environment.store);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(700, 2, 2).expect("written");
    session.detach().expect("detached");
    let after = image(&*bench.environment.store);
    // The two blocks are among those that changed; journal and nodes have changed too, so what is tried is what still attaches.
    let mut found = None;
    for (block, _) in before.iter().zip(&after).enumerate().filter(|(_, (before, after))| before != after) {
        let mut damaged = after[block].clone();
        damaged[7] ^= 1;
        put(&*bench.environment.store, block as u64, &damaged);
        if let Ok(volume) = reading(&bench, &policy) {
            let out = Rc::new(RefCell::new(Vec::new()));
            let writer = begin(&volume, &bench, Shared(Rc::clone(&out)));
            let ended = volume.export(writer, Arc::default()).expect("a queue").block();
            if let Err(error) = ended {
                assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                assert_eq!(open_all(&out.borrow(), 9).expect_err("no end").kind(), Kind::Io);
                if let [logical] = error.blocks() {
                    assert!(error.to_string().contains(&format!("logical blocks {logical} are not")));
                    found = Some(*logical);
                }
            }
        }
        put(&*bench.environment.store, block as u64, &after[block]);
    }
    assert!(found.is_some_and(|logical| (700..702).contains(&logical)), "{found:?}");
}

/// Bytes that can be looked at while somebody writes them.
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A pipe with a will of its own: gives a few bytes at a time, is interrupted, and fails in the end.
struct Trickle<'a> {
    bytes: &'a [u8],
    fails_at: usize,
    at: usize,
}

impl Read for Trickle<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at >= self.fails_at {
            return Err(io::Error::other("the cable"));
        }
        if self.at.is_multiple_of(3) {
            self.at += 1;
            let given = self.bytes.split_off(..1).expect("a byte");
            out[0] = given[0];
            return Ok(1);
        }
        let count = out.len().min(1009).min(self.bytes.len());
        let (given, rest) = self.bytes.split_at(count);
        out[..count].copy_from_slice(given);
        (self.bytes, self.at) = (rest, self.at + count);
        Ok(count)
    }
}

#[test]
fn a_pipe_that_gives_little_or_fails_is_no_trouble_of_the_stream() {
    let (_, _, stream) = small_stream();
    let limits = SlotLimits::default();
    let trickle = |fails_at| Trickle { bytes: &stream, fails_at, at: 0 };
    let mut reader = StreamReader::open(trickle(usize::MAX), &stream_key(9), &limits).expect("opened");
    while reader.chunk().expect("whole").is_some() {}
    assert_eq!((reader.chunks(), reader.bytes()), (2, stream.len() as u64));
    let mut reader = StreamReader::open(trickle(START + 5000), &stream_key(9), &limits).expect("opened");
    let error = reader.chunk().expect_err("the cable");
    assert!(error.kind() == Kind::Io && error.to_string().contains("the cable"), "{error}");
    let reader = StreamReader::open(trickle(START + 5000), &stream_key(9), &limits).expect("opened");
    assert_eq!(reader.tail(|_| ()).err().expect("it must not count as cut").kind(), Kind::Io);
}

#[test]
fn the_stream_of_a_sparse_volume_is_as_long_as_its_data() {
    let logical = 1 << 24;
    let options = volume::CreateOptions { provision: Provision::Thin, ..options(logical, Shape::STANDARD) };
    let bench = Bench::new(options, 1 << 15);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    for part in 0..8 {
        session.write((part << 21) + 100, 2, 3).expect("written");
    }
    session.detach().expect("detached");
    let stream = export(&bench, &policy);
    let frame = FRAME_SIZE + 24 + 8 * 16 + 16;
    assert_eq!(stream.len(), START + FRAME_SIZE + SALT_SIZE + frame + 16 * BLOCK_SIZE);
    let chunks = open_all(&stream, 9).expect("whole");
    assert!(chunks.len() == 1 && chunks[0].0 == (0..logical) && chunks[0].1 == page(3).repeat(16));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_content_goes_through(writes in prop::collection::vec((0..BLOCKS - 300, 1..300usize, 1..255u8, any::<bool>()), 1..40)) {
        let from = bench_of(BLOCKS);
        let policy = from.create();
        let mut session = from.attach(&policy).expect("attached");
        for (block, blocks, fill, discard) in writes {
            if discard {
                session.discard(block, blocks as u64).expect("discarded");
            } else {
                session.write(block, blocks, fill).expect("written");
            }
        }
        let expected = content(&mut session, BLOCKS);
        session.detach().expect("detached");
        let stream = export(&from, &policy);
        let to = bench_of(BLOCKS);
        let policy = to.create();
        let mut session = to.attach(&policy).expect("attached");
        import_into(&mut session, &stream).expect("imported");
        prop_assert!(content(&mut session, BLOCKS) == expected);
    }
}
