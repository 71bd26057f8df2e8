use super::*;
use crate::testing::{CLIENT, name, stamp};
use anchor::FileAnchor;
use anchor_owner::wire::NONCE_SIZE;
use std::sync::mpsc::sync_channel;

fn open(directory: &Path) -> Keeper {
    Keeper::open(directory, None, Arc::new(|_| {})).unwrap()
}

/// A keeper with one volume.
fn keeper(directory: &Path) -> Keeper {
    crate::make(directory, None).unwrap();
    let mut keeper = open(directory);
    let clients = vec![hex::encode(CLIENT)];
    assert_eq!(keeper.administer(Command::Add { name: "ledger".into(), clients }).unwrap(), Ok(Reply::Done));
    keeper
}

fn ask(keeper: &mut Keeper, connection: u64, question: Question) -> Outcome {
    let request = Request { nonce: [0; NONCE_SIZE], name: name(), question };
    let (sender, receiver) = sync_channel(1);
    keeper.work([Job::Ask(Origin { client: CLIENT, connection }, request, sender)].into_iter()).unwrap();
    receiver.recv().unwrap().0
}

fn advance(keeper: &mut Keeper, connection: u64, from: Option<u64>, to: u64) -> Outcome {
    let expected = from.map(|generation| Box::new(stamp(generation)));
    ask(keeper, connection, Question::Move { expected, new: Box::new(stamp(to)) })
}

/// The network keeps a move back, the client gives up and looks on a new connection, and then the move arrives.
#[test]
fn what_a_settling_read_told_stays_true() {
    let directory = tempfile::tempdir().unwrap();
    let mut keeper = keeper(directory.path());
    assert_eq!(advance(&mut keeper, 1, None, 1), Outcome::Moved);
    // A plain read settles nothing: other programs of the same client read at any time.
    assert!(matches!(ask(&mut keeper, 2, Question::Read { settle: false }), Outcome::Held(_)));
    assert_eq!(advance(&mut keeper, 1, Some(1), 2), Outcome::Moved);

    let held = Outcome::Held(Some(Box::new(stamp(2))));
    assert_eq!(ask(&mut keeper, 3, Question::Read { settle: true }), held);
    let late = advance(&mut keeper, 1, Some(2), 3);
    assert!(matches!(late, Outcome::Refused(Refusal::Superseded, _)), "{late:?}");
    assert_eq!(ask(&mut keeper, 3, Question::Read { settle: false }), held);
    assert_eq!(advance(&mut keeper, 3, Some(2), 3), Outcome::Moved);
    assert_eq!(advance(&mut keeper, 4, Some(3), 4), Outcome::Moved);
}

/// In one batch, each request sees what those before it did.
#[test]
fn a_batch_is_done_in_order_and_answered_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut keeper = keeper(directory.path());
    let before = keeper.position.lock().unwrap().number;
    let (sender, receiver) = sync_channel(8);
    let request = |from: Option<u64>, to| Request {
        nonce: [0; NONCE_SIZE],
        name: "ledger".parse().unwrap(),
        question: Question::Move { expected: from.map(|one| Box::new(stamp(one))), new: Box::new(stamp(to)) },
    };
    let origin = Origin { client: CLIENT, connection: 1 };
    let jobs = [request(None, 1), request(None, 2), request(Some(1), 3)];
    keeper.work(jobs.into_iter().map(|request| Job::Ask(origin, request, sender.clone()))).unwrap();
    let answers: Vec<_> = (0..3).map(|_| receiver.recv().unwrap()).collect();
    assert_eq!(answers[0].0, Outcome::Moved);
    assert_eq!(answers[1].0, Outcome::Conflict(Some(Box::new(stamp(1)))));
    assert_eq!(answers[2].0, Outcome::Moved);
    assert!(answers.iter().all(|(_, position)| position.number == before + 3), "{answers:?}");
}

