//! A volume as a block device of the operating system.
//!
//! Every front end serves a [`Device`], which is what a volume looks like from outside.
//! [`fuse::Mount`] shows it as one regular file, on any kernel with FUSE; [`loopdev`] makes that file a
//! block device. [`ublk::Ublk`] shows it as a block device, on kernels with the ublk driver.
//! [`nbd::Server`] serves it to NBD clients, on a unix socket or over TCP.
//!
//! A daemon must not do I/O to what it exports: it would wait for itself.

mod aligned;
mod attend;
mod budget;
mod device;
mod error;
pub mod fuse;
pub mod loopdev;
pub mod nbd;
mod range_lock;
mod together;
pub mod ublk;

pub use attend::{Attend, Attendance, Client, Watch, Wish};
pub use device::{BLOCK_SIZE, Device, Done, Extent, Found, Lent, MAX_TRANSFER, Memory, Request};
pub use error::Error;
pub use together::together;

/// Tells the kernel that this thread, and every thread and process that it starts from now on, serves block
/// I/O: an allocation of theirs must not wait for dirty pages to be written, since those may lie on the device
/// that they serve. To be called once, before any other thread is started.
///
/// Source: prctl(2), `PR_SET_IO_FLUSHER`.
///
/// # Errors
/// `EPERM` without `CAP_SYS_RESOURCE`. The export works, but can lock up when memory runs out.
pub fn set_io_flusher() -> Result<(), Error> {
    rustix::process::configure_io_flusher_behavior(true)
        .map_err(|errno| Error::system("marking this process as one that serves block I/O", errno))
}
