use super::*;
use crate::stamp::tests::sample;
use futures::executor::block_on;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Barrier;
use tempfile::TempDir;

fn fresh() -> (TempDir, PathBuf, FileAnchor) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("anchor");
    let anchor = FileAnchor::create(&path).unwrap();
    (directory, path, anchor)
}

/// An anchor that went through generations 1 to `last`.
fn advanced(last: u64) -> (TempDir, PathBuf, FileAnchor) {
    let (directory, path, anchor) = fresh();
    for generation in 1..=last {
        let before = (generation > 1).then(|| sample(generation - 1));
        assert_eq!(move_to(&anchor, before.as_ref(), &sample(generation)), Ok(()));
    }
    (directory, path, anchor)
}

fn read(anchor: &FileAnchor) -> Result<Option<Stamp>, Error> {
    block_on(anchor.read())
}

fn move_to(anchor: &FileAnchor, expected: Option<&Stamp>, new: &Stamp) -> Result<(), Error> {
    block_on(anchor.advance(expected, new))
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Unusable(why)) => why,
        other => panic!("expected Unusable, got {other:?}"),
    }
}

#[test]
fn a_new_anchor_is_private_full_size_and_never_claimed() {
    let (_directory, path, anchor) = fresh();
    assert_eq!(read(&anchor), Ok(None));
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(metadata.len(), 8192);
    assert!(metadata.blocks() * 512 >= 8192, "sparse: a write would have to allocate");
}

#[test]
fn stamps_survive_reopening_and_conflicts_name_what_is_held() {
    let (_directory, path, anchor) = advanced(5);
    let again = FileAnchor::open(&path).unwrap();
    assert_eq!(read(&again), Ok(Some(sample(5))));
    let held = Err(Error::Conflict(Some(Box::new(sample(5)))));
    assert_eq!(move_to(&again, Some(&sample(4)), &sample(6)), held);
    assert_eq!(move_to(&again, None, &sample(6)), held);
    assert_eq!(move_to(&again, Some(&sample(5)), &sample(6)), Ok(()));
    assert_eq!(read(&anchor), Ok(Some(sample(6))), "the first handle sees the second one's move");
    let (_directory, _, empty) = fresh();
    assert_eq!(move_to(&empty, Some(&sample(1)), &sample(2)), Err(Error::Conflict(None)));
}

#[test]
fn an_anchor_is_never_overwritten() {
    let (_directory, path, anchor) = advanced(1);
    assert!(refusal(FileAnchor::create(&path)).contains("exists already"));
    assert_eq!(read(&anchor), Ok(Some(sample(1))));
    let missing = path.with_file_name("no-such-directory").join("anchor");
    let refused = refusal(FileAnchor::create(&missing));
    assert!(refused.contains("can't be created: there is no directory"), "{refused}");
    assert!(refusal(FileAnchor::create(&path.join("anchor"))).contains("can't be created"));
}

#[test]
fn what_is_not_an_anchor_is_refused_with_a_reason() {
    let (directory, path, anchor) = advanced(2);
    drop(anchor);
    let other = directory.path().join("other");
    assert!(refusal(FileAnchor::open(&other)).contains("there is no anchor here"));
    assert!(refusal(FileAnchor::open(directory.path())).contains("is a directory"));
    assert!(refusal(FileAnchor::open(Path::new("/dev/null"))).contains("not a regular file"));
    for foreign in [&b""[..], b"a text", &[0; 8192], &[0xff; 9000]] {
        fs::write(&other, foreign).unwrap();
        assert!(refusal(FileAnchor::open(&other)).contains("not an anchor"), "{} bytes", foreign.len());
    }
    let whole = fs::read(&path).unwrap();
    fs::write(&other, [&whole[..], b"\0"].concat()).unwrap();
    assert!(refusal(FileAnchor::open(&other)).contains("an anchor has 8192 bytes"));
    fs::write(&other, &whole[..6000]).unwrap();
    assert!(refusal(FileAnchor::open(&other)).contains("an anchor has 8192 bytes, not 6000"));
}

