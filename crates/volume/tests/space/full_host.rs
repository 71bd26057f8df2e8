//! A thin volume whose host is full, and says which places it has given.

use std::sync::atomic::Ordering;

use volume::{Kind, Request};

use crate::common::roomy::Says;
use crate::common::{Session, filled, pattern};
use crate::thin::{BLOCKS, Case, write_all};

#[test]
fn on_a_full_host_it_is_attached_read_and_discarded_in_and_goes_on_when_there_is_room() {
    for tells in [false, true] {
        let case = Case::new(None);
        case.store.tells.store(tells, Ordering::SeqCst);
        let mut session = case.attach();
        write_all(&mut session, 7680, 1);
        session.checkpoint();
        case.pass_time(&mut session, 20);
        // The host is full.
        let full = case.store.taken();
        case.store.set_room(full);
        session.volume.tick();
        let refused = (0..400).find_map(|at| session.write(20_000 + at * 64, 64, 9).err());
        if tells {
            assert_eq!(refused.expect("there is no room").kind(), Kind::NoSpace);
        }
        assert!(session.volume.failure().is_none(), "{:?}", session.volume.failure());
        if session.queue.pending() > 0 {
            // Writes that had completed wait for room, and with them what comes behind.
            case.store.set_room(full + 4096);
            for _ in 0..20 {
                session.volume.tick();
                session.land();
            }
            case.store.set_room(case.store.taken());
        }
        session.check_each([0, 64, 7616], 1);
        session.flush().expect("flushed");
        session.detach().expect("detached");

        let mut session = case.attach();
        case.store.set_room(case.store.taken());
        session.check_each([0, 64, 7616], 1);
        session.discard(64, 7680 - 64).expect("discarded");
        session.discard(20_000, 400 * 64).expect("discarded");
        session.flush().expect("flushed");
        session.checkpoint();
        case.pass_time(&mut session, 200);
        assert!(
            case.store.taken() < full,
            "{} of {full}: {:#?}",
            case.store.taken(),
            session.volume.status()
        );
        // There is room again, and it goes on.
        write_all(&mut session, 1024, 2);
        session.check_each([0, 64], 2);
        session.detach().expect("detached");
    }
}

/// Whatever a former session has left, and although users have written to every place that the store had given for it: what they discard comes
/// back, by a checkpoint that needs places for its nodes, and the session can be detached.
#[test]
fn on_a_full_host_what_is_discarded_comes_back_in_the_next_session() {
    let cases = [
        (true, Says::Truth, None),
        (true, Says::Truth, Some(false)),
        (false, Says::Truth, None),
        (true, Says::Nothing, None),
        (true, Says::TooMuch, None),
    ];
    for (tells, says, discard) in cases {
        let case = Case::new(discard);
        case.store.tells.store(tells, Ordering::SeqCst);
        *case.store.says.lock().expect("a lock") = says;
        let mut session = case.attach();
        // Much, and most of it goes again: a session that began in between has its nodes far behind what is there then, behind more units than
        // a superblock can list.
        write_all(&mut session, 130_048, 1);
        session.flush().expect("flushed");
        // It does not detach, so the next one leaves its units alone, and what they have been given.
        drop(session);
        let mut session = case.attach();
        session.discard(8192, 130_048 - 8192).expect("discarded");
        session.commit().expect("committed");
        session.checkpoint();
        case.pass_time(&mut session, 100);
        session.detach().expect("detached");

        let full = case.store.taken();
        case.store.set_room(full);
        let mut session = case.attach();
        // Where it cannot tell that it is full, what has completed already would wait for room.
        let mut written = 0;
        for block in 0..if tells { 20_000 } else { 0 } {
            match session.write(20_000 + block, 1, 9) {
                Ok(()) => written += 1,
                Err(error) => assert_eq!(error.kind(), Kind::NoSpace, "{error}"),
            }
        }
        // Whatever is given is written to, but for what is kept for the map.
        assert!(!tells || says != Says::Truth || written > 2000, "{written}");
        session.volume.tick();
        session.discard(64, 120_000).expect("discarded");
        session.flush().expect("flushed");
        let refusals = case.store.refusals.load(Ordering::SeqCst);
        session.checkpoint();
        // One call for each free block would be thousands.
        let refusals = case.store.refusals.load(Ordering::SeqCst) - refusals;
        assert!(says != Says::Truth || refusals < 100, "{refusals}");
        case.pass_time(&mut session, 200);
        session.check_each([0], 1);
        // Without discards the host stays full. Where it says nothing, all that can be reserved is tried, and what is reserved is not discarded
        // by this session.
        if says == Says::Truth && discard.is_none() {
            assert!(case.store.taken() < full / 2, "{} of {full}", case.store.taken());
            write_all(&mut session, 512, 3);
            session.check_each([0, 448], 3);
        }
        session.detach().expect("detached");
    }
}

