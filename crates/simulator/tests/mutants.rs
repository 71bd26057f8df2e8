//! Each rule of the volume is broken once, and a simulation must notice within a stated number of seeds.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use simulator::mutants::{Hunt, Mutation, hunt};
use simulator::run_caught;

const OPERATIONS: u64 = 200;
/// Each mutant is noticed by one of the seeds below this.
const SEEDS: u64 = 100_000;
/// Which seed noticed each when this was written: `name seed` a line. It is run first, since the way there takes minutes. Where it notices
/// nothing, because the code or the simulator has changed, the search begins at seed 0. `UPDATE_NOTICED=1` writes what was found.
const NOTICED: &str = include_str!("../noticed.txt");

fn noticed_before() -> HashMap<String, u64> {
    let line = |line: &str| {
        let (name, seed) = line.split_once(' ').expect("a name and a seed");
        (name.to_owned(), seed.parse().expect("a seed"))
    };
    NOTICED.lines().map(line).collect()
}

#[expect(clippy::disallowed_methods, reason = "a file of the repository, not of a volume")]
fn write_noticed(text: &str) {
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/noticed.txt"), text).expect("written");
}

/// Hunts all mutants, two at a time.
#[expect(clippy::disallowed_methods, reason = "the threads of the test: each run has one")]
fn hunts() -> Vec<Hunt> {
    let mutations: Vec<Mutation> = Mutation::for_simulator().collect();
    let before = noticed_before();
    let next = AtomicUsize::new(0);
    let ended = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(mutation) = mutations.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let first = before.get(mutation.name()).copied();
                    let hunted = hunt(*mutation, first.into_iter().chain(0..SEEDS), OPERATIONS);
                    ended.lock().expect("no poison").push(hunted);
                }
            });
        }
    });
    ended.into_inner().expect("no poison")
}

#[test]
fn every_broken_rule_is_noticed_and_an_unbroken_volume_is_not() {
    // Panics are counted; to print each of them, with its backtrace, takes longer than the runs.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let hunted = hunts();
    std::panic::set_hook(hook);
    let mut lines = Vec::new();
    for hunted in hunted {
        let name = hunted.mutation.name();
        let Some((seed, how)) = hunted.caught else {
            panic!("{name} got away: {} runs of {SEEDS} seeds", hunted.runs);
        };
        println!("{name}: seed {seed}, {} runs: {how}", hunted.runs);
        lines.push(format!("{name} {seed}\n"));
        // The same seed, in the same build, with no rule broken.
        assert_eq!(run_caught(seed, OPERATIONS).failure, None, "seed {seed} fails without {name}, too");
    }
    if std::env::var_os("UPDATE_NOTICED").is_some() {
        lines.sort();
        write_noticed(&lines.concat());
    }
}
