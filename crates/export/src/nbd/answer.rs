//! The duty to reply, which ends where requests end: on the device's threads.

use super::outbox::{Outbox, Reply};
use super::wire;
use crate::budget::Permit;
use crate::{Done, Extent, Found};
use bytes::Bytes;
use rustix::io::Errno;
use std::sync::{Arc, Mutex, PoisonError};

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
    outbox: Arc<Outbox>,
    permit: Option<Permit>,
}

impl Answer {
    pub(super) fn new(cookie: u64, form: Form, outbox: Arc<Outbox>, permit: Permit) -> Answer {
        Answer { cookie, form, outbox, permit: Some(permit) }
    }

    /// With the data of a read, or with none.
    pub(super) fn send(mut self, result: Result<Vec<Bytes>, Errno>) {
        self.reply(result);
    }

    /// The end of the one request to the device that this is the answer to.
    pub(super) fn done(self) -> Done {
        Box::new(move |result| {
            self.send(result.map(|data| Vec::from_iter((!data.is_empty()).then_some(data))))
        })
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

    fn reply(&mut self, result: Result<Vec<Bytes>, Errno>) {
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

    fn pass_on(&mut self, head: Vec<u8>, data: Vec<Bytes>) {
        if let Some(permit) = self.permit.take() {
            self.outbox.post(Reply::new(head, data, permit));
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

type End = Box<dyn FnOnce(Result<Vec<Bytes>, Errno>) + Send>;

/// A request in pieces. It ends when the last piece has ended, or was given up, which is an I/O error.
pub(super) struct Pieces {
    results: Mutex<Vec<Result<Bytes, Errno>>>,
    end: Mutex<Option<End>>,
}

impl Pieces {
    pub(super) fn new(end: impl FnOnce(Result<Vec<Bytes>, Errno>) + Send + 'static) -> Arc<Pieces> {
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