/// Also where the host does not say what it has given, as in memory: a session that detached leaves nothing that its successor must spare.
#[test]
fn on_a_full_host_what_a_session_had_reserved_is_its_successors() {
    let case = Case::new(None);
    *case.store.says.lock().expect("a lock") = Says::Nothing;
    let mut session = case.attach();
    write_all(&mut session, 32_768, 1);
    session.detach().expect("detached");
    let full = case.store.taken();
    case.store.set_room(full);
    let mut session = case.attach();
    assert_eq!(session.volume.status().foreign_units, 0);
    session.discard(64, 32_768 - 64).expect("discarded");
    session.flush().expect("flushed");
    session.checkpoint();
    case.pass_time(&mut session, 200);
    assert!(case.store.taken() < full / 2, "{} of {full}", case.store.taken());
    write_all(&mut session, 4096, 2);
    session.check_each([0, 64, 4032], 2);
    session.detach().expect("detached");
}

/// Of each two free places the host has given one. Users can write to all of these but for what is kept, whatever the size of their writes.
#[test]
fn on_a_full_host_data_goes_wherever_there_is_room() {
    for size in [1, 8, 64] {
        let case = Case::telling(BLOCKS, Some(false));
        let mut session = case.attach();
        write_all(&mut session, 40_960, 1);
        session.discard(64, 40_960 - 64).expect("discarded");
        session.flush().expect("flushed");
        session.detach().expect("detached");
        let data = case.geometry.data().flatten().collect::<std::collections::BTreeSet<_>>();
        case.store.take_back(|block| block % 2 == 1 && data.contains(&block));
        case.store.set_room(case.store.taken());

        let mut session = case.attach();
        let mut written = Vec::new();
        for at in (64..40_960).step_by(size) {
            match session.write(at, size, pattern(at, 2)) {
                Ok(()) => written.push(at),
                Err(error) => assert_eq!(error.kind(), Kind::NoSpace, "{error}"),
            }
        }
        // 20,504 are given. 1024 are kept for the nodes of the next checkpoint, and earlier nodes are in some of the others. Some 2,300 more are kept
        // for overwrites, half of them where writes are small.
        let least = if size > 32 { 16_700 } else { 17_800 };
        assert!(written.len() * size > least, "{} times {size}", written.len());
        session.check_each(written, 2);
        session.detach().expect("detached");
    }
}

/// Each write is a leaf of the map of its own: a checkpoint of all that memory has room for would need many times what is kept for nodes.
#[test]
fn on_a_full_host_a_checkpoint_needs_no_more_places_than_are_kept_for_it() {
    /// 3 GiB.
    const LARGE: u64 = 786_432;
    let case = Case::telling(LARGE, None);
    let mut session = case.attach();
    session.volume.tick();
    case.store.set_room(case.store.taken() + 10_000);
    session.volume.tick();
    // Users try again and again, everywhere.
    let written = (0..LARGE / 128).filter(|at| match session.write(at * 128, 1, pattern(at * 128, 1)) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.kind(), Kind::NoSpace, "{error}");
            false
        }
    });
    let written = written.count();
    assert!((1000..6000).contains(&written), "{written}");
    session.discard(128, LARGE - 128).expect("discarded");
    session.flush().expect("flushed");
    session.checkpoint();
    case.pass_time(&mut session, 200);
    session.check_each([0], 1);
    session.check_zeros([128, 256]);
    write_all(&mut session, 1024, 3);
    session.detach().expect("detached");
}

