//! Small files, written whole or not at all.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Statx, StatxAttributes, StatxFlags};
use tempfile::NamedTempFile;

use crate::failure::Failure;

/// Makes a file durable, with its directory. It gets its name when it is whole: an interruption leaves none, or the one that was
/// there. `mode` is as for `open(2)`. What is replaced keeps owner and mode, and a symbolic link to it stays one.
///
/// # Errors
/// `AlreadyExists`, unless what is there is to be replaced.
pub fn new_file(path: &Path, bytes: &[u8], mode: u32, replace: bool) -> io::Result<()> {
    let (path, mut unnamed) = begin_file(path, mode, replace)?;
    unnamed.write_all(bytes)?;
    unnamed.as_file().sync_all()?;
    match replace {
        true => unnamed.persist(&path)?,
        false => unnamed.persist_noclobber(&path)?,
    };
    sync_directory(&path)
}

/// Finds out whether [`new_file`] could make or replace this file, by doing all of it but the last step. Leaves nothing.
///
/// # Errors
/// As of `new_file`.
pub fn check_new_file(path: &Path, replace: bool) -> io::Result<()> {
    if !replace && path.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // First: where nothing may be taken away, what is made to find out would stay.
    check_replaceable(&fs::canonicalize(path).unwrap_or_else(|_| path.into()))?;
    let (_, unnamed) = begin_file(path, 0o600, replace)?;
    // Room for its content, too.
    unnamed.as_file().set_len(0)?;
    (&mut unnamed.as_file()).write_all(&[b' '; 4096])?;
    unnamed.as_file().sync_all()
}

/// The name that the file is to get, and the file without it.
fn begin_file(path: &Path, mode: u32, replace: bool) -> io::Result<(PathBuf, NamedTempFile)> {
    check_directory(path)?;
    let old = if replace { fs::metadata(path).ok() } else { None };
    let path = if old.is_some() { fs::canonicalize(path)? } else { path.to_path_buf() };
    let mode = old.as_ref().map_or(mode, |old| old.mode() & 0o7777);
    let unnamed = tempfile::Builder::new()
        .prefix(".cvmio-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(directory(&path))?;
    if let Some(old) = old {
        let new = unnamed.as_file().metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            std::os::unix::fs::fchown(unnamed.as_file(), Some(old.uid()), Some(old.gid()))?;
        }
        // Whatever the umask is.
        unnamed.as_file().set_permissions(Permissions::from_mode(mode))?;
    }
    Ok((path, unnamed))
}

/// A file that is a mount of its own, as a container's bind mount, cannot be replaced; nor can one that is marked as immutable, or to be appended
/// to only, or that lies in a directory that is marked so (chattr(1)).
fn check_replaceable(path: &Path) -> io::Result<()> {
    let look = |path: &Path| rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID);
    let Ok(around) = look(directory(path)) else { return Ok(()) };
    // There may be none yet.
    let file = look(path).ok();
    let mount =
        |status: &Statx| (status.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(status.stx_mnt_id);
    if file.as_ref().and_then(mount).zip(mount(&around)).is_some_and(|(own, around)| own != around) {
        let message = "it is a mount of its own, so that it cannot be replaced; name the file that is mounted there, where it lies";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, message));
    }
    let fixed = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    if file.iter().chain([&around]).any(|status| status.stx_attributes.intersects(fixed)) {
        let message =
            "it or its directory is marked so that it cannot be replaced; take that back (chattr -ia)";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(())
}

/// Whether there is a directory for a new file. The system would name a file in it that nobody has heard of.
pub fn check_directory(path: &Path) -> io::Result<()> {
    let place = directory(path);
    // What cannot be found out here, the attempt to make the file finds out.
    if place.try_exists().unwrap_or(true) {
        return Ok(());
    }
    let message = format!("there is no directory {}; make it first", place.display());
    Err(io::Error::new(io::ErrorKind::NotFound, message))
}

/// Why a new file could not be written. Without a directory for it, that is what was asked for.
pub fn unwritten(what: &str, path: &Path, error: &io::Error) -> Failure {
    let message = format!("the {what} {} cannot be written: {error}", path.display());
    match error.kind() {
        io::ErrorKind::NotFound => Failure::usage(message),
        _ => Failure::io(message),
    }
}

/// Makes the name of a file durable.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path)).and_then(|directory| directory.sync_all())
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_only_on_demand_and_nothing_lies_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy");
        new_file(&path, b"first", 0o600, false).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = new_file(&path, b"second", 0o600, false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"first");
        new_file(&path, b"third", 0o600, true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"third");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }

    #[test]
    fn what_is_replaced_keeps_its_mode_and_a_link_to_it_stays_one() {
        let directory = tempfile::tempdir().unwrap();
        let (kept, link) = (directory.path().join("kept"), directory.path().join("policy"));
        fs::create_dir(&kept).unwrap();
        let file = kept.join("policy.toml");
        fs::write(&file, b"old").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("kept/policy.toml", &link).unwrap();
        check_new_file(&link, true).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"old", "to look changes nothing");
        new_file(&link, b"new", 0o644, true).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_dir(&kept).unwrap().count(), 1);
    }

    #[test]
    fn what_could_not_be_written_is_found_out_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy");
        check_new_file(&path, false).unwrap();
        fs::write(&path, b"old").unwrap();
        assert_eq!(check_new_file(&path, false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        check_new_file(&path, true).unwrap();
        assert!(check_new_file(&directory.path().join("none/policy"), true).is_err());
        assert!(check_new_file(Path::new("/proc/version"), true).is_err());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }

    #[test]
    fn what_is_marked_as_immutable_is_found_out_before() {
        use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy");
        fs::write(&path, b"old").unwrap();
        let (file, around) = (File::open(&path).unwrap(), File::open(&directory).unwrap());
        // Beside the marks that the file system has set itself.
        let mark = |place: &File, mark| {
            let fixed = IFlags::IMMUTABLE | IFlags::APPEND;
            ioctl_getflags(place).and_then(|flags| ioctl_setflags(place, flags.difference(fixed) | mark))
        };
        if mark(&file, IFlags::IMMUTABLE).is_err() {
            // Where it is seen although the test passes.
            let _ = writeln!(
                io::stderr(),
                "\nSKIPPED what_is_marked_as_immutable_is_found_out_before: no such marks here, or not for this user"
            );
            return;
        }
        let immutable = check_new_file(&path, true);
        mark(&file, IFlags::APPEND).unwrap();
        let append = check_new_file(&path, true);
        mark(&file, IFlags::empty()).unwrap();
        mark(&around, IFlags::APPEND).unwrap();
        let outside = check_new_file(&path, true);
        mark(&around, IFlags::empty()).unwrap();
        for refused in [immutable, append, outside] {
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        check_new_file(&path, true).unwrap();
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is left");
    }
}
