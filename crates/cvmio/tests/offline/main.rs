//! Volumes that are not attached: headers, anchors, streams, and a reader that shares no code with ours.

#[path = "../common/mod.rs"]
mod common;

mod cut_between;
mod cut_short;
mod header;
mod reader;
mod reanchor;
mod stale;
mod stream;
