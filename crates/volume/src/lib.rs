//! The protected volume.

pub mod format;
pub mod geometry;
pub mod policy;
