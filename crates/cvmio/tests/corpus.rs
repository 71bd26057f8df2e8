//! The fuzzer's corpus: every file in `fuzz/seeds`, and many changes of each, through the checks that the fuzzer makes.
//!
//! The changes are the same in every run. `FUZZ_MUTATIONS` says how many there are for each target.

#[path = "../../../fuzz/src/lib.rs"]
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// For each target, but for the one that needs a server; all of them take some seconds.
const MUTATIONS: usize = 400_000;

/// A file of the corpus.
struct Seed {
    path: PathBuf,
    bytes: Vec<u8>,
}

fn seeds(target: &str) -> Vec<Seed> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let entries = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| Seed { bytes: fs::read(&path).unwrap(), path }).collect()
}

/// Runs a check; if it panics, keeps the input and says what to do with it.
fn check((name, check): targets::Target, bytes: &[u8], from: &Path) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(bytes))) {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("finding-{name}"));
        fs::write(&kept, bytes).unwrap();
        eprintln!("{name} does not stand a change of {}; mend it, and keep the input:", from.display());
        eprintln!("scripts/fuzz-regress {name} {}", kept.display());
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn no_target_is_forgotten() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let names = |directory: &str| {
        let entries = fs::read_dir(root.join(directory)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    let known: Vec<&str> = targets::TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names("fuzz_targets"), known);
    assert_eq!(names("seeds"), known);
}

#[test]
fn decoders_stand_the_corpus_and_changes_of_it() {
    let mutations = std::env::var("FUZZ_MUTATIONS").map_or(MUTATIONS, |text| text.parse().unwrap());
    for target in targets::TARGETS {
        let seeds = seeds(target.0);
        assert!(!seeds.is_empty(), "{} has no seeds", target.0);
        for seed in &seeds {
            check(target, &seed.bytes, &seed.path);
        }
        // A server for each input takes its time, and so do signatures.
        let mutations = match target.0 {
            "session" => mutations / 400,
            "evidence" | "firmware" | "kbs" | "quote" | "snp" => mutations / 40,
            "job-archive" | "job-file" | "job-message" => mutations / 4,
            _ => mutations,
        };
        let mut random = fastrand::Rng::with_seed(seeds.len() as u64);
        for number in 0..mutations {
            let seed = &seeds[number % seeds.len()];
            let other = &seeds[random.usize(..seeds.len())].bytes;
            check(target, &change(&seed.bytes, other, &mut random), &seed.path);
        }
    }
}

/// A few changes of the kind that parsers stumble over.
fn change(bytes: &[u8], other: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 << random.u32(0..4) {
        let at = place(bytes.len(), random);
        let rest = bytes.len() - at;
        match random.u8(0..8) {
            0 if rest > 0 => bytes[at] ^= 1 << random.u8(0..8),
            1 if rest > 0 => bytes[at] = random.u8(..),
            2 | 3 => put_number(&mut bytes[at..], random),
            4 => {
                let length = random.usize(0..=rest.min(64));
                let from = place(bytes.len() - length + 1, random).min(bytes.len() - length);
                bytes.copy_within(from..from + length, at);
            }
            5 => {
                let length = random.usize(0..=rest.min(256));
                if let Some(part) = other.get(at..at + length) {
                    bytes[at..at + length].copy_from_slice(part);
                }
            }
            6 => bytes[at..at + random.usize(0..=rest.min(64))].fill(0),
            // Most decoders refuse another length at once, so it is seldom worth a try.
            _ if random.u8(0..16) == 0 => bytes.resize(random.usize(0..=bytes.len() + 64), random.u8(..)),
            _ => {}
        }
    }
    bytes
}

/// A place in so many bytes, often near their beginning, where the fields are.
fn place(length: usize, random: &mut fastrand::Rng) -> usize {
    let length = if random.bool() { length.min(256) } else { length };
    if length == 0 { 0 } else { random.usize(0..length) }
}

/// Writes a number that is at some limit, or moves the one that is there.
fn put_number(bytes: &mut [u8], random: &mut fastrand::Rng) {
    let width = [1, 2, 4, 8][random.usize(0..4)].min(bytes.len());
    let mut old = [0; 8];
    old[..width].copy_from_slice(&bytes[..width]);
    let new = match random.u8(0..4) {
        0 => u64::from_le_bytes(old).wrapping_add(random.u64(0..4)).wrapping_sub(2),
        1 => 1 << random.u32(0..64),
        2 => (1_u64 << random.u32(0..64)).wrapping_sub(1),
        _ => u64::MAX - random.u64(0..4),
    };
    bytes[..width].copy_from_slice(&new.to_le_bytes()[..width]);
}
