//! Replies on their way out: the thread on which requests end puts them into the socket itself while there is room, and the client's own
//! thread, which can wait, sends what does not fit.
//!
//! Invariants:
//! 1. Nobody but the client's own thread waits for the client.
//! 2. From when that thread is given something until it has sent all of it, all goes through it: bytes of replies never mix.
//! 3. A reply that is sent in part goes on where it stopped.

use super::link::{Output, Socket};
use crate::budget::Permit;
use crate::together::at_the_end;
use bytes::{Buf, Bytes};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::collections::VecDeque;
use std::io::{self, BufWriter, IoSlice, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A whole reply, ready to be sent.
pub(super) struct Reply {
    head: Bytes,
    data: Vec<Bytes>,
    /// Room in the budget, until this is sent.
    _permit: Permit,
}

impl Reply {
    pub(super) fn new(head: Vec<u8>, data: Vec<Bytes>, permit: Permit) -> Self {
        Self { head: head.into(), data, _permit: permit }
    }

    fn parts(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.head).chain(&self.data)
    }

    fn length(&self) -> usize {
        self.parts().map(Bytes::len).sum()
    }

    /// Forgets the first bytes, which are sent.
    fn skip(&mut self, mut sent: usize) {
        for part in std::iter::once(&mut self.head).chain(&mut self.data) {
            let here = sent.min(part.len());
            part.advance(here);
            sent -= here;
        }
    }
}

/// Where one client's replies go.
pub(super) struct Outbox {
    socket: Arc<Socket>,
    road: Arc<Road>,
    slow: Sender<Reply>,
}

/// How replies leave.
struct Road {
    /// Whether they may go straight into the socket: what is sealed for the client is sealed by its own thread.
    direct: bool,
    state: Mutex<State>,
}

struct State {
    /// Replies that wait for the end of [`together`](crate::together).
    waiting: VecDeque<Reply>,
    /// The client's own thread has something to send.
    behind: bool,
}

impl Road {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The work of the client's own thread.
pub(super) struct Writer {
    road: Arc<Road>,
    replies: Receiver<Reply>,
    output: Output,
}

/// An outbox for a client, and what its own thread is to [`run`](Writer::run). The writer ends with the last user of the outbox.
pub(super) fn outbox(socket: Arc<Socket>, output: Output) -> (Arc<Outbox>, Writer) {
    let direct = !output.is_sealed();
    let state = Mutex::new(State { waiting: VecDeque::new(), behind: !direct });
    let road = Arc::new(Road { direct, state });
    let (slow, replies) = channel();
    let outbox = Outbox { socket, road: Arc::clone(&road), slow };
    (Arc::new(outbox), Writer { road, replies, output })
}

impl Outbox {
    /// Sends a reply, together with others that come about now.
    pub(super) fn post(self: &Arc<Self>, reply: Reply) {
        let mut state = self.road.lock();
        if state.behind {
            return self.pass_on(reply);
        }
        state.waiting.push_back(reply);
        let first = state.waiting.len() == 1;
        drop(state);
        if first {
            let outbox = Arc::clone(self);
            at_the_end(move || outbox.send());
        }
    }

    /// Puts what waits into the socket, and hands over what does not fit.
    fn send(&self) {
        let mut state = self.road.lock();
        let State { waiting, behind } = &mut *state;
        if !*behind {
            while !waiting.is_empty() && put(&self.socket, waiting) {}
        }
        *behind |= !waiting.is_empty();
        waiting.drain(..).for_each(|reply| self.pass_on(reply));
    }

    fn pass_on(&self, reply: Reply) {
        // Nobody listens any more when the client is gone.
        let _ = self.slow.send(reply);
    }
}

/// Most pieces of memory that are sent at a time. Source: `IOV_MAX` of limits(5) is 1024.
const PIECES: usize = 512;

/// Sends what there is room for. False if there is none, or if the client is gone: its own thread finds out about that.
fn put(socket: &Socket, replies: &mut VecDeque<Reply>) -> bool {
    let pieces: Vec<IoSlice<'_>> =
        replies.iter().flat_map(Reply::parts).take(PIECES).map(|part| IoSlice::new(part)).collect();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = loop {
        match rustix::net::sendmsg(socket, &pieces, &mut SendAncillaryBuffer::default(), flags) {
            Err(Errno::INTR) => {}
            Err(_) => return false,
            Ok(sent) => break sent,
        }
    };
    let mut left = sent;
    while let Some(first) = replies.front_mut() {
        let length = first.length();
        if left < length {
            first.skip(left);
            return sent > 0;
        }
        left -= length;
        replies.pop_front();
    }
    true
}

/// Bytes of small replies that are sent together.
const BATCH: usize = 32 << 10;

impl Writer {
    /// Writes replies until there is nobody left who could send one, or the client is gone; then it only lets go of them.
    pub(super) fn run(self) {
        let Writer { road, replies, output } = self;
        let mut output = BufWriter::with_capacity(BATCH, output);
        while let Ok(reply) = replies.recv() {
            if catch_up(&mut output, reply, &replies, &road).is_err() {
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
}

/// Writes a reply, and all that come meanwhile; then others may use the socket again.
fn catch_up(
    output: &mut BufWriter<Output>,
    first: Reply,
    replies: &Receiver<Reply>,
    road: &Road,
) -> io::Result<()> {
    let mut next = Some(first);
    while let Some(reply) = next {
        reply.parts().try_for_each(|part| output.write_all(part))?;
        drop(reply);
        next = replies.try_recv().ok();
        if next.is_none() {
            output.flush()?;
            // Under the lock nobody adds to what there is.
            let mut state = road.lock();
            next = replies.try_recv().ok();
            state.behind = next.is_some() || !road.direct;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
