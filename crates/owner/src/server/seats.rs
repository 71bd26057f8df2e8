//! How many connections there may be: in all, and of one kind.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// A counter with two limits.
#[derive(Debug)]
pub struct Seats<K: Eq + Hash + Clone> {
    all: usize,
    each: usize,
    taken: Mutex<HashMap<K, usize>>,
}

/// One seat. It is free again when this is dropped.
#[derive(Debug)]
pub struct Seat<K: Eq + Hash + Clone> {
    seats: Arc<Seats<K>>,
    key: K,
}

impl<K: Eq + Hash + Clone> Seats<K> {
    /// At most `all`, and of them at most `each` of one kind.
    pub fn new(all: usize, each: usize) -> Seats<K> {
        Seats { all, each, taken: Mutex::default() }
    }

    /// A seat, if there is one.
    pub fn take(self: &Arc<Self>, key: K) -> Option<Seat<K>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let sum: usize = taken.values().sum();
        let own = taken.get(&key).copied().unwrap_or(0);
        if sum >= self.all || own >= self.each {
            return None;
        }
        taken.insert(key.clone(), own + 1);
        Some(Seat { seats: Arc::clone(self), key })
    }
}

impl<K: Eq + Hash + Clone> Drop for Seat<K> {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(&self.key) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&self.key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_hold_and_seats_come_back() {
        let seats = Arc::new(Seats::new(3, 2));
        let (one, two) = (seats.take("a"), seats.take("a"));
        assert!(one.is_some() && two.is_some());
        assert!(seats.take("a").is_none(), "a third of one kind");
        let other = seats.take("b");
        assert!(other.is_some());
        assert!(seats.take("c").is_none(), "a fourth in all");
        drop(one);
        assert!(seats.take("c").is_some());
        drop((two, other));
        assert!(seats.taken.lock().unwrap().is_empty());
    }
}
