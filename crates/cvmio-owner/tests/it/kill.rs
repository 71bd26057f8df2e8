//! The service, killed under load: nothing that it acknowledged is lost, and its log stays whole.

use crate::room::{Room, stamp};
use anchor::Stamp;
use anchor_owner::{Client, Error};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ROUNDS: u32 = 30;
const CLIENTS: u8 = 4;

/// Moves a stamp on and on. After each lost answer it looks which of the two is held: the acknowledged one, or the one on its way.
fn work(mut client: Client, session: u8, stop: &AtomicBool, moves: &AtomicU64) -> Option<Stamp> {
    let mut acknowledged: Option<Stamp> = None;
    let mut generation = 0;
    while !stop.load(Ordering::Relaxed) {
        generation += 1;
        let new = stamp(session, generation);
        match client.compare_and_swap(acknowledged.as_ref(), &new) {
            Ok(()) => {
                acknowledged = Some(new);
                moves.fetch_add(1, Ordering::Relaxed);
            }
            Err(Error::Conflict(held)) => {
                panic!("client {session}: held {held:?}, expected {acknowledged:?}")
            }
            Err(error) => {
                let held = settled(&mut client, &error);
                assert!(
                    held == acknowledged || held.as_ref() == Some(&new),
                    "client {session}: {held:?} is held; {acknowledged:?} was acknowledged, {new:?} on its way ({error})"
                );
                acknowledged = held;
            }
        }
    }
    acknowledged
}

/// What is held, once the service is back.
fn settled(client: &mut Client, first: &Error) -> Option<Stamp> {
    let begun = Instant::now();
    loop {
        match client.ask_stamp() {
            Ok(held) => return held.map(|stamp| *stamp),
            Err(Error::Unreachable(..) | Error::Lost(..) | Error::Unavailable(..)) => {}
            Err(error) => panic!("after {first}: {error}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "the service does not come back after {first}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn killed_under_load(mut room: Room) {
    room.start();
    let names: Vec<String> = (0..CLIENTS).map(|number| format!("v{number}")).collect();
    names.iter().for_each(|name| room.volume(name, &["guest"]));
    let (stop, moves) = (AtomicBool::new(false), AtomicU64::new(0));
    let held: Vec<Option<Stamp>> = std::thread::scope(|scope| {
        let workers: Vec<_> = names
            .iter()
            .zip(0..)
            .map(|(name, number)| {
                let client = room.client(name, "guest");
                let (stop, moves) = (&stop, &moves);
                scope.spawn(move || work(client, number, stop, moves))
            })
            .collect();
        for round in 0..ROUNDS {
            let before = moves.load(Ordering::Relaxed);
            // Killed in the middle of work, at ever other moments: not before something was acknowledged in this round.
            while moves.load(Ordering::Relaxed) == before
                && !workers.iter().any(|worker| worker.is_finished())
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(u64::from(round * 7 % 40)));
            room.kill();
            if round % 10 == 9 {
                room.done("audit verify", &[]);
            }
            room.start();
        }
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    room.kill();
    room.done("audit verify", &[]);
    room.start();
    for (name, held) in names.iter().zip(&held) {
        assert_eq!(room.client(name, "guest").ask_stamp().unwrap().as_deref(), held.as_ref(), "{name}");
    }
    assert!(moves.load(Ordering::Relaxed) >= u64::from(ROUNDS));
    let log = room.done("audit show", &[]);
    assert!(log.lines().filter(|line| line.ends_with(" started")).count() > 30, "{log}");
}

#[test]
fn nothing_acknowledged_is_lost() {
    killed_under_load(Room::new());
}

/// With an anchor of the service's own there is one more moment at which it can die: between its database and its anchor.
#[test]
fn nothing_acknowledged_is_lost_with_an_anchor_of_its_own() {
    killed_under_load(Room::anchored());
}
