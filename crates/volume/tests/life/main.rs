//! The life of a volume, and what its host and its store may do to it meanwhile.

#[path = "../common/mod.rs"]
mod common;

#[expect(clippy::disallowed_methods, reason = "whoever else can move an anchor")]
mod attacks;
mod block_cache;
mod damage;
mod first_use;
mod follows;
mod landing;
#[expect(clippy::disallowed_methods, reason = "whoever else can move an anchor")]
mod levels;
mod life;
mod protections;
mod reading;
mod room;
#[expect(clippy::disallowed_methods, reason = "whoever else can move an anchor")]
mod takeover;
mod turns;
mod unreadable;
mod untrusted_size;
