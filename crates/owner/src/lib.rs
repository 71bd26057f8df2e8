//! The service that keeps stamps for volumes: `cvmio-owner` as a library.
//!
//! [`make`] makes a state directory, [`Service`] serves it, and [`Office`] carries out the owner's commands, through the running service or on
//! the directory itself. The page `docs/owner.md` describes all of it.
#![forbid(unsafe_code)]

mod archive;
mod authority;
mod control;
mod damage;
mod database;
mod error;
mod keeper;
pub mod log;
mod office;
mod private;
mod release;
mod root;
mod server;
#[cfg(test)]
mod testing;
mod tls;

pub use authority::{Authority, Credentials, Renewed};
pub use damage::end_when_damaged;
pub use error::Error;
pub use keeper::{Command, Reply, Report, VolumeReport};
pub use office::{Office, Verified, verify_files};
pub use release::{Catalogue, Releasing};
pub use server::{Limits, Service, Setup};
pub use tls::{Files, fingerprint};

use anchor::Anchor;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

/// The database's file in the state directory.
pub const DATABASE: &str = "owner.redb";
/// The directory of archived entries of the log there.
pub const ARCHIVE: &str = "archive";
/// The socket of the running service there.
pub const CONTROL: &str = "control";
/// The directory of the authority and the service's certificate there.
pub const TLS: &str = "tls";

/// Makes a state directory with an empty database; with `own`, it stands on this anchor, which must never have been used.
///
/// # Errors
/// If there is a database already, or something can't be made.
pub fn make(directory: &Path, own: Option<&dyn Anchor>) -> Result<(), Error> {
    if !directory.is_dir() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| Error::Io("make", directory.to_owned(), error))?;
    }
    let path = directory.join(DATABASE);
    let mut database = database::Database::create(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
        .map_err(|error| Error::Io("protect", path.clone(), error))?;
    if let Err(error) = keeper::make(&mut database, own) {
        // A database that its anchor does not know is of no use.
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    Ok(())
}
