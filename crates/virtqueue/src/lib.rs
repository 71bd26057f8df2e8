//! Both ends of virtio's split queue (virtio 1.x, section 2.7), and the requests of virtio-blk (section 5.2).
//!
//! A queue is three pieces of memory that two parties share, and neither trusts the other: a table of descriptors and the *available* ring,
//! which the driver (the guest) writes, and the *used* ring, which the device (the host) writes. [`Rings`] is that memory, reached by an
//! [`Area`] only, which the user of this crate brings: the crate itself makes no reference to shared memory and no system call.
//!
//! # Invariants of the device's end ([`Device`])
//!
//! * **D1** The positions in both rings are private. What the device has written is never read back.
//! * **D2** The driver's index is at most one queue's size ahead of the device, and what is in flight counts: a chain takes a descriptor at
//!   least, so no more than the queue's size can be in flight.
//! * **D3** A head is inside the table, and no chain of it is in flight.
//! * **D4** Each descriptor is copied out once and then checked. A chain ends: it has at most [`CHAIN_LIMIT`] parts, one level of indirect
//!   descriptors, no overflow in a range, and nothing to be read behind something to be written.
//! * **D5** A head is completed once, only while it is in flight, and its entry of the used ring is stored before the index that covers it.
//! * **D6** The device sleeps only after it has asked for notifications *and then* seen that nothing is available
//!   ([`Device::listen`]): no request is left alone with a sleeping device.
//! * **D7** The driver is interrupted unless its flag, read after the index was stored, says that it looks by itself.
//! * **D8** With a log ([`inflight`]), a head is in the log before it leaves the available ring's count, and leaves the log after the index that
//!   covers it was stored. So whoever goes on after a device that was killed finds each chain either in the log, or still available, or used.
//!
//! # Invariants of the driver's end ([`Driver`])
//!
//! * **V1** Descriptors, the free list and what each chain was made of lie in private memory. The table is written and never read.
//! * **V2** The device's index moves by no more than what is in flight.
//! * **V3** An id counts only if that chain is in flight, and once. The length beside it is ignored.
//! * **V4** A descriptor is handed out again only when its chain was completed: what the device still holds is never reused.
//! * **V5** The device is notified unless its flag, read after the index was stored, says that it looks by itself.
//!
//! A breach of D2 to D4 is a [`Breach`] by the driver, of V2 or V3 a [`Lie`] of the device: that queue is over, and nothing else is.

#![forbid(unsafe_code)]

pub mod block;
mod chain;
mod device;
mod driver;
pub mod inflight;
mod rings;

pub use chain::{CHAIN_LIMIT, Guest, Part};
pub use device::{Breach, Device};
pub use driver::{Driver, Lie};
pub use rings::{Area, BadRings, Rings};
