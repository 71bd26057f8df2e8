//! Attacks of `docs/security-review.md`, one by one and in full: what the simulator does by chance, done here on purpose.

use std::sync::Arc;
use std::time::Duration;

use crate::common::medium::{self, Image};
use crate::common::{Bench, Session, options, page};
use anchor::{Anchor, MemoryAnchor, Stamp};
use futures::FutureExt;
use memory::BLOCK_SIZE;
use store::MemoryStore;
use testkit::ManualClock;
use volume::format::header::{Header, mac, put_digest, put_mac};
use volume::format::protections::{Freshness, SuiteCode};
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;
use volume::{CreateOptions, Environment, Kind, Window};

const STORE: u64 = 5400;
/// The levels that the anchor makes fresh.
const ANCHORED: [Freshness; 4] =
    [Freshness::Strict, Freshness::Write, Freshness::Interval, Freshness::Transaction];

fn image(bench: &Bench) -> Image {
    medium::image(&*bench.environment.store)
}

fn put(bench: &Bench, block: u64, bytes: &[u8]) {
    medium::put(&*bench.environment.store, block, bytes);
}

fn restore(bench: &Bench, image: &Image) {
    medium::put_back(&*bench.environment.store, image);
}

fn at(image: &Image, place: u64) -> &[u8] {
    &image[usize::try_from(place).expect("in range")]
}

/// The places whose content differs.
fn changed(before: &Image, after: &Image) -> Vec<u64> {
    (0..).zip(before.iter().zip(after)).filter(|(_, (a, b))| a != b).map(|(block, _)| block).collect()
}

fn new(freshness: Freshness) -> (Bench, Policy) {
    let bench = Bench::new(CreateOptions { freshness, ..options(4096, Shape::STANDARD) }, STORE);
    let policy = bench.create();
    (bench, policy)
}

fn geometry(bench: &Bench) -> Geometry {
    bench.options.geometry(STORE).expect("it was created so")
}

fn stamp(bench: &Bench) -> Stamp {
    let anchor = bench.environment.anchor.as_ref().expect("an anchor");
    anchor.read().now_or_never().expect("in memory").expect("readable").expect("claimed")
}

fn refusal(bench: &Bench, policy: &Policy) -> Option<Kind> {
    bench.attach(policy).err().map(|error| error.kind())
}

/// What a spoilt image shows of blocks `0..count`, all of which hold `fill`: how the attach was refused, or how many blocks were.
///
/// # Panics
/// If anything else than `fill` is read.
fn look(bench: &Bench, policy: &Policy, count: u64, fill: u8, what: &str) -> Result<u64, Kind> {
    let mut session = match bench.attach(policy) {
        Ok(session) => session,
        Err(error) => return Err(error.kind()),
    };
    let mut refused = 0;
    for block in 0..count {
        match session.read(block, 1) {
            Ok(bytes) => assert!(bytes == page(fill), "{what}: block {block} reads as {}", bytes[0]),
            Err(error) => {
                assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
                refused += 1;
            }
        }
    }
    Ok(refused)
}

/// Makes what was written so far the state that must come back.
fn make_last(session: &mut Session) {
    session.flush().expect("flushed");
    session.one(volume::Request::Commit).result.expect("committed");
}

#[test]
fn swapped_blocks_are_corrupt_or_refused() {
    for confidentiality in [true, false] {
        let options = CreateOptions { confidentiality, ..options(4096, Shape::STANDARD) };
        let bench = Bench::new(options, STORE);
        let policy = bench.create();
        let before = image(&bench);
        let mut session = bench.attach(&policy).expect("attached");
        (0..40).for_each(|block| session.write(block, 1, 3).expect("written"));
        session.detach().expect("detached");
        let (genuine, stamp) = (image(&bench), stamp(&bench));
        let mut corrupt = 0;
        for pair in changed(&before, &genuine)
            .windows(2)
            .filter(|pair| at(&genuine, pair[0]) != at(&genuine, pair[1]))
        {
            put(&bench, pair[0], at(&genuine, pair[1]));
            put(&bench, pair[1], at(&genuine, pair[0]));
            corrupt += look(&bench, &policy, 40, 3, &format!("{pair:?} swapped")).unwrap_or(1);
            restore(&bench, &genuine);
            put_back(&bench, &stamp);
        }
        // In the clear the blocks are all the same, and only metadata can be swapped for something else.
        assert!(corrupt > if confidentiality { 60 } else { 5 }, "{corrupt}");
    }
}

