//! Threads that have the store open. The kernel keeps one whose host is silent until that answers, also when its work has ended. So what is
//! waited for is the end of the work, and never that of the thread.

use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};

/// A thread, and what its work comes to.
#[derive(Debug)]
pub struct Thread<T> {
    result: Mutex<Receiver<T>>,
    handle: std::thread::JoinHandle<()>,
}

/// The work ended by a panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Died;

impl<T: Send + 'static> Thread<T> {
    /// Starts it.
    ///
    /// # Errors
    /// When the system refuses it.
    pub fn start(name: impl Into<String>, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (sender, result) = sync_channel(1);
        // All that the work has is dropped before its result is there.
        let run = move || drop(sender.send(work()));
        let handle = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Self { result: Mutex::new(result), handle })
    }

    /// Whether its work has ended.
    pub fn has_ended(&self) -> bool {
        self.handle.is_finished()
    }

    /// Waits for the end of its work.
    ///
    /// # Errors
    /// When it died.
    pub fn end(self) -> Result<T, Died> {
        self.result.into_inner().unwrap_or_else(PoisonError::into_inner).recv().map_err(|_| Died)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_work_counts_and_a_panic_is_one() {
        /// A thread that does not end when its work has.
        struct Lingers(std::sync::mpsc::Receiver<()>);
        impl Drop for Lingers {
            fn drop(&mut self) {
                let _ = self.0.recv();
            }
        }
        thread_local!(static LINGERS: std::cell::RefCell<Option<Lingers>> = const { std::cell::RefCell::new(None) });
        let (let_go, lingers) = std::sync::mpsc::channel();
        let work = move || {
            LINGERS.with(|place| *place.borrow_mut() = Some(Lingers(lingers)));
            7
        };
        assert_eq!(Thread::start("lingers", work).unwrap().end(), Ok(7));
        drop(let_go);
        let died = Thread::start("dies", || -> u32 { std::panic::resume_unwind(Box::new(())) }).unwrap();
        assert_eq!(died.end(), Err(Died));
    }
}
