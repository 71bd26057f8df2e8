//! One request on its way through the kernel.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use libc::iovec;
use store::Buffer;
use uring::{Entry, opcode, types};
use virtqueue::block::{Kind, Request, SECTOR, Status, segments};
use virtqueue::{CHAIN_LIMIT, Part};

use crate::disk::{Disk, MOST_DISCARDS};
use crate::memory_map::MemoryMap;

/// Zeros for disks that can't make them by themselves.
#[repr(align(4096))]
struct Zeros([u8; ZEROS]);
const ZEROS: usize = 256 * 1024;
static NOTHING: Zeros = Zeros([0; ZEROS]);

/// Most bytes of a request that needs memory of ours. Its length is the guest's word.
const MOST_STAGED: usize = 64 << 20;

/// What the kernel is asked for.
#[derive(Debug)]
enum Work {
    Read,
    Write,
    Flush,
    /// Ranges, the last first, each as (offset, bytes, how).
    Ranges(Vec<(u64, u64, Way)>),
}

/// How a range is given up or zeroed; each is tried when the one before is not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A discard, which is only a hint: where there is none, it has ended well.
    Discard,
    Punch,
    Zero,
    Write,
}

/// A request that the kernel works on. Its memory stays where it is until the request has ended.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Of its worker.
    pub(crate) lane: usize,
    pub(crate) head: u16,
    pub(crate) kind: Kind,
    /// Bytes of data.
    pub(crate) length: u64,
    work: Work,
    disk: Arc<Disk>,
    /// Keeps what `vectors` name mapped.
    memory: Arc<MemoryMap>,
    status: u64,
    vectors: Vec<iovec>,
    at: u64,
    left: u64,
    /// Private memory in the place of the guest's, where that is not aligned as the disk wants it; and the guest's.
    bounce: Option<(Buffer, Vec<Part>)>,
    is_durable: bool,
}

// SAFETY: the addresses in `vectors` are of memory that `memory` or `bounce` keep, which belongs to no thread.
unsafe impl Send for Transfer {}

/// How far a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ended(Status),
    More,
}

/// Where a request is from.
pub(crate) struct From<'a> {
    pub(crate) disk: &'a Arc<Disk>,
    pub(crate) memory: &'a Arc<MemoryMap>,
    pub(crate) lane: usize,
    pub(crate) head: u16,
    /// Whether each write must be durable when it ends, since the driver knows no flush.
    pub(crate) is_durable: bool,
}

impl Transfer {
    /// Makes work for the kernel of a request, or ends it at once.
    pub(crate) fn new(from: &From<'_>, request: &Request, parts: &mut [Part]) -> Result<Self, Status> {
        let disk = from.disk;
        let may_change = !disk.is_read_only() && !disk.is_failed();
        let work = match request.kind {
            Kind::Read => Work::Read,
            Kind::Write if may_change => Work::Write,
            Kind::Flush if may_change => Work::Flush,
            Kind::Discard | Kind::WriteZeroes if may_change => {
                Work::Ranges(ranges(disk, from.memory, request.kind, parts).ok_or(Status::Error)?)
            }
            Kind::Write | Kind::Flush | Kind::Discard | Kind::WriteZeroes => return Err(Status::Error),
            Kind::Id | Kind::Other(_) => return Err(Status::Unsupported),
        };
        let mut transfer = Self {
            lane: from.lane,
            head: from.head,
            kind: request.kind,
            length: request.length,
            work,
            disk: disk.clone(),
            memory: from.memory.clone(),
            status: request.status,
            vectors: Vec::new(),
            at: 0,
            left: 0,
            bounce: None,
            is_durable: from.is_durable,
        };
        if matches!(transfer.work, Work::Read | Work::Write) {
            if request.length == 0 || !disk.has(request.sector, request.length) {
                return Err(Status::Error);
            }
            transfer.at = request.sector * SECTOR;
            transfer.left = request.length;
            transfer.aim(parts)?;
        }
        Ok(transfer)
    }

