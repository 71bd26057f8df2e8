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

/// What the image is brought to: a test has one that loses its power.
trait Device {
    /// So many bytes from the beginning on may become zeros.
    fn forget(&self, size: u64);
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    /// What was written before this is durable behind it.
    fn sync(&self) -> io::Result<()>;
}

impl Device for File {
    fn forget(&self, size: u64) {
        let _ = fallocate(self, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, size);
    }

    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
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

    /// Brings it to the device, which is blank or marked, or has a file system that was never mounted.
    pub fn copy_to(&self, device: &Path) -> io::Result<()> {
        self.copy(&File::options().write(true).open(device)?)
    }

    fn copy(&self, device: &impl Device) -> io::Result<()> {
        // What an attempt before has left lies where this one writes, too, as long as the program is the same. A device that cannot forget
        // keeps it.
        device.forget(self.size);
        let first = BLOCK.min(self.size);
        let mut block = vec![0; usize::try_from(first).map_err(io::Error::other)?];
        block[..MARK.len()].copy_from_slice(MARK);
        device.write(&block, 0)?;
        device.sync()?;
        self.copy_data(device, first)?;
        device.sync()?;
        self.file.read_exact_at(&mut block, 0)?;
        device.write(&block, 0)?;
        device.sync()
    }

    /// What was written into it from there on.
    fn copy_data(&self, device: &impl Device, from: u64) -> io::Result<()> {
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
                device.write(&piece, at)?;
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
    use std::cell::{Cell, RefCell};

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

    /// A device that loses its power behind so many calls: of the writes since the last flush it keeps those that `keeps` says.
    struct Cut<'a> {
        durable: RefCell<Vec<u8>>,
        since: RefCell<Vec<(u64, Vec<u8>)>>,
        calls: Cell<usize>,
        keeps: &'a dyn Fn(usize) -> bool,
    }

    impl<'a> Cut<'a> {
        fn new(bytes: Vec<u8>, calls: usize, keeps: &'a dyn Fn(usize) -> bool) -> Self {
            Self { durable: bytes.into(), since: RefCell::default(), calls: calls.into(), keeps }
        }

        fn call(&self) -> io::Result<()> {
            let left = self.calls.get().checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
            self.calls.set(left);
            Ok(())
        }

        fn settle(&self, keeps: &dyn Fn(usize) -> bool) {
            for (nth, (at, bytes)) in self.since.take().into_iter().enumerate() {
                if keeps(nth) {
                    let at = usize::try_from(at).unwrap();
                    self.durable.borrow_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
        }

        /// What is there when it has power again.
        fn left(self) -> Vec<u8> {
            self.settle(self.keeps);
            self.durable.into_inner()
        }
    }

    impl Device for Cut<'_> {
        fn forget(&self, _size: u64) {}

        fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
            self.call()?;
            self.since.borrow_mut().push((at, bytes.to_vec()));
            Ok(())
        }

        fn sync(&self) -> io::Result<()> {
            self.call()?;
            self.settle(&|_| true);
            Ok(())
        }
    }

    /// Wherever the device is cut off, and whatever it then keeps of the last writes: nothing was begun, or it is marked, or all is there. And the
    /// next attempt goes over it.
    #[test]
    fn what_is_cut_short_is_marked() {
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("device");
        let blank = vec![0; 8 << 20];
        fs::write(&device, &blank).unwrap();
        let image = Image::new(directory.path().join("image"), &device).unwrap();
        image.file.write_all_at(b"superblock", 1024).unwrap();
        image.file.write_all_at(b"table", 5 << 20).unwrap();
        image.file.write_all_at(&[7; 3 << 19], 6 << 20).unwrap();
        let whole = fs::read(image.path()).unwrap();
        let keepers: [&dyn Fn(usize) -> bool; 4] =
            [&|_| true, &|_| false, &|nth| nth % 2 == 0, &|nth| nth % 2 == 1];
        let mut cut = 0;
        for (calls, keeps) in (0..).flat_map(|calls| keepers.map(|keeps| (calls, keeps))) {
            let device = Cut::new(blank.clone(), calls, keeps);
            let ended = image.copy(&device).is_ok();
            let left = device.left();
            if ended {
                assert!(left == whole, "{calls} calls");
                break;
            }
            cut += 1;
            assert!(left == blank || is_marked(&left) || left == whole, "{calls} calls");
            let device = Cut::new(left, usize::MAX, keeps);
            image.copy(&device).unwrap();
            assert!(device.left() == whole, "{calls} calls, and again");
        }
        assert!(cut > 30, "{cut} were cut");
    }
}
