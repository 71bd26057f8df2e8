//! The protected volume.
