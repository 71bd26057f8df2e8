//! Which threads serve a mount: the device's, if they can. So no request goes from one thread to another on its way to the volume.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::executor::block_on;
use rustix::io::Errno;

use super::channel::{Channel, Waiter};
use super::filesystem::Disk;

/// Whether serving has ended, and how.
#[derive(Debug, Default)]
pub(super) struct Ended {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Threads, and clients of the device's threads, that serve.
    serving: usize,
    failed: Option<Errno>,
}

impl Ended {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_set(&self) -> bool {
        self.lock().serving == 0
    }

    /// Waits, for at most so long, and returns whether it has ended.
    pub(super) fn wait(&self, limit: Option<Duration>) -> bool {
        let state = self.lock();
        let serves = |state: &mut State| state.serving > 0;
        match limit {
            None => drop(self.changed.wait_while(state, serves).unwrap_or_else(PoisonError::into_inner)),
            Some(limit) => {
                let waited = self.changed.wait_timeout_while(state, limit, serves);
                return !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
            }
        }
        true
    }

    /// What the kernel said that it should not have said.
    pub(super) fn failure(&self) -> Option<Errno> {
        self.lock().failed
    }
}

/// One of those that serve: counted from its beginning to its end.
struct Serving(Arc<Ended>);

impl Serving {
    fn begin(ended: &Arc<Ended>) -> Self {
        ended.lock().serving += 1;
        Self(Arc::clone(ended))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.lock().serving -= 1;
        self.0.changed.notify_all();
    }
}

/// Serves a channel to its end, on one thread or another.
struct Server {
    channel: Arc<Channel>,
    disk: Arc<Disk>,
    serving: Serving,
}

impl Server {
    /// Returns whether the channel has come to its end.
    async fn run(&self, waiter: &Waiter) -> bool {
        let end = self.channel.serve(&self.disk, waiter).await;
        match end {
            Err(Errno::CANCELED) if matches!(waiter, Waiter::Watched(_)) => return false,
            Err(errno) => self.serving.0.lock().failed = Some(errno),
            Ok(()) => {}
        }
        true
    }

    /// Serves on a thread of its own.
    fn alone(self) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name("fuse".into());
        let serve = move || {
            // Without the right to do this the export still works; see `set_io_flusher`.
            let _ = crate::set_io_flusher();
            block_on(self.run(&Waiter::Alone));
        };
        thread.spawn(serve).map(drop)
    }
}

/// A server on a thread of the device's. If that ends first, the kernel's requests must still be answered, even if only with errors.
struct Guest(Option<Server>);

impl Guest {
    async fn run(mut self, waiter: Waiter) {
        let Some(server) = &self.0 else { return };
        if server.run(&waiter).await {
            self.0 = None;
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(server) = self.0.take() {
            // Without a thread nobody serves: the mount then says so when the last descriptor is closed.
            let _ = server.alone();
        }
    }
}

/// Starts to serve `channel`: on the device's threads, or on so many of their own.
///
/// # Errors
/// When a thread cannot be started.
pub(super) fn start(
    channel: &Arc<Channel>,
    disk: &Arc<Disk>,
    threads: usize,
    ended: &Arc<Ended>,
) -> std::io::Result<()> {
    let server = |channel| Server { channel, disk: Arc::clone(disk), serving: Serving::begin(ended) };
    if let Some(attendant) = disk.attendant() {
        channel.never_wait()?;
        let guest = Guest(Some(server(Arc::clone(channel))));
        attendant.attend(Box::new(move |watch| Box::pin(guest.run(Waiter::Watched(watch)))));
        return Ok(());
    }
    server(Arc::clone(channel)).alone()?;
    (1..threads).try_for_each(|_| server(Arc::new(channel.another())).alone())
}
