//! Waiting for the end of the process that answers on a control socket.
//!
//! A daemon answers `detach` when its volume is put away, and ends a moment later. A caller that goes on before that finds files open that it
//! wants to remove or to unmount.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use cli::failure::Failure;

/// How long a daemon may take to end when its volume is put away. It gives a tamper hook that runs 5 seconds of it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The same for one whose volume could not be put away cleanly: its caller has heard that it failed.
pub const SHORT: Duration = Duration::from_secs(10);

/// A descriptor of the peer's process (Linux 6.5, `asm-generic/socket.h`).
const SO_PEERPIDFD: libc::c_int = 77;

/// The process at the other end of a connection: the one that listened there.
pub struct Peer {
    /// Its number, as this process sees it; 0 if it does not.
    process: libc::pid_t,
    sign: Sign,
}

/// What becomes readable with its end.
enum Sign {
    /// The process itself.
    Process(OwnedFd),
    /// The connection: a daemon that has put its volume away leaves it open to its end.
    Connection(UnixStream),
}

impl Peer {
    /// The peer, which must be alive: it has something to answer yet. Its number cannot belong to somebody else then.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn of(stream: &UnixStream) -> io::Result<Self> {
        let process = peer_credentials(stream)?.pid;
        let pidfd = peer_pidfd(stream).or_else(|error| match Pid::from_raw(process) {
            Some(pid) => Ok(pidfd_open(pid, PidfdFlags::empty())?),
            // In another namespace, of a kernel before 6.5.
            None => Err(error),
        });
        let sign = match pidfd {
            Ok(pidfd) => Sign::Process(pidfd),
            Err(_) => Sign::Connection(stream.try_clone()?),
        };
        Ok(Self { process, sign })
    }

    /// Its process, as this one sees it; 0 if it does not.
    pub fn process(&self) -> libc::pid_t {
        self.process
    }

    /// Waits until it has ended, whatever its parent is, and whether or not the parent has taken note of it.
    ///
    /// # Errors
    /// When it does not end within `patience`. `name` is the volume's.
    pub fn wait(&self, name: &str, patience: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        while !self.has_ended(patience.saturating_sub(begun.elapsed())).map_err(|error| {
            Failure::io(format!(
                "{name} is put away, but the end of its daemon cannot be waited for: {error}"
            ))
        })? {
            if begun.elapsed() >= patience {
                return Err(Failure::io(format!(
                    "{name} is put away, but its daemon, {}, has not ended within {} s; wait for its end before you touch what the store lies on",
                    describe(self.process),
                    patience.as_secs()
                )));
            }
        }
        Ok(())
    }

    /// Waits for so long. An interrupted wait ends early.
    fn has_ended(&self, patience: Duration) -> io::Result<bool> {
        let (mut fds, wanted) = match &self.sign {
            Sign::Process(pidfd) => ([PollFd::new(pidfd, PollFlags::IN)], PollFlags::IN),
            Sign::Connection(stream) => {
                ([PollFd::new(stream, PollFlags::RDHUP)], PollFlags::RDHUP | PollFlags::HUP)
            }
        };
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => Ok(fds[0].revents().intersects(wanted)),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn describe(process: libc::pid_t) -> String {
    match fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(program) => format!("process {process} ({})", program.trim()),
        Err(_) if process > 0 => format!("process {process}"),
        Err(_) => "a process of another PID namespace".into(),
    }
}

fn peer_credentials(stream: &UnixStream) -> io::Result<libc::ucred> {
    // SAFETY: the option is a `struct ucred`, three integers.
    unsafe { option(stream, libc::SO_PEERCRED) }
}

fn peer_pidfd(stream: &UnixStream) -> io::Result<OwnedFd> {
    // SAFETY: the option is an integer; a new descriptor, which nobody else owns.
    unsafe { Ok(OwnedFd::from_raw_fd(option::<RawFd>(stream, SO_PEERPIDFD)?)) }
}

/// A socket's option.
///
/// # Safety
/// Any bytes must be a `T`, and the option as long as one.
unsafe fn option<T: Copy>(stream: &UnixStream, name: libc::c_int) -> io::Result<T> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = libc::socklen_t::try_from(size_of::<T>()).map_err(|_| wrong())?;
    let whole = length;
    // SAFETY: `value` has room for `length` bytes, and both live during the call.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match result {
        0 if length == whole => {
            // SAFETY: it is filled in, and by this function's contract any bytes will do.
            Ok(unsafe { value.assume_init() })
        }
        0 => Err(wrong()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::{Child, Command, Stdio};

    use super::*;

    const SOON: Duration = Duration::from_millis(30);
    const LONG: Duration = Duration::from_secs(20);

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn who_listens_is_the_peer_and_one_that_does_not_end_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("control")).unwrap();
        let stream = UnixStream::connect(directory.path().join("control")).unwrap();
        let peer = Peer::of(&stream).unwrap();
        assert!(matches!(peer.sign, Sign::Process(_)), "this kernel has descriptors of processes");
        let refused = peer.wait("ledger", SOON).unwrap_err();
        let named = format!("process {} (", std::process::id());
        assert!(refused.code() == 3 && refused.to_string().contains(&named), "{refused}");
        drop(listener);
    }

    #[test]
    fn a_process_has_ended_also_before_its_parent_takes_note() {
        let mut child = sleeper();
        let pid = Pid::from_raw(libc::pid_t::try_from(child.id()).unwrap()).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let peer = Peer { process: pid.as_raw_pid(), sign: Sign::Process(pidfd) };
        assert!(!peer.has_ended(SOON).unwrap());
        child.kill().unwrap();
        peer.wait("ledger", LONG).unwrap();
        assert!(fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") Z "));
        child.wait().unwrap();
    }

    #[test]
    fn who_does_not_see_the_process_waits_for_its_connection() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let peer = Peer { process: 0, sign: Sign::Connection(ours) };
        let refused = peer.wait("ledger", SOON).unwrap_err();
        assert!(refused.to_string().contains("another PID namespace"), "{refused}");
        drop(theirs);
        peer.wait("ledger", LONG).unwrap();
    }
}
