//! Volumes whose content goes through a stream.

use std::io::{self, Write};
use std::sync::Arc;

use seal::SecretBytes;
use seal::slot::{Argon2Params, Credential, SlotLimits};
use volume::format::stream::{CHUNK_BLOCKS, FRAME_SIZE, START};
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;
use volume::{
    AttachOptions, Driven, Error, Extent, Imported, Kind, Reading, Request, Result, StreamProgress,
    StreamReader, StreamWriter, Tail, Volume, attach_read_only,
};

use super::{Bench, Session, credential, options};

pub const CHEAP: Argon2Params = Argon2Params { memory_kib: 8, passes: 1, lanes: 1 };
pub const BLOCKS: u64 = Shape::STANDARD.min_logical;

pub fn stream_key(fill: u8) -> Credential {
    Credential::KeyFile(SecretBytes::from_slice(&[fill; 64]))
}

pub fn bench_of(logical: u64) -> Bench {
    let geometry = Geometry::for_logical(logical, Shape::STANDARD).expect("a size");
    Bench::new(options(logical, Shape::STANDARD), geometry.physical_blocks)
}

pub fn reading(bench: &Bench, policy: &Policy) -> Result<Volume> {
    let options = AttachOptions { reading: Reading::Pinned, ..bench.attach };
    attach_read_only(bench.environment.clone(), policy.clone(), credential(), options)?.block()
}

pub fn begin<W: Write>(volume: &Volume, bench: &Bench, out: W) -> StreamWriter<W> {
    let random = &*bench.environment.random;
    StreamWriter::begin(out, volume.stream_header(), stream_key(9), CHEAP, random).expect("begun")
}

pub fn export(bench: &Bench, policy: &Policy) -> Vec<u8> {
    let volume = reading(bench, policy).expect("attached");
    let writer = begin(&volume, bench, Vec::new());
    volume.export(writer, Arc::default()).expect("a queue").block().expect("exported")
}

pub fn tail(stream: &[u8]) -> Result<Tail> {
    StreamReader::open(stream, &stream_key(9), &SlotLimits::default())?.tail(|_| ())
}

/// Goes on with what is whole of a stream.
pub fn resume(bench: &Bench, policy: &Policy, stream: &[u8]) -> Vec<u8> {
    let volume = reading(bench, policy).expect("attached");
    let tail = tail(stream).expect("a beginning");
    volume.check_continues(&tail).expect("the same state");
    let kept = stream[..usize::try_from(tail.bytes).expect("small")].to_vec();
    let writer = StreamWriter::resume(kept, tail, &*bench.environment.random).expect("begun");
    volume.export(writer, Arc::default()).expect("a queue").block().expect("exported")
}

/// Reads all of a stream, and says what it holds: the ranges of its chunks, and their data.
pub fn open_all(stream: &[u8], key: u8) -> Result<Vec<(std::ops::Range<u64>, Vec<u8>)>> {
    let mut reader = StreamReader::open(stream, &stream_key(key), &SlotLimits::default())?;
    let mut found = Vec::new();
    while let Some(opened) = reader.chunk()? {
        found.push((opened.chunk.range.clone(), opened.data().to_vec()));
    }
    Ok(found)
}

pub fn reader(stream: &[u8]) -> Result<StreamReader<io::Cursor<Vec<u8>>>> {
    StreamReader::open(io::Cursor::new(stream.to_vec()), &stream_key(9), &SlotLimits::default())
}

pub fn import_into(session: &mut Session, stream: &[u8]) -> Result<Imported> {
    let mut job = session.volume.import(reader(stream)?, Arc::<StreamProgress>::default())?;
    drive(session, &mut job)
}

/// Whether a volume that is attached for reading is what the stream would make it.
pub fn compare(bench: &Bench, policy: &Policy, stream: &[u8]) -> Result<Imported> {
    reading(bench, policy)?.compare(reader(stream)?, Arc::default())?.block()
}

pub fn drive<T>(session: &mut Session, job: &mut Driven<Result<T>>) -> Result<T> {
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

pub type Content = (Vec<Extent>, Vec<u8>);

/// Holes and data.
pub fn content(session: &mut Session, blocks: u64) -> Content {
    let ended = session.one(Request::Allocation { block: 0, blocks });
    ended.result.expect("allocation");
    (ended.extents, session.read(0, usize::try_from(blocks).expect("small")).expect("readable"))
}

/// Data and holes in every way that matters to a chunk: at both ends, single blocks, longer than a chunk, more stretches than a chunk has.
pub fn fill(session: &mut Session) {
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

pub fn filled_volume(bench: &Bench) -> (Policy, Content) {
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    fill(&mut session);
    let content = content(&mut session, BLOCKS);
    session.detach().expect("detached");
    (policy, content)
}

/// A small one: two chunks, so that every byte of its stream can be tried.
pub fn small_stream() -> (Bench, Policy, Vec<u8>) {
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
pub fn frames(stream: &[u8]) -> Vec<usize> {
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
