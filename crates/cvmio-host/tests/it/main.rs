//! The program: its commands, and its death under load.

mod commands;
// The VMM and guest of the server's own tests.
#[path = "../../../host/tests/it/guest.rs"]
mod guest;
mod kill;
