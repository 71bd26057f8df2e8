//! One client: its requests go to the device as they come, any number at a time, and its replies come back as they are ready. The thread
//! that takes them may be the client's own, or one that serves others as well: so it waits, for the client and for room, as a future.

use super::answer::{Answer, Form, Pieces};
use super::handshake::Agreed;
use super::incoming::BUFFER;
use super::outbox::Outbox;
use super::wire::{self, Command, Flags, REQUEST_BYTES};
use crate::aligned::Aligned;
use crate::budget::{Share, weight};
use crate::{BLOCK_SIZE, Request};
use bytes::Bytes;
use futures::io::{AsyncBufRead, AsyncRead, AsyncReadExt, BufReader, copy_buf, sink};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;

/// Most bytes of a read or write. Clients that do not ask for the limit send more than a megabyte: the kernel's does.
pub(super) const MAX_REQUEST: u32 = 4 << 20;

/// Most bytes of a request to the device; larger ones go in pieces.
const PIECE: u32 = 1 << 20;

/// Most bytes that are looked at for one question about block status. A client asks again from where the answer ends.
const MAX_STATUS: u64 = 64 << 20;

/// What a request without data counts in the budget, and what a question about block status does.
const SMALL: u32 = 4096;
const STATUS: u32 = 512 << 10;

/// A client that uses the export.
pub(super) struct Connection {
    pub(super) device: Aligned,
    pub(super) read_only: bool,
    pub(super) agreed: Agreed,
    pub(super) share: Arc<Share>,
    pub(super) outbox: Arc<Outbox>,
}

impl Connection {
    /// Serves until the client says goodbye.
    ///
    /// # Errors
    /// When the connection breaks, or the client does not keep to the protocol.
    pub(super) async fn serve(self, input: impl AsyncRead + Unpin) -> io::Result<()> {
        let mut input = BufReader::with_capacity(BUFFER, input);
        loop {
            let mut header = [0; REQUEST_BYTES];
            input.read_exact(&mut header).await?;
            let request = wire::Request::decode(&header)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if request.command == Command::Disconnect {
                return Ok(());
            }
            self.take(&request, &mut input).await?;
        }
    }

    async fn take(&self, request: &wire::Request, input: &mut (impl AsyncBufRead + Unpin)) -> io::Result<()> {
        let is_write = request.command == Command::Write;
        let answer = self.answer(request).await;
        if let Err(errno) = self.check(request) {
            if is_write {
                // All of it, however large: behind it the next request begins, and the client hears what was wrong.
                copy_buf(input.take(request.length.into()), &mut sink()).await?;
            }
            answer.send(Err(errno));
            return Ok(());
        }
        let wire::Request { offset, length, flags, .. } = *request;
        let fua = flags.has(Flags::FUA);
        match request.command {
            Command::Read => self.read(offset, length, answer),
            Command::Write => return self.write(offset, length, fua, answer, input).await,
            Command::WriteZeroes if flags.has(Flags::NO_HOLE) => {
                self.write_zeroes(offset, length, fua, answer).await;
            }
            Command::Trim | Command::WriteZeroes => {
                self.device.submit(
                    Request::Discard { offset, length: length.into() },
                    self.durable(fua, answer).next(),
                );
            }
            Command::BlockStatus => self.status(offset, length, answer),
            // A check has refused what is unknown.
            _ => self.device.submit(Request::Flush, answer.done()),
        }
        Ok(())
    }

    /// The duty to reply, once there is room for what the request takes.
    async fn answer(&self, request: &wire::Request) -> Answer {
        let wire::Request { command, offset, length, flags, .. } = *request;
        let (bytes, form) = match command {
            Command::Read if self.agreed.structured => {
                (length.min(MAX_REQUEST), Form::Data { offset, length })
            }
            Command::Read => (length.min(MAX_REQUEST), Form::Simple),
            Command::Write => (length.min(MAX_REQUEST), Form::Simple),
            Command::BlockStatus if self.agreed.structured => {
                let one = flags.has(Flags::ONE_EXTENT);
                (STATUS, Form::Status { skip: offset % BLOCK_SIZE, length, one })
            }
            _ => (0, Form::Simple),
        };
        let permit = self.share.acquire(weight(bytes.max(SMALL))).await;
        Answer::new(request.cookie, form, Arc::clone(&self.outbox), permit)
    }

