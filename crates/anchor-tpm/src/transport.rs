//! How a command gets to a TPM: its device, or the socket of one that is emulated.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;
use crate::wire::{HEADER, MAX_MESSAGE, answer};

/// Longest wait for one answer of a socket. A chip may take seconds to make a key; the kernel has time-outs of its own.
const ANSWER: Duration = Duration::from_secs(20);
/// Longest wait for a TCP connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Where a TPM is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A character device, or a Unix socket.
    Path(PathBuf),
    /// `HOST:PORT`, where commands are taken as they are.
    Tcp(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Path(path) => write!(f, "{}", path.display()),
            Place::Tcp(host) => write!(f, "tcp:{host}"),
        }
    }
}

impl Place {
    /// Whether the kernel's resource manager stands before the TPM: it keeps what each opener has loaded apart, and cleans up after it.
    pub(crate) fn is_managed(&self) -> bool {
        matches!(self, Place::Path(path) if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"tpmrm")))
    }
}

/// Something that answers commands.
pub trait Transport: Send {
    /// Sends a command, and returns the answer as it came.
    ///
    /// # Errors
    /// Whether the command was executed is then unknown.
    fn transact(&mut self, command: &[u8]) -> Result<Vec<u8>, Error>;
}

/// Opens the way to a TPM. No command is sent.
///
/// # Errors
/// [`Error::NoTpm`] when nothing is there.
pub fn open(place: &Place) -> Result<Box<dyn Transport>, Error> {
    let failed = |source| Error::NoTpm { place: place.to_string(), source };
    match place {
        Place::Path(path) => {
            let kind = std::fs::metadata(path).map_err(failed)?.file_type();
            if kind.is_socket() {
                let stream = UnixStream::connect(path).map_err(failed)?;
                stream.set_read_timeout(Some(ANSWER)).map_err(failed)?;
                stream.set_write_timeout(Some(ANSWER)).map_err(failed)?;
                Ok(Box::new(Socket(stream)))
            } else if kind.is_char_device() {
                let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
                Ok(Box::new(Device(file)))
            } else {
                Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "neither a device nor a socket")))
            }
        }
        Place::Tcp(host) => {
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
            for address in host.to_socket_addrs().map_err(failed)? {
                match TcpStream::connect_timeout(&address, CONNECT) {
                    Ok(stream) => {
                        stream.set_read_timeout(Some(ANSWER)).map_err(failed)?;
                        stream.set_write_timeout(Some(ANSWER)).map_err(failed)?;
                        stream.set_nodelay(true).map_err(failed)?;
                        return Ok(Box::new(Socket(stream)));
                    }
                    Err(error) => last = error,
                }
            }
            Err(failed(last))
        }
    }
}

/// A device takes a command in one write, and gives its answer in one read.
struct Device(File);

impl Transport for Device {
    fn transact(&mut self, command: &[u8]) -> Result<Vec<u8>, Error> {
        let lost = |doing| move |source| Error::Lost { doing, source };
        let written = self.0.write(command).map_err(lost("writing a command"))?;
        if written != command.len() {
            return Err(lost("writing a command")(io::ErrorKind::WriteZero.into()));
        }
        let mut answer = vec![0; MAX_MESSAGE];
        let length = self.0.read(&mut answer).map_err(lost("reading an answer"))?;
        answer.truncate(length);
        Ok(answer)
    }
}

/// A socket is a stream: an answer says itself how long it is.
struct Socket<S>(S);

impl<S: Read + Write + Send> Transport for Socket<S> {
    fn transact(&mut self, command: &[u8]) -> Result<Vec<u8>, Error> {
        let lost = |doing| move |source| Error::Lost { doing, source };
        self.0.write_all(command).map_err(lost("writing a command"))?;
        let mut header = [0; HEADER];
        self.0.read_exact(&mut header).map_err(lost("reading an answer"))?;
        let size = answer::message_size(&header).map_err(Error::Nonsense)?;
        let mut answer = header.to_vec();
        answer.resize(size, 0);
        self.0.read_exact(&mut answer[HEADER..]).map_err(lost("reading an answer"))?;
        Ok(answer)
    }
}
