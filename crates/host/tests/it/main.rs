//! The server against a VMM and a guest of our own, over a real socket and shared memory.

mod guest;
mod hostile;
mod serve;
mod start;
