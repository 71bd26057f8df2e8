//! Memory for I/O, and the only code that copies from or to memory that another security domain can write.
//!
//! *Shared* memory is memory that the host, or another party that is not trusted, can write at any moment, also while we read or write it.
//! Everything else is *private*.
//!
//! * [`Buffer`] is an owned, block-aligned piece of memory, private or shared. [`Arena`] and [`Pool`] hand out private ones.
//! * [`Source`] and [`Target`] are borrowed parts of a buffer. The type says whether the part is private (a slice) or shared (an address
//!   and a length that only copies can reach).
//! * [`Mapping`] is anonymous private memory; [`FileMapping`] is a file that we share with others (`MAP_SHARED`).
//! * [`copy_once`] is the copy under all of them, for code that has only an address.
//!
//! # Invariants
//!
//! 1. No Rust reference is ever formed to shared memory. It is known by address and length only.
//! 2. A copy from or to shared memory loads each byte once and stores each byte once ([`copy_once`]). So what was checked in the private
//!    copy is what is used, and nothing is read back from where it was written.
//! 3. Private memory is copied by `memcpy`, and only where the type says that it is private.
//! 4. A buffer's content is always initialised, and it is the only way to its memory in this process, unless it is shared.

mod arena;
mod buffer;
mod file_mapping;
mod mapping;
mod once;
mod part;

pub use arena::{Arena, Pool};
pub use buffer::Buffer;
pub use file_mapping::{Access, FileMapping};
pub use mapping::Mapping;
pub use once::{copy_once, prefetch_for_writing};
pub use part::{Shared, SharedMut, Source, Target};

/// Bytes in a block: the unit of every buffer, and of every address and length on a store.
pub const BLOCK_SIZE: usize = 4096;
