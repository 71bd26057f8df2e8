//! Which blocks hold something, how many are written, and how many there must be.

#[path = "../common/mod.rs"]
mod common;

mod aged;
mod allocation;
mod full_device;
mod full_host;
mod model;
mod thin;
