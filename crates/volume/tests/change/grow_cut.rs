//! A growth that is cut short anywhere, and one that the host takes back.

use std::sync::atomic::Ordering;

use crate::common::growing::Case;
use crate::common::medium::{put, put_back};
use crate::common::{credential, pattern};
use memory::BLOCK_SIZE;
use volume::format::protections::{Freshness, Provision};
use volume::policy::Policy;
use volume::{Error, Growth, Kind};

/// Writes and flushes of one growth, and of the repair before it.
const STEPS: i64 = 8;

#[test]
fn cut_anywhere_it_goes_on_or_has_not_begun() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        let (mut begun, mut hinted) = (0, 0);
        for (first, second) in (0..STEPS).flat_map(|first| (0..STEPS).map(move |second| (first, second))) {
            let mut case = Case::written(freshness);
            for steps in [first, second] {
                let (environment, _) = case.bench.stopping(steps);
                let _ = case.try_grow_on(environment, Some(1500), false);
            }
            // In between: the old size, or a refusal that says what to do.
            match case.bench.attach(&case.policy) {
                Ok(mut session) => {
                    session.check_each(0..200, 1);
                    session.detach().unwrap();
                }
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Policy, "{first} {second}: {error}");
                    assert!(error.to_string().contains("cvmio volume grow"), "{error}");
                    hinted += 1;
                }
            }
            let grown = case.try_grow(Some(1500), false).unwrap();
            assert_eq!(grown.now.0, 1500, "{first} {second}");
            assert!(grown.growths <= 2, "{first} {second}: {grown:?}");
            begun += usize::from(grown.growths == 1);
            let mut session = case.attach();
            session.check_each(0..200, 1);
            session.write_each(200..1500, 1);
            session.check_each(0..1500, 1);
            session.detach().unwrap();
        }
        assert!(begun > 0 && hinted > 0, "{freshness}: {begun} {hinted}");
    }
}

/// The machine dies while the first copy is written behind the second: with the sizes of before, and a MAC of after.
#[test]
fn a_torn_copy_beside_the_new_one_is_no_end() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        let mut case = Case::at(freshness);
        let (before, old) = (case.bench.image(), case.policy.clone());
        case.grow(1500);
        let mut torn = case.bench.image()[0].clone();
        torn[..512].copy_from_slice(&before[0][..512]);
        put(&*case.bench.environment.store, 0, &torn);
        case.policy = old;
        let refused = case.bench.attach(&case.policy).err().expect("half a growth");
        assert!(refused.to_string().contains("cvmio volume grow"), "{refused}");
        assert_eq!(case.grow(1500).now.0, 1500);
        case.attach().detach().unwrap();
    }
}

#[test]
fn a_policy_that_was_not_written_is_written_by_the_next_growth() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        for again in [Some(1500), Some(1800), None] {
            let mut case = Case::at(freshness);
            let (growth, _) = case.growth(Some(1500), false);
            let save = Box::new(|_: &Policy| Err(Error::new(Kind::Io, "the disk with the policy is full")));
            let failed = case.grow_by(credential(), Growth { save, ..growth });
            assert_eq!(failed.unwrap_err().kind(), Kind::Io);
            let refused = case.bench.attach(&case.policy).err().expect("the policy says another size");
            assert_eq!(refused.kind(), Kind::Policy);
            assert!(refused.to_string().contains("cvmio volume grow"), "{refused}");
            let fewer = case.refused(Some(1000));
            assert_eq!((fewer.kind(), fewer.to_string().contains("does not shrink")), (Kind::Usage, true));
            case.assert_locked(1500);
            let grown = case.try_grow(again, false).unwrap();
            assert_eq!(grown.before.0, 200);
            assert_eq!(case.policy.size, grown.now.0 * BLOCK_SIZE as u64);
            assert_eq!(grown.growths, if again == Some(1800) { 2 } else { 1 });
            case.attach().detach().unwrap();
        }
    }
}

#[test]
fn what_the_first_session_behind_a_growth_leaves_is_whole_at_each_step() {
    for freshness in [Freshness::Strict, Freshness::Transaction, Freshness::Off] {
        for steps in 0.. {
            assert!(steps < 2000, "it does not end");
            let mut case = Case::written(freshness);
            case.grow(1500);
            let (environment, left) = case.bench.stopping(steps);
            let mut done = false;
            if let Ok(mut session) = case.bench.attach_on(&environment, &case.policy) {
                let wrote = (1200..1260).all(|block| session.write(block, 1, pattern(block, 1)).is_ok())
                    && session.commit().is_ok();
                done = wrote && session.detach().is_ok();
            }
            let mut session = case.attach();
            session.check_each(0..200, 1);
            if done {
                session.check_each(1200..1260, 1);
            }
            session.detach().unwrap();
            if done && left.load(Ordering::SeqCst) > 0 {
                break;
            }
        }
    }
}

#[test]
fn an_older_header_is_refused() {
    for freshness in [Freshness::Strict, Freshness::Off] {
        // A thin one, whose policy does not change: nothing but the header says that it has grown.
        let mut case = Case::new(800, 6000, |options| {
            options.provision = Provision::Thin;
            options.freshness = freshness;
        });
        let old = case.bench.back_up(&case.policy);
        let before = case.bench.image();
        case.store.blocks.store(4000, Ordering::SeqCst);
        assert_eq!(case.try_grow(None, false).unwrap().now, (800, 4000));
        let mut session = case.attach();
        session.write_each(0..800, 1);
        session.detach().unwrap();
        let new = case.bench.back_up(&case.policy);
        let refused = case.bench.restore(&case.policy, &old).expect_err("it is older");
        assert_eq!(refused.kind(), Kind::Stale, "{refused}");
        // The host does what the owner may not.
        let whole = case.bench.image();
        let mixed: Vec<_> = before[..4].iter().chain(&whole[4..]).cloned().collect();
        put_back(&*case.bench.environment.store, &mixed);
        let refused = case.bench.attach(&case.policy).err().expect("the header is older");
        assert_eq!(refused.kind(), Kind::Stale, "{refused}");
        assert_eq!(case.bench.restore(&case.policy, &new).unwrap().copies, 2);
        case.attach().check_each(0..800, 1);
    }
}
