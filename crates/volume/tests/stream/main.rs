//! The content of a volume as a sealed stream.

#[path = "../common/mod.rs"]
mod common;

mod stream;
mod stream_forged;
#[expect(clippy::disallowed_methods, reason = "whoever else can move an anchor")]
mod stream_import;
