//! A simulated index and file, cut at each step.

use super::*;
use crate::attempt::tests::stamp;
use crate::attempt::{UNWRITTEN, extended};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

/// Where a run is cut: at the N-th effect. Half of them have happened by then, half have not.
#[derive(Clone, Default)]
struct Cut {
    effects: Rc<Cell<u32>>,
    at: Rc<Cell<Option<(u32, Half)>>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Half {
    Before,
    Torn,
    After,
}

impl Cut {
    /// Whether this effect is cut, and how.
    fn now(&self) -> Option<Half> {
        self.effects.set(self.effects.get() + 1);
        self.at.get().filter(|(at, _)| *at == self.effects.get()).map(|(_, half)| half)
    }
}

fn lost() -> Error {
    Error::Lost { doing: "being cut", source: io::Error::other("power") }
}

#[derive(Clone)]
struct FakeChip {
    value: Rc<Cell<Value>>,
    extends: Rc<Cell<u64>>,
    cut: Cut,
}

impl Chip for FakeChip {
    fn value(&mut self) -> Result<Value, Error> {
        match self.cut.now() {
            None => Ok(self.value.get()),
            Some(_) => Err(lost()),
        }
    }

    fn extend(&mut self, digest: &[u8; 32]) -> Result<(), Error> {
        let cut = self.cut.now();
        if cut != Some(Half::Before) {
            self.value.set(extended(&self.value.get(), digest));
            self.extends.set(self.extends.get() + 1);
        }
        if cut.is_some() { Err(lost()) } else { Ok(()) }
    }
}

/// Two slots, of which the one that is written may be torn.
#[derive(Clone)]
struct FakeLog {
    slots: Rc<RefCell<[Vec<Attempt>; 2]>>,
    newest: Rc<Cell<usize>>,
    cut: Cut,
}

impl Log for FakeLog {
    fn load(&mut self) -> Result<Vec<Attempt>, Error> {
        Ok(self.slots.borrow().concat())
    }

    fn store(&mut self, attempts: &[Attempt]) -> Result<(), Error> {
        assert!(attempts.len() <= MAX_ATTEMPTS);
        let cut = self.cut.now();
        let other = 1 - self.newest.get();
        match cut {
            Some(Half::Before) => {}
            // Nothing of a torn slot is read; the next write goes there again.
            Some(Half::Torn) => self.slots.borrow_mut()[other].clear(),
            Some(Half::After) | None => {
                self.slots.borrow_mut()[other] = attempts.to_vec();
                self.newest.set(other);
            }
        }
        if cut.is_some() { Err(lost()) } else { Ok(()) }
    }

