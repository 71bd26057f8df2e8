//! What is left after a crash.

use std::mem;

use super::super::fault::Event;
use super::super::image::Image;
use super::effect::blocks_of;
use super::{Disk, Flight, Pending};
use store::Operation;

/// How a block that was to be stored fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Kept,
    Torn,
    Lost,
}

#[derive(Debug, Default)]
struct Toll {
    kept: usize,
    torn: usize,
    lost: usize,
}

impl Disk {
    /// Takes the power away: the cache and what is in flight are stored in some part, in some order.
    pub(in super::super) fn crash(&mut self) -> Image {
        let mut pending = mem::take(&mut self.cache);
        for flight in mem::take(&mut self.flights) {
            pending.extend(self.effects(&flight));
        }
        let fates = self.fates(&mut pending);
        let mut image = self.durable.clone();
        let mut toll = Toll::default();
        for (pending, fate) in pending.into_iter().zip(fates) {
            match fate {
                Fate::Kept => {
                    toll.kept += 1;
                    image.put(pending.block, pending.content);
                }
                Fate::Torn => {
                    toll.torn += 1;
                    let torn = self.chance.tear(image.block(pending.block), pending.bytes());
                    image.set(pending.block, &torn);
                }
                Fate::Lost => toll.lost += 1,
            }
        }
        self.queues.clear();
        self.guests.living.clear();
        self.guests.held.clear();
        self.visible = image.clone();
        self.durable = image.clone();
        self.tell_crash(None, &toll);
        image
    }

    /// Lets one guest die.
    pub(in super::super) fn kill(&mut self, session: u64) {
        self.queues.retain(|_, (owner, _)| *owner != session);
        self.guests.living.remove(&session);
        let mut toll = Toll::default();
        let (dying, living) = self.flights.drain(..).partition(|flight| flight.session == session);
        self.flights = living;
        for flight in dying {
            let block = super::describe(&flight.operation).1;
            let write = matches!(flight.operation, Operation::Write { .. });
            if write && self.strikes("late_write", self.faults.late_write, block) {
                self.flights.push(flight);
            } else if matches!(flight.operation, Operation::Flush) && self.chance.coin() {
                // Nobody hears the result.
                let _ = self.flush(flight.after);
            } else {
                self.happen_in_part(&flight, &mut toll);
            }
        }
        self.tell_crash(Some(session), &toll);
    }

    fn happen_in_part(&mut self, flight: &Flight, toll: &mut Toll) {
        for pending in self.effects(flight) {
            match self.any_fate(0.5) {
                Fate::Kept => {
                    toll.kept += 1;
                    self.store(pending.block, pending.content);
                }
                Fate::Torn => {
                    toll.torn += 1;
                    self.store_in_part(pending);
                }
                Fate::Lost => toll.lost += 1,
            }
        }
    }

    fn tell_crash(&mut self, session: Option<u64>, toll: &Toll) {
        let Toll { kept, torn, lost } = *toll;
        self.tell(&Event::Crashed { session, kept, torn, lost });
    }

    /// What an operation in flight would store; nothing, if it is to fail.
    fn effects(&mut self, flight: &Flight) -> Vec<Pending> {
        let (name, block, blocks) = super::describe(&flight.operation);
        if self.check(name, block, blocks).is_err() {
            return Vec::new();
        }
        match &flight.operation {
            Operation::Write { block, buffer } => blocks_of(*block, buffer),
            Operation::Discard { .. } => {
                let written = self.visible.written_in(block..block + blocks);
                let pending = |block| Pending { number: 0, block, content: self.remains(block) };
                written.into_iter().map(pending).collect()
            }
            Operation::Read { .. } | Operation::Flush => Vec::new(),
        }
    }

    /// Puts what was to be stored into some order, and says how each fares. The extremes, which a mix
    /// would almost never reach, have a share of their own: they are what finds mistakes.
    fn fates(&mut self, pending: &mut [Pending]) -> Vec<Fate> {
        let count = pending.len();
        match self.chance.below(4) {
            0 => vec![Fate::Lost; count],
            1 => vec![Fate::Kept; count],
            2 => {
                let cut = self.chance.below(count + 1);
                let mut fates = vec![Fate::Kept; cut];
                fates.resize(count, Fate::Lost);
                if cut < count && self.chance.coin() {
                    fates[cut] = Fate::Torn;
                }
                fates
            }
            _ => {
                self.chance.shuffle(pending);
                let share = self.chance.fraction();
                (0..count).map(|_| self.any_fate(share)).collect()
            }
        }
    }

    fn any_fate(&mut self, share: f64) -> Fate {
        if !self.chance.strikes(share) {
            Fate::Lost
        } else if self.chance.below(4) == 0 {
            Fate::Torn
        } else {
            Fate::Kept
        }
    }
}