#[test]
fn a_long_log_is_archived_behind_a_snapshot_and_stays_one_chain() {
    let directory = tempfile::tempdir().unwrap();
    let mut keeper = keeper(directory.path());
    keeper.snapshot_after = 20;
    assert_eq!(advance(&mut keeper, 1, None, 0), Outcome::Moved);
    for generation in 0..100 {
        assert_eq!(advance(&mut keeper, 1, Some(generation), generation + 1), Outcome::Moved);
    }
    drop(keeper);
    let database = Database::open(&directory.path().join(crate::DATABASE)).unwrap();
    let checked = database.check().unwrap();
    assert!(checked.first > 80 && checked.head.number - checked.first < 30, "{checked:?}");
    assert_eq!(checked.state.volumes[&"ledger".parse().unwrap()].stamp, Some(Box::new(stamp(100))));
    drop(database);

    let mut office = crate::Office::open(directory.path(), || Ok(None), Arc::new(|_| {})).unwrap();
    let verified = office.verify(directory.path(), None).unwrap();
    assert_eq!((verified.first, verified.head), (1, checked.head));
    // An archive that is missing leaves a gap, unless all before it are gone as well.
    let mut files: Vec<_> = std::fs::read_dir(directory.path().join(crate::ARCHIVE)).unwrap().collect();
    files.sort_by_key(|file| file.as_ref().unwrap().path());
    assert!(files.len() > 2, "{files:?}");
    std::fs::remove_file(files[1].as_ref().unwrap().path()).unwrap();
    assert!(matches!(
        office.verify(directory.path(), None),
        Err(Error::Fault(crate::log::Fault::Misplaced { .. }))
    ));
    std::fs::remove_file(files[0].as_ref().unwrap().path()).unwrap();
    assert!(office.verify(directory.path(), None).unwrap().first > 1);
}

/// A crash between archiving and dropping leaves entries in both; the next start goes on from there.
#[test]
fn entries_in_the_archive_and_in_the_database_count_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut keeper = keeper(directory.path());
    assert_eq!(advance(&mut keeper, 1, None, 1), Outcome::Moved);
    crate::archive::write(&keeper.archive, &keeper.database, 1, 3).unwrap();
    drop(keeper);
    let mut office = crate::Office::open(directory.path(), || Ok(None), Arc::new(|_| {})).unwrap();
    let verified = office.verify(directory.path(), None).unwrap();
    assert_eq!((verified.first, verified.head.number), (1, 4));
}

/// The service's own anchor has every answered entry, and is free again after a clean end.
#[test]
fn the_anchor_covers_what_was_answered() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("own");
    let own: Arc<dyn Anchor> = Arc::new(FileAnchor::create(&path).unwrap());
    crate::make(directory.path(), Some(&*own)).unwrap();
    let mut keeper = Keeper::open(directory.path(), Some(Arc::clone(&own)), Arc::new(|_| {})).unwrap();
    let clients = vec![hex::encode(CLIENT)];
    keeper.administer(Command::Add { name: "ledger".into(), clients }).unwrap().unwrap();
    assert_eq!(advance(&mut keeper, 1, None, 1), Outcome::Moved);
    let held = |own: &dyn Anchor| futures::executor::block_on(own.read()).unwrap().unwrap();
    let head = keeper.database.head().unwrap();
    assert_eq!((held(&*own).generation, held(&*own).head), (head.number, head.hash));
    assert_eq!(held(&*own).state, anchor::State::Claimed);
    keeper.end().unwrap();
    let head = keeper.database.head().unwrap();
    assert_eq!((held(&*own).generation, held(&*own).head), (head.number, head.hash));
    assert_eq!(held(&*own).state, anchor::State::Released);
}

/// A rolled-back copy of the database is refused, and takes the anchor from nobody.
#[test]
fn a_copy_that_is_older_than_the_anchor_does_not_fence_the_service_that_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("own");
    let own: Arc<dyn Anchor> = Arc::new(FileAnchor::create(&path).unwrap());
    crate::make(directory.path(), Some(&*own)).unwrap();
    let open = |place: &std::path::Path| Keeper::open(place, Some(Arc::clone(&own)), Arc::new(|_| {}));
    let mut keeper = open(directory.path()).unwrap();
    let clients = vec![hex::encode(CLIENT)];
    keeper.administer(Command::Add { name: "ledger".into(), clients }).unwrap().unwrap();
    keeper.end().unwrap();
    drop(keeper);
    let copy = tempfile::tempdir().unwrap();
    let database = |place: &std::path::Path| place.join(crate::DATABASE);
    std::fs::copy(database(directory.path()), database(copy.path())).unwrap();
    let mut keeper = open(directory.path()).unwrap();
    assert_eq!(advance(&mut keeper, 1, None, 1), Outcome::Moved);
    let held = || futures::executor::block_on(own.read()).unwrap();
    let before = held();
    assert!(matches!(open(copy.path()), Err(Error::RolledBack(_))));
    assert_eq!(held(), before);
    keeper.end().unwrap();
}
