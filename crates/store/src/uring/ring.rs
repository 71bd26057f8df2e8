//! Setting up a ring, and waking a thread that sleeps in it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Wake;

use io_uring::IoUring;
use rustix::event::{EventfdFlags, eventfd};

use crate::{Error, ErrorKind};

/// A ring with room for `entries` requests, with whatever the kernel has to make it fast.
///
/// # Errors
/// When the kernel has no `io_uring`, or forbids it.
pub(super) fn set_up(entries: u32, store: &str) -> Result<IoUring, Error> {
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
    match result {
        Ok(ring) if ring.params().is_feature_ext_arg() && ring.params().is_feature_nodrop() => Ok(ring),
        Ok(_) => {
            let message = "this kernel's io_uring is too old; Linux 5.11 or later is needed";
            Err(Error::new(ErrorKind::Unsupported, "open", store, message))
        }
        Err(error) => {
            let setting = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
            Err(refused(error.raw_os_error().unwrap_or(libc::EIO), setting.as_deref(), store))
        }
    }
}

/// Why there is no ring, and what to do.
fn refused(errno: i32, setting: Option<&str>, store: &str) -> Error {
    let error = Error::from_errno(errno, "open", store);
    let (kind, message) = match (errno, setting.map(str::trim)) {
        (libc::ENOSYS, _) => (
            ErrorKind::Forbidden,
            "there is no io_uring: the kernel is older than 5.11 or built without it, or a sandbox hides it \
             (allow io_uring_setup, io_uring_enter and io_uring_register in its seccomp profile)"
                .to_owned(),
        ),
        (libc::EPERM | libc::EACCES, Some(value @ ("1" | "2"))) => (
            ErrorKind::Forbidden,
            format!(
                "io_uring is switched off here: kernel.io_uring_disabled is {value}. Set it to 0 (sysctl -w \
                 kernel.io_uring_disabled=0), or to 1 with this user's group in kernel.io_uring_group"
            ),
        ),
        (libc::EPERM | libc::EACCES, _) => (
            ErrorKind::Forbidden,
            "io_uring is forbidden to this process although kernel.io_uring_disabled does not say so: allow \
             io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile of its container \
             or service"
                .to_owned(),
        ),
        (libc::ENOMEM, _) => {
            (ErrorKind::Io, "no memory for io_uring; raise the limit of locked memory (ulimit -l)".to_owned())
        }
        _ => (error.kind, format!("io_uring cannot be set up: {}", error.message)),
    };
    Error { kind, message, ..error }
}

const IDLE: u8 = 0;
const ASLEEP: u8 = 1;
const WOKEN: u8 = 2;

/// Wakes the queue's thread. Costs one atomic exchange while the thread is awake.
#[derive(Debug)]
pub(super) struct Doorbell {
    state: AtomicU8,
    /// The ring keeps a read of it in flight.
    event: OwnedFd,
}

impl Doorbell {
    pub(super) fn new() -> io::Result<Self> {
        // Blocking, or the ring would not wait for it but fail with EAGAIN.
        Ok(Self { state: AtomicU8::new(IDLE), event: eventfd(0, EventfdFlags::CLOEXEC)? })
    }

    pub(super) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Whether the thread may sleep; not if it was woken since it last slept. If so, `awake` must follow.
    pub(super) fn fall_asleep(&self) -> bool {
        let slept = self.state.compare_exchange(IDLE, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        if slept.is_err() {
            self.awake();
        }
        slept.is_ok()
    }

    pub(super) fn awake(&self) {
        self.state.swap(IDLE, Ordering::AcqRel);
    }

    /// Ends the read that the ring has in flight.
    pub(super) fn ring(&self) {
        // Fails only when the counter is at its limit, and then the read has ended anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            self.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forbidden_ring_says_what_forbids_it_and_what_to_do() {
        let error = refused(libc::EPERM, Some("2\n"), "disk");
        assert_eq!((error.kind, error.errno), (ErrorKind::Forbidden, Some(libc::EPERM)));
        assert!(error.message.contains("kernel.io_uring_disabled is 2"), "{error}");
        let error = refused(libc::EPERM, Some("0\n"), "disk");
        assert!(error.kind == ErrorKind::Forbidden && error.message.contains("seccomp"), "{error}");
        assert_eq!(refused(libc::ENOSYS, None, "disk").kind, ErrorKind::Forbidden);
        assert_eq!(refused(libc::EMFILE, None, "disk").kind, ErrorKind::Io);
    }

    #[test]
    fn a_wake_before_the_sleep_is_not_lost_and_counts_once() {
        let bell = Arc::new(Doorbell::new().unwrap());
        bell.wake_by_ref();
        assert!(!bell.fall_asleep());
        assert!(bell.fall_asleep());
        bell.awake();
        assert!(bell.fall_asleep());
    }
}
