//! The engine under crash and attack, and on real files.

mod adversary;
mod answers;
mod attacks;
mod campaign;
mod crash;
mod crash_medium;
mod epochs;
mod files;
mod forbidden;
mod huge;
mod kill;
mod mutants;
mod parsers;
mod starting;
mod userfault;
