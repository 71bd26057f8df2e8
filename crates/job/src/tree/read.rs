//! From a stream to files.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;

use tar::{Archive, Entry, EntryType};

use super::{Digesting, MAX_ENTRIES, check_name, stays_inside};
use crate::error::{Context, Error, Result};
use crate::manifest::Resource;

/// What a stream may take at most.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Bytes of all files.
    pub bytes: u64,
}

/// Unpacks a stream into a directory that is empty and the caller's alone. The result lists each regular file with its digest, in the stream's
/// order.
///
/// # Errors
/// If the stream is no tar archive, has a name twice or one that leads outside, an entry that is no file, directory or link inside, or takes
/// more room than it may. What was unpacked by then is left.
pub fn unpack(from: impl Read, directory: &Path, room: Room) -> Result<Vec<Resource>> {
    let mut archive = Archive::new(from);
    let mut unpacker =
        Unpacker { directory, left: room.bytes, seen: BTreeSet::new(), found: Vec::new(), links: Vec::new() };
    let broken =
        |error: io::Error| Error::protocol(format!("the stream is no tar archive: {error}")).because(error);
    for entry in archive.entries().map_err(broken)? {
        unpacker.entry(entry.map_err(broken)?)?;
    }
    // At the end, so that no file is ever written through one.
    for (name, target) in unpacker.links {
        symlink(target, directory.join(&name)).of(&name)?;
    }
    Ok(unpacker.found)
}

struct Unpacker<'a> {
    directory: &'a Path,
    left: u64,
    seen: BTreeSet<String>,
    found: Vec<Resource>,
    links: Vec<(String, String)>,
}

impl Unpacker<'_> {
    fn entry<R: Read>(&mut self, mut entry: Entry<'_, R>) -> Result<()> {
        let path = entry.path_bytes().into_owned();
        let name =
            String::from_utf8(path).map_err(|_| Error::protocol("the stream has a name that is no UTF-8"))?;
        let name = name.strip_suffix('/').unwrap_or(&name).to_string();
        check_name(&name)?;
        if self.seen.len() >= MAX_ENTRIES || !self.seen.insert(name.clone()) {
            return Err(Error::protocol(format!(
                "the stream has {name:?} twice, or more than {MAX_ENTRIES} entries"
            )));
        }
        match entry.header().entry_type() {
            EntryType::Directory => fs::create_dir(self.directory.join(&name)).of(&name),
            EntryType::Regular => {
                let mode = if entry.header().mode().of(&name)? & 0o111 == 0 { 0o644 } else { 0o755 };
                self.file(name, mode, &mut entry)
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().map(|target| target.into_owned()).unwrap_or_default();
                match String::from_utf8(target) {
                    Ok(target) if stays_inside(&name, &target) => self.links.push((name, target)),
                    _ => return Err(Error::protocol(format!("the stream's link {name:?} leads outside"))),
                }
                Ok(())
            }
            kind => Err(Error::protocol(format!(
                "the stream's entry {name:?} is of a kind that does not travel ({kind:?})"
            ))),
        }
    }

    fn file(&mut self, name: String, mode: u32, entry: &mut impl Read) -> Result<()> {
        let path = self.directory.join(&name);
        let file = File::options().write(true).create_new(true).mode(mode).open(&path).of(&name)?;
        let mut to = Digesting::new(file);
        let count = io::copy(&mut entry.take(self.left.saturating_add(1)), &mut to).of(&name)?;
        self.left = self.left.checked_sub(count).ok_or_else(|| {
            Error::no_space(format!("the files take more than was announced: {name} is above the limit"))
        })?;
        self.found.push(Resource::new(name, to.finish().1));
        Ok(())
    }
}