#[test]
fn a_newer_stamp_is_not_mistaken_for_a_torn_one() {
    let (_directory, path, anchor) = advanced(2);
    drop(anchor);
    let mut file = fs::read(&path).unwrap();
    let newest = if file[8] > file[SLOT_SIZE + 8] { 0 } else { SLOT_SIZE };
    file[newest + 24 + 8] = 2;
    let checksum = crc32fast::hash(&file[newest..newest + 508]);
    file[newest + 508..newest + 512].copy_from_slice(&checksum.to_le_bytes());
    fs::write(&path, &file).unwrap();
    assert!(refusal(FileAnchor::open(&path)).contains("version 2"));
}

#[test]
fn a_write_cut_short_anywhere_leaves_the_old_or_the_new_stamp() {
    let (_directory, path, anchor) = advanced(3);
    let old = fs::read(&path).unwrap();
    move_to(&anchor, Some(&sample(3)), &sample(4)).unwrap();
    drop(anchor);
    let new = fs::read(&path).unwrap();
    let slot = if old[..SLOT_SIZE] == new[..SLOT_SIZE] { SLOT_SIZE } else { 0 };
    assert_eq!(
        old[SLOT_SIZE - slot..][..SLOT_SIZE],
        new[SLOT_SIZE - slot..][..SLOT_SIZE],
        "one slot per move"
    );

    // Within the first sector byte by byte, then at each sector; from the front and from the back.
    for cut in (0..512).chain((512..=SLOT_SIZE).step_by(512)) {
        for (head, tail) in [(&new, &old), (&old, &new)] {
            let mut torn = old.clone();
            torn[slot..slot + cut].copy_from_slice(&head[slot..slot + cut]);
            torn[slot + cut..slot + SLOT_SIZE].copy_from_slice(&tail[slot + cut..slot + SLOT_SIZE]);
            let whole_new = torn[slot..slot + 512] == new[slot..slot + 512];
            fs::write(&path, &torn).unwrap();
            let anchor = FileAnchor::open(&path).unwrap();
            let held = sample(if whole_new { 4 } else { 3 });
            assert_eq!(read(&anchor), Ok(Some(held.clone())), "cut at {cut}");
            assert_eq!(move_to(&anchor, Some(&held), &sample(9)), Ok(()), "cut at {cut}");
            assert_eq!(read(&anchor), Ok(Some(sample(9))), "cut at {cut}");
        }
    }
}

#[test]
fn a_slot_of_garbage_costs_nothing_and_two_cost_the_anchor() {
    let (_directory, path, anchor) = advanced(3);
    drop(anchor);
    let good = fs::read(&path).unwrap();
    let older = if good[8] > good[SLOT_SIZE + 8] { SLOT_SIZE } else { 0 };
    for garbage in [0, 0xff, 0x5a] {
        let mut file = good.clone();
        file[older..older + SLOT_SIZE].fill(garbage);
        fs::write(&path, &file).unwrap();
        assert_eq!(read(&FileAnchor::open(&path).unwrap()), Ok(Some(sample(3))));
    }
    let mut file = good.clone();
    file[200] ^= 1;
    file[SLOT_SIZE + 200] ^= 1;
    fs::write(&path, &file).unwrap();
    assert!(refusal(FileAnchor::open(&path)).contains("both of its slots are damaged"));
}

#[test]
fn a_file_that_was_removed_or_replaced_is_noticed() {
    let (directory, path, anchor) = advanced(2);
    let aside = directory.path().join("aside");
    fs::rename(&path, &aside).unwrap();
    assert!(refusal(read(&anchor)).contains("was removed"));
    FileAnchor::create(&path).unwrap();
    assert!(refusal(move_to(&anchor, Some(&sample(2)), &sample(3))).contains("was replaced"));
    fs::remove_file(&path).unwrap();
    fs::rename(&aside, &path).unwrap();
    assert_eq!(read(&anchor), Ok(Some(sample(2))));
    fs::remove_file(&path).unwrap();
    assert!(refusal(read(&anchor)).contains("was removed"));
}

