//! io_uring: a queue of requests to the kernel and a queue of what has ended, shared with it (`io_uring(7)`).
//!
//! The only crate that sets up, enters and reaps a ring. What is asked for is built with the constructors in [`opcode`], from the
//! `io-uring` crate; the ring's user keeps the memory and the descriptors that a request names until its completion.
//!
//! ```
//! use uring::{Ring, Threads, opcode};
//!
//! let mut ring = Ring::new(8, Threads::One)?;
//! // SAFETY: a request that does nothing names no memory.
//! unsafe { ring.push(&opcode::Nop::new().build().user_data(7)) }?;
//! ring.wait(None)?;
//! let ended: Vec<_> = ring.completions().collect();
//! assert_eq!((ended[0].token, ended[0].result), (7, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`Ring`] has requests of 64 bytes, [`CommandRing`] of 128 (for drivers that want commands so long, `IORING_SETUP_SQE128`).
//! * [`Event`] is an eventfd, by which another thread wakes one that waits in a ring; [`Doorbell`] is one that costs no system call while
//!   that thread is awake.
//! * [`Spinner`] has a thread look for work for a while before it falls asleep, if that is likely to pay.

mod enter;
mod event;
mod latch;
mod ring;
mod setup;
mod spin;

pub use enter::EnterError;
pub use event::{Doorbell, Event};
pub use latch::{Latch, SharedByte};
pub use ring::{CommandRing, Completion, Full, Ring, RingOf};
pub use setup::{Reason, SetupError, Threads};
pub use spin::{Look, Poll, Spinner, Waited, Waits};

pub use io_uring::squeue::{Entry, Entry128};
pub use io_uring::{opcode, types};
