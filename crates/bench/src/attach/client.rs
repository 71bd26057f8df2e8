//! A client that reads and writes the volume, by one of its front ends.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use export::nbd::wire::{Ask, Command, Flags, OptionHeader, Request};
use store::BLOCK_SIZE;

use daemon::runtime::Place;

/// How the volume is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Door {
    /// An NBD server on a unix socket
    Nbd,
    /// A file
    Fuse,
}

impl Door {
    /// As `attach --as` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nbd => "nbd",
            Self::Fuse => "fuse",
        }
    }

    /// Why this machine does not have it, if so.
    pub fn missing(self) -> Option<String> {
        match self {
            Self::Nbd => None,
            Self::Fuse => File::options()
                .read(true)
                .write(true)
                .open("/dev/fuse")
                .err()
                .map(|error| format!("/dev/fuse cannot be opened: {error}")),
        }
    }

    /// Goes in.
    ///
    /// # Errors
    /// When it is not there, or somebody else than our server answers.
    pub fn open(self, place: &Place) -> io::Result<Client> {
        Ok(match self {
            Self::Nbd => Client::Nbd(negotiate(UnixStream::connect(place.nbd())?)?),
            Self::Fuse => Client::Fuse(File::options().read(true).write(true).open(place.disk())?),
        })
    }
}

/// Somebody who uses the volume.
pub enum Client {
    Nbd(UnixStream),
    Fuse(File),
}

/// The magic number of a simple reply (NBD protocol, "Simple reply message").
const SIMPLE_REPLY: [u8; 4] = 0x6744_6698_u32.to_be_bytes();

impl Client {
    /// Reads a block.
    pub fn read(&mut self, block: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_SIZE];
        match self {
            Self::Fuse(file) => file.read_exact_at(&mut bytes, offset(block))?,
            Self::Nbd(stream) => {
                ask(stream, Command::Read, block, &[])?;
                stream.read_exact(&mut bytes)?;
            }
        }
        Ok(bytes)
    }

    /// Writes a block.
    pub fn write(&mut self, block: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Fuse(file) => file.write_all_at(bytes, offset(block)),
            Self::Nbd(stream) => ask(stream, Command::Write, block, bytes),
        }
    }

    /// Makes everything durable that was written.
    pub fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Fuse(file) => file.sync_all(),
            Self::Nbd(stream) => ask(stream, Command::Flush, 0, &[]),
        }
    }
}

impl Drop for Client {
    /// Returns when the server counts us no longer: it refuses to be put away before.
    fn drop(&mut self) {
        if let Self::Nbd(stream) = self
            && send(stream, Command::Disconnect, 0, 0, &[]).is_ok()
        {
            // It hangs up.
            let _ = stream.read(&mut [0]);
        }
    }
}

fn offset(block: u64) -> u64 {
    block * BLOCK_SIZE as u64
}

/// The oldest way to agree with a server, in one round: the export by its name, the empty one.
fn negotiate(mut stream: UnixStream) -> io::Result<UnixStream> {
    const GREETING: &[u8; 18] = b"NBDMAGICIHAVEOPT\0\x03";
    /// Fixed newstyle, without zeroes behind the answer.
    const FLAGS: u32 = 3;
    let mut greeting = [0; GREETING.len()];
    stream.read_exact(&mut greeting)?;
    if &greeting != GREETING {
        return Err(io::Error::other("this is not the volume's NBD server"));
    }
    let name = Ask::ExportName(String::new());
    let header = OptionHeader { code: name.code(), length: 0 };
    stream.write_all(&[&FLAGS.to_be_bytes()[..], &header.encode()].concat())?;
    // Size and flags.
    stream.read_exact(&mut [0; 10])?;
    Ok(stream)
}

/// Asks for something of one block, and waits for the reply, but for its data.
fn ask(stream: &mut UnixStream, command: Command, block: u64, data: &[u8]) -> io::Result<()> {
    let length = if command == Command::Flush { 0 } else { 4096 };
    send(stream, command, block, length, data)?;
    let mut reply = [0; 16];
    stream.read_exact(&mut reply)?;
    match (reply[..4] == SIMPLE_REPLY, &reply[4..8]) {
        (true, [0, 0, 0, 0]) => Ok(()),
        (true, error) => Err(io::Error::other(format!("the NBD server says error {error:?}"))),
        (false, _) => Err(io::Error::other("the NBD server speaks otherwise")),
    }
}

fn send(stream: &mut UnixStream, command: Command, block: u64, length: u32, data: &[u8]) -> io::Result<()> {
    let request = Request { flags: Flags::default(), command, cookie: 0, offset: offset(block), length };
    stream.write_all(&[&request.encode(), data].concat())
}
