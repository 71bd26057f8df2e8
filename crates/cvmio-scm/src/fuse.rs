//! A region as a device for the FUSE front end: decrypts on READ, encrypts on WRITE, so that the medium only ever holds ciphertext.
//!
//! A write is durable when it is answered, so a flush has nothing left to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use cli::failure::Failure;
use export::{Device, Done, Memory, Request};
use rustix::io::Errno;
use scm::{Engine, Error};
use zeroize::Zeroizing;

/// The file's name, in the directory [`DIRECTORY`] under the mount.
pub const FILE: &str = "pmem";

/// The directory that the file is in. QEMU makes a file that it does not find, but no directory: without the mount it fails.
pub const DIRECTORY: &str = "region";

/// The pages of a region, as a device.
pub struct Pages {
    engine: Arc<Engine>,
    /// Whether the end of serving was told; each corrupt page is told each time.
    told: AtomicBool,
}

impl Pages {
    pub fn new(engine: Arc<Engine>) -> Pages {
        Pages { engine, told: AtomicBool::new(false) }
    }

    fn serve(&self, request: &Request) -> Result<Bytes, Error> {
        match request {
            Request::Read { offset, length } => {
                // It is plaintext, and wiped when the kernel has it.
                let mut data =
                    Zeroizing::new(vec![0; usize::try_from(*length).expect("a request fits into memory")]);
                let mut rest = &mut data[..];
                for (page, offset, len) in self.parts(*offset, u64::from(*length)) {
                    let (part, behind) = rest.split_at_mut(len);
                    self.engine.read(page, offset, part)?;
                    rest = behind;
                }
                Ok(Bytes::from_owner(data))
            }
            Request::Write { offset, data, .. } => {
                let mut rest = &data[..];
                for (page, offset, len) in self.parts(*offset, data.len() as u64) {
                    let (part, behind) = rest.split_at(len);
                    self.engine.write(page, offset, part)?;
                    rest = behind;
                }
                Ok(Bytes::new())
            }
            Request::Flush => Ok(Bytes::new()),
            Request::Discard { offset, length } | Request::WriteZeroes { offset, length } => {
                let size =
                    usize::try_from(self.engine.geometry().page_size()).expect("a page fits into memory");
                let zeros = vec![0; size];
                for (page, offset, len) in self.parts(*offset, *length) {
                    self.engine.write(page, offset, &zeros[..len])?;
                }
                Ok(Bytes::new())
            }
        }
    }

    /// The pages of a range, each with the part of it that is in the range.
    fn parts(&self, offset: u64, length: u64) -> impl Iterator<Item = (u64, usize, usize)> {
        let size = self.engine.geometry().page_size();
        let end = offset + length;
        (offset / size..end.div_ceil(size)).map(move |page| {
            let first = offset.max(page * size);
            let len = end.min((page + 1) * size) - first;
            let bytes = |number| usize::try_from(number).expect("a page fits into memory");
            (page, bytes(first - page * size), bytes(len))
        })
    }

    fn tell(&self, error: &Error) {
        let ends = matches!(error, Error::Medium(_) | Error::Stopped);
        if !ends || !self.told.swap(true, Ordering::Relaxed) {
            cli::output::error(&Failure::io(error));
        }
    }
}

impl Device for Pages {
    fn size(&self) -> u64 {
        self.engine.geometry().data_len()
    }

    /// It is plaintext, and wiped when it was written.
    fn memory(&self, bytes: usize) -> Memory {
        Memory::new(Zeroizing::new(vec![0; bytes]))
    }

    fn submit(&self, request: Request, done: Done) {
        let result = self.serve(&request);
        done(result.map_err(|error| {
            self.tell(&error);
            Errno::IO
        }));
    }
}