/// Lets writes fail by taking the right to write from the open file.
fn set_writable(anchor: &mut FileAnchor, writable: bool) {
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).write(writable).open(&anchor.path).unwrap();
    anchor.inner.get_mut().unwrap().file = file;
}

#[test]
fn after_a_failed_write_the_answer_is_made_durable_before_it_is_given() {
    for landed in [false, true] {
        let (_directory, path, mut anchor) = advanced(3);
        let other = FileAnchor::open(&path).unwrap();
        set_writable(&mut anchor, false);
        assert!(matches!(move_to(&anchor, Some(&sample(3)), &sample(4)), Err(Error::Io(_))));
        assert!(matches!(read(&anchor), Err(Error::Io(_))), "it must not answer while it can't write");
        if landed {
            // As if the write had reached the page cache before it failed.
            move_to(&other, Some(&sample(3)), &sample(4)).unwrap();
        }
        set_writable(&mut anchor, true);
        let held = sample(if landed { 4 } else { 3 });
        assert_eq!(read(&anchor), Ok(Some(held.clone())));
        let file = fs::read(&path).unwrap();
        let slots = [0, SLOT_SIZE]
            .map(|at| Record::decode(file[at..at + SLOT_SIZE].try_into().unwrap(), at / SLOT_SIZE));
        let in_doubt = slots.iter().flatten().find(|record| record.sequence == 5).expect("written again");
        assert_eq!(in_doubt.stamp, Some(held.clone()));
        let untouched = slots.iter().flatten().find(|record| record.sequence == 4).expect("not touched");
        assert_eq!(untouched.stamp, Some(sample(3)));
        assert_eq!(move_to(&anchor, Some(&held), &sample(8)), Ok(()));
        assert_eq!(read(&other), Ok(Some(sample(8))));
    }
}

/// Everybody tries to make the same move; `session` says whose it was.
fn race(path: &Path, me: u8, rounds: u64) -> u64 {
    let anchor = FileAnchor::open(path).unwrap();
    let mut wins = 0;
    loop {
        let held = read(&anchor).unwrap();
        let generation = held.as_ref().map_or(0, |stamp| stamp.generation);
        if generation == rounds {
            return wins;
        }
        let new = Stamp { session: [me; 16], ..sample(generation + 1) };
        match move_to(&anchor, held.as_ref(), &new) {
            Ok(()) => wins += 1,
            Err(Error::Conflict(Some(now))) => assert!(now.generation > generation),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn one_of_many_threads_wins_each_round() {
    const ROUNDS: u64 = 200;
    let (_directory, path, shared) = fresh();
    let barrier = Barrier::new(4);
    let wins: u64 = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..4)
            .map(|me| {
                let (path, barrier) = (&path, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    race(path, me, ROUNDS)
                })
            })
            .collect();
        racers.into_iter().map(|racer| racer.join().unwrap()).sum()
    });
    assert_eq!(wins, ROUNDS);
    assert_eq!(read(&shared).unwrap().unwrap().generation, ROUNDS);
}

#[test]
#[ignore = "not a test of its own: the processes of the next test run it"]
fn racing_process() {
    let path = std::env::var("CVMIO_TEST_ANCHOR").expect("run by another test");
    let me = std::process::id().to_le_bytes()[0];
    println!("wins={}", race(Path::new(&path), me, 200));
}

#[test]
fn one_of_many_processes_wins_each_round() {
    let (_directory, path, anchor) = fresh();
    let children: Vec<_> = (0..3)
        .map(|_| {
            std::process::Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "file::tests::racing_process",
                    "--ignored",
                    "--nocapture",
                    "--test-threads=1",
                ])
                .env("CVMIO_TEST_ANCHOR", &path)
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut wins = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let count = text.split("wins=").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
        wins += count.parse::<u64>().unwrap();
    }
    assert_eq!(wins, 200);
    assert_eq!(read(&anchor).unwrap().unwrap().generation, 200);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever bytes stand in the file: an answer or a refusal, and never a stamp that was not there.
    #[test]
    fn any_file_is_answered_without_panic(
        changes in prop::collection::vec((0..2 * SLOT_SIZE, any::<u8>()), 0..6),
        length in prop_oneof![4 => Just(2 * SLOT_SIZE), 1 => 0..3 * SLOT_SIZE],
    ) {
        let (_directory, path, anchor) = advanced(2);
        drop(anchor);
        let mut file = fs::read(&path).unwrap();
        for (offset, byte) in changes {
            file[offset] = byte;
        }
        file.resize(length, 0);
        fs::write(&path, &file).unwrap();
        if let Ok(anchor) = FileAnchor::open(&path) {
            let held = read(&anchor).unwrap();
            prop_assert!(held == Some(sample(1)) || held == Some(sample(2)));
        }
    }
}

