//! The guest's side.

use cli::failure::Failure;

use crate::arguments::Guest;

/// What SSH's server tells the program that it runs in place of what was asked for.
const ASKED: &str = "SSH_ORIGINAL_COMMAND";

/// Does what the image, or the owner through SSH, asks for.
pub fn run(command: &Guest) -> Result<(), Failure> {
    match command {
        Guest::Boot => job::guest::boot()?,
        Guest::Work => job::guest::work()?,
        Guest::Session => {
            let asked =
                std::env::var(ASKED).map_err(|_| Failure::usage("this guest has no shell to log in to"))?;
            job::guest::session(&asked)?;
        }
    }
    Ok(())
}
