//! The initramfs: what was taken out of the root file system for it, and the script that starts the guest.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use flate2::{Compression, GzBuilder};
use initramfs::Archive;
use tar::EntryType;

use crate::error::{Error, Result};

/// What `prepare.sh` has taken out, by name.
pub type Parts = BTreeMap<String, Vec<u8>>;

/// Reads what `prepare.sh` has taken out: a tar archive of regular files.
pub fn parts(from: impl Read) -> Result<Parts> {
    let broken = |error: std::io::Error| {
        Error::io(format!("what was taken out for the boot cannot be read: {error}")).because(error)
    };
    let mut parts = Parts::new();
    for entry in tar::Archive::new(from).entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        if entry.header().entry_type() != EntryType::Regular {
            continue;
        }
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        // Below the directory that was packed.
        let name = path.trim_start_matches("./").trim_start_matches("cvmio-boot/").to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(broken)?;
        parts.insert(name, bytes);
    }
    Ok(parts)
}

/// The initramfs of these parts: the same parts make the same bytes.
pub fn initramfs(parts: &Parts) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["dev", "proc", "sys", "lower", "upper", "root", "run"] {
        archive.directory(directory);
    }
    archive.file("init", include_bytes!("init.sh"));
    for (name, bytes) in parts {
        // Below `root` lie the libraries, at the places that they have in the root file system.
        let place = name.strip_prefix("root/").or_else(|| {
            Some(name.as_str()).filter(|name| name.starts_with("bin/") || name.starts_with("modules/"))
        });
        if let Some(place) = place {
            archive.file(place, bytes);
        }
    }
    let bytes = archive.finish().map_err(|error| Error::io(error.to_string()).because(error))?;
    let mut packed = GzBuilder::new().mtime(0).write(Vec::new(), Compression::new(6));
    packed
        .write_all(&bytes)
        .and_then(|()| packed.finish())
        .map_err(|error| Error::io(error.to_string()).because(error))
}
