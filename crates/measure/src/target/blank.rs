//! Whether something holds data.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::error::{Context, Result};
use cli::interrupt::Interrupt;

/// So much of what is to be overwritten is read whole.
const WHOLE: u64 = 4 << 30;
/// So much at both ends is read whole. All signatures of file systems, partition tables and RAID lie there.
const ENDS: u64 = 64 << 20;
/// Of the rest, so many places are looked at, evenly spread.
const SAMPLES: u64 = 4096;
/// Bytes of one of them.
const SAMPLE: u64 = 64 << 10;
/// Bytes that are read at a time.
const CHUNK: usize = 1 << 20;

/// Where a file or device of `size` bytes holds something else than zeros, if it was found to. The first `used` bytes, which are to be
/// overwritten, and both ends are read whole as far as that is possible in seconds; the rest is sampled. Holes of a file are passed over, so
/// a file that holds little is read whole.
pub fn data_in(file: &File, size: u64, used: u64, interrupt: &Interrupt) -> Result<Option<u64>> {
    let front = used.clamp(ENDS, WHOLE).min(size);
    let back = size.saturating_sub(ENDS).max(front);
    let mut look = Look { file, interrupt, buffer: vec![0; CHUNK] };
    for range in [0..front, back..size] {
        if let Some(found) = look.whole(range)? {
            return Ok(Some(found));
        }
    }
    let stride = ((back - front) / SAMPLES).max(SAMPLE);
    let mut at = front;
    while at < back {
        // In a file the next data may be far away, and end soon; on a device they are here, and go on.
        let Some(data) = next_data(file, at).filter(|data| *data < back) else { break };
        let end = next_hole(file, data, back).min(data.saturating_add(stride)).min(back);
        // Somewhere in between, so that no pattern of data hides between the samples.
        let start = fastrand::u64(data..=end.saturating_sub(SAMPLE).max(data));
        if let Some(found) = look.whole(start..start.saturating_add(SAMPLE).min(end))? {
            return Ok(Some(found));
        }
        at = end;
    }
    Ok(None)
}

struct Look<'a> {
    file: &'a File,
    interrupt: &'a Interrupt,
    buffer: Vec<u8>,
}

impl Look<'_> {
    /// Where the first byte of a range is that is not zero.
    fn whole(&mut self, range: Range<u64>) -> Result<Option<u64>> {
        let mut at = range.start;
        while at < range.end {
            self.interrupt.check()?;
            let Some(data) = next_data(self.file, at).filter(|data| *data < range.end) else { break };
            at = data;
            let length = usize::try_from(range.end - at).unwrap_or(CHUNK).min(CHUNK);
            let chunk = self.buffer.get_mut(..length).unwrap_or_default();
            let read = match self.file.read_at(chunk, at) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).doing("looking for data"),
            };
            let bytes = chunk.get(..read).unwrap_or_default();
            if !is_zero(bytes) {
                let first = bytes.iter().position(|byte| *byte != 0).unwrap_or(0);
                return Ok(Some(at.saturating_add(u64::try_from(first).unwrap_or(0))));
            }
            at = at.saturating_add(u64::try_from(read).unwrap_or(0));
        }
        Ok(None)
    }
}

/// In words, which is several times as fast as byte by byte.
fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| word.iter().fold(0, |all, byte| all | byte) == 0)
        && rest.iter().all(|byte| *byte == 0)
}

/// Where the next bytes are that may be other than zeros: a device has them everywhere, a file perhaps far away or nowhere.
fn next_data(file: &File, at: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) => Some(data),
        Err(Errno::NXIO) => None,
        // What cannot tell has data here.
        Err(_) => Some(at),
    }
}

/// Where data end that begin here; beyond them there is a hole.
fn next_hole(file: &File, data: u64, end: u64) -> u64 {
    rustix::fs::seek(file, SeekFrom::Hole(data)).map_or(end, |hole| hole.max(data + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(size: u64, used: u64, data: &[u64]) -> Option<u64> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        for at in data {
            file.write_all_at(&[1], *at).unwrap();
        }
        data_in(&file, size, used, &Interrupt::default()).unwrap()
    }

    #[test]
    fn a_single_byte_is_found_wherever_it_lies() {
        let size = 100 << 30;
        assert_eq!(found(size, 1 << 30, &[]), None);
        for at in [0, 1, (1 << 20) + 7, (1 << 30) - 1, 50 << 30, size - (1 << 21), size - 1] {
            assert_eq!(found(size, 1 << 30, &[at]), Some(at));
        }
        assert_eq!(found(1 << 20, 1 << 20, &[77]), Some(77));
        assert_eq!(found(0, 1 << 20, &[]), None);
    }

    #[test]
    fn data_that_fills_a_hundredth_is_found_by_samples() {
        // Every byte counts as read: what a device is like, where no hole is known.
        let file = tempfile::tempfile().unwrap();
        let size = 1u64 << 30;
        file.set_len(size).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).unwrap();
        let at = 512 << 20;
        file.write_all_at(&vec![9; 10 << 20], at).unwrap();
        let found = data_in(&file, size, 1 << 20, &Interrupt::default()).unwrap().unwrap();
        assert!((at..at + (10 << 20)).contains(&found), "{found}");
    }
}
