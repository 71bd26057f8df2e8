use super::*;
use crate::log::Move;
use crate::testing::{CLIENT, name, stamp};

/// A database with a volume that was moved `moves` times.
fn filled(path: &Path, moves: u64) -> Database {
    let mut database = Database::create(path).unwrap();
    let mut change = database.begin().unwrap();
    change.push(1, Event::Made { database: [0xd1; 16], anchored: false }).unwrap();
    change.push(2, Event::Added(name())).unwrap();
    change.push(3, Event::Allowed(name(), CLIENT)).unwrap();
    change.commit().unwrap();
    for generation in 0..moves {
        let mut change = database.begin().unwrap();
        let kind = if generation == 0 { Move::Claim } else { Move::Advance };
        change.push(4, Event::Moved(kind, name(), CLIENT, Box::new(stamp(generation)))).unwrap();
        change.commit().unwrap();
    }
    database
}

fn fault(database: &Database) -> Fault {
    match database.check() {
        Err(Error::Fault(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_was_committed_is_there_after_opening_and_checks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let head = filled(&path, 5).head().unwrap();
    let (database, checked) = Database::open(&path).unwrap();
    assert_eq!(database.check().unwrap(), checked);
    assert_eq!((checked.first, checked.head), (1, head));
    assert_eq!(head.number, 8);
    assert_eq!(checked.state.volumes[&name()].stamp, Some(Box::new(stamp(4))));
    assert!(matches!(Database::open(&path), Err(Error::InUse(_))));
    assert!(matches!(Database::create(&path), Err(Error::Usage(_))));
    assert!(matches!(Database::open(&directory.path().join("none")), Err(Error::Usage(_))));
}

#[test]
fn a_change_that_is_not_committed_is_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let mut database = filled(&directory.path().join("db"), 2);
    let before = database.check().unwrap();
    let mut change = database.begin().unwrap();
    change.push(9, Event::Moved(Move::Advance, name(), CLIENT, Box::new(stamp(7)))).unwrap();
    assert_eq!(change.volume(&name()).unwrap().unwrap().stamp, Some(Box::new(stamp(7))));
    drop(change);
    assert_eq!(database.check().unwrap(), before);
}

#[test]
fn an_event_that_can_not_follow_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut database = filled(&directory.path().join("db"), 1);
    let mut change = database.begin().unwrap();
    for event in [
        Event::Added(name()),
        Event::Retired("other".parse().unwrap()),
        Event::Moved(Move::Advance, name(), [9; 32], Box::new(stamp(1))),
    ] {
        assert!(matches!(change.push(9, event), Err(Error::Usage(_))));
    }
    assert_eq!(change.finish().unwrap(), None);
}

/// Writes into a table, past the rules.
fn tamper(database: &Database, work: impl FnOnce(&WriteTransaction)) {
    let transaction = database.write().unwrap();
    work(&transaction);
    transaction.commit().unwrap();
}

#[test]
fn what_somebody_did_to_the_file_is_found_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let fresh = |what: &str| filled(&directory.path().join(what), 5);

    let database = fresh("cut");
    tamper(&database, |transaction| {
        transaction.open_table(LOG).unwrap().retain_in(7.., |_, _| false).unwrap();
    });
    assert_eq!(fault(&database), Fault::Cut { expected: 8, found: 6 });

    let database = fresh("changed");
    tamper(&database, |transaction| {
        let mut log = transaction.open_table(LOG).unwrap();
        let mut bytes = log.get(5).unwrap().unwrap().value().to_vec();
        bytes[140] ^= 1;
        log.insert(5, bytes.as_slice()).unwrap();
    });
    assert!(matches!(fault(&database), Fault::Changed(5, _)));

    let database = fresh("swapped");
    tamper(&database, |transaction| {
        let mut log = transaction.open_table(LOG).unwrap();
        let (one, two) =
            (log.get(5).unwrap().unwrap().value().to_vec(), log.get(6).unwrap().unwrap().value().to_vec());
        log.insert(5, two.as_slice()).unwrap();
        log.insert(6, one.as_slice()).unwrap();
    });
    assert_eq!(fault(&database), Fault::Misplaced { expected: 5, found: 6 });

    let database = fresh("row");
    tamper(&database, |transaction| {
        let volume = Volume { stamp: Some(Box::new(stamp(1))), clients: [CLIENT].into(), retired: false };
        transaction.open_table(VOLUMES).unwrap().insert("ledger", row::encode(&volume).as_slice()).unwrap();
    });
    assert!(matches!(fault(&database), Fault::Table(_)));

    let database = fresh("gone");
    tamper(&database, |transaction| {
        transaction.open_table(VOLUMES).unwrap().remove("ledger").unwrap();
    });
    assert!(matches!(fault(&database), Fault::Table(_)));
}

#[test]
fn cutting_back_gives_what_was_held_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let middle = filled(&path, 3).head().unwrap();
    let (mut database, _) = Database::open(&path).unwrap();
    let mut change = database.begin().unwrap();
    change.push(5, Event::Moved(Move::Advance, name(), CLIENT, Box::new(stamp(9)))).unwrap();
    change.push(5, Event::Retired(name())).unwrap();
    let end = change.commit().unwrap();

    let other = Head { hash: [1; 32], ..middle };
    assert!(matches!(database.cut(other), Err(Error::Fault(Fault::Other(6)))));
    assert_eq!(database.check().unwrap().head, end);

    database.cut(middle).unwrap();
    let checked = database.check().unwrap();
    assert_eq!(checked.head, middle);
    assert_eq!(checked.state.volumes[&name()].stamp, Some(Box::new(stamp(2))));
    assert!(!checked.state.volumes[&name()].retired);
}
