//! Policy files.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use store::Address;
use volume::policy::{MAX_SIZE, Policy};

use cli::failure::Failure;
use cli::input::{check_new_file, new_file, unwritten, without_mark};

/// Where a store's policy lies unless the user says otherwise: beside it.
///
/// # Errors
/// For a device or a disk of a server: what lies beside it is gone after the next boot.
pub fn default_policy(store: &Path, given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = given {
        return Ok(path.to_path_buf());
    }
    let address = Address::of(store)?;
    if address.is_served() {
        return Err(Failure::usage(format!(
            "{address} is served by somebody else, so its policy cannot lie beside it; name the file with --policy"
        )));
    }
    if fs::metadata(store).is_ok_and(|metadata| metadata.file_type().is_block_device()) {
        return Err(Failure::usage(format!(
            "{} is a device, so its policy cannot lie beside it; name the file with --policy",
            store.display()
        )));
    }
    let mut name = store.as_os_str().to_owned();
    name.push(".policy.toml");
    Ok(name.into())
}

/// Where the policy of a volume lies whose import has not ended: the volume is there, and nothing takes it for a whole one.
pub fn unfinished(policy: &Path) -> PathBuf {
    let mut name = policy.as_os_str().to_owned();
    name.push(".importing");
    name.into()
}

/// Reads and checks a policy.
///
/// # Errors
/// When it is missing, unreadable or no policy.
pub fn read_policy(path: &Path) -> Result<Policy, Failure> {
    let fail = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound if unfinished(path).exists() => Failure::policy(format!(
            "there is no attach policy at {}: the import of this volume has not ended. Run `cvmio volume import` again, with the same options",
            path.display()
        )),
        io::ErrorKind::NotFound => Failure::policy(format!(
            "there is no attach policy at {}; name it with --policy. Without it nothing says what the disk must be",
            path.display()
        )),
        _ => Failure::policy(format!(
            "the policy {} cannot be read: {error}; name the right file with --policy",
            path.display()
        )),
    };
    let mut bytes = Vec::new();
    let limit = MAX_SIZE as u64 + 1;
    File::open(path).map_err(fail)?.take(limit).read_to_end(&mut bytes).map_err(fail)?;
    let text = std::str::from_utf8(without_mark(&bytes)).map_err(|_| {
        Failure::policy(format!(
            "{} is not a policy: it is not text; name the right file with --policy",
            path.display()
        ))
    })?;
    Policy::parse(text).map_err(|error| {
        let message =
            format!("{}: {error}; name the right file with --policy, or restore it", path.display());
        Failure::policy(message)
    })
}

/// Finds what would keep a new policy file from being written, as far as that can be known before anything is done.
pub fn check_new_policy(path: &Path, force: bool) -> Result<(), Failure> {
    if !force && path.exists() {
        return Err(Failure::usage(already_there(path)));
    }
    check_new_file(path, force).map_err(|error| cannot_be_written(path, &error))
}

/// Finds what would keep a policy from being replaced, before anything is done that it would have to follow.
pub fn check_policy_can_follow(path: &Path) -> Result<(), Failure> {
    check_new_file(path, true).map_err(|error| cannot_be_written(path, &error))
}

fn cannot_be_written(path: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!(
        "the policy {} cannot be written: {error}; nothing was changed. Make it writable, or name with --policy a copy that is",
        path.display()
    ))
}

/// Writes a new policy file and makes it durable, with its directory. An older one is replaced as a whole, and only if `force` is set.
pub fn save_policy(path: &Path, policy: &Policy, force: bool) -> Result<(), Failure> {
    let fail = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => Failure::usage(already_there(path)),
        _ => unwritten("policy", path, &error),
    };
    let text = policy.to_toml()?;
    new_file(path, text.as_bytes(), 0o644, force).map_err(fail)
}

/// The same, in place of the file that is there, when a volume has grown.
pub fn save_when_grown(path: &Path) -> volume::SavePolicy {
    let path = path.to_path_buf();
    Box::new(move |policy| {
        save_policy(&path, policy, true).map_err(|failure| {
            volume::Error::new(
                volume::Kind::Io,
                format!(
                    "{failure}; the volume has grown, and its policy has not followed: grow it again, with a policy that can be written, to end it"
                ),
            )
        })
    })
}

/// Why a policy file is not written.
pub fn already_there(path: &Path) -> String {
    format!(
        "there is a policy at {} already; name another file with --policy, or replace it with --force",
        path.display()
    )
}
