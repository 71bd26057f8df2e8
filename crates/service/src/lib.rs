//! Volumes as a service: brought up and taken down by programs, again and again with the same answer.

mod activate;
mod filesystem;
mod fresh;
mod making;
mod record;
pub mod tab;
mod target;
pub mod units;

pub use activate::{activate, deactivate, refuse_claimed};
pub use target::{FrontEnd, MAX_CONFIG, Target};
