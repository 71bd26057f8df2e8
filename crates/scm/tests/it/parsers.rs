//! Bytes that anybody may have written: nothing panics, what is accepted is laid out again to the byte, and a region whose hidden part was changed
//! at random never gives a wrong byte as good.
//!
//! The changes are the same in every run; `FUZZ_MUTATIONS` says how many there are for each parser.

use std::sync::Arc;

use fastrand::Rng;
use scm::entry::Entry;
use scm::header::Header;
use scm::progress::{Direction, Log, Progress};
use scm::protocol::{self, ClientMessage, Mapped, ServerMessage};
use scm::transition::Action;
use scm::{Error, Geometry};
use seal::Suite;

use crate::campaign::{Campaign, PAGE};
use crate::crash_medium::CrashMedium;

fn mutations() -> usize {
    std::env::var("FUZZ_MUTATIONS").map_or(100_000, |text| text.parse().expect("a number"))
}

/// A few changes of the kind that parsers stumble over.
fn change(seed: &[u8], random: &mut Rng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 << random.u32(0..4) {
        // Often near the beginning, where the fields are.
        let within = if random.bool() { bytes.len().min(160) } else { bytes.len() };
        let at = random.usize(..within.max(1)).min(bytes.len().saturating_sub(1));
        match random.u8(..5) {
            0 => bytes[at] ^= 1 << random.u8(..8),
            1 => bytes[at] = random.u8(..),
            2 => bytes[at] = b"0123456789[]{},:\"-"[random.usize(..18)],
            3 => {
                let value = [0, 1, u64::MAX, 1 << random.u8(..64)][random.usize(..4)];
                let len = 8.min(bytes.len() - at);
                bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
            }
            _ => {
                let len = random.usize(..=16.min(bytes.len() - at));
                let from = random.usize(..=bytes.len() - len);
                bytes.copy_within(from..from + len, at);
            }
        }
    }
    bytes
}

fn every_change(seed: &[u8], check: impl Fn(&[u8])) {
    check(seed);
    let mut random = Rng::with_seed(seed.len() as u64);
    for _ in 0..mutations() {
        check(&change(seed, &mut random));
    }
}

#[test]
fn headers_are_refused_or_laid_out_again() {
    let header = Header {
        suite: Suite::Aegis128x2,
        id: [1; 16],
        geometry: Geometry::new(4096, 1000, 4, 4096).unwrap(),
        generation: 9,
        session: [2; 32],
        slots_digest: [3; 32],
    };
    every_change(&header.encode(&[4; 32]), |bytes| {
        let bytes: [u8; 4096] = bytes.try_into().unwrap();
        if let Ok(Some((header, mac))) = Header::decode(&bytes) {
            assert_eq!(header.encode(&mac), bytes);
            let shape = header.geometry;
            assert!(shape.data_len() < shape.header_at(0) && shape.header_at(2) == shape.file_len());
        }
    });
}

#[test]
fn entries_logs_and_progress_fields_are_refused_or_laid_out_again() {
    let entry = Entry { salt: [7; 32], nonce: 5, unverified: false, tag: [9; 16] };
    every_change(&entry.encode(), |bytes| {
        let bytes: [u8; 64] = bytes.try_into().unwrap();
        if let Some(entry) = Entry::decode(&bytes) {
            assert_eq!(entry.encode(), bytes);
        }
    });
    let log = Log { old: None, new: Some(entry), mac: [1; 32] };
    every_change(&log.encode(), |bytes| {
        let bytes: [u8; 160] = bytes.try_into().unwrap();
        if let Ok(log) = Log::decode(&bytes) {
            assert_eq!(log.encode(), bytes);
        }
    });
    let progress = Progress { page: 77, direction: Direction::Encrypt, crypto_finish: true };
    every_change(&progress.encode().to_le_bytes(), |bytes| {
        let word = u64::from_le_bytes(bytes.try_into().unwrap());
        if let Ok(Some(progress)) = Progress::decode(word) {
            assert_eq!(progress.encode(), word);
        }
    });
}

#[test]
fn messages_are_refused_or_mean_the_same_again() {
    let shape = Geometry::new(4096, 16, 1, 4096).unwrap();
    let mapped = Mapped { address: 0x7000_0000, length: 8192, offset: 4096 };
    for message in [
        ClientMessage::Attach(mapped),
        ClientMessage::Status,
        ClientMessage::Zapped(7),
        ClientMessage::Firecracker(vec![mapped, mapped]),
    ] {
        every_change(&message.encode(), |bytes| {
            if let Ok(Some(message)) = protocol::decode(bytes, &shape) {
                assert_eq!(protocol::decode(&message.encode(), &shape), Ok(Some(message)));
            }
        });
    }
    every_change(&ServerMessage::Zap { id: 1, ranges: vec![(4096, 8192)] }.encode(), |bytes| {
        if let Ok(message) = ServerMessage::decode(bytes) {
            assert_eq!(ServerMessage::decode(&message.encode()), Ok(message));
        }
    });
}

/// A region at rest, and one that crashed with pages open and under way; both with their hidden part changed.
#[test]
fn no_change_of_the_hidden_part_gives_a_wrong_byte_as_good() {
    let (mut campaign, image, _) = Campaign::new(8, 6, 2).unwrap();
    let medium = Arc::new(CrashMedium::new(&image));
    let contents: Vec<_> = (0..6).map(|_| campaign.content()).collect();
    let (engine, _) = campaign.open(&medium).unwrap();
    for (page, content) in (0..).zip(&contents) {
        engine.write(page, 0, content).unwrap();
    }
    let at_rest = medium.now();
    engine.open_page(0).unwrap();
    for (page, action) in [(1, Action::Open), (2, Action::Rewrite(&contents[2], false))] {
        let mut transition = engine.begin(page, action).unwrap().unwrap();
        (0..4).for_each(|_| assert!(transition.step().unwrap()));
        // Its worker stays under way.
        std::mem::forget(transition);
    }
    let crashed = medium.now();
    let hidden = usize::try_from(campaign.geometry.bitmap_at(0) / 8).unwrap();
    let mut random = Rng::with_seed(1);
    let (mut refused, mut served) = (0, 0);
    for round in 0..mutations() / 25 {
        let mut image = if round % 2 == 0 { at_rest.clone() } else { crashed.clone() };
        for _ in 0..random.usize(1..4) {
            // Of the words that hold something, and some others.
            let word = loop {
                let word = random.usize(hidden..image.len());
                if image[word] != 0 || random.u8(..16) == 0 {
                    break word;
                }
            };
            image[word] = if random.bool() { image[word] ^ 1 << random.u8(..64) } else { random.u64(..) };
        }
        match campaign.open(&Arc::new(CrashMedium::new(&image))) {
            Ok((engine, _)) => {
                served += 1;
                for (page, content) in (0..).zip(&contents) {
                    let mut found = [0; PAGE];
                    match engine.read(page, 0, &mut found) {
                        Ok(()) => assert!(
                            found == *content || engine.is_unverified(page),
                            "round {round}, page {page}"
                        ),
                        Err(Error::CorruptPage { .. }) => {}
                        Err(error) => panic!("round {round}: {error}"),
                    }
                }
            }
            Err(Error::CorruptRegion(_) | Error::Usage(_) | Error::Key(_)) => refused += 1,
            Err(error) => panic!("round {round}: {error}"),
        }
    }
    assert!(refused > 100 && served > 100, "{refused} refused, {served} served");
}
