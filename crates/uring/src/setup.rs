//! Setting up a ring, and why that may fail.

use std::error::Error;
use std::fmt;
use std::fs;
use std::io;

use io_uring::squeue::{Entry, Entry128};
use io_uring::{IoUring, cqueue};

/// Who uses a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// Only the thread that set it up. The kernel then does what it has put off when that thread enters the ring, if it can.
    One,
    /// Any thread, one at a time.
    Any,
}

/// Why there is no ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The kernel has none, or forbids it to this process.
    Forbidden,
    /// It lacks what is needed here.
    TooOld,
    /// There is no memory for it.
    Memory,
    /// Something else; see the error number.
    Other,
}

/// There is no ring.
#[derive(Debug)]
pub struct SetupError {
    /// The sort of failure.
    pub reason: Reason,
    /// What happened, and what to do.
    pub message: String,
    /// What the kernel said; nothing if it only is too old.
    pub source: Option<io::Error>,
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for SetupError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}

impl From<SetupError> for io::Error {
    /// What the kernel said.
    fn from(error: SetupError) -> Self {
        error.source.unwrap_or_else(|| io::Error::new(io::ErrorKind::Unsupported, error.message))
    }
}

pub(crate) fn ring(entries: u32, threads: Threads) -> Result<IoUring<Entry, cqueue::Entry>, SetupError> {
    let ring = match threads {
        Threads::One => fastest(entries),
        Threads::Any => IoUring::builder().setup_clamp().setup_coop_taskrun().build(entries),
    };
    let ring = ring.map_err(failed)?;
    if threads == Threads::One && !(ring.params().is_feature_ext_arg() && ring.params().is_feature_nodrop()) {
        let message = "this kernel's io_uring is too old; Linux 5.11 or later is needed".to_owned();
        return Err(SetupError { reason: Reason::TooOld, message, source: None });
    }
    Ok(ring)
}

pub(crate) fn command_ring(entries: u32) -> Result<IoUring<Entry128, cqueue::Entry>, SetupError> {
    IoUring::builder().build(entries).map_err(failed)
}

/// With whatever the kernel has to make it fast for one thread.
fn fastest(entries: u32) -> io::Result<IoUring<Entry, cqueue::Entry>> {
    // Kernels before 6.1 lack DEFER_TASKRUN, those before 5.19 COOP_TASKRUN; they say EINVAL.
    let mut deferred = IoUring::builder();
    deferred.setup_clamp().setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    let mut cooperative = IoUring::builder();
    cooperative.setup_clamp().setup_coop_taskrun().setup_taskrun_flag();
    let mut plain = IoUring::builder();
    plain.setup_clamp();
    let mut result = Err(io::Error::from_raw_os_error(libc::EINVAL));
    for builder in [deferred, cooperative, plain] {
        result = builder.build(entries);
        if !matches!(&result, Err(error) if error.raw_os_error() == Some(libc::EINVAL)) {
            break;
        }
    }
    result
}

fn failed(error: io::Error) -> SetupError {
    let setting = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
    refused(error, setting.as_deref())
}

/// Why there is no ring, and what to do. `setting` is the value of the sysctl `kernel.io_uring_disabled`.
fn refused(error: io::Error, setting: Option<&str>) -> SetupError {
    let (reason, message) = match (error.raw_os_error(), setting.map(str::trim)) {
        (Some(libc::ENOSYS), _) => (
            Reason::Forbidden,
            "there is no io_uring: the kernel is older than 5.11 or built without it, or a sandbox hides it \
             (allow io_uring_setup, io_uring_enter and io_uring_register in its seccomp profile)"
                .to_owned(),
        ),
        (Some(libc::EPERM | libc::EACCES), Some(value @ ("1" | "2"))) => (
            Reason::Forbidden,
            format!(
                "io_uring is switched off here: kernel.io_uring_disabled is {value}. Set it to 0 (sysctl -w \
                 kernel.io_uring_disabled=0), or to 1 with this user's group in kernel.io_uring_group"
            ),
        ),
        (Some(libc::EPERM | libc::EACCES), _) => (
            Reason::Forbidden,
            "io_uring is forbidden to this process although kernel.io_uring_disabled does not say so: allow \
             io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile of its container \
             or service"
                .to_owned(),
        ),
        (Some(libc::ENOMEM), _) => (
            Reason::Memory,
            "no memory for io_uring; raise the limit of locked memory (ulimit -l)".to_owned(),
        ),
        _ => (Reason::Other, format!("io_uring cannot be set up: {error}")),
    };
    SetupError { reason, message, source: Some(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(errno: i32, setting: Option<&str>) -> SetupError {
        refused(io::Error::from_raw_os_error(errno), setting)
    }

    #[test]
    fn a_forbidden_ring_says_what_forbids_it_and_what_to_do() {
        let error = refusal(libc::EPERM, Some("2\n"));
        assert_eq!(error.reason, Reason::Forbidden);
        assert!(error.message.contains("kernel.io_uring_disabled is 2"), "{error}");
        let error = refusal(libc::EPERM, Some("0\n"));
        assert!(error.reason == Reason::Forbidden && error.message.contains("seccomp"), "{error}");
        assert_eq!(refusal(libc::ENOSYS, None).reason, Reason::Forbidden);
        assert_eq!(refusal(libc::ENOMEM, None).reason, Reason::Memory);
        let error = refusal(libc::EMFILE, None);
        assert_eq!((error.reason, error.message.contains("Too many open files")), (Reason::Other, true));
        assert_eq!(io::Error::from(error).raw_os_error(), Some(libc::EMFILE));
    }
}
