//! The front ends under a real kernel. They need root; what can't run says so and is skipped.

mod block;
mod common;
mod file;
