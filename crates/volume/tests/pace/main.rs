//! How long anybody waits. A program of its own: its tests measure time.

#[path = "../common/mod.rs"]
mod common;

mod pauses;
mod stalls;
mod upkeep;