/// The anchor holds this stamp again, as if the attach before had not been.
fn put_back(bench: &Bench, stamp: &Stamp) {
    let anchor = bench.environment.anchor.as_ref().expect("an anchor");
    let held = self::stamp(bench);
    if held != *stamp {
        anchor.advance(Some(&held), stamp).now_or_never().expect("in memory").expect("moved");
    }
}

#[test]
fn an_old_block_put_back_alone_is_never_read() {
    let (bench, policy) = new(Freshness::Strict);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 32, 1).expect("written");
    session.detach().expect("detached");
    let old = image(&bench);
    let mut session = bench.attach(&policy).expect("attached");
    // Until places are used again: the old content of some is another version of the same logical block.
    for _ in 0..199 {
        session.write(0, 32, 9).expect("written");
    }
    session.flush().expect("flushed");
    let before = image(&bench);
    session.write(0, 32, 2).expect("written");
    session.detach().expect("detached");
    let (genuine, stamp) = (image(&bench), stamp(&bench));
    let (mut refused, mut corrupt) = (0, 0);
    let all = changed(&old, &genuine);
    // All metadata, of the data what is in use in the end, and of the rest, which are thousands, some here and there.
    let data = geometry(&bench).data_start();
    let (metadata, data): (Vec<u64>, Vec<u64>) = all.into_iter().partition(|place| *place < data);
    let last = changed(&before, &genuine);
    let (used, rest): (Vec<u64>, Vec<u64>) = data.into_iter().partition(|place| last.contains(place));
    assert!(used.len() >= 32, "{used:?}");
    for place in metadata.into_iter().chain(used).chain(rest.into_iter().step_by(61)) {
        put(&bench, place, at(&old, place));
        match look(&bench, &policy, 32, 2, &format!("the old block {place}")) {
            Ok(blocks) => corrupt += blocks,
            Err(kind) => {
                assert!(
                    matches!(kind, Kind::Corrupt | Kind::Stale | Kind::Forked),
                    "block {place}: {kind:?}"
                );
                refused += 1;
            }
        }
        restore(&bench, &genuine);
        put_back(&bench, &stamp);
    }
    assert!(refused > 0 && corrupt > 0, "{refused} attaches refused, {corrupt} blocks corrupt");
}

#[test]
fn a_journal_with_a_record_dropped_swapped_or_cut_off_is_refused() {
    let (bench, policy) = new(Freshness::Strict);
    let mut session = bench.attach(&policy).expect("attached");
    let before = image(&bench);
    for block in 0..12 {
        session.write(block, 1, 4).expect("written");
        session.flush().expect("flushed");
    }
    drop(session);
    let (genuine, stamp) = (image(&bench), stamp(&bench));
    let journal = geometry(&bench).journal_start()..geometry(&bench).bitmap_start();
    let records: Vec<u64> =
        changed(&before, &genuine).into_iter().filter(|place| journal.contains(place)).collect();
    assert!(records.len() >= 12, "{records:?}");
    let check = |what: &str| {
        let kind = refusal(&bench, &policy);
        assert!(matches!(kind, Some(Kind::Stale | Kind::Forked | Kind::Corrupt)), "{what}: {kind:?}");
        restore(&bench, &genuine);
        put_back(&bench, &stamp);
    };
    for (index, place) in records.iter().enumerate() {
        put(&bench, *place, &page(0));
        check(&format!("record {index} dropped"));
        records[index..].iter().for_each(|place| put(&bench, *place, &page(0)));
        check(&format!("cut off at record {index}"));
    }
    for pair in records.windows(2) {
        put(&bench, pair[0], at(&genuine, pair[1]));
        put(&bench, pair[1], at(&genuine, pair[0]));
        check(&format!("records {pair:?} swapped"));
    }
    assert_eq!(look(&bench, &policy, 12, 4, "the genuine image"), Ok(0));
}