    /// What is wrong with a request, in the protocol's words.
    fn check(&self, request: &wire::Request) -> Result<(), Errno> {
        let wire::Request { command, offset, length, flags, .. } = *request;
        let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        let beyond = match command {
            Command::Unknown(_) => return Err(Errno::INVAL),
            Command::Flush => return if flags.fit(command, false) { Ok(()) } else { Err(Errno::INVAL) },
            Command::BlockStatus if !self.agreed.allocation => return Err(Errno::INVAL),
            Command::Write | Command::WriteZeroes => Errno::NOSPC,
            _ => Errno::INVAL,
        };
        if changes && self.read_only {
            return Err(Errno::PERM);
        }
        let too_large = matches!(command, Command::Read | Command::Write) && length > MAX_REQUEST;
        if length == 0 || too_large || !flags.fit(command, self.agreed.structured) {
            return Err(Errno::INVAL);
        }
        match offset.checked_add(length.into()) {
            Some(end) if end <= self.device.size() => {}
            _ => return Err(beyond),
        }
        // Zeros that take up space are as slow as any other data.
        if flags.has(Flags::FAST_ZERO) && flags.has(Flags::NO_HOLE) {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(())
    }

    fn read(&self, offset: u64, length: u32, answer: Answer) {
        if is_one_piece(offset, length) {
            return self.device.submit(Request::Read { offset, length }, answer.done());
        }
        let pieces = Pieces::new(|result| answer.send(result));
        for (offset, length) in cut(offset, length) {
            self.device.submit(Request::Read { offset, length }, pieces.next());
        }
    }

    async fn write(
        &self,
        offset: u64,
        length: u32,
        fua: bool,
        answer: Answer,
        input: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<()> {
        if is_one_piece(offset, length) {
            // Taken first: who leaves in the middle has not written this.
            let done = answer.done();
            let data = self.receive(length, input).await?;
            self.device.submit(Request::Write { offset, data, fua }, done);
            return Ok(());
        }
        // All pieces of one write become durable together.
        let whole = length <= PIECE;
        let pieces = self.durable(fua && !whole, answer);
        for (offset, length) in cut(offset, length) {
            let done = pieces.next();
            let data = self.receive(length, input).await?;
            self.device.submit(Request::Write { offset, data, fua: fua && whole }, done);
        }
        Ok(())
    }

    /// Data of a write.
    async fn receive(&self, length: u32, input: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
        let mut memory = self.device.memory(usize::try_from(length).map_err(io::Error::other)?);
        input.read_exact(memory.as_mut()).await?;
        Ok(memory.freeze())
    }

    /// Zeros that keep their space, as data: piece by piece, as there is room for them.
    async fn write_zeroes(&self, offset: u64, length: u32, fua: bool, answer: Answer) {
        let pieces = self.durable(fua, answer);
        for (offset, length) in cut(offset, length) {
            let permit = self.share.acquire(weight(length)).await;
            let done = pieces.next();
            let mut memory = self.device.memory(usize::try_from(length).unwrap_or(0));
            memory.as_mut().fill(0);
            let end = move |result| {
                drop(permit);
                done(result);
            };
            self.device.submit(Request::Write { offset, data: memory.freeze(), fua: false }, Box::new(end));
        }
    }

    /// What must be durable is flushed when all of it has ended.
    fn durable(&self, fua: bool, answer: Answer) -> Arc<Pieces> {
        let device = self.device.clone();
        Pieces::new(move |result| match result {
            Ok(_) if fua => device.submit(Request::Flush, answer.done()),
            result => answer.send(result),
        })
    }

    fn status(&self, offset: u64, length: u32, answer: Answer) {
        let start = offset - offset % BLOCK_SIZE;
        let end = (offset + u64::from(length)).next_multiple_of(BLOCK_SIZE);
        self.device.allocated(start, (end - start).min(MAX_STATUS), answer.found());
    }
}

/// Whether [`cut`] leaves a stretch as it is.
fn is_one_piece(offset: u64, length: u32) -> bool {
    length > 0 && offset % u64::from(PIECE) + u64::from(length) <= u64::from(PIECE)
}

/// The pieces of a stretch: where they begin, and how long they are. All but the first begin at a whole block.
fn cut(offset: u64, length: u32) -> impl Iterator<Item = (u64, u32)> {
    let end = offset + u64::from(length);
    let mut at = offset;
    std::iter::from_fn(move || {
        let stop = (at - at % u64::from(PIECE)).saturating_add(PIECE.into()).min(end);
        let piece = (at, u32::try_from(stop - at).ok().filter(|length| *length > 0)?);
        at = stop;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_whole_and_small_and_leave_nothing_out(
            offset in 0..1_u64 << 40,
            length in (0..25_u32).prop_flat_map(|bits| 1..=1_u32 << bits),
        ) {
            let mut at = offset;
            for (begin, piece) in cut(offset, length) {
                prop_assert_eq!(begin, at);
                prop_assert!(piece > 0 && piece <= PIECE);
                prop_assert!(begin == offset || begin.is_multiple_of(u64::from(PIECE)));
                at += u64::from(piece);
            }
            prop_assert_eq!(at, offset + u64::from(length));
            prop_assert_eq!(is_one_piece(offset, length), cut(offset, length).count() == 1);
        }
    }
}
