//! The two figures of tinymembench, bandwidth and latency, as far as safe code goes. They concern the machine, and no target.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use super::script::Script;
use crate::error::{Error, Result};
use crate::session::Measured;

/// What is measured of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Copying a buffer that no cache holds.
    Copy,
    /// Filling one.
    Set,
    /// Reading at places that nothing can foresee, one after the other.
    Latency,
}

/// The same in a process of its own, as guests have it; prints the figure.
#[derive(clap::Args, Debug, Clone)]
pub struct Probe {
    /// What is measured
    #[arg(value_enum)]
    pub what: What,
    /// Bytes of the buffer
    #[arg(value_parser = crate::size::parse)]
    pub bytes: u64,
}

impl Probe {
    /// Measures, and prints.
    ///
    /// # Errors
    /// When so much cannot be measured.
    pub fn run(&self) -> Result<String> {
        let bytes =
            usize::try_from(self.bytes).map_err(|_| Error::usage("so much memory cannot be measured"))?;
        measure(self.what, bytes).map(|measured| measured.value.to_string())
    }
}

/// The program of ours that has the probe.
pub const PROGRAM: &str = "cvmio-bench";

/// In a guest.
pub fn script(what: What, bytes: usize) -> Script {
    let what = match what {
        What::Copy => "copy",
        What::Set => "set",
        What::Latency => "latency",
    };
    Script { before: String::new(), timed: format!("/usr/bin/{PROGRAM} bench memory-probe {what} {bytes}\n") }
}

/// Reads what the probe prints.
pub fn figures(said: &str) -> Result<Measured> {
    let value = said.trim().parse::<f64>();
    let value =
        value.map_err(|_| Error::io(format!("the probe of memory says no figure: {}", said.trim())))?;
    Ok(Measured { value, figures: BTreeMap::new(), course: Vec::new() })
}

/// Measures for at least so long.
const LEAST: Duration = Duration::from_millis(200);

/// Measures with buffers of so many bytes.
pub fn measure(what: What, bytes: usize) -> Result<Measured> {
    match what {
        What::Copy => {
            let (from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
            Ok(bandwidth(bytes, || black_box(&mut to).copy_from_slice(black_box(&from))))
        }
        What::Set => {
            let mut buffer = vec![0u8; bytes];
            let mut value = 0;
            Ok(bandwidth(bytes, || {
                value ^= 1;
                black_box(&mut buffer).fill(black_box(value));
            }))
        }
        What::Latency => latency(latency_bytes(bytes)),
    }
}

/// Latency is measured in a quarter: of 256 MiB that is the largest block of tinymembench.
pub fn latency_bytes(bytes: usize) -> usize {
    bytes / 4
}

fn bandwidth(bytes: usize, mut once: impl FnMut()) -> Measured {
    // The first pass touches the pages.
    once();
    let started = Instant::now();
    let mut passes = 0u32;
    while started.elapsed() < LEAST || passes == 0 {
        once();
        passes += 1;
    }
    let size = u32::try_from(bytes >> 10).map_or(f64::INFINITY, f64::from) * 1024.0;
    Measured {
        value: size * f64::from(passes) / started.elapsed().as_secs_f64(),
        figures: BTreeMap::new(),
        course: Vec::new(),
    }
}

/// Follows a random cycle through the whole buffer: each place says where the next one is.
fn latency(bytes: usize) -> Result<Measured> {
    let places =
        u32::try_from(bytes / 4).map_err(|_| Error::usage("at most 16 GiB of memory can be measured"))?;
    let mut order: Vec<u32> = (0..places).collect();
    // Sattolo's shuffle gives one cycle; fastrand has only Fisher and Yates'.
    let mut random = fastrand::Rng::with_seed(1);
    for end in (1..order.len()).rev() {
        order.swap(end, random.usize(..end));
    }
    let (mut at, mut steps) = (0u32, 0u32);
    let started = Instant::now();
    while started.elapsed() < LEAST || steps == 0 {
        for _ in 0..10_000 {
            at = usize::try_from(at).ok().and_then(|at| order.get(at).copied()).unwrap_or(0);
        }
        steps += 10_000;
    }
    black_box(at);
    let value = started.elapsed().as_secs_f64() * 1e9 / f64::from(steps);
    Ok(Measured { value, figures: BTreeMap::new(), course: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_slower_to_reach_than_a_small_one() {
        let of = |bytes| measure(What::Latency, bytes).unwrap().value;
        let (small, large) = (of(8 << 10), of(64 << 20));
        assert!(small < large && small > 0.1, "{small} {large}");
        let probe = Probe { what: What::Copy, bytes: 1 << 20 };
        assert!(figures(&probe.run().unwrap()).unwrap().value > 1e7 && figures("").is_err());
        assert!(measure(What::Copy, 1 << 20).unwrap().value > 1e7);
        assert!(measure(What::Set, 1 << 20).unwrap().value > 1e7);
    }
}
