//! `cvmio-scm` as programs use it.

mod bench;
mod commands;
mod fuse;
mod kill;
mod preload;
mod support;
