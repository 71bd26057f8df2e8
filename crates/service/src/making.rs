//! Making a file system so that a cut at any moment leaves a device of which is known that it was never mounted.
//!
//! A program that makes an ext4 writes its superblock last, behind much else. One that was killed leaves a device that looks like somebody's
//! data. So it works on an image beside the device, which is copied in three steps, each durable before the next one begins: a mark in the
//! first block; everything but the first block; the first block, which has the superblock. The first block is the old one or the new one at
//! any moment, as each block of a volume is.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

/// Of a volume, and so of what is written at once.
const BLOCK: u64 = 4096;
/// Bytes that are copied at a time.
const PIECE: u64 = 1 << 20;
/// How the first block begins until everything else is there. No file system begins so.
const MARK: &[u8] = b"cvmio: a file system is being made here, and was never mounted\n";

/// Whether a device begins with the mark of a file system that was not made to its end.
pub fn is_marked(start: &[u8]) -> bool {
    start.starts_with(MARK)
}

/// A file as large as a device, for a program to make a file system in. It takes room for what is written only, and is gone with this value.
pub struct Image {
    path: PathBuf,
    file: File,
    size: u64,
}

impl Image {
    /// In the place of one that was left by somebody who was killed.
    pub fn new(path: PathBuf, device: &Path) -> io::Result<Self> {
        let size = seek(File::open(device)?, SeekFrom::End(0))?;
        let file =
            File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        let image = Self { path, file, size };
        image.file.set_len(size)?;
        Ok(image)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Brings it to the device, which is blank or marked.
    pub fn copy_to(&self, device: &Path) -> io::Result<()> {
        let device = File::options().write(true).open(device)?;
        // What an attempt before has left lies where this one writes, too, as long as the program is the same. A device that cannot forget
        // keeps it.
        let _ = fallocate(&device, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, self.size);
        let first = BLOCK.min(self.size);
        let mut block = vec![0; usize::try_from(first).map_err(io::Error::other)?];
        block[..MARK.len()].copy_from_slice(MARK);
        device.write_all_at(&block, 0)?;
        device.sync_all()?;
        self.copy_data(&device, first)?;
        device.sync_all()?;
        self.file.read_exact_at(&mut block, 0)?;
        device.write_all_at(&block, 0)?;
        device.sync_all()
    }

    /// What was written into it from there on.
    fn copy_data(&self, device: &File, from: u64) -> io::Result<()> {
        let mut at = from;
        let mut piece = Vec::new();
        loop {
            at = match seek(&self.file, SeekFrom::Data(at)) {
                Ok(at) => at,
                // Nothing follows.
                Err(Errno::NXIO) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            };
            let end = seek(&self.file, SeekFrom::Hole(at))?;
            while at < end {
                piece.resize(usize::try_from((end - at).min(PIECE)).map_err(io::Error::other)?, 0);
                self.file.read_exact_at(&mut piece, at)?;
                device.write_all_at(&piece, at)?;
                at += piece.len() as u64;
            }
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_image_is_on_the_device_and_the_image_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let (device, place) = (directory.path().join("device"), directory.path().join("image"));
        File::create(&device).unwrap().set_len(8 << 20).unwrap();
        fs::write(&place, b"left by another").unwrap();
        let image = Image::new(place.clone(), &device).unwrap();
        image.file.write_all_at(b"superblock", 1024).unwrap();
        image.file.write_all_at(b"table", 5 << 20).unwrap();
        image.file.write_all_at(b"end", (8 << 20) - 3).unwrap();
        let expected = fs::read(&place).unwrap();
        image.copy_to(&device).unwrap();
        assert!(fs::read(&device).unwrap() == expected);
        drop(image);
        assert!(!place.exists());
    }

    /// A device that fails when so much was written leaves the mark, not half a file system.
    #[test]
    fn what_is_cut_short_is_marked() {
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("device");
        File::create(&device).unwrap().set_len(8 << 20).unwrap();
        let image = Image::new(directory.path().join("image"), &device).unwrap();
        image.file.write_all_at(b"superblock", 1024).unwrap();
        image.file.write_all_at(b"table", 5 << 20).unwrap();
        // As long as only the first two steps were done.
        let to = File::options().write(true).open(&device).unwrap();
        assert!(!is_marked(&fs::read(&device).unwrap()));
        let mut block = vec![0; 4096];
        block[..MARK.len()].copy_from_slice(MARK);
        to.write_all_at(&block, 0).unwrap();
        image.copy_data(&to, BLOCK).unwrap();
        let found = fs::read(&device).unwrap();
        assert!(is_marked(&found) && &found[5 << 20..(5 << 20) + 5] == b"table");
        // The next one goes over it.
        image.copy_to(&device).unwrap();
        let found = fs::read(&device).unwrap();
        assert!(!is_marked(&found) && &found[1024..1034] == b"superblock" && found[0] == 0);
    }
}
