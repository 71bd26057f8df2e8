//! What must come out.

use std::sync::{PoisonError, RwLock};

use libtest_mimic::{Completion, Failed, Trial};

use crate::race::race;
use crate::subject::{CIPHERS, OPENSSL, Work, subject};
use crate::table;

/// Operations of a race.
const OPERATIONS: u64 = 100_000;
/// The CPU that races run on: this one.
const HERE: (usize, &str) = (0, "all features");

/// A race needs the cores to itself: it has this alone, stepping shares it.
static CORES: RwLock<()> = RwLock::new(());

pub fn all() -> Vec<Trial> {
    let mut trials = stepping();
    for (cipher, ..) in CIPHERS {
        let name = format!("race::staged::{cipher}");
        trials.push(Trial::ignorable_test(name, move || races_gain_nothing(&format!("staged {cipher}"))));
    }
    trials.push(Trial::ignorable_test("race::control", races_forge_openssl));
    trials
}

/// A block that is sealed or opened through a private buffer is never forged.
fn races_gain_nothing(name: &str) -> Result<Completion, Failed> {
    let _cores = CORES.write().unwrap_or_else(PoisonError::into_inner);
    let subject = subject(name)?;
    let plain = name.ends_with("plain");
    for work in [Work::Seal, Work::Open] {
        let tally = race(&*subject, work, |tally| tally.operations >= OPERATIONS && tally.met > 0);
        let met = tally.met > 0 || plain && work == Work::Open;
        table::enter(name, HERE, |row| {
            let result = Some((tally.forged, tally.operations));
            if work == Work::Seal { row.seals = result } else { row.opens = result }
        });
        if tally.forged > 0 {
            return Err(format!("{name}: {} of {} forged ({work:?})", tally.forged, tally.operations).into());
        }
        if !met || tally.operations < OPERATIONS {
            let reason = "host and guest hardly met: too few cores, or too busy";
            return Ok(Completion::ignored_with(reason));
        }
    }
    Ok(Completion::Completed)
}

