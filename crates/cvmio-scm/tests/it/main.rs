//! `cvmio-scm` as programs use it.

mod bench;
mod commands;
#[path = "../../../scm/tests/it/forbidden.rs"]
mod forbidden;
mod fuse;
mod kill;
mod preload;
mod support;
mod unmappable;
