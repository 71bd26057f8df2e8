//! What an index's value stands for: a search through the attempts that a companion file has.
//!
//! The index only ever becomes SHA-256(value, digest of an attempt). So a value proves a whole history, and with the attempts it
//! can be followed. The rule that makes this a compare-and-swap: **an attempt wins if it is extended at the value that it names as its base;
//! extended anywhere else it changes nothing.** Two that were made upon the same base can't both win, whatever their order.
//!
//! To know the state, the last winner is enough, and the losers that were extended after it: the value leads back to it by hashes that
//! cannot be made up, and the winner's own base shows that it has won. All that came before may be forgotten.
//!
//! A winner can't be left out, or passed off as a loser: an attempt's base is in what was hashed.

use crate::attempt::{Attempt, Value, extended};

/// Most losers that are looked for after a winner.
const MAX_LOSERS: usize = 6;
/// Most hashes of a search: below a second. An honest file needs some ten.
const BUDGET: u32 = 1_000_000;

/// Where an index stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The index's value.
    pub value: Value,
    /// The last attempt that has won.
    pub winner: Attempt,
    /// Those that were extended after it, and have lost, in their order.
    pub losers: Vec<Attempt>,
    /// Those of which nothing shows that they were ever extended. They may still be.
    pub open: Vec<Attempt>,
}

impl Standing {
    /// How many times the index was extended.
    #[must_use]
    pub fn extends(&self) -> u64 {
        self.winner.number.saturating_add(self.losers.len() as u64)
    }

    /// Whether an attempt may still be extended and win.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.iter().any(|attempt| attempt.base == self.value)
    }

    /// What a later reader needs, whatever of `open` is extended before: for the file.
    #[must_use]
    pub fn needed(&self) -> Vec<Attempt> {
        [std::slice::from_ref(&self.winner), &self.losers, &self.open].concat()
    }
}

/// Finds out what `value` stands for. `None`: these attempts don't lead to it.
#[must_use]
pub fn follow(value: &Value, attempts: &[Attempt]) -> Option<Standing> {
    let mut known: Vec<Known<'_>> = Vec::new();
    for attempt in attempts {
        if !known.iter().any(|other| other.attempt == attempt) {
            known.push(Known { attempt, digest: attempt.digest() });
        }
    }
    let mut budget = BUDGET;
    for depth in 0..=MAX_LOSERS {
        for (at, winner) in known.iter().enumerate() {
            let mut path = vec![at];
            if reach(&winner.attempt.value(), value, &known, depth, &mut path, &mut budget) {
                return Some(standing(value, &known, &path));
            }
        }
    }
    None
}

struct Known<'a> {
    attempt: &'a Attempt,
    digest: [u8; 32],
}

/// Whether exactly `depth` losers lead from `at` to `to`; then they are in `path`.
fn reach(
    at: &Value,
    to: &Value,
    known: &[Known<'_>],
    depth: usize,
    path: &mut Vec<usize>,
    budget: &mut u32,
) -> bool {
    if depth == 0 {
        return at == to;
    }
    for (next, loser) in known.iter().enumerate() {
        if loser.attempt.base == *at || path.contains(&next) {
            continue;
        }
        let Some(rest) = budget.checked_sub(1) else { return false };
        *budget = rest;
        path.push(next);
        if reach(&extended(at, &loser.digest), to, known, depth - 1, path, budget) {
            return true;
        }
        path.pop();
    }
    false
}

fn standing(value: &Value, known: &[Known<'_>], path: &[usize]) -> Standing {
    let attempt = |at: &usize| known[*at].attempt.clone();
    let winner = attempt(&path[0]);
    // Winners before it, back to the oldest that is here: they have had their time.
    let mut past: Vec<usize> = path.to_vec();
    let mut base = winner.base;
    while let Some(at) = (0..known.len())
        .find(|at| !past.contains(at) && extended(&known[*at].attempt.base, &known[*at].digest) == base)
    {
        base = known[at].attempt.base;
        past.push(at);
    }
    let open = (0..known.len()).filter(|at| !past.contains(at)).map(|at| attempt(&at)).collect();
    Standing { value: *value, winner, losers: path[1..].iter().map(attempt).collect(), open }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::UNWRITTEN;
    use crate::attempt::tests::stamp;

    fn attempt(base: Value, number: u64) -> Attempt {
        let random = [u8::try_from(number).unwrap(); 16];
        Attempt { base, random, number, stamp: (number > 1).then(|| stamp(number)) }
    }

    /// An index that was extended by winners 1 to `last`.
    fn history(last: u64) -> Vec<Attempt> {
        let mut all = vec![attempt(UNWRITTEN, 1)];
        for number in 2..=last {
            all.push(attempt(all[all.len() - 1].value(), number));
        }
        all
    }

    #[test]
    fn the_last_winner_alone_is_enough() {
        let all = history(5);
        let value = all[4].value();
        for from in 0..5 {
            let found = follow(&value, &all[from..]).unwrap();
            assert_eq!((&found.winner, found.extends()), (&all[4], 5));
            assert_eq!((found.losers.len(), found.open.len()), (0, 0));
        }
        assert_eq!(follow(&value, &all[..4]), None, "an older file");
        assert_eq!(follow(&UNWRITTEN, &all), None);
        assert_eq!(follow(&value, &[]), None);
    }

    #[test]
    fn losers_change_nothing_in_whatever_order_they_come() {
        let all = history(3);
        let (base, won) = (all[2].base, all[2].value());
        let late: Vec<Attempt> = (10..13).map(|number| attempt(base, number)).collect();
        let mut file = all.clone();
        file.extend(late.iter().cloned());
        for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
            let mut value = won;
            for (count, at) in order.into_iter().enumerate() {
                value = extended(&value, &late[at].digest());
                let found = follow(&value, &file).unwrap();
                assert_eq!(found.winner, all[2]);
                assert_eq!(found.losers.len(), count + 1);
                assert_eq!(found.extends(), 4 + count as u64);
                assert!(!found.is_open());
            }
        }
    }

    #[test]
    fn of_two_upon_the_same_base_the_first_wins() {
        let all = history(2);
        let base = all[1].value();
        let rivals = [attempt(base, 3), Attempt { random: [77; 16], ..attempt(base, 3) }];
        let file = [&all[..], &rivals].concat();
        assert!(follow(&base, &file).unwrap().is_open());
        for (first, second) in [(0, 1), (1, 0)] {
            let value = extended(&rivals[first].value(), &rivals[second].digest());
            let found = follow(&value, &file).unwrap();
            assert_eq!((&found.winner, &found.losers[..]), (&rivals[first], &rivals[second..=second]));
        }
    }

    #[test]
    fn a_winner_is_not_passed_off_as_a_loser() {
        // The file leaves out the base of the last winner's: it would have to lose somewhere else.
        let all = history(4);
        let mut forged = all[3].clone();
        forged.base = [9; 32];
        let file = [&all[..3], &[forged]].concat();
        assert_eq!(follow(&all[3].value(), &file), None);
    }

    #[test]
    fn a_hostile_file_costs_a_bounded_time() {
        let many: Vec<Attempt> = (1..=63).map(|number| attempt([200; 32], number)).collect();
        let start = std::time::Instant::now();
        assert_eq!(follow(&[1; 32], &many), None);
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
