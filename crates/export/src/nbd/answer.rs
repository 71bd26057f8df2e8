//! Replies on their way: from the device's threads, where requests end, to the thread that writes to the client.

use super::budget::Permit;
use super::link::Output;
use super::wire;
use crate::{Done, Extent, Found};
use rustix::io::Errno;
use std::io::{self, BufWriter, Write};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// A whole reply, ready to be sent.
pub(super) struct Reply {
    head: Vec<u8>,
    data: Vec<Vec<u8>>,
    _permit: Permit,
}

/// What a reply looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A simple reply; with data, if it is a read that succeeded.
    Simple,
    /// A structured reply to a read of these bytes.
    Data { offset: u64, length: u32 },
    /// A structured reply that tells what is allocated.
    Status { skip: u64, length: u32, one: bool },
}

/// The duty to reply to a request. If it is dropped, the client gets `EIO`.
pub(super) struct Answer {
    cookie: u64,
    form: Form,
    replies: Sender<Reply>,
    permit: Option<Permit>,
}

impl Answer {
    pub(super) fn new(cookie: u64, form: Form, replies: Sender<Reply>, permit: Permit) -> Answer {
        Answer { cookie, form, replies, permit: Some(permit) }
    }

    /// With the data of a read, or with none.
    pub(super) fn send(mut self, result: Result<Vec<Vec<u8>>, Errno>) {
        self.reply(result);
    }

    /// With what is allocated.
    pub(super) fn found(self) -> Found {
        let mut answer = self;
        Box::new(move |extents: Result<Vec<Extent>, Errno>| {
            let Form::Status { skip, length, one } = answer.form else { return };
            let head = extents.and_then(|extents| {
                wire::block_status(answer.cookie, &extents, skip, length, one).ok_or(Errno::IO)
            });
            match head {
                Ok(head) => answer.pass_on(head, Vec::new()),
                Err(errno) => answer.reply(Err(errno)),
            }
        })
    }

    fn reply(&mut self, result: Result<Vec<Vec<u8>>, Errno>) {
        let (head, data) = match (self.form, result) {
            (Form::Simple, Err(errno)) => (wire::simple(self.cookie, Err(errno)), Vec::new()),
            (Form::Simple, Ok(data)) => (wire::simple(self.cookie, Ok(())), data),
            (_, Err(errno)) => (wire::chunk_error(self.cookie, errno), Vec::new()),
            (Form::Data { offset, length }, Ok(data)) => {
                (wire::offset_data(self.cookie, offset, length), data)
            }
            (Form::Status { .. }, Ok(_)) => (wire::chunk_error(self.cookie, Errno::IO), Vec::new()),
        };
        self.pass_on(head, data);
    }

    fn pass_on(&mut self, head: Vec<u8>, data: Vec<Vec<u8>>) {
        if let Some(permit) = self.permit.take() {
            // Nobody listens any more when the client is gone.
            let _ = self.replies.send(Reply { head, data, _permit: permit });
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.permit.is_some() {
            self.reply(Err(Errno::IO));
        }
    }
}

type End = Box<dyn FnOnce(Result<Vec<Vec<u8>>, Errno>) + Send>;

/// A request in pieces. It ends when the last piece has ended, or was given up, which is an I/O error.
pub(super) struct Pieces {
    results: Mutex<Vec<Result<Vec<u8>, Errno>>>,
    end: Mutex<Option<End>>,
}

impl Pieces {
    pub(super) fn new(end: impl FnOnce(Result<Vec<Vec<u8>>, Errno>) + Send + 'static) -> Arc<Pieces> {
        Arc::new(Pieces { results: Mutex::default(), end: Mutex::new(Some(Box::new(end))) })
    }

    /// The end of the next piece.
    pub(super) fn next(self: &Arc<Pieces>) -> Done {
        let (pieces, index) = {
            let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            results.push(Err(Errno::IO));
            (Arc::clone(self), results.len() - 1)
        };
        Box::new(move |result| {
            let mut results = pieces.results.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(place) = results.get_mut(index) {
                *place = result;
            }
            // The lock must be free when the last piece drops what it is in.
            drop(results);
            drop(pieces);
        })
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        let results = std::mem::take(self.results.get_mut().unwrap_or_else(PoisonError::into_inner));
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(end) = end {
            end(results.into_iter().collect());
        }
    }
}

/// Bytes of small replies that are sent together.
const BATCH: usize = 32 << 10;

/// Writes replies until there is nobody left who could send one, or the client is gone; then it only lets go of them.
pub(super) fn write(replies: &Receiver<Reply>, output: Output) {
    let mut output = BufWriter::with_capacity(BATCH, output);
    while let Ok(reply) = replies.recv() {
        if send(&mut output, reply, replies).is_err() {
            // Who waits for the budget goes on.
            replies.iter().for_each(drop);
            // What is in the buffer cannot be sent.
            drop(output.into_parts());
            return;
        }
    }
    if let Ok(mut output) = output.into_inner() {
        let _ = output.finish();
    }
}

/// Writes a reply, and those that are ready after it.
fn send(output: &mut BufWriter<Output>, first: Reply, replies: &Receiver<Reply>) -> io::Result<()> {
    let mut next = Some(first);
    while let Some(reply) = next {
        output.write_all(&reply.head)?;
        reply.data.iter().try_for_each(|data| output.write_all(data))?;
        drop(reply);
        next = replies.try_recv().ok();
    }
    output.flush()
}
