//! A change of key beside users: what they write stays, and it leaves them the machine.

use std::sync::atomic::Ordering;

use crate::common::rekeying::{BLOCKS, Case, Job};
use crate::common::{Session, filled, options_at, pattern};
use volume::Request;
use volume::format::protections::Freshness;

/// A number that looks random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// For each block the round in which it was written, or nothing.
struct Model(Vec<Option<u64>>);

impl Model {
    fn set(&mut self, blocks: std::ops::Range<u64>, round: Option<u64>) {
        blocks.for_each(|block| self.0[usize::try_from(block).unwrap()] = round);
    }

    fn compare(&self, session: &mut Session) {
        for (block, round) in (0..).zip(&self.0) {
            match round {
                Some(round) => session.check_each([block], *round),
                None => session.check_zeros([block]),
            }
        }
    }
}

#[test]
fn writes_and_discards_that_come_in_between_win() {
    for seed in 0..6 {
        let freshness = if seed % 2 == 0 { Freshness::Strict } else { Freshness::Interval };
        let first = || (0..BLOCKS).filter(|block| block % 5 != 4);
        let case = Case::written(options_at(freshness), first());
        let mut model = Model(vec![None; 4096]);
        first().for_each(|block| model.set(block..block + 1, Some(0)));
        let old = case.key();
        case.begin();
        let mut session = case.attach();
        let mut job = Job::new(&session);
        let mut dice = Dice(seed);
        let mut round = 0;
        let report = loop {
            job.step();
            if let Some(report) = job.ended.take() {
                break report.unwrap();
            }
            round += 1;
            assert!(round < 200_000, "{:?} {:#?}", job.progress, session.volume.status());
            // Where it is at work now, more or less.
            let near = job.progress.blocks.load(Ordering::Relaxed) * 5 / 4;
            let block = (near + dice.below(1200)).min(BLOCKS - 80);
            match dice.below(8) {
                0 | 1 if round < 3000 => {
                    let data = filled(1, pattern(block, round));
                    job.beside(&mut session, Request::Write { block, data, fua: false });
                    model.set(block..block + 1, Some(round));
                }
                2 if round < 3000 => {
                    let blocks = 1 + dice.below(80);
                    job.beside(&mut session, Request::Discard { block, blocks });
                    model.set(block..block + blocks, None);
                }
                3 if round < 3000 && dice.below(20) == 0 => session.volume.checkpoint_soon(),
                _ => session.step(),
            }
        };
        assert!(report.ended && report.resealed < 3277, "{report:?}: nothing came in between");
        model.compare(&mut session);
        session.detach().unwrap();
        let mut session = case.attach();
        model.compare(&mut session);
        session.detach().unwrap();
        case.assert_only_new(&old);
    }
}

#[test]
fn beside_users_it_rests_often_and_holds_nothing_then() {
    let case = Case::written(options_at(Freshness::Strict), 0..1000);
    case.begin();
    let mut session = case.attach();
    let mut job = Job::new(&session);
    job.progress.sharing.share(true);
    let mut before = 0;
    for round in 1..=7 {
        while !job.progress.sharing.rests() {
            job.step();
            session.step();
        }
        let done = job.progress.resealed.load(Ordering::Relaxed);
        // Fewer if a checkpoint ended in between; what it lost then is for the next walk.
        assert!((1..=128).contains(&(done - before)), "one leaf: {before} {done}");
        before = done;
        // Far more than is ever admitted at once: whatever it held, somebody would wait for it here.
        for _ in 0..4 {
            session.write_each(2000..2600, round);
            session.flush().unwrap();
        }
        assert!(job.progress.sharing.rests());
        job.progress.sharing.go_on();
    }
    job.progress.sharing.share(false);
    assert!(job.end(&mut session).unwrap().ended);
    session.check_each(0..1000, 0);
    session.detach().unwrap();
}
