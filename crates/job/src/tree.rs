//! Files on their way between owner and guest: a tar stream on one side, files with their digests on the other.
//!
//! A stream holds regular files, directories, and symbolic links that stay inside it; nothing else. Its names are relative, without `..`, and
//! each stands there once. Times and owners do not travel: only names, modes and content do, in the order of the names, so that the same files
//! make the same stream.

mod read;
mod write;

pub use read::{Room, unpack};
pub use write::{Source, pack, size};

use std::io::{self, Write};

use aws_lc_rs::digest;

use crate::error::{Error, Result};
use crate::file::Digest;

/// Longest name in a stream, in bytes.
const MAX_NAME: usize = 4096;
/// Most entries of a stream.
const MAX_ENTRIES: usize = 1 << 20;

/// Takes the digest of what passes through.
pub struct Digesting<W> {
    inner: W,
    context: digest::Context,
    /// Bytes so far.
    pub count: u64,
}

impl<W> Digesting<W> {
    /// Around this.
    pub fn new(inner: W) -> Self {
        Self { inner, context: digest::Context::new(&digest::SHA256), count: 0 }
    }

    /// The digest of all that passed.
    pub fn finish(self) -> (W, Digest) {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.context.finish().as_ref());
        (self.inner, Digest::new(bytes))
    }
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(buffer)?;
        self.context.update(&buffer[..count]);
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The digest of what a reader has left.
///
/// # Errors
/// If it cannot be read.
pub fn digest_of(mut from: impl io::Read) -> io::Result<Digest> {
    let mut sink = Digesting::new(io::sink());
    io::copy(&mut from, &mut sink)?;
    Ok(sink.finish().1)
}

/// Refuses a name that is not plain: relative, no empty part, no `.` or `..`, no zero byte.
fn check_name(name: &str) -> Result<()> {
    let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    if name.len() <= MAX_NAME && name.split('/').all(is_plain) {
        return Ok(());
    }
    Err(Error::protocol(format!("the name {name:?} is refused: it leads outside, or is not plain")))
}

/// Whether a symbolic link stays inside the tree.
fn stays_inside(name: &str, target: &str) -> bool {
    let mut depth = name.split('/').count() - 1;
    !target.starts_with('/')
        && !target.contains('\0')
        && target.split('/').all(|part| match part {
            "" | "." => true,
            ".." => {
                let up = depth.checked_sub(1);
                depth = up.unwrap_or(depth);
                up.is_some()
            }
            _ => {
                depth += 1;
                true
            }
        })
}

#[cfg(test)]
mod tests;
