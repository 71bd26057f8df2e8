//! `simulator mutants`: every rule broken once, as a table.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use simulator::mutants::{Hunt, Mutation, hunt};

const OPERATIONS: u64 = 200;

/// Hunts the mutant of this name, or all; a failure if one gets away.
#[expect(clippy::disallowed_methods, reason = "the threads of the front end: each run has one")]
pub(crate) fn all(only: Option<&str>, seeds: u64, jobs: usize) -> ExitCode {
    let chosen: Vec<Mutation> = Mutation::for_simulator()
        .filter(|mutation| only.is_none_or(|name| name == mutation.name()))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = Mutation::for_simulator().map(Mutation::name).collect();
        eprintln!("there is no mutant of this name; there are: {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    // A panic is counted, and no evidence.
    std::panic::set_hook(Box::new(|_| {}));
    println!(
        "{:<28} {:>16}  {:<76}  how it was reported",
        "mutant", "caught at (runs)", "the rule that it breaks"
    );
    let next = AtomicUsize::new(0);
    let survivors = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(mutation) = chosen.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let hunted = hunt(*mutation, 0..seeds, OPERATIONS);
                    tell(&hunted);
                    if hunted.caught.is_none() {
                        survivors.lock().expect("no poison").push(mutation.name());
                    }
                }
            });
        }
    });
    let survivors = survivors.into_inner().expect("no poison");
    println!(
        "{} mutants, {} got away{}{}",
        chosen.len(),
        survivors.len(),
        if survivors.is_empty() { "" } else { ": " },
        survivors.join(", ")
    );
    if survivors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tell(hunted: &Hunt) {
    let (at, how) = match &hunted.caught {
        Some((seed, how)) => {
            (format!("seed {seed} ({})", hunted.runs), how.lines().next().unwrap_or_default())
        }
        None => (format!("no seed ({})", hunted.runs), "SURVIVED"),
    };
    let panics =
        if hunted.panics > 0 { format!(" ({} panics before)", hunted.panics) } else { String::new() };
    println!("{:<28} {at:>16}  {:<76}  {how}{panics}", hunted.mutation.name(), hunted.mutation.rule());
}
