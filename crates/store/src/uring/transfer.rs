//! One read or write as the kernel sees it: one or more operations on neighbouring blocks.

use std::ptr::NonNull;

use uring::{Entry, opcode, types::Fixed};

use crate::{BLOCK_SIZE, Buffer};

/// How far neighbours are merged. Devices split larger transfers anyway, and a failure is retried in parts.
pub(crate) const MERGE_LIMIT: usize = 512 << 10;

/// The most that is asked of the kernel at once; what goes beyond is asked for later.
const ASK_LIMIT: usize = 1 << 30;

/// How often a transfer that was interrupted is sent again.
const ATTEMPTS: u32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl Direction {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// An operation of the user.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) direction: Direction,
    pub(crate) block: u64,
    pub(crate) token: u64,
    pub(crate) buffer: Buffer,
}

/// Neighbouring parts of one direction, at least one.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) parts: Vec<Part>,
    /// The memory that is left to do, if it is not in one piece. The kernel may read it until the
    /// transfer's completion, so it is not touched meanwhile.
    vectors: Vec<libc::iovec>,
    length: usize,
    done: usize,
    asked: usize,
    attempts: u32,
}

/// What a result of the kernel means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// Send it again, for the rest.
    More,
    /// Failed, with an error number.
    Refused(i32),
    /// So many bytes, and not one whole block of what is left: there is nothing more to come.
    Short(usize),
    /// More bytes than were asked for.
    Impossible(usize),
}

impl Transfer {
    pub(crate) fn new(part: Part) -> Self {
        let length = part.buffer.len();
        Self { parts: vec![part], vectors: Vec::new(), length, done: 0, asked: 0, attempts: 0 }
    }

    /// Takes `part` along if it begins where this ends.
    pub(crate) fn append(&mut self, part: Part) -> Result<(), Part> {
        let first = &self.parts[0];
        let end =
            u64::try_from(self.length / BLOCK_SIZE).ok().and_then(|blocks| first.block.checked_add(blocks));
        let length = self.length + part.buffer.len();
        if part.direction != first.direction || Some(part.block) != end || length > MERGE_LIMIT {
            return Err(part);
        }
        self.length = length;
        self.parts.push(part);
        Ok(())
    }

    /// The request for what is left. `pool` is the memory that is registered under index 0.
    ///
    /// The memory that the entry points to (buffers, and the vector of this transfer) must be kept, and the
    /// transfer left alone, until its completion; moving the transfer is fine.
    pub(crate) fn entry(&mut self, file: Fixed, pool: Option<(NonNull<u8>, usize)>) -> Entry {
        let first = &mut self.parts[0];
        let (direction, start) = (first.direction, first.buffer.as_mut_ptr());
        let offset = first.block * 4096 + u64::try_from(self.done).expect("a length fits 64 bits");
        if !self.is_contiguous() {
            return self.vectored(file, direction, offset);
        }
        self.asked = (self.length - self.done).min(ASK_LIMIT);
        let length = u32::try_from(self.asked).expect("limited above");
        let start = start.wrapping_add(self.done);
        let fixed = pool.is_some_and(|(base, size)| {
            let at = start.addr().wrapping_sub(base.addr().get());
            at < size && self.asked <= size - at
        });
        match (direction, fixed) {
            (Direction::Read, true) => opcode::ReadFixed::new(file, start, length, 0).offset(offset).build(),
            (Direction::Read, false) => opcode::Read::new(file, start, length).offset(offset).build(),
            (Direction::Write, true) => {
                opcode::WriteFixed::new(file, start, length, 0).offset(offset).build()
            }
            (Direction::Write, false) => opcode::Write::new(file, start, length).offset(offset).build(),
        }
    }

    fn vectored(&mut self, file: Fixed, direction: Direction, offset: u64) -> Entry {
        let mut skip = self.done;
        self.vectors.clear();
        for part in &mut self.parts {
            let skipped = skip.min(part.buffer.len());
            skip -= skipped;
            if skipped < part.buffer.len() {
                let start = part.buffer.as_mut_ptr().wrapping_add(skipped);
                let length = part.buffer.len() - skipped;
                self.vectors.push(libc::iovec { iov_base: start.cast(), iov_len: length });
            }
        }
        self.asked = self.length - self.done;
        let count = u32::try_from(self.vectors.len()).expect("at most MERGE_LIMIT / BLOCK_SIZE");
        let vectors = self.vectors.as_ptr();
        match direction {
            Direction::Read => opcode::Readv::new(file, vectors, count).offset(offset).build(),
            Direction::Write => opcode::Writev::new(file, vectors, count).offset(offset).build(),
        }
    }

