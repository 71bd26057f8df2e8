//! Volumes as a service, and what is installed for it.

#[path = "../common/mod.rs"]
mod common;

mod install;
mod making;
mod service;
mod units;
