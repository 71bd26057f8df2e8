//! What changes a volume as a whole: its size, its header, its key slots, its key, its anchor; cut short at every step.

#[path = "../common/mod.rs"]
mod common;

mod grow;
mod grow_cut;
mod header_backup;
mod header_durable;
mod keys;
mod keys_beside;
mod reanchor;
mod rekey;
mod rekey_beside;
mod rekey_forged;
#[expect(clippy::disallowed_methods, reason = "whoever else can move an anchor")]
mod rekey_resumed;
mod rekey_torn;