#[test]
fn one_that_is_opened_for_reading_says_what_it_holds_and_never_moves() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("anchor");
    let writer = FileAnchor::create(&path).unwrap();
    block_on(writer.advance(None, &sample(1))).unwrap();
    let reader = FileAnchor::open_read_only(&path).unwrap();
    assert_eq!(block_on(reader.read()), Ok(Some(sample(1))));
    let before = std::fs::read(&path).unwrap();
    assert!(block_on(reader.advance(Some(&sample(1)), &sample(2))).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), before);
    // It sees what others do.
    block_on(writer.advance(Some(&sample(1)), &sample(2))).unwrap();
    assert_eq!(block_on(FileAnchor::open_read_only(&path).unwrap().read()), Ok(Some(sample(2))));
    assert!(matches!(FileAnchor::open_read_only(&directory.path().join("none")), Err(Error::Unusable(_))));
}

/// An anchor whose file another process, or as good as one, has locked.
fn locked_by_another(path: &Path) -> File {
    let other = File::open(path).unwrap();
    other.lock().unwrap();
    other
}

fn held(result: Result<Option<Stamp>, Error>) {
    match result {
        Err(Error::Io(why)) => {
            assert!(why.contains("it has been away for") && why.contains("has it locked"), "{why}")
        }
        other => panic!("expected Io, got {other:?}"),
    }
}

#[test]
fn a_lock_that_somebody_keeps_is_waited_for_no_longer_than_was_said() {
    let (_directory, path, _anchor) = advanced(1);
    let address = Address::file(&path).to_string();
    let (none, patience) = (crate::Options::default(), Some(Duration::from_millis(200)));
    let anchor = FileAnchor::open_for(&path, Access::ReadWrite, patience).unwrap();
    let other = locked_by_another(&path);
    let begun = std::time::Instant::now();
    let opened = |anchor: Result<std::sync::Arc<dyn Anchor>, Error>| held(anchor.map(|_| None));
    opened(crate::open_address(&address, &none, patience));
    opened(crate::open_address_read_only(&address, &none, patience));
    opened(crate::create_address(&address, &none, patience).map(|created| created.anchor));
    held(move_to(&anchor, Some(&sample(1)), &sample(2)).map(|()| None));
    // The next call does not wait again.
    let before = std::time::Instant::now();
    held(read(&anchor));
    assert!(before.elapsed() < Duration::from_millis(150) && begun.elapsed() < Duration::from_secs(8));
    let away = anchor.health().away.expect("it is away");
    assert!(away.attempts >= 2 && away.error.contains("has it locked"), "{away:?}");
    other.unlock().unwrap();
    assert_eq!(read(&anchor), Ok(Some(sample(1))));
    assert_eq!(anchor.health().away, None);
}

#[test]
fn without_a_bound_a_session_waits_for_the_lock_and_says_so() {
    let (_directory, path, anchor) = advanced(1);
    let other = locked_by_another(&path);
    std::thread::scope(|scope| {
        let moved = scope.spawn(|| move_to(&anchor, Some(&sample(1)), &sample(2)));
        let begun = std::time::Instant::now();
        while anchor.health().away.is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody says that it is away");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!moved.is_finished());
        other.unlock().unwrap();
        assert_eq!(moved.join().unwrap(), Ok(()));
    });
    assert_eq!((read(&anchor), anchor.health().away), (Ok(Some(sample(2))), None));
}