/// What an `fstrim` of a file system in small pieces does: a part of each leaf of the map goes, so each leaf is written again. All together need
/// more nodes than there are places.
#[test]
fn on_a_full_host_a_little_is_discarded_everywhere() {
    /// 3 GiB, of which two blocks are written in each leaf.
    const LARGE: u64 = 786_432;
    let case = Case::telling(LARGE, None);
    let leaves = || (0..LARGE).step_by(128);
    let mut session = case.attach();
    leaves().for_each(|at| session.write(at, 2, pattern(at, 1)).expect("written"));
    session.flush().expect("flushed");
    session.checkpoint();
    case.pass_time(&mut session, 40);
    case.store.set_room(case.store.taken());
    session.volume.tick();
    // Users take whatever they can.
    let refused = (0..LARGE / 2).step_by(64).filter(|at| session.write(at + 3, 32, 7).is_err()).count();
    assert!(refused > 100, "{refused}");
    leaves().for_each(|at| session.discard(at, 1).expect("discarded"));
    session.flush().expect("flushed");
    session.checkpoint();
    session.check_zeros(leaves().take(100));
    session.check_zeros(leaves().skip(6000));
    leaves().for_each(|at| session.discard(at, 128).expect("discarded"));
    session.flush().expect("flushed");
    session.checkpoint();
    assert_eq!(session.volume.status().mapped_blocks, 0);
    session.detach().expect("detached");
}

/// Whatever users have done: what they discard becomes free by a checkpoint, which ends.
fn all_comes_back(mut session: Session, blocks: u64) {
    session.discard(0, blocks).expect("discarded");
    session.flush().expect("flushed");
    session.checkpoint();
    assert_eq!(session.volume.status().mapped_blocks, 0);
    session.detach().expect("detached");
}

/// Each of these writes alone would leave enough places for nodes; all together would not.
#[test]
fn on_a_full_host_writes_at_once_count_together() {
    /// 3 GiB, of 6144 leaves.
    const LARGE: u64 = 786_432;
    let case = Case::telling(LARGE, None);
    let mut session = case.attach();
    session.queue = session.volume.queue(8192).expect("a queue");
    // 4096 are kept for nodes.
    case.store.set_room(case.store.taken() + 4096 + 6144);
    session.volume.tick();
    let all =
        (0..LARGE / 128).map(|leaf| Request::Write { block: leaf * 128, data: filled(1, 7), fua: false });
    let ended = session.run(all.collect());
    let refused =
        |result: &Result<(), volume::Error>| result.as_ref().is_err_and(|e| e.kind() == Kind::NoSpace);
    assert!(ended.iter().all(|completion| completion.result.is_ok() || refused(&completion.result)));
    session.volume.tick();
    all_comes_back(session, LARGE);
}

/// No tick tells that the host is full: a write does.
#[test]
fn a_host_that_is_full_all_of_a_sudden_leaves_places_for_nodes() {
    let case = Case::telling(BLOCKS, None);
    let mut session = case.attach();
    write_all(&mut session, 40_960, 1);
    session.discard(64, 40_960 - 64).expect("discarded");
    session.checkpoint();
    session.volume.tick();
    case.store.set_room(case.store.taken());
    let everywhere = (0..BLOCKS).step_by(128);
    let refused = everywhere.filter(|at| {
        let write = Request::Write { block: *at, data: filled(64, 7), fua: true };
        let ended = session.run(vec![write]).remove(0).result;
        session.volume.tick();
        ended.is_err_and(|error| error.kind() == Kind::NoSpace)
    });
    assert!(refused.count() > 100);
    all_comes_back(session, BLOCKS);
}

/// Where each write takes room, what the store has left is for nodes, too.
#[test]
fn where_nothing_is_given_writes_go_on_while_there_is_room() {
    let case = Case::new(None);
    case.store.tells.store(true, Ordering::SeqCst);
    *case.store.says.lock().expect("a lock") = Says::None;
    let mut session = case.attach();
    case.store.set_room(case.store.taken() + 40_960);
    session.volume.tick();
    write_all(&mut session, 8192, 1);
    session.checkpoint();
    session.volume.tick();
    write_all(&mut session, 8192, 2);
    session.check_each([0, 64, 8128], 2);
    session.detach().expect("detached");
}