#[test]
fn a_block_of_another_volume_is_never_read() {
    let (bench, policy) = new(Freshness::Strict);
    let mut other = Bench::new(options(4096, Shape::STANDARD), STORE);
    other.environment.random = Arc::new(seal::SystemRandom);
    let others_policy = other.create();
    // The same credential, the same requests, the same places.
    let before = image(&bench);
    for (bench, policy, fill) in [(&bench, &policy, 1), (&other, &others_policy, 2)] {
        let mut session = bench.attach(policy).expect("attached");
        session.write(0, 32, fill).expect("written");
        session.detach().expect("detached");
    }
    let (genuine, foreign, stamp) = (image(&bench), image(&other), stamp(&bench));
    let mut noticed = 0;
    for place in changed(&before, &genuine) {
        put(&bench, place, at(&foreign, place));
        noticed += look(&bench, &policy, 32, 1, &format!("the other's block {place}")).unwrap_or(1);
        restore(&bench, &genuine);
        put_back(&bench, &stamp);
    }
    assert!(noticed >= 32, "{noticed}");
    restore(&bench, &foreign);
    assert_eq!(refusal(&bench, &policy), Some(Kind::Policy), "the whole image of another volume");
}

#[test]
fn a_shorter_store_is_refused_and_a_longer_one_is_no_other_volume() {
    let (mut bench, policy) = new(Freshness::Strict);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 32, 1).expect("written");
    session.detach().expect("detached");
    let genuine = image(&bench);
    let volume = geometry(&bench).physical_blocks;
    for blocks in [volume - 1, volume / 2, 9, 1] {
        bench.environment.store = Arc::new(MemoryStore::new(blocks).expect("memory"));
        let cut = genuine[..usize::try_from(blocks).expect("in range")].to_vec();
        restore(&bench, &cut);
        let kind = refusal(&bench, &policy);
        assert!(matches!(kind, Some(Kind::Io | Kind::Usage | Kind::Corrupt)), "{blocks} blocks: {kind:?}");
        assert!(changed(&cut, &image(&bench)).is_empty(), "a store that was cut off was written to");
    }
    bench.environment.store = Arc::new(MemoryStore::new(STORE + 1000).expect("memory"));
    restore(&bench, &genuine);
    assert_eq!(look(&bench, &policy, 32, 1, "a longer store"), Ok(0));
}

#[test]
fn a_header_that_claims_something_else_is_refused_and_nothing_is_written() {
    let (bench, policy) = new(Freshness::Strict);
    let genuine = image(&bench);
    let header = Header::decode(&genuine[0]).expect("a header");
    let claim = |change: fn(&mut Header)| {
        let mut header = header.clone();
        change(&mut header);
        header
    };
    let claims = [
        (claim(|header| header.confidentiality = false), Kind::Policy),
        (
            claim(|header| {
                (header.integrity, header.suite, header.freshness) =
                    (false, SuiteCode::Aes256Xts, Freshness::Off)
            }),
            Kind::Policy,
        ),
        (claim(|header| header.freshness = Freshness::Off), Kind::Policy),
        (claim(|header| header.suite = SuiteCode::Aegis128x2), Kind::Policy),
        (claim(|header| header.volume[0] ^= 1), Kind::Policy),
        // What the policy lets pass, the MAC and the stamp do not.
        (claim(|header| header.freshness = Freshness::Write), Kind::Stale),
        (claim(|header| header.generation += 1), Kind::Stale),
    ];
    for (header, expected) in claims {
        let mut block = header.encode_unsigned();
        put_digest(&mut block, &genuine[1]);
        put_mac(&mut block, mac(&genuine[0]).expect("a block"));
        for place in [0, 2] {
            put(&bench, place, &block[..]);
        }
        let spoilt = image(&bench);
        assert_eq!(refusal(&bench, &policy), Some(expected), "{header:?}");
        assert!(changed(&spoilt, &image(&bench)).is_empty(), "written to: {header:?}");
        restore(&bench, &genuine);
    }
    // With neither anchor nor policy against it there is still the MAC.
    let (bench, policy) = new(Freshness::Off);
    let genuine = image(&bench);
    let mut header = Header::decode(&genuine[0]).expect("a header");
    header.generation += 1;
    let mut block = header.encode_unsigned();
    put_digest(&mut block, &genuine[1]);
    put_mac(&mut block, mac(&genuine[0]).expect("a block"));
    [0, 2].into_iter().for_each(|place| put(&bench, place, &block[..]));
    assert_eq!(refusal(&bench, &policy), Some(Kind::Corrupt));
}

