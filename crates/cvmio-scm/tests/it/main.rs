//! `cvmio-scm` as programs use it.

mod bench;
mod commands;
#[path = "../../../scm/tests/it/forbidden.rs"]
mod forbidden;
mod fuse;
mod kill;
#[path = "../../../cvmio/tests/common/memory.rs"]
#[expect(dead_code, reason = "there they look for keys, too")]
mod memory;
mod own_file_system;
mod preload;
mod support;
mod wiped;
