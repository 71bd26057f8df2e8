//! What a file system has given to a file already: its extents, as `FS_IOC_FIEMAP` names them (Linux, `filesystems/fiemap`).

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::file::BLOCK;

/// `_IOWR('f', 11, struct fiemap)`, whose head has 32 bytes.
const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
/// Extents that one call asks for, and most calls. Of a file with more of them, which are 131,072, nothing is told: a part would be taken for
/// the whole.
const AT_ONCE: u32 = 256;
const CALLS: usize = 512;

const EXTENT_LAST: u32 = 0x1;
/// Not the file's own, or not there yet: a place that is unknown, delayed, encoded, inside metadata or a packed tail, or shared with another
/// file. Writing there takes room.
const NOT_GIVEN: u32 = 0x2 | 0x4 | 0x8 | 0x100 | 0x200 | 0x400 | 0x2000;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    more_reserved: [u32; 3],
}

/// `struct fiemap`, with its extents.
#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [Extent; AT_ONCE as usize],
}

const _: () = assert!(size_of::<Extent>() == 56 && size_of::<Request>() == 32 + 56 * AT_ONCE as usize);

/// The parts of these blocks that are the file's own, in order. `None` where its file system does not tell.
pub(crate) fn given(file: &OwnedFd, blocks: Range<u64>) -> Option<Vec<Range<u64>>> {
    let end = blocks.end.saturating_mul(BLOCK);
    let mut at = blocks.start.saturating_mul(BLOCK);
    let mut bytes: Vec<Range<u64>> = Vec::new();
    for _ in 0..CALLS {
        if at >= end {
            break;
        }
        let extents = ask(file, at..end)?;
        for extent in &extents {
            let to = extent.logical.saturating_add(extent.length);
            if to <= at {
                // A file system that goes back says nothing that can be used.
                return None;
            }
            let run = extent.logical.max(at)..to.min(end);
            at = to;
            if extent.flags & NOT_GIVEN != 0 || run.is_empty() {
                continue;
            }
            match bytes.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => bytes.push(run),
            }
        }
        if extents.last().is_none_or(|last| last.flags & EXTENT_LAST != 0) {
            at = end;
        }
    }
    if at < end {
        return None;
    }
    let whole = |run: Range<u64>| run.start.div_ceil(BLOCK)..run.end / BLOCK;
    Some(bytes.into_iter().map(whole).filter(|run| !run.is_empty()).collect())
}

fn ask(file: &OwnedFd, bytes: Range<u64>) -> Option<Vec<Extent>> {
    let mut request = Box::new(Request {
        start: bytes.start,
        length: bytes.end - bytes.start,
        flags: 0,
        mapped: 0,
        count: AT_ONCE,
        reserved: 0,
        extents: [Extent::default(); AT_ONCE as usize],
    });
    // SAFETY: the call reads the head of `request` and writes there and into its `count` extents; it outlives the call, which keeps nothing.
    let failed = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut *request) } != 0;
    let mapped = request.mapped.min(AT_ONCE) as usize;
    (!failed).then(|| request.extents[..mapped].to_vec())
}