/// The race can be won: against an implementation that reads its ciphertext back.
fn races_forge_openssl() -> Result<Completion, Failed> {
    let _cores = CORES.write().unwrap_or_else(PoisonError::into_inner);
    let subject = match subject(OPENSSL) {
        Ok(subject) => subject,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    for work in [Work::Seal, Work::Open] {
        let tally = race(&*subject, work, |tally| tally.operations >= OPERATIONS && tally.forged > 0);
        table::enter(OPENSSL, HERE, |row| {
            let result = Some((tally.forged, tally.operations));
            if work == Work::Seal { row.seals = result } else { row.opens = result }
        });
        if tally.forged == 0 {
            let reason =
                format!("no luck in {} operations ({work:?}): the race shows nothing here", tally.operations);
            return Ok(Completion::ignored_with(reason));
        }
    }
    Ok(Completion::Completed)
}

#[cfg(not(target_arch = "x86_64"))]
fn stepping() -> Vec<Trial> {
    let why = || Ok(Completion::ignored_with("only x86-64 instructions are understood"));
    vec![Trial::ignorable_test("step", why)]
}

#[cfg(target_arch = "x86_64")]
use x86_64::stepping;

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::*;
    use crate::cpu::{self, Cpu};
    use crate::page::SIZE;
    use crate::selfcheck::{IN_PLACE, MASKED, masked_bytes};
    use crate::step::{Round, step_through};
    use crate::tracer::Refused;
    use seal::DataMode;

    pub(super) fn stepping() -> Vec<Trial> {
        let trial = |name: &str, run: fn() -> Result<(), Refused>| {
            Trial::ignorable_test(format!("step::{name}"), move || unless_refused(run))
        };
        let mut trials = vec![
            trial("instrument::counts_bytes_read_again", counts_bytes_read_again),
            trial("instrument::counts_bytes_under_a_mask", counts_bytes_under_a_mask),
            trial("instrument::sees_plaintext_that_is_encrypted_in_place", sees_plaintext_in_place),
            trial("control", openssl_reads_back),
        ];
        for (rank, cpu) in cpu::ALL.iter().enumerate() {
            for (cipher, ..) in CIPHERS.into_iter().filter(|(cipher, ..)| cpu.concerns(cipher)) {
                let name = format!("step::staged::{cipher} ({})", cpu.name);
                let run = move || unless_refused(|| staged(cipher, rank, cpu));
                trials.push(Trial::ignorable_test(name, run));
            }
        }
        trials
    }

    fn unless_refused(run: impl FnOnce() -> Result<(), Refused>) -> Result<Completion, Failed> {
        let _cores = CORES.read().unwrap_or_else(PoisonError::into_inner);
        match run() {
            Ok(()) => Ok(Completion::Completed),
            Err(Refused(reason)) => Ok(Completion::ignored_with(reason)),
        }
    }

    /// Seals on this CPU.
    fn seals(name: &str) -> Result<Vec<Round>, Refused> {
        step_through(name, Work::Seal, &cpu::ALL[0])
    }

    /// Opens on this CPU.
    fn opens(name: &str) -> Result<Vec<Round>, Refused> {
        step_through(name, Work::Open, &cpu::ALL[0])
    }

    fn counts_bytes_read_again() -> Result<(), Refused> {
        for count in [0, 1, 300] {
            let name = format!("again {count}");
            for round in seals(&name)? {
                assert_eq!((round.stored(), round.loaded(), round.held_other()), (SIZE, count, 0));
            }
            for round in opens(&name)? {
                assert_eq!((round.stored(), round.loaded(), round.loaded_twice()), (0, SIZE, count));
            }
        }
        Ok(())
    }

    fn counts_bytes_under_a_mask() -> Result<(), Refused> {
        let Some(count) = masked_bytes() else { return Err(Refused("this CPU has no AVX-512".to_owned())) };
        for round in seals(MASKED)? {
            assert_eq!((round.stored(), round.loaded()), (SIZE, count));
        }
        for round in opens(MASKED)? {
            assert_eq!((round.loaded(), round.loaded_twice()), (SIZE, count));
        }
        Ok(())
    }

    fn sees_plaintext_in_place() -> Result<(), Refused> {
        for round in seals(IN_PLACE)? {
            assert_eq!((round.stored(), round.loaded(), round.held_other()), (SIZE, SIZE, SIZE));
        }
        Ok(())
    }

    /// If this fails because OpenSSL has become better, another control is needed.
    fn openssl_reads_back() -> Result<(), Refused> {
        let (read_again, fetched_twice) = measure(OPENSSL, 0, &cpu::ALL[0])?;
        assert!(read_again > 0, "OpenSSL reads nothing back: has the instrument gone blind?");
        assert!(fetched_twice > 0, "OpenSSL fetches nothing twice: has the instrument gone blind?");
        Ok(())
    }

    /// What volumes do: nothing is read back, nothing fetched twice, and nothing but ciphertext was there.
    fn staged(cipher: &str, rank: usize, cpu: &Cpu) -> Result<(), Refused> {
        let found = measure(&format!("staged {cipher}"), rank, cpu)?;
        assert_eq!(found, (0, 0), "bytes read back, bytes fetched twice");
        let is_aead = |(name, _, mode): &(&str, _, DataMode)| *name == cipher && *mode == DataMode::Aead;
        if CIPHERS.iter().any(is_aead) {
            // What could do without staging, for the table only. (`measure` makes sure that all was seen.)
            measure(&format!("unstaged {cipher}"), rank, cpu)?;
        }
        Ok(())
    }

    /// Bytes read back by a seal, and fetched twice by an open.
    fn measure(name: &str, rank: usize, cpu: &Cpu) -> Result<(usize, usize), Refused> {
        let (mut read_again, mut fetched_twice) = (0, 0);
        for round in step_through(name, Work::Seal, cpu)? {
            assert_eq!(round.stored(), cpu.size, "{name}: not all stores were seen");
            assert_eq!(round.held_other(), 0, "{name}: something but ciphertext was there for a time");
            read_again = read_again.max(round.loaded());
        }
        for round in step_through(name, Work::Open, cpu)? {
            assert_eq!(round.loaded(), cpu.size, "{name}: not all loads were seen");
            assert_eq!(round.stored(), 0, "{name}: stored to where it opened from");
            fetched_twice = fetched_twice.max(round.loaded_twice());
        }
        table::enter(name, (rank, cpu.name), |row| {
            (row.read_again, row.fetched_twice) = (Some(read_again), Some(fetched_twice));
        });
        Ok((read_again, fetched_twice))
    }
}
