//! The volume under crash and attack, by seed.
