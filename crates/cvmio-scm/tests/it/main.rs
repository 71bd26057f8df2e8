//! `cvmio-scm` as programs use it.

mod bench;
mod commands;
#[path = "../../../scm/tests/it/forbidden.rs"]
mod forbidden;
mod fuse;
mod kill;
mod own_file_system;
mod preload;
mod support;