    fn is_contiguous(&self) -> bool {
        self.parts
            .windows(2)
            .all(|pair| pair[0].buffer.as_ptr().wrapping_add(pair[0].buffer.len()) == pair[1].buffer.as_ptr())
    }

    /// Judges a completion and notes its progress.
    pub(crate) fn settle(&mut self, result: i32) -> Outcome {
        let Ok(bytes) = usize::try_from(result) else {
            self.attempts += 1;
            return match -result {
                libc::EINTR | libc::EAGAIN if self.attempts < ATTEMPTS => Outcome::More,
                errno => Outcome::Refused(errno),
            };
        };
        if bytes > self.asked {
            return Outcome::Impossible(bytes);
        }
        // Direct I/O goes in whole sectors; a partial block is done once more.
        let whole = bytes - bytes % BLOCK_SIZE;
        self.done += whole;
        match (self.done == self.length, whole) {
            (true, _) => Outcome::Done,
            (false, 0) => Outcome::Short(bytes),
            (false, _) => Outcome::More,
        }
    }

    /// The parts alone, to find out which of them it is that fails.
    pub(crate) fn split(self) -> impl DoubleEndedIterator<Item = Transfer> {
        self.parts.into_iter().map(Transfer::new)
    }
}

/// Sorts parts by place and merges neighbours.
pub(crate) fn merge(parts: &mut Vec<Part>, mut emit: impl FnMut(Transfer)) {
    if parts.len() > 1 {
        parts.sort_by_key(|part| (part.direction, part.block));
    }
    let mut open: Option<Transfer> = None;
    for part in parts.drain(..) {
        let rejected = match &mut open {
            Some(transfer) => transfer.append(part).err(),
            None => Some(part),
        };
        if let Some(part) = rejected
            && let Some(full) = open.replace(Transfer::new(part))
        {
            emit(full);
        }
    }
    open.into_iter().for_each(emit);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(direction: Direction, block: u64, blocks: usize) -> Part {
        Part { direction, block, token: block, buffer: Buffer::private_zeroed(blocks) }
    }

    fn merged(mut parts: Vec<Part>) -> Vec<(Direction, Vec<(u64, usize)>)> {
        let mut transfers = Vec::new();
        merge(&mut parts, |transfer| {
            let places = transfer.parts.iter().map(|part| (part.block, part.buffer.blocks()));
            transfers.push((transfer.parts[0].direction, places.collect()));
        });
        transfers
    }

    #[test]
    fn neighbours_of_one_direction_are_merged() {
        use Direction::{Read, Write};
        let parts = vec![
            part(Write, 4, 2),
            part(Read, 6, 1),
            part(Write, 3, 1),
            part(Write, 6, 1),
            part(Write, 8, 1),
        ];
        let expected =
            vec![(Read, vec![(6, 1)]), (Write, vec![(3, 1), (4, 2), (6, 1)]), (Write, vec![(8, 1)])];
        assert_eq!(merged(parts), expected);
    }

    #[test]
    fn merging_stops_at_the_limit_and_the_end_of_addresses() {
        let blocks = u64::try_from(MERGE_LIMIT / BLOCK_SIZE).unwrap();
        let parts = (0..=blocks).map(|block| part(Direction::Write, block, 1)).collect();
        let lengths: Vec<usize> = merged(parts).iter().map(|(_, places)| places.len()).collect();
        assert_eq!(lengths, [MERGE_LIMIT / BLOCK_SIZE, 1]);
        assert_eq!(merged(vec![part(Direction::Read, u64::MAX, 1), part(Direction::Read, 0, 1)]).len(), 2);
    }

    fn asked(blocks: usize) -> Transfer {
        let mut transfer = Transfer::new(part(Direction::Read, 0, blocks));
        transfer.entry(Fixed(0), None);
        transfer
    }

    #[test]
    fn results_are_judged_not_trusted() {
        assert_eq!(asked(2).settle(8192), Outcome::Done);
        assert_eq!(asked(2).settle(8193), Outcome::Impossible(8193));
        assert_eq!(asked(2).settle(i32::MAX), Outcome::Impossible(0x7fff_ffff));
        assert_eq!(asked(2).settle(0), Outcome::Short(0));
        assert_eq!(asked(2).settle(4095), Outcome::Short(4095));
        assert_eq!(asked(2).settle(-libc::EIO), Outcome::Refused(libc::EIO));
        let mut transfer = asked(3);
        assert_eq!(transfer.settle(8191), Outcome::More);
        transfer.entry(Fixed(0), None);
        assert_eq!(transfer.settle(8193), Outcome::Impossible(8193), "only two blocks were left");
        assert_eq!(transfer.settle(8192), Outcome::Done);
    }

    #[test]
    fn interruptions_are_retried_but_not_for_ever() {
        let mut transfer = asked(1);
        let again = (0..100).take_while(|_| transfer.settle(-libc::EINTR) == Outcome::More).count();
        assert_eq!(again, 15);
    }

    proptest! {
        /// Whatever the kernel says, a transfer succeeds only when each of its bytes was said to be done, and comes to an end.
        #[test]
        fn done_is_what_was_done(
            blocks in 1_usize..20,
            results in prop::collection::vec(
                prop_oneof![
                    4 => 0..9000_i32,
                    2 => (0..20_i32).prop_map(|blocks| blocks * 4096),
                    1 => any::<i32>(),
                    1 => Just(-libc::EAGAIN),
                ],
                60,
            ),
        ) {
            let mut transfer = Transfer::new(part(Direction::Read, 0, blocks));
            let mut left = i64::try_from(blocks).unwrap() * 4096;
            let mut rounds = 0;
            let outcome = loop {
                let result = results[rounds];
                rounds += 1;
                transfer.entry(Fixed(0), None);
                match transfer.settle(result) {
                    Outcome::More => {}
                    outcome => break (outcome, i64::from(result)),
                }
                prop_assert!(i64::from(result) < left, "what was left has come");
                left -= i64::from(result.max(0) / 4096) * 4096;
            };
            match outcome {
                (Outcome::Done, result) => prop_assert_eq!(result, left),
                (Outcome::Impossible(_), result) => prop_assert!(result > left),
                (Outcome::Short(_), result) => prop_assert!((0..4096).contains(&result)),
                (Outcome::Refused(_), result) => prop_assert!(result < 0),
                (Outcome::More, _) => unreachable!(),
            }
            prop_assert!(rounds <= blocks + 16);
        }

        /// However the kernel cuts a transfer, the vector names just the memory that is left, in order.
        #[test]
        fn the_rest_is_what_is_left(sizes in prop::collection::vec(1_usize..9, 2..9), cut in 1_usize..9) {
            let mut block = 0;
            let mut parts = Vec::new();
            for size in sizes {
                parts.push(part(Direction::Write, block, size));
                block += u64::try_from(size).unwrap();
            }
            let ranges = parts.iter().map(|p| (p.buffer.as_ptr().addr(), p.buffer.len()));
            let expected: Vec<usize> = ranges.flat_map(|(at, length)| (at..at + length).step_by(BLOCK_SIZE)).collect();
            let mut transfers = Vec::new();
            merge(&mut parts, |transfer| transfers.push(transfer));
            let mut transfer = transfers.remove(0);
            prop_assert!(transfers.is_empty());
            for done in (0..expected.len()).step_by(cut) {
                transfer.entry(Fixed(0), None);
                prop_assert_eq!(transfer.asked, (expected.len() - done) * BLOCK_SIZE);
                if !transfer.is_contiguous() {
                    let left = transfer.vectors.iter().flat_map(|v| {
                        (v.iov_base.addr()..v.iov_base.addr() + v.iov_len).step_by(BLOCK_SIZE)
                    });
                    prop_assert!(left.eq(expected[done..].iter().copied()));
                }
                let bytes = transfer.asked.min(cut * BLOCK_SIZE);
                let outcome = transfer.settle(i32::try_from(bytes).unwrap());
                let last = done + cut >= expected.len();
                prop_assert_eq!(outcome, if last { Outcome::Done } else { Outcome::More });
            }
        }
    }
}
