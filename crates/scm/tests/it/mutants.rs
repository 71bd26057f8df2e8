//! Each rule of the engine is broken once, and the tests must notice.

use std::panic::{AssertUnwindSafe, catch_unwind};

use scm::mutation::{Mutation, break_rule};

use crate::{adversary, attacks, crash, epochs};

/// Seeds of `many_pages` until a mutant has got away.
const SEEDS: u64 = 400;

/// What notices: the first complaint, or `None`.
fn noticed(mutation: Mutation) -> Option<String> {
    let _broken = break_rule(mutation);
    let quick = || {
        attacks::all()?;
        attacks::forged_log()?;
        attacks::forged_progress()?;
        attacks::given_up_write()?;
        attacks::replayed_write()?;
        attacks::two_futures()?;
        epochs::two_futures()
    };
    // The seeds first: they are quicker than every cut of one page's life.
    quick()
        .err()
        .or_else(|| {
            (0..SEEDS)
                .find_map(|seed| crash::many_pages(seed).err().map(|error| format!("seed {seed}: {error}")))
        })
        .or_else(|| (0..SEEDS / 4).find_map(|seed| adversary::life(seed).err()))
        .or_else(|| crash::one_page(1).err())
}

#[test]
fn every_broken_rule_is_noticed() {
    let mut missed = Vec::new();
    for &mutation in Mutation::ALL {
        // A panic is no evidence.
        match catch_unwind(AssertUnwindSafe(|| noticed(mutation))) {
            Ok(Some(how)) => println!("{}: {how}", mutation.name()),
            Ok(None) => missed.push(format!("{} ({})", mutation.name(), mutation.rule())),
            Err(_) => missed.push(format!("{} panicked", mutation.name())),
        }
    }
    assert!(missed.is_empty(), "got away: {missed:#?}");
}
