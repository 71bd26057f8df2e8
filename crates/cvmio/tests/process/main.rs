//! What is in a daemon's memory, and how much. A program of its own: these tests look at whole processes.

#[path = "../common/mod.rs"]
mod common;

mod footprint;
mod secrets;