#[test]
fn a_stamp_that_was_made_up_is_refused() {
    let (mut bench, policy) = new(Freshness::Strict);
    let genuine = stamp(&bench);
    let changes: [fn(&mut Stamp); 6] = [
        |stamp| stamp.generation += 1,
        |stamp| stamp.claims += 1,
        |stamp| stamp.session[0] ^= 1,
        |stamp| stamp.head[0] ^= 1,
        |stamp| stamp.header_digest[0] ^= 1,
        |stamp| stamp.volume[0] ^= 1,
    ];
    let before = image(&bench);
    for change in changes {
        let mut stamp = genuine.clone();
        change(&mut stamp);
        bench.environment.anchor = Some(Arc::new(MemoryAnchor::holding(stamp.clone())));
        let kind = refusal(&bench, &policy);
        // A changed digest is seen before the key that would check the MAC is there.
        assert!(matches!(kind, Some(Kind::Anchor | Kind::Stale)), "{stamp:?}: {kind:?}");
        assert!(changed(&before, &image(&bench)).is_empty());
    }
}

#[test]
fn an_image_put_back_is_stale_at_each_level_but_off() {
    for freshness in ANCHORED.into_iter().chain([Freshness::Off]) {
        let (bench, policy) = new(freshness);
        let mut old = Vec::new();
        for fill in [1, 2] {
            old = image(&bench);
            let mut session = bench.attach(&policy).expect("attached");
            session.write(0, 8, fill).expect("written");
            make_last(&mut session);
            session.detach().expect("detached");
        }
        restore(&bench, &old);
        if freshness == Freshness::Off {
            assert_eq!(look(&bench, &policy, 8, 1, "without freshness the old state is accepted"), Ok(0));
        } else {
            assert_eq!(refusal(&bench, &policy), Some(Kind::Stale), "{freshness}");
        }
    }
}

#[test]
fn a_copy_that_went_on_is_forked_at_each_level_but_off() {
    for freshness in ANCHORED.into_iter().chain([Freshness::Off]) {
        let (bench, policy) = new(freshness);
        let (old, old_stamp) = (image(&bench), (freshness != Freshness::Off).then(|| stamp(&bench)));
        let copy = Bench {
            environment: Environment {
                store: Arc::new(MemoryStore::new(STORE).expect("memory")),
                anchor: old_stamp.map(|stamp| Arc::new(MemoryAnchor::holding(stamp)) as Arc<dyn Anchor>),
                random: Arc::new(seal::SystemRandom),
                ..bench.environment.clone()
            },
            options: bench.options.clone(),
            attach: bench.attach,
        };
        restore(&copy, &old);
        for (bench, fill, commits) in [(&bench, 1, 2), (&copy, 2, 6)] {
            let mut session = bench.attach(&policy).expect("attached");
            for _ in 0..commits {
                session.write(0, 8, fill).expect("written");
                make_last(&mut session);
            }
            session.detach().expect("detached");
        }
        restore(&bench, &image(&copy));
        if freshness == Freshness::Off {
            assert_eq!(look(&bench, &policy, 8, 2, "without freshness the copy is accepted"), Ok(0));
        } else {
            assert_eq!(refusal(&bench, &policy), Some(Kind::Forked), "{freshness}");
        }
    }
}

