//! The ring itself.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;

use io_uring::squeue::{Entry, Entry128, EntryMarker};
use io_uring::{IoUring, cqueue, types};

use crate::enter::EnterError;
use crate::setup::{self, SetupError, Threads};

/// The kernel refuses what does not fit its clock.
const LONGEST_SLEEP: Duration = Duration::from_hours(24);

/// A ring with requests of 64 bytes.
pub type Ring = RingOf<Entry>;

/// A ring with requests of 128 bytes.
pub type CommandRing = RingOf<Entry128>;

/// A ring. It is used by one thread at a time.
///
/// A dropped ring does not wait for what is in flight: the kernel may go on to use the memory of such requests. A user with requests in
/// flight that name memory must wait for their completions first, or leak that memory.
pub struct RingOf<E: EntryMarker>(IoUring<E, cqueue::Entry>);

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The number that the request was given (`user_data`).
    pub token: u64,
    /// What the system call would have returned; negative, an error number.
    pub result: i32,
}

/// The queue of requests has no room until the kernel has taken some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ring has no room for another request; submit what it has first")
    }
}

impl std::error::Error for Full {}

impl Ring {
    /// A ring with room for `entries` requests (as many as the kernel allows, if that is less).
    ///
    /// # Errors
    /// When the kernel has no `io_uring`, has one that is too old, or forbids it. Says what to do.
    pub fn new(entries: u32, threads: Threads) -> Result<Self, SetupError> {
        setup::ring(entries, threads).map(RingOf)
    }
}

impl CommandRing {
    /// A ring with room for `entries` requests.
    ///
    /// # Errors
    /// As [`Ring::new`].
    pub fn new(entries: u32) -> Result<Self, SetupError> {
        setup::command_ring(entries).map(RingOf)
    }
}

impl<E: EntryMarker> RingOf<E> {
    /// Registers descriptors, which requests then name by their index (`types::Fixed`) and which need not be looked up each time.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn register_files(&self, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let files: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        self.0.submitter().register_files(&files)
    }

    /// Lets go of all registered descriptors.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn unregister_files(&self) -> io::Result<()> {
        self.0.submitter().unregister_files()
    }

    /// Registers a piece of memory as buffer 0, so that the kernel need not pin its pages for each transfer.
    ///
    /// # Errors
    /// When the kernel refuses; mostly for the limit of locked memory.
    ///
    /// # Safety
    /// The memory must be mapped as long as any request that names buffer 0 is in flight.
    pub unsafe fn register_buffer(&self, base: NonNull<u8>, length: usize) -> io::Result<()> {
        let vector = libc::iovec { iov_base: base.as_ptr().cast(), iov_len: length };
        // SAFETY: this function's contract.
        unsafe { self.0.submitter().register_buffers(&[vector]) }
    }

    /// Puts a request into the ring. The kernel learns of it at the next [`submit`](Self::submit) or [`wait`](Self::wait).
    ///
    /// # Errors
    /// [`Full`] when there is no room.
    ///
    /// # Safety
    /// What the request points to must stay valid, and be used by nobody else as the request requires, until its completion was taken.
    /// Its descriptors must be open until the kernel has taken the request.
    pub unsafe fn push(&mut self, request: &E) -> Result<(), Full> {
        // SAFETY: this function's contract.
        unsafe { self.0.submission().push(request) }.map_err(|_| Full)
    }

    /// Whether requests wait that the kernel does not know of.
    pub fn has_unsent(&mut self) -> bool {
        !self.0.submission().is_empty()
    }

    /// Tells the kernel of new requests, and lets it finish what it has put off; no system call without need. Never waits.
    ///
    /// # Errors
    /// When the kernel refuses: the requests stay in the ring until the next time. What [passes](EnterError::passes) may be tried again.
    pub fn submit(&mut self) -> Result<(), EnterError> {
        let submission = self.0.submission();
        let needed = !submission.is_empty() || submission.taskrun() || submission.cq_overflow();
        drop(submission);
        if needed {
            return entered(self.0.submit());
        }
        Ok(())
    }

    /// Whether something has ended, or will have when the ring is [entered](Self::submit). No system call.
    pub fn has_news(&mut self) -> bool {
        let submission = self.0.submission();
        let put_off = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        put_off || !self.0.completion().is_empty()
    }

    /// Submits, and sleeps until there is a completion, the time-out has passed, or a signal has come.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<(), EnterError> {
        entered(match timeout {
            None => self.0.submit_and_wait(1),
            Some(timeout) => {
                let time = types::Timespec::from(timeout.min(LONGEST_SLEEP));
                self.0.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        })
    }

    /// Takes what has ended.
    pub fn completions(&mut self) -> impl Iterator<Item = Completion> + '_ {
        self.0.completion().map(|entry| Completion { token: entry.user_data(), result: entry.result() })
    }
}

