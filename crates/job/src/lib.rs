//! Jobs: one container in the encrypted memory of an attested guest, and its signed result.
//!
//! Three parties: the *owner* has the job file, the inputs and the secrets; the *host* runs the machine and is not trusted; the *guest* is
//! the machine, and is trusted once its evidence has passed.
//!
//! * [`mod@file`]: the job file. [`budget`]: whether it fits into the guest's memory, before anything is launched.
//! * [`image`]: the guest's image: kernel, initramfs, and a root file system under dm-verity whose root hash is on the measured command line.
//! * [`challenge`]: the first exchange: evidence that vouches for the guest's keys. [`manifest`]: the signed result.
//! * [`owner`]: the owner's side of a job, from launch to result. [`guest`]: the guest's side, which the image boots into.
//! * [`mod@volume`]: what outlives the machine.
//! * [`tree`]: files on their way between the two, with their digests. [`archive`]: what an OCI archive holds.
//!
//! `docs/jobs.md` says, step by step, who could lie and what notices.

#![forbid(unsafe_code)]

pub mod archive;
pub mod budget;
pub mod challenge;
pub mod error;
pub mod file;
pub mod guest;
pub mod image;
pub mod manifest;
pub mod owner;
mod program;
pub mod tree;
pub mod volume;

pub use error::{Error, Result};
