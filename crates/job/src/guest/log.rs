//! What the container writes: lines of JSON, each with bytes of one of its two streams.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Mutex;

use base64ct::{Base64, Encoding};
use serde::{Deserialize, Serialize};

use crate::error::{Context, Error, Result};

/// Most bytes of a log. A container that writes more is stopped.
pub const MAX_LOG: u64 = 64 << 20;
/// Most bytes of a frame.
const PIECE: usize = 16 << 10;

/// One of the container's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    /// Its standard output.
    Out,
    /// Its standard error.
    Err,
}

/// A piece of the log: one line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frame {
    /// Where it was written to.
    pub stream: Stream,
    /// The bytes, as base64.
    data: String,
}

impl Frame {
    /// A piece of these bytes.
    #[must_use]
    pub fn new(stream: Stream, bytes: &[u8]) -> Self {
        Self { stream, data: Base64::encode_string(bytes) }
    }

    /// The bytes.
    ///
    /// # Errors
    /// If they are not what base64 writes.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        Base64::decode_vec(&self.data)
            .map_err(|_| Error::protocol("the log has a frame that is no base64 text"))
    }
}

/// A log that is being written.
#[derive(Debug)]
pub struct Log {
    file: Mutex<(File, u64)>,
}

impl Log {
    /// A new one.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn create(path: &Path) -> Result<Self> {
        Ok(Self { file: Mutex::new((File::create_new(path).of(path)?, 0)) })
    }

    /// Takes over what a stream brings, to its end.
    ///
    /// # Errors
    /// If it cannot be read or written, or the log is full.
    pub fn take(&self, stream: Stream, mut from: impl Read) -> Result<()> {
        let mut piece = vec![0; PIECE];
        loop {
            match from.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => self.write(&Frame::new(stream, &piece[..count]))?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(
                        Error::io(format!("the container's output cannot be read: {error}")).because(error)
                    );
                }
            }
        }
    }

    fn write(&self, frame: &Frame) -> Result<()> {
        let mut line = serde_json::to_vec(frame).map_err(|error| Error::io(error.to_string()))?;
        line.push(b'\n');
        let mut file = self.file.lock().map_err(|_| Error::io("the log's writer is gone"))?;
        file.1 += line.len() as u64;
        if file.1 > MAX_LOG {
            return Err(Error::no_space(format!(
                "the container wrote more than a log of {} MiB holds",
                MAX_LOG >> 20
            )));
        }
        file.0.write_all(&line).of("the log")
    }
}

/// Copies what a log has from a byte on. The number of the first byte that was not there yet.
///
/// # Errors
/// If it cannot be read or written.
pub fn copy_from(path: &Path, from: u64, to: &mut impl Write) -> Result<u64> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(from),
        file => file.of(path)?,
    };
    file.seek(SeekFrom::Start(from)).of(path)?;
    let count = io::copy(&mut file, to).of(path)?;
    to.flush().of(path)?;
    Ok(from + count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_whole_to_its_last_byte_wherever_it_is_taken_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        assert_eq!(copy_from(&path, 0, &mut Vec::new()).unwrap(), 0);
        let log = Log::create(&path).unwrap();
        let text: Vec<u8> = (0..100_000_u32).map(|byte| (byte % 251) as u8).collect();
        log.take(Stream::Out, &text[..]).unwrap();
        let mut first = Vec::new();
        let taken = copy_from(&path, 0, &mut first).unwrap();
        log.take(Stream::Err, &b"no newline at its end"[..]).unwrap();
        copy_from(&path, taken, &mut first).unwrap();
        let frames = first.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let frames: Vec<Frame> = frames.map(|line| serde_json::from_slice(line).unwrap()).collect();
        let of = |stream| {
            frames
                .iter()
                .filter(|frame| frame.stream == stream)
                .flat_map(|frame| frame.bytes().unwrap())
                .collect::<Vec<u8>>()
        };
        assert_eq!(of(Stream::Out), text);
        assert_eq!(of(Stream::Err), b"no newline at its end");
    }

    #[test]
    fn a_log_has_an_end() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::create(&directory.path().join("log")).unwrap();
        let refused = log.take(Stream::Out, io::repeat(b'x')).unwrap_err();
        assert!(refused.to_string().contains("64 MiB"), "{refused}");
    }
}
