//! What a machine can check of the rules in CONTRIBUTING.md.

mod arrows;
mod codes;
mod counts;
mod lengths;
mod libraries;
