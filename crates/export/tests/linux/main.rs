//! The front ends under a real kernel. FUSE and loop devices need root; what can't run says so and is skipped.

mod attendant;
mod block;
mod client;
mod common;
mod conformance;
mod file;
mod nbd;
