//! Clients that are served by the threads which end requests: no other thread then stands between what a client asks and its end.
//!
//! A thread that serves must not wait for a client. So a client is a future, which waits for its descriptor through a [`Watch`], and the
//! thread has its own means to find out when there is something to read.

use futures::channel::oneshot;
use futures::future::LocalBoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fmt;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Serves a client to its end; made on one thread, and run on another. It never blocks.
pub type Client = Box<dyn FnOnce(Watch) -> LocalBoxFuture<'static, ()> + Send>;

/// A device whose threads serve clients.
pub trait Attend {
    /// Serves a client on one of these threads, beside its requests. If there are no such threads any more, the client is dropped.
    fn attend(&self, client: Client);
}

/// How a client waits for its descriptor.
#[derive(Debug, Clone, Default)]
pub struct Watch(Rc<RefCell<Vec<Wish>>>);

/// A client waits for this.
#[derive(Debug)]
pub struct Wish {
    /// To have something to read, or lose its other end.
    pub descriptor: Arc<OwnedFd>,
    /// To hear of that, or why it never will. Too early does no harm.
    pub seen: oneshot::Sender<Result<(), Errno>>,
}

pub(crate) type Readable = oneshot::Receiver<Result<(), Errno>>;

impl Watch {
    /// Hears when `descriptor` may have something to read, or its other end is gone.
    pub(crate) fn readable(&self, descriptor: &Arc<OwnedFd>) -> Readable {
        let (seen, readable) = oneshot::channel();
        self.0.borrow_mut().push(Wish { descriptor: Arc::clone(descriptor), seen });
        readable
    }
}

/// The clients of one thread.
#[derive(Default)]
pub struct Attendance {
    clients: FuturesUnordered<LocalBoxFuture<'static, ()>>,
    watch: Watch,
}

impl Attendance {
    /// One more; nothing happens before the next [`run`](Self::run).
    pub fn admit(&mut self, client: Client) {
        self.clients.push(client(self.watch.clone()));
    }

    /// Moves the clients on that can, and appends what they wait for. `waker` hears when there is more to do.
    pub fn run(&mut self, waker: &Waker, wishes: &mut Vec<Wish>) {
        let mut context = Context::from_waker(waker);
        while let Poll::Ready(Some(())) = self.clients.poll_next_unpin(&mut context) {}
        wishes.append(&mut self.watch.0.borrow_mut());
    }
}

impl fmt::Debug for Attendance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attendance").field("clients", &self.clients.len()).finish_non_exhaustive()
    }
}