    /// Names the memory for the data.
    fn aim(&mut self, parts: &[Part]) -> Result<(), Status> {
        let mask = self.disk.memory_alignment() - 1;
        let mut is_aligned = true;
        for part in parts {
            let (mut address, mut length) = (part.address, u64::from(part.length));
            while length > 0 {
                let found = self.memory.find(address, length).ok_or(Status::Error)?;
                let base = self.memory.address(found);
                is_aligned &= base.addr() & mask == 0 && found.length & mask == 0;
                self.vectors.push(iovec { iov_base: base.cast(), iov_len: found.length });
                let done = u64::try_from(found.length).map_err(|_| Status::Error)?;
                address += done;
                length -= done;
            }
        }
        if self.vectors.len() > CHAIN_LIMIT {
            return Err(Status::Error);
        }
        if !is_aligned {
            self.stage(parts)?;
        }
        Ok(())
    }

    /// Puts private memory in the place of the guest's.
    fn stage(&mut self, parts: &[Part]) -> Result<(), Status> {
        let length = usize::try_from(self.left).map_err(|_| Status::Error)?;
        if length > MOST_STAGED {
            return Err(Status::Error);
        }
        let mut buffer = Buffer::private_zeroed(length.div_ceil(store::BLOCK_SIZE));
        if matches!(self.work, Work::Write) {
            let mut at = 0;
            for part in parts {
                let end = at + usize::try_from(part.length).map_err(|_| Status::Error)?;
                let bytes =
                    buffer.private_mut().and_then(|bytes| bytes.get_mut(at..end)).ok_or(Status::Error)?;
                if !virtqueue::Guest::read(&*self.memory, part.address, bytes) {
                    return Err(Status::Error);
                }
                at = end;
            }
        }
        if self.memory.is_lost() {
            return Err(Status::Error);
        }
        self.vectors = vec![iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: length }];
        self.bounce = Some((buffer, parts.to_vec()));
        Ok(())
    }

    /// What to ask the kernel next. All that it names lives in this transfer, whose vectors do not move while it is in flight.
    pub(crate) fn entry(&self) -> Entry {
        let file = types::Fd(self.disk.as_fd().as_raw_fd());
        let count = u32::try_from(self.vectors.len()).unwrap_or(0);
        match &self.work {
            Work::Read => opcode::Readv::new(file, self.vectors.as_ptr(), count).offset(self.at).build(),
            Work::Write => {
                let flags = if self.is_durable { libc::RWF_DSYNC } else { 0 };
                opcode::Writev::new(file, self.vectors.as_ptr(), count)
                    .offset(self.at)
                    .rw_flags(flags)
                    .build()
            }
            Work::Flush => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            Work::Ranges(ranges) => match ranges.last() {
                Some((offset, bytes, Way::Write)) => {
                    let bytes = u32::try_from((*bytes).min(ZEROS as u64)).unwrap_or(0);
                    opcode::Write::new(file, NOTHING.0.as_ptr(), bytes).offset(*offset).build()
                }
                Some((offset, bytes, way)) => {
                    let mode = match way {
                        Way::Zero => libc::FALLOC_FL_ZERO_RANGE,
                        _ => libc::FALLOC_FL_PUNCH_HOLE,
                    };
                    let mode = mode | libc::FALLOC_FL_KEEP_SIZE;
                    opcode::Fallocate::new(file, *bytes).offset(*offset).mode(mode).build()
                }
                None => opcode::Nop::new().build(),
            },
        }
    }

    /// The kernel has answered.
    pub(crate) fn settle(&mut self, result: i32) -> Outcome {
        let done = match u64::try_from(result) {
            Ok(done) => done,
            Err(_) if [libc::EAGAIN, libc::EINTR].contains(&-result) => return Outcome::More,
            Err(_) => return self.refused(-result),
        };
        match &mut self.work {
            Work::Flush => Outcome::Ended(Status::Ok),
            Work::Ranges(ranges) => {
                let Some((offset, bytes, way)) = ranges.last_mut() else { return Outcome::Ended(Status::Ok) };
                if *way == Way::Write && done < *bytes {
                    if done == 0 {
                        return Outcome::Ended(Status::Error);
                    }
                    *offset += done;
                    *bytes -= done;
                } else {
                    ranges.pop();
                }
                if ranges.is_empty() { self.end_of_ranges() } else { Outcome::More }
            }
            // The end of the file: somebody has cut it.
            Work::Read | Work::Write if done == 0 || done > self.left => Outcome::Ended(Status::Error),
            Work::Read | Work::Write => {
                self.left -= done;
                self.at += done;
                if self.left > 0 {
                    advance(&mut self.vectors, usize::try_from(done).unwrap_or(0));
                    return Outcome::More;
                }
                Outcome::Ended(self.unstage())
            }
        }
    }

    /// What a driver without flushes has zeroed is made durable, too.
    fn end_of_ranges(&mut self) -> Outcome {
        if !self.is_durable {
            return Outcome::Ended(Status::Ok);
        }
        self.work = Work::Flush;
        Outcome::More
    }

    fn refused(&mut self, errno: i32) -> Outcome {
        if let Work::Ranges(ranges) = &mut self.work
            && errno == libc::EOPNOTSUPP
            && let Some((_, _, way)) = ranges.last_mut()
        {
            match way {
                Way::Discard => drop(ranges.pop()),
                Way::Punch => *way = Way::Zero,
                Way::Zero => *way = Way::Write,
                Way::Write => return Outcome::Ended(Status::Error),
            }
            return if ranges.is_empty() { self.end_of_ranges() } else { Outcome::More };
        }
        if matches!(self.work, Work::Flush) {
            self.disk.fail();
        }
        self.disk.report(self.kind, errno);
        Outcome::Ended(Status::Error)
    }

    /// Hands what was read into private memory to the guest.
    fn unstage(&mut self) -> Status {
        let (Work::Read, Some((buffer, parts))) = (&self.work, &self.bounce) else { return Status::Ok };
        let mut rest = buffer.private().unwrap_or_default();
        for part in parts {
            let length = usize::try_from(part.length).unwrap_or(usize::MAX).min(rest.len());
            let (now, then) = rest.split_at(length);
            if !self.memory.write(part.address, now) {
                return Status::Error;
            }
            rest = then;
        }
        Status::Ok
    }

    /// Tells the guest how it ended. Returns how many bytes of its memory were written, as the used ring says it.
    pub(crate) fn answer(&self, status: Status) -> u32 {
        self.memory.write(self.status, &[status as u8]);
        let data = if matches!(self.work, Work::Read) && status == Status::Ok { self.length } else { 0 };
        u32::try_from(data).unwrap_or(u32::MAX - 1).saturating_add(1)
    }
}

