//! The archive that a kernel unpacks as its first file system.
//!
//! Source: the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`, format "newc".

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fmt;

const DIRECTORY: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const FILE: u32 = 0o100_755;

/// An archive that is being written. Paths have no slash at their beginning.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    seen: BTreeSet<String>,
    too_large: Option<String>,
}

/// A file that the format cannot hold: its sizes have 32 bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLarge(String);

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has 4 GiB or more, which an initramfs cannot hold", self.0)
    }
}

impl std::error::Error for TooLarge {}

impl Archive {
    /// Adds a file that anybody may read and run, unless the path is taken.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.parents(path);
        self.entry(path, FILE, content);
    }

    /// Adds a directory with those above it.
    pub fn directory(&mut self, path: &str) {
        self.parents(path);
        self.entry(path, DIRECTORY, &[]);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, to: &str) {
        self.parents(path);
        self.entry(path, LINK, to.as_bytes());
    }

    /// Whether a path is in it.
    pub fn has(&self, path: &str) -> bool {
        self.seen.contains(path)
    }

    /// The whole archive.
    ///
    /// # Errors
    /// When one of its files is too large.
    pub fn finish(mut self) -> Result<Vec<u8>, TooLarge> {
        self.entry("TRAILER!!!", 0, &[]);
        match self.too_large {
            Some(path) => Err(TooLarge(path)),
            None => Ok(self.bytes),
        }
    }

    fn parents(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            self.entry(&path[..at], DIRECTORY, &[]);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        if !self.seen.insert(path.into()) {
            return;
        }
        let sizes = [content.len(), path.len() + 1, self.seen.len()].map(u32::try_from);
        let [Ok(length), Ok(name), Ok(inode)] = sizes else {
            self.too_large.get_or_insert_with(|| path.into());
            return;
        };
        // Inode, mode, owner, group, links, time, size, four of devices, length of the name, checksum.
        let fields = [inode, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name, 0];
        self.bytes.extend(b"070701");
        self.bytes.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
        self.bytes.extend(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_before_what_is_in_them_and_once() {
        let mut archive = Archive::default();
        archive.file("a/b/c", b"12345");
        archive.file("a/b/d", b"");
        let bytes = archive.finish().unwrap();
        assert!(bytes.len().is_multiple_of(4));
        let text = String::from_utf8(bytes).unwrap();
        let at = |path: &str| text.find(&format!("{path}\0")).unwrap();
        assert!(at("a") < at("a/b") && at("a/b") < at("a/b/c") && at("a/b/d") < at("TRAILER!!!"));
        assert_eq!(text.matches("070701").count(), 5);
        assert_eq!(&text[at("a/b/c") - 56..at("a/b/c") - 48], "00000005", "the file's size");
    }
}
