//! Page-granular encryption of storage-class memory, from outside the guest, crash-safe at every store.
//!
//! Source: Omote, Shinagawa, Kato, "Hypervisor-based interposition framework for storage-class memory". `docs/scm.md` has the format, the states
//! of a page with every crash point, what is in the clear where, and what differs from the paper.
//!
//! * [`create`] makes a region, [`Engine`] serves one, [`check`] looks at one.
//! * [`Medium`] is the memory: [`Mapping`] a mapped file.
//! * [`serve::Server`] gives its pages to a VMM by userfaultfd, and [`client`] is the VMM's side.
//!
//! The adversary reads and writes the medium while nothing runs; the machine that runs this is trusted.

pub mod check;
pub mod client;
mod create;
pub mod engine;
pub mod entry;
mod error;
mod flush;
pub mod geometry;
pub mod header;
mod keys;
mod mapping;
pub mod medium;
pub mod mutation;
pub mod progress;
pub mod protocol;
mod recovery;
mod root;
pub mod serve;
pub mod stats;
pub mod transition;
pub mod uffd;
mod unlock;

pub use create::create;
pub use engine::Engine;
pub use error::Error;
pub use flush::Instruction;
pub use geometry::Geometry;
pub use mapping::{Access, Durability, Mapping};
pub use medium::{Fault, Medium};
pub use recovery::Report;
pub use stats::Status;
pub use unlock::claimed_header;