/// A checkpoint that finds no room for its nodes may wait for ever, and must not take writes along that wait for it.
#[test]
fn a_write_does_not_wait_for_a_checkpoint_that_waits_for_room() {
    /// 3 GiB.
    const LARGE: u64 = 786_432;
    let write = |session: &mut Session, at: u64| session.write(at * 128, 1, pattern(at * 128, 1));
    let case = || {
        let case = Case::telling(LARGE, None);
        case.store.set_room(case.store.taken() + 14_000);
        let session = case.attach();
        (case, session)
    };
    // The first write that has to wait for a checkpoint.
    let (_case, mut session) = case();
    let waits = (0..LARGE / 128).find(|at| {
        write(&mut session, *at).expect("there is room");
        session.volume.status().waits_for_checkpoint > 0
    });
    let waits = waits.expect("one waits");
    assert!(waits > 100, "{waits}");
    session.detach().expect("detached");

    let (case, mut session) = case();
    (0..waits).for_each(|at| write(&mut session, at).expect("there is room"));
    assert_eq!(session.volume.status().waits_for_checkpoint, 0);
    session.flush().expect("flushed");
    case.store.refuses.store(true, Ordering::SeqCst);
    assert_eq!(write(&mut session, waits).expect_err("no room").kind(), Kind::NoSpace);
    assert!(session.volume.status().waits_for_store > 0, "{:#?}", session.volume.status());
    // There is room again, and all goes on.
    case.store.refuses.store(false, Ordering::SeqCst);
    session.volume.tick();
    session.settle();
    write(&mut session, waits).expect("there is room");
    session.check_each([0], 1);
    session.detach().expect("detached");
}

/// A large volume asks its host for its whole journal only when there is little left: whatever comes then, flushes and discards wait for nothing.
#[test]
fn a_flush_of_a_large_volume_finds_room_on_a_host_that_becomes_full() {
    const LARGE: u64 = 2 << 20;
    let case = Case::telling(LARGE, None);
    let session = case.attach();
    let fixed = case.geometry.physical_blocks - case.geometry.data_blocks();
    assert!(case.store.taken() < fixed / 2, "an empty volume has taken {}", case.store.taken());
    case.store.set_room(case.store.taken() + 60_000);
    session.volume.tick();
    assert!(case.store.taken() >= fixed, "{} of {fixed}", case.store.taken());
    case.store.set_room(case.store.taken());
    Case::discards_wait_for_nothing(session);
}

/// A write that had completed waits for room, and is there when there is some.
#[test]
fn a_write_that_had_completed_is_not_lost_for_want_of_room() {
    let case = Case::telling(BLOCKS, None);
    let mut session = case.attach();
    session.volume.tick();
    write_all(&mut session, 64, 1);
    // Full all of a sudden: at the last look there was room.
    case.store.set_room(case.store.taken());
    let mut ended = Vec::new();
    for block in 0..2 {
        let data = filled(64, pattern(block * 64, 5));
        session.queue.submit(block, Request::Write { block: block * 64, data, fua: false });
    }
    for _ in 0..50 {
        session.queue.poll(&mut ended);
    }
    let completed: Vec<u64> = ended
        .iter()
        .filter(|completion| completion.result.is_ok())
        .map(|completion| completion.token)
        .collect();
    assert!(!completed.is_empty(), "it completed before the store had it");
    assert!(session.queue.pending() > 0 && session.volume.failure().is_none());
    case.store.set_room(u64::MAX);
    session.volume.tick();
    session.flush().expect("flushed");
    for block in completed {
        session.check_each([block * 64], 5);
    }
    assert!(session.volume.status().waits_for_store > 0);
    session.detach().expect("detached");
}

