//! What a volume needs from the user: secrets, policies, anchors, and files that are not each other. Sizes and times are in `cli::input`.

mod credential;
mod distinct;
mod ground;
mod policy;
mod released;

pub use credential::{Origin, Source, copy, from_pipe, load, to_pipe};
pub use distinct::{Named, VolumeFiles, anchor_files, named, refuse_same};
pub use policy::{
    already_there, check_new_policy, check_policy_can_follow, default_policy, read_policy, save_policy,
    save_when_grown, unfinished,
};

pub use released::{Released, release_address};

use store::BLOCK_SIZE;

use cli::failure::Failure;

/// Options of an anchor: `KEY=VALUE` and `KEY=@FILE`.
///
/// # Errors
/// When one is neither, is said twice, or its file cannot be read.
pub fn anchor_options(typed: &[String]) -> Result<anchor::Options, Failure> {
    anchor::typed_options(typed).map_err(Failure::usage)
}

/// The logical blocks of a volume of so many bytes.
///
/// # Errors
/// When they are no whole number of blocks.
pub fn whole_blocks(size: u64) -> Result<u64, Failure> {
    let block = BLOCK_SIZE as u64;
    if size.is_multiple_of(block) {
        return Ok(size / block);
    }
    Err(Failure::usage(format!(
        "a size of {size} bytes is no whole number of blocks of {block} bytes; choose a multiple"
    )))
}