fn ranges(
    disk: &Disk,
    memory: &Arc<MemoryMap>,
    kind: Kind,
    parts: &mut [Part],
) -> Option<Vec<(u64, u64, Way)>> {
    let is_discard = kind == Kind::Discard;
    let found = segments(&**memory, parts, if is_discard { MOST_DISCARDS } else { 1 })?;
    let mut ranges = Vec::new();
    for segment in found.iter().rev() {
        let bytes = u64::from(segment.sectors) * SECTOR;
        // Of a discard that bit is reserved.
        if !disk.has(segment.sector, bytes) || is_discard && segment.unmap {
            return None;
        }
        let way = match (is_discard, segment.unmap) {
            (true, _) => Way::Discard,
            (false, true) => Way::Punch,
            (false, false) => Way::Zero,
        };
        if bytes > 0 {
            ranges.push((segment.sector * SECTOR, bytes, way));
        }
    }
    Some(ranges)
}

/// Leaves out what is done.
fn advance(vectors: &mut Vec<iovec>, mut done: usize) {
    let whole = vectors.iter().take_while(|vector| {
        let is_done = vector.iov_len <= done;
        done -= if is_done { vector.iov_len } else { 0 };
        is_done
    });
    let whole = whole.count();
    vectors.drain(..whole);
    if let Some(first) = vectors.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(done);
        first.iov_len -= done;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_short_transfer_is_named() {
        let vector = |at: usize, iov_len| iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len };
        for (done, expected) in [
            (0, vec![(100, 10), (200, 20), (300, 30)]),
            (9, vec![(109, 1), (200, 20), (300, 30)]),
            (10, vec![(200, 20), (300, 30)]),
            (35, vec![(305, 25)]),
        ] {
            let mut vectors = vec![vector(100, 10), vector(200, 20), vector(300, 30)];
            advance(&mut vectors, done);
            let left: Vec<_> =
                vectors.iter().map(|vector| (vector.iov_base.addr(), vector.iov_len)).collect();
            assert_eq!(left, expected, "{done}");
        }
    }
}