    fn unknown(&self) -> Error {
        Error::Usage("unknown".into())
    }
}

/// Numbers in their order.
struct SeededRandom(std::sync::atomic::AtomicU64);

impl Random for SeededRandom {
    fn fill(&self, bytes: &mut [u8]) {
        let number = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        bytes.fill(0);
        bytes[..8].copy_from_slice(&number.to_le_bytes());
    }
}

fn fresh() -> (FakeChip, FakeLog, SeededRandom) {
    let first = Attempt { base: UNWRITTEN, random: [0xff; 16], number: 1, stamp: None };
    let cut = Cut::default();
    let chip = FakeChip {
        value: Rc::new(Cell::new(first.value())),
        extends: Rc::new(Cell::new(1)),
        cut: cut.clone(),
    };
    let slots = Rc::new(RefCell::new([vec![first.clone()], vec![first]]));
    (chip, FakeLog { slots, newest: Rc::new(Cell::new(1)), cut }, SeededRandom(0.into()))
}

fn held(standing: &Standing) -> Option<Stamp> {
    standing.winner.stamp.clone()
}

#[test]
fn it_moves_only_from_what_is_expected_and_counts_what_the_chip_has_done() {
    let (mut chip, mut log, random) = fresh();
    assert_eq!(held(&read(&mut chip, &mut log, &random).unwrap()), None);
    for generation in 1..=200 {
        let before = (generation > 1).then(|| stamp(generation - 1));
        advance(&mut chip, &mut log, &random, before.as_ref(), &stamp(generation)).unwrap();
        let standing = read(&mut chip, &mut log, &random).unwrap();
        assert_eq!(held(&standing), Some(stamp(generation)));
        assert_eq!((standing.extends(), chip.extends.get()), (generation + 1, generation + 1));
        assert!(log.slots.borrow().iter().all(|slot| slot.len() <= 2), "the file does not grow");
    }
    for expected in [None, Some(stamp(7))] {
        match advance(&mut chip, &mut log, &random, expected.as_ref(), &stamp(300)) {
            Err(Error::Conflict(Some(now))) => assert_eq!(*now, stamp(200)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(chip.extends.get(), 201, "a conflict costs no write");
}

/// Each effect of a move is cut in each way; then the machine comes back, again and again, cut at the same place.
#[test]
fn a_cut_at_any_step_leaves_the_old_state_or_the_new_one_and_strands_nobody() {
    for half in [Half::Before, Half::Torn, Half::After] {
        for at in 1..=5 {
            let (mut chip, mut log, random) = fresh();
            advance(&mut chip, &mut log, &random, None, &stamp(1)).unwrap();
            let mut now = stamp(1);
            for round in 2..60 {
                let new = stamp(round);
                chip.cut.effects.set(0);
                chip.cut.at.set(Some((at, half)));
                let moved = advance(&mut chip, &mut log, &random, Some(&now), &new);
                chip.cut.at.set(None);
                let found = read(&mut chip, &mut log, &random)
                    .unwrap_or_else(|error| panic!("{half:?} {at}, round {round}: {error}"));
                let found = held(&found).unwrap();
                assert!(found == now || found == new, "{half:?} {at}");
                assert!(moved.is_err() || found == new, "{half:?} {at}");
                // What was read does not change by itself.
                assert_eq!(held(&read(&mut chip, &mut log, &random).unwrap()), Some(found.clone()));
                now = found;
            }
            advance(&mut chip, &mut log, &random, Some(&now), &stamp(99)).unwrap();
        }
    }
}

/// The settling after a cut is itself cut, at each of its effects.
#[test]
fn a_cut_while_settling_is_settled_by_the_next() {
    for at in 1..=4 {
        for half in [Half::Before, Half::Torn, Half::After] {
            let (mut chip, mut log, random) = fresh();
            prepare(&mut chip, &mut log, &random, None, &stamp(1)).unwrap();
            chip.cut.effects.set(0);
            chip.cut.at.set(Some((at, half)));
            let _ = read(&mut chip, &mut log, &random);
            chip.cut.at.set(None);
            let standing = read(&mut chip, &mut log, &random).unwrap();
            assert_eq!((held(&standing), standing.is_open()), (None, false), "{half:?} {at}");
            advance(&mut chip, &mut log, &random, None, &stamp(2)).unwrap();
        }
    }
}

/// The file is shared and the lock is not: each of two writes its attempt before either extends.
#[test]
fn of_two_that_move_at_once_one_wins_and_the_other_is_told_what_is_held() {
    for first_wins in [true, false] {
        let (mut chip, mut log, random) = fresh();
        let first = prepare(&mut chip, &mut log, &random, None, &stamp(1)).unwrap();
        let second = prepare(&mut chip, &mut log, &random, None, &stamp(2)).unwrap();
        let (winner, loser) = if first_wins { (first, second) } else { (second, first) };
        finish(&mut chip, &mut log, &winner).unwrap();
        match finish(&mut chip, &mut log, &loser) {
            Err(Error::Conflict(Some(held))) => assert_eq!(Some(*held), winner.stamp),
            other => panic!("{other:?}"),
        }
        let standing = read(&mut chip, &mut log, &random).unwrap();
        assert_eq!((&standing.winner, &standing.losers[..]), (&winner, &[loser][..]));
        advance(&mut chip, &mut log, &random, winner.stamp.as_ref(), &stamp(3)).unwrap();
        assert_eq!(held(&read(&mut chip, &mut log, &random).unwrap()), Some(stamp(3)));
    }
}

/// The host keeps the command of a move whose caller was told nothing, and delivers it many moves later.
#[test]
fn a_move_that_arrives_late_undoes_nothing() {
    for moves in [1, 2, 20] {
        let (mut chip, mut log, random) = fresh();
        let late = prepare(&mut chip, &mut log, &random, None, &stamp(1)).unwrap();
        // A reader is told the old state now, and that stays so.
        assert_eq!(held(&read(&mut chip, &mut log, &random).unwrap()), None);
        let mut now = None;
        for generation in 10..10 + moves {
            advance(&mut chip, &mut log, &random, now.as_ref(), &stamp(generation)).unwrap();
            now = Some(stamp(generation));
        }
        chip.extend(&late.digest()).unwrap();
        assert_eq!(held(&read(&mut chip, &mut log, &random).unwrap()), now, "{moves} moves");
        advance(&mut chip, &mut log, &random, now.as_ref(), &stamp(99)).unwrap();
        assert_eq!(held(&read(&mut chip, &mut log, &random).unwrap()), Some(stamp(99)));
    }
}

#[test]
fn a_file_that_was_put_back_leads_nowhere() {
    let (mut chip, mut log, random) = fresh();
    advance(&mut chip, &mut log, &random, None, &stamp(1)).unwrap();
    let copy = log.slots.borrow().clone();
    advance(&mut chip, &mut log, &random, Some(&stamp(1)), &stamp(2)).unwrap();
    *log.slots.borrow_mut() = copy;
    assert!(matches!(read(&mut chip, &mut log, &random), Err(Error::Usage(_))));
    assert!(matches!(
        advance(&mut chip, &mut log, &random, Some(&stamp(1)), &stamp(3)),
        Err(Error::Usage(_))
    ));
    assert_eq!(chip.extends.get(), 3, "nothing is written where the state is not known");
}
