//! A few hundred seeds in seconds, and what they must reach.

use simulator::{Coverage, run};

const OPERATIONS: u64 = 200;

fn check(seed: u64) -> Coverage {
    let report = run(seed, OPERATIONS, None);
    assert_eq!(
        report.failure,
        None,
        "replay it with: cargo run --release -p simulator -- replay --seed {}",
        simulator::tag(seed)
    );
    report.coverage
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the threads of the test: each run has one")]
fn seeds_hold_and_reach_what_they_should() {
    let halves = std::thread::scope(|scope| {
        let half = |odd: u64| {
            scope.spawn(move || {
                (0..150).fold(Coverage::default(), |mut sum, n| {
                    sum += check(2 * n + odd);
                    sum
                })
            })
        };
        [half(0), half(1)]
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let [mut coverage, other] = halves;
    coverage += other;
    for (name, count) in coverage.list() {
        assert!(count > 0, "no run reached: {name}");
    }
}

#[test]
fn seeds_that_once_failed_hold() {
    let list = include_str!("../regressions.txt");
    let seeds =
        list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().next());
    for seed in seeds {
        check(seed.parse().expect("a line begins with a seed"));
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1000..1040 {
        let (once, again) = (run(seed, OPERATIONS, None), run(seed, OPERATIONS, None));
        assert_eq!(once, again, "seed {seed}");
    }
    assert_ne!(run(1, OPERATIONS, None).hash, run(2, OPERATIONS, None).hash);
}

#[test]
fn a_reader_changes_nothing() {
    let lines = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = std::sync::Arc::clone(&lines);
    let told = run(
        7,
        OPERATIONS,
        Some(Box::new(move |_| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        })),
    );
    assert_eq!(told, run(7, OPERATIONS, None));
    assert!(lines.load(std::sync::atomic::Ordering::Relaxed) > OPERATIONS);
}
