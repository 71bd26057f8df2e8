//! Compare-and-swap by many clients at once.

use crate::room::{Room, stamp};
use anchor_owner::Error;
use std::sync::Barrier;

const RIVALS: u8 = 16;

/// What a rival saw of a round: whether it won, and else what was held.
type Round = Result<(), Option<Box<anchor::Stamp>>>;

#[test]
fn of_many_rivals_exactly_one_wins_each_round() {
    const ROUNDS: u64 = 12;
    let mut room = Room::new();
    room.start();
    let names: Vec<String> = (0..RIVALS).map(|rival| format!("client-{rival}")).collect();
    room.volume("one", &names.iter().map(String::as_str).collect::<Vec<_>>());
    let start = Barrier::new(usize::from(RIVALS));
    let rounds: Vec<Vec<Round>> = std::thread::scope(|scope| {
        let rivals: Vec<_> = (0..RIVALS)
            .map(|rival| {
                let mut client = room.client("one", &names[usize::from(rival)]);
                let start = &start;
                scope.spawn(move || {
                    (1..=ROUNDS)
                        .map(|round| {
                            let held = client.ask_stamp().unwrap();
                            start.wait();
                            let done = client.compare_and_swap(held.as_deref(), &stamp(rival, round));
                            start.wait();
                            done.map_err(|error| match error {
                                Error::Conflict(held) => held,
                                other => panic!("{other}"),
                            })
                        })
                        .collect()
                })
            })
            .collect();
        rivals.into_iter().map(|rival| rival.join().unwrap()).collect()
    });
    for round in 0..ROUNDS {
        let index = usize::try_from(round).unwrap();
        let winners: Vec<u8> =
            (0..RIVALS).filter(|rival| rounds[usize::from(*rival)][index].is_ok()).collect();
        assert_eq!(winners.len(), 1, "round {round}: {winners:?} won");
        let held = Some(Box::new(stamp(winners[0], round + 1)));
        for (rival, seen) in rounds.iter().enumerate() {
            if let Err(seen) = &seen[index] {
                assert_eq!(*seen, held, "rival {rival} in round {round} was told of another winner");
            }
        }
    }
    let log = room.done("audit show", &[]);
    let won =
        log.lines().filter(|line| line.contains(" claimed one ") || line.contains(" moved one ")).count();
    assert_eq!(won, usize::try_from(ROUNDS).unwrap());
    assert!(log.contains(" conflict one "), "{log}");
    assert!(room.done("audit verify", &[]).contains("1 volume(s)"));
}

#[test]
fn many_volumes_move_at_once() {
    const MOVES: u64 = 40;
    let mut room = Room::new();
    room.start();
    let names: Vec<String> = (0..RIVALS).map(|number| format!("v{number}")).collect();
    for name in &names {
        room.volume(name, &["guest"]);
    }
    std::thread::scope(|scope| {
        for (name, number) in names.iter().zip(0..) {
            let mut client = room.client(name, "guest");
            scope.spawn(move || {
                let mut held = None;
                for generation in 0..MOVES {
                    let new = stamp(number, generation);
                    client.compare_and_swap(held.as_ref(), &new).unwrap();
                    held = Some(new);
                }
                assert_eq!(client.ask_stamp().unwrap().as_deref(), held.as_ref());
            });
        }
    });
    assert_eq!(room.stop().0, 0);
    // The same after a clean end, from the database itself.
    let list = room.done("list", &[]);
    let moved =
        list.lines().filter(|line| line.contains(&format!("claimed, generation {}", MOVES - 1))).count();
    assert_eq!(moved, names.len(), "{list}");
    assert!(room.done("audit verify", &[]).contains("16 volume(s)"));
}