#[test]
fn a_lost_anchor_is_refused_at_each_level_but_off() {
    for freshness in ANCHORED {
        let (mut bench, policy) = new(freshness);
        for anchor in [None, Some(Arc::new(MemoryAnchor::new()) as Arc<dyn Anchor>)] {
            bench.environment.anchor = anchor;
            assert_eq!(refusal(&bench, &policy), Some(Kind::Anchor), "{freshness}");
        }
    }
    let (bench, policy) = new(Freshness::Off);
    assert_eq!(refusal(&bench, &policy), None);
}

/// The same plaintext into the same image again, as after a replay: were a (key, nonce) pair used twice, the blocks would be equal.
#[test]
fn a_guest_on_a_replayed_image_seals_under_fresh_keys() {
    let (bench, policy) = new(Freshness::Off);
    let before = image(&bench);
    let sealed: Vec<Vec<Vec<u8>>> = (0..3)
        .map(|_| {
            restore(&bench, &before);
            let mut session = bench.attach(&policy).expect("attached");
            session.write(0, 32, 1).expect("written");
            session.detach().expect("detached");
            let after = image(&bench);
            let data = geometry(&bench).data_start();
            let places = changed(&before, &after).into_iter().filter(|place| *place >= data);
            places.map(|place| at(&after, place).to_vec()).collect()
        })
        .collect();
    assert!(sealed.iter().all(|blocks| blocks.len() >= 32));
    let mut all: Vec<&Vec<u8>> = sealed.iter().flatten().collect();
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "the same ciphertext twice");
}

/// Not caught, and shown so that nobody believes otherwise: the anchor is the trusted part.
#[test]
fn anchor_and_image_put_back_together_are_accepted() {
    let (bench, policy) = new(Freshness::Strict);
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 8, 1).expect("written");
    session.detach().expect("detached");
    let (old, old_stamp) = (image(&bench), stamp(&bench));
    let mut session = bench.attach(&policy).expect("attached");
    session.write(0, 8, 2).expect("written");
    session.detach().expect("detached");
    restore(&bench, &old);
    put_back(&bench, &old_stamp);
    assert_eq!(look(&bench, &policy, 8, 1, "the old state"), Ok(0));
}

/// Not caught without integrity: an old block is read, or what it decrypts to.
#[test]
fn without_integrity_a_replayed_block_is_read() {
    let options = CreateOptions {
        integrity: false,
        confidentiality: false,
        freshness: Freshness::Off,
        ..options(4096, Shape::STANDARD)
    };
    let bench = Bench::new(options, STORE);
    let policy = bench.create();
    let mut session = bench.attach(&policy).expect("attached");
    session.write(5, 1, 1).expect("written");
    session.detach().expect("detached");
    let holds = |bytes: &Vec<u8>| *bytes == page(1);
    let place = image(&bench).iter().position(holds).expect("in the clear");
    put(&bench, place as u64, &page(7));
    let mut session = bench.attach(&policy).expect("attached");
    assert_eq!(session.read(5, 1).expect("read"), page(7));
}

#[test]
fn a_clock_that_jumps_widens_no_window_and_harms_nothing() {
    let (mut bench, policy) = new(Freshness::Interval);
    let clock = Arc::new(ManualClock::default());
    bench.environment.clock = Arc::clone(&clock) as Arc<dyn volume::Clock>;
    // No other bound may do the work.
    bench.attach.window = Window { commits: 3, time: Duration::MAX, bytes: u64::MAX };
    let mut session = bench.attach(&policy).expect("attached");
    let jumps = [0, 5, u64::MAX, 0, u64::MAX / 2, 1, u64::MAX - 1, 3, 0];
    for step in 0..200usize {
        clock.set(Duration::from_millis(jumps[step % jumps.len()]));
        session.volume.tick();
        session.write(step as u64 % 8, 1, 6).expect("written");
        session.flush().expect("flushed");
        let status = session.volume.status();
        let behind = status.generation - status.anchored_generation.expect("anchored");
        assert!(behind <= 4, "{behind} commits are not anchored, the window is 3");
    }
    drop(session);
    assert_eq!(look(&bench, &policy, 8, 6, "after the jumps"), Ok(0));
    assert_eq!(image(&bench)[0].len(), BLOCK_SIZE);
}
