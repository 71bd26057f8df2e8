//! Memory for I/O, known only by address and length.

/// An owned, block-aligned piece of memory that is a whole number of blocks long.
///
/// It may be private memory or memory that the host can write at any moment, so no reference to it is handed
/// out unless it is private: use [`Buffer::private`] and fall back to `as_ptr` with volatile or raw copies.
#[derive(Debug)]
pub struct Buffer {}
