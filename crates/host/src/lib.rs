//! The host's side of a confidential guest's disk: a vhost-user-blk server that polls.
//!
//! It runs where nobody is trusted, so it knows no key: it links neither `seal` nor `volume`. It serves whatever lies on its disks, to guests that
//! protect their data by themselves.
//!
//! * [`Settings`] say what is served to whom; [`Server`] serves it.
//! * A [`Disk`](disk) is a file or block device. A *session* is a VMM's connection for one disk; its rings become *lanes* of a worker.
//! * A *worker* is a thread with an io_uring of its own. It takes requests from its lanes, hands them to the kernel, and tells the guests how they
//!   ended. A lane belongs to one worker, so no lock is on the way of a request.
//!
//! # What a guest, or its VMM, can't do
//!
//! * **Reach other memory.** Descriptors name guest addresses; each is looked up in what the VMM has shared. Data is moved by the kernel only, by
//!   plain reads and writes of the file into the mapping of the guest's memory: what is no memory is EFAULT, and that request's error.
//! * **Lose us memory.** The mapping is made without touching a page, and nothing of it is registered or pinned beyond a request.
//! * **Kill the server.** Rings, headers and status bytes are reached by our own loads and stores. A VMM that cuts its memory short makes them fault;
//!   the handler ([`guard`]) puts empty memory there and marks the session, which ends.
//! * **Hold others up.** A lane takes a bounded number of requests before the next lane has its turn, and each disk may have limits.

mod counters;
pub mod disk;
pub mod guard;
mod inflight;
mod lane;
mod limits;
mod memory_map;
mod server;
mod session;
mod settings;
mod transfer;
mod worker;

pub use counters::{Counters, Snapshot};
pub use server::{Server, StartError, Status};
pub use settings::{DiskSettings, Mode, Settings, SettingsError};
