//! Streams in the hands of whoever keeps them: changed in every way, cut, mixed; and what is none at all.

use std::io::{self, Read};

use crate::common::streaming::{
    BLOCKS, CHEAP, bench_of, export, frames, open_all, reading, resume, small_stream, stream_key,
};
use memory::BLOCK_SIZE;
use seal::SecretBytes;
use seal::slot::{Credential, SlotLimits};
use volume::format::stream::START;
use volume::{Kind, StreamReader, StreamWriter};

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