/// A signal or the time-out ends a wait, and is no error.
fn entered(result: io::Result<usize>) -> Result<(), EnterError> {
    match result {
        Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => {
            Err(EnterError::new(error))
        }
        _ => Ok(()),
    }
}

impl<E: EntryMarker> fmt::Debug for RingOf<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ring").field(&self.0.as_raw_fd()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Instant;

    use io_uring::opcode;

    use super::*;

    fn nop(token: u64) -> Entry {
        opcode::Nop::new().build().user_data(token)
    }

    #[test]
    fn requests_end_with_their_numbers_and_a_full_ring_says_so() {
        let mut ring = Ring::new(4, Threads::Any).unwrap();
        assert!(!ring.has_unsent());
        // SAFETY: these requests name no memory.
        let pushed: Vec<_> = (0..5).map(|token| unsafe { ring.push(&nop(token)) }).collect();
        assert_eq!(pushed, [Ok(()), Ok(()), Ok(()), Ok(()), Err(Full)]);
        assert!(ring.has_unsent());
        ring.submit().unwrap();
        assert!(!ring.has_unsent());
        let ended: Vec<_> = ring.completions().map(|ended| (ended.token, ended.result)).collect();
        assert_eq!(ended, [(0, 0), (1, 0), (2, 0), (3, 0)]);
    }

    #[test]
    fn a_wait_ends_with_its_time_out() {
        let mut ring = Ring::new(4, Threads::One).unwrap();
        let start = Instant::now();
        ring.wait(Some(Duration::from_millis(20))).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn registered_memory_and_files_are_named_by_number() {
        let mut page: Box<[u8; 4096]> = vec![7; 4096].into_boxed_slice().try_into().unwrap();
        let (from, to) = io::pipe().unwrap();
        let mut ring = Ring::new(4, Threads::One).unwrap();
        ring.register_files(&[from.as_fd(), to.as_fd()]).unwrap();
        let (start, fixed) = (page.as_mut_ptr(), types::Fixed(1));
        // SAFETY: the page lives until its requests have ended below, and nobody uses it meanwhile.
        unsafe {
            ring.register_buffer(NonNull::new(start).unwrap(), 4096).unwrap();
            ring.push(&opcode::WriteFixed::new(fixed, start, 100, 0).build().user_data(1)).unwrap();
        }
        ring.wait(None).unwrap();
        let ended: Vec<_> = ring.completions().collect();
        assert_eq!(ended, [Completion { token: 1, result: 100 }]);
        let mut got = [0; 200];
        assert_eq!(rustix::io::read(&from, &mut got).unwrap(), 100);
        assert!(got[..100].iter().all(|byte| *byte == 7));
        ring.unregister_files().unwrap();
    }

    #[test]
    fn a_command_ring_takes_long_requests() {
        let mut ring = CommandRing::new(4).unwrap();
        let (from, _to) = io::pipe().unwrap();
        // A pipe knows no commands.
        let request = opcode::UringCmd80::new(types::Fd(from.as_raw_fd()), 0).build().user_data(3);
        // SAFETY: the command names no memory, and the pipe is open.
        unsafe { ring.push(&request) }.unwrap();
        ring.wait(None).unwrap();
        let ended: Vec<_> = ring.completions().collect();
        assert_eq!(ended, [Completion { token: 3, result: -libc::EOPNOTSUPP }]);
    }
}