/// Sessions of all kinds, and one on a host that is full by then, whose users write wherever they can, and then discard everything: a checkpoint
/// ends, and what they discarded is free.
#[test]
fn whatever_was_before_a_checkpoint_ends_on_a_full_host() {
    for seed in 0..12 {
        live_and_fill(&mut fastrand::Rng::with_seed(seed))
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

fn live_and_fill(random: &mut fastrand::Rng) -> Result<(), volume::Error> {
    const SMALL: u64 = 16_384;
    let case = Case::telling(SMALL, random.bool().then_some(false));
    for _ in 0..random.u32(1..4) {
        let mut session = case.attach();
        for _ in 0..random.u32(1..8) {
            write_somewhere(&mut session, random, 600)?;
            let (base, length) = (random.u64(..SMALL - 8192), 64 << random.u32(..8));
            session.discard(base, length)?;
            if random.bool() {
                session.checkpoint();
                case.pass_time(&mut session, 20);
            }
        }
        // Others are killed.
        if random.bool() {
            session.detach()?;
        }
    }
    case.store.set_room(case.store.taken());
    let mut session = case.attach();
    for _ in 0..3 {
        write_somewhere(&mut session, random, 3000)?;
    }
    session.discard(0, SMALL)?;
    session.flush()?;
    // With discards and without, and nobody asks for it.
    case.pass_time(&mut session, 40);
    assert_eq!(session.volume.status().mapped_blocks, 0);
    session.detach()
}

/// Tries so many writes in a part of the volume. There may be no room for them.
fn write_somewhere(
    session: &mut Session,
    random: &mut fastrand::Rng,
    writes: u32,
) -> Result<(), volume::Error> {
    let (base, length) = (random.u64(..8192), 64 << random.u32(..8));
    let size = *random.choice(&[1, 8, 64]).expect("one of three");
    for _ in 0..random.u32(..writes) {
        match session.write(base + random.u64(..length), size, 7) {
            Err(error) if error.kind() != Kind::NoSpace => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// New data leaves room for overwrites: however often the volume is written again, none of them is refused, although each goes to a new place and
/// another tenant has taken the rest of the host. Single blocks that are new, as a file system's tables are, find room when large writes do not.
#[test]
fn on_a_full_host_what_is_there_can_be_written_again() {
    let case = Case::telling(BLOCKS, Some(false));
    case.store.set_room(case.store.taken() + 12_000);
    let mut session = case.attach();
    let mut at = 0;
    let refused = loop {
        session.volume.tick();
        match session.write(at, 64, pattern(at, 1)) {
            Ok(()) => at += 64,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), Kind::NoSpace);
    assert!(refused.to_string().contains("kept for what is written again"), "{refused}");
    assert!(at > 6000, "{at}");
    let single = (0..4000).filter(|extra| session.write(60_000 + extra, 1, 7).is_ok()).count();
    assert!((500..2000).contains(&single), "{single}");
    // Whoever goes on is refused again. When all has been quiet for a while, as before a file system is mounted again, a little more finds room.
    case.pass_time(&mut session, 3);
    assert!(session.write(64_000, 1, 7).is_err());
    case.pass_time(&mut session, 10);
    let replayed = (0..400).filter(|extra| session.write(65_000 + extra, 1, 7).is_ok()).count();
    assert_eq!(replayed, 400);
    case.store.set_room(case.store.taken());
    let mut model: Vec<u8> = (0..at).map(|block| pattern(block / 64 * 64, 1)).collect();
    for turn in 0..3 * at {
        // Any order, and runs of any length.
        let block = turn * 7919 % at;
        let count = (1 + turn % 5).min(at - block);
        let fill = pattern(block, turn);
        let (from, count) =
            (usize::try_from(block).expect("a place"), usize::try_from(count).expect("a count"));
        session.write(block, count, fill).expect("an overwrite");
        model[from..from + count].fill(fill);
        if turn % 500 == 0 {
            session.flush().expect("flushed");
            session.volume.tick();
        }
    }
    session.detach().expect("detached");
    let mut session = case.attach();
    let found = session.read(0, model.len()).expect("read");
    assert!(found.chunks(4096).zip(&model).all(|(block, fill)| block.iter().all(|byte| byte == fill)));
    session.write(0, 1, 9).expect("an overwrite");
    session.detach().expect("detached");
}

/// Zeros that keep their space are written on a thin volume: how `mkfs` asks for a journal. The first turn of the journal is an overwrite then.
#[test]
fn zeros_that_keep_their_space_take_it() {
    let case = Case::telling(BLOCKS, Some(false));
    let mut session = case.attach();
    write_all(&mut session, 64, 1);
    let before = case.store.taken();
    assert!(session.one(Request::Zero { block: 10, blocks: 1000 }).result.is_ok());
    session.flush().expect("flushed");
    session.checkpoint();
    assert!(case.store.taken() >= before + 900, "{} and {before}", case.store.taken());
    assert!(session.read(10, 1000).expect("read").iter().all(|byte| *byte == 0));
    let beyond = session.one(Request::Zero { block: BLOCKS - 1, blocks: 2 });
    assert_eq!(beyond.result.expect_err("beyond the end").kind(), Kind::Usage);
    session.detach().expect("detached");
}
