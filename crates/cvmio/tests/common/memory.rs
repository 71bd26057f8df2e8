//! Looking for keys in the memory of another process, as only root can.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// A mapping of a process.
#[derive(Debug, Clone)]
pub struct Region {
    pub name: String,
    start: u64,
    size: u64,
    flags: String,
}

impl Region {
    /// Whether it can neither be swapped out nor dumped.
    pub fn is_protected(&self) -> bool {
        let has = |flag| self.flags.split(' ').any(|one| one == flag);
        has("lo") && has("dd")
    }
}

/// The mappings of a process that have pages and can be read, with their content.
pub fn regions(process: u32) -> Vec<(Region, Vec<u8>)> {
    let memory = File::open(format!("/proc/{process}/mem")).unwrap();
    let read = |region: Region| {
        let mut bytes = vec![0; usize::try_from(region.size).unwrap()];
        memory.read_exact_at(&mut bytes, region.start).ok().map(|()| (region, bytes))
    };
    parse(&fs::read_to_string(format!("/proc/{process}/smaps")).unwrap())
        .into_iter()
        .filter_map(read)
        .collect()
}

fn parse(smaps: &str) -> Vec<Region> {
    let mut regions = Vec::new();
    let mut present = true;
    for line in smaps.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        match first {
            "Rss:" => present = rest.trim() != "0 kB",
            "VmFlags:" => {
                let last: &mut Region = regions.last_mut().unwrap();
                last.flags = rest.trim().to_owned();
                let can_be_read = last.flags.split(' ').any(|flag| flag == "rd");
                // What devices and rings map cannot be read from outside.
                let is_memory = !last.flags.split(' ').any(|flag| flag == "io" || flag == "pf");
                if !(present && can_be_read && is_memory) {
                    regions.pop();
                }
            }
            _ => {
                let Some((start, end)) = first.split_once('-') else { continue };
                let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
                else {
                    continue;
                };
                let name = rest.split_whitespace().nth(4).unwrap_or("anonymous memory").to_owned();
                regions.push(Region { name, start, size: end - start, flags: String::new() });
            }
        }
    }
    regions
}

/// Bytes of a key that must not be elsewhere; shorter ones could be there by chance.
pub const NEEDLE: usize = 16;

/// What lies in a slot of protected memory that is not all zero; slots have 64 bytes (`seal/src/memory.rs`).
pub fn secrets(protected: &[u8]) -> BTreeSet<[u8; NEEDLE]> {
    let slots = protected.chunks_exact(64).map(|slot| slot[..NEEDLE].try_into().unwrap());
    // Sparse content (a length, a pointer) is no key.
    slots.filter(|slot: &[u8; NEEDLE]| slot.iter().collect::<BTreeSet<_>>().len() > NEEDLE / 2).collect()
}

/// Where any of the needles stands in `bytes`.
pub fn find(bytes: &[u8], needles: &BTreeSet<[u8; NEEDLE]>) -> Vec<usize> {
    // Most places are ruled out by two bytes.
    let mut first = vec![false; 1 << 16];
    for needle in needles {
        first[usize::from(u16::from_le_bytes([needle[0], needle[1]]))] = true;
    }
    let places = bytes.windows(NEEDLE).enumerate().filter(|(_, window)| {
        first[usize::from(u16::from_le_bytes([window[0], window[1]]))] && needles.contains(*window)
    });
    places.map(|(at, _)| at).collect()
}
