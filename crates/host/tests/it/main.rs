//! The server against a VMM and a guest of our own, over a real socket and shared memory.

mod device;
mod guest;
mod hostile;
mod serve;
mod start;
