//! The content of a volume as a sealed stream.

#[path = "../common/mod.rs"]
mod common;

mod stream;
mod stream_forged;
mod stream_import;
