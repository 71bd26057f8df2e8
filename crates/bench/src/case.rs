//! What a benchmark does: one steady load, named as in `randwrite-4k-q32`.

use std::fmt;
use std::str::FromStr;

/// The loads that are run unless others are asked for.
pub const STANDARD: &[&str] = &[
    "seqread-128k-q128",
    "seqwrite-128k-q128",
    "randread-4k-q32",
    "randwrite-4k-q32",
    "randrw-4k-q32",
    "randread-4k-q1",
    "randwrite-4k-q1",
    "write-fsync-4k-q1",
];

/// Of 100 requests of a mixed load, these many read.
const MIXED_READS: u8 = 70;
/// The most blocks in one request: 1 MiB.
const MOST_BLOCKS: usize = 256;
const MOST_DEPTH: u32 = 1024;

/// A steady load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    name: String,
    /// Of 100 requests, these many read and the others write.
    pub reads: u8,
    /// Whether requests go to random places; one after the other otherwise.
    pub random: bool,
    /// Blocks in a request.
    pub blocks: usize,
    /// Requests of each thread that are under way at any time.
    pub depth: u32,
    /// Each so many writes are followed by a flush, and end with it; 0 for never.
    pub flush_every: u64,
}

impl Case {
    /// What its speed is counted in.
    pub fn unit(&self) -> &'static str {
        if self.random { "iops" } else { "MiB/s" }
    }

    /// Requests in a second, in [`unit`](Self::unit).
    pub fn speed(&self, requests_per_second: f64) -> f64 {
        if self.random {
            return requests_per_second;
        }
        let mebibytes = u32::try_from(self.blocks).map_or(0.0, f64::from) / 256.0;
        requests_per_second * mebibytes
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

impl FromStr for Case {
    type Err = String;

    /// `KIND-SIZEk-qDEPTH`; the kind may itself have a hyphen.
    fn from_str(name: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{}` is no case; one is KIND-SIZEk-qDEPTH, with KIND seqread, seqwrite, randread, randwrite, \
                 randrw or write-fsync, SIZE a multiple of 4 up to {}, DEPTH up to {MOST_DEPTH}",
                name.escape_debug(),
                MOST_BLOCKS * 4
            )
        };
        let mut parts = name.rsplitn(3, '-');
        let depth = parts.next().and_then(|part| part.strip_prefix('q')).and_then(|part| part.parse().ok());
        let size = parts.next().and_then(|part| part.strip_suffix('k')).and_then(|part| part.parse().ok());
        let (reads, random, flush_every) = match parts.next() {
            Some("seqread") => (100, false, 0),
            Some("seqwrite") => (0, false, 0),
            Some("randread") => (100, true, 0),
            Some("randwrite") => (0, true, 0),
            Some("randrw") => (MIXED_READS, true, 0),
            Some("write-fsync") => (0, true, 1),
            _ => return Err(wrong()),
        };
        let depth = depth.filter(|depth| (1..=MOST_DEPTH).contains(depth)).ok_or_else(wrong)?;
        let size: usize = size.filter(|size: &usize| size.is_multiple_of(4)).ok_or_else(wrong)?;
        let blocks = Some(size / 4).filter(|blocks| (1..=MOST_BLOCKS).contains(blocks)).ok_or_else(wrong)?;
        Ok(Self { name: name.into(), reads, random, blocks, depth, flush_every })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_cases_have_names_that_say_what_they_are() {
        for name in STANDARD {
            assert_eq!(name.parse::<Case>().unwrap().to_string(), *name);
        }
        let case: Case = "write-fsync-4k-q1".parse().unwrap();
        assert_eq!((case.reads, case.random, case.blocks, case.depth, case.flush_every), (0, true, 1, 1, 1));
        let case: Case = "seqread-128k-q128".parse().unwrap();
        assert_eq!(
            (case.reads, case.random, case.blocks, case.depth, case.flush_every),
            (100, false, 32, 128, 0)
        );
    }

    #[test]
    fn names_that_mean_nothing_are_refused() {
        for name in [
            "",
            "randread",
            "randread-4k",
            "randread-5k-q1",
            "randread-4k-q0",
            "erase-4k-q1",
            "seqread-0k-q1",
        ] {
            assert!(name.parse::<Case>().unwrap_err().contains("KIND-SIZEk-qDEPTH"), "{name}");
        }
    }

    #[test]
    fn speed_is_in_the_unit_that_it_names() {
        let case: Case = "seqread-128k-q8".parse().unwrap();
        assert_eq!((case.unit(), case.speed(80.0)), ("MiB/s", 10.0));
        let case: Case = "randread-4k-q8".parse().unwrap();
        assert_eq!((case.unit(), case.speed(80.0)), ("iops", 80.0));
    }
}
