//! Where a store is, and how an address becomes one. No other place decides by its text what a store is.

use std::fmt;
use std::io;
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::{
    BLOCK_SIZE, Completion, Error, ErrorKind, FileStore, Operation, Options, RingOptions, RingStore, Store,
};

/// An address, as users write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A file or block device, by its path.
    File(PathBuf),
    /// `vhost-user:SOCKET`: a disk of the vhost-user-blk server that listens there.
    VhostUser(PathBuf),
}

const VHOST_USER: &str = "vhost-user:";
const IVSHMEM: &str = "ivshmem:";

/// How to open a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Access {
    /// Through the page cache of this machine: files and devices only.
    pub buffered: bool,
    /// For reading only.
    pub read_only: bool,
    /// Make a sparse file of so many blocks; see [`Options::create`].
    pub create: Option<u64>,
    /// How long the host may leave a request without an answer; `None` is as long as is right for the kind of store.
    pub deadline: Option<Duration>,
}

impl Address {
    /// What a user has written. A file whose name begins like another address is meant by `./NAME`.
    ///
    /// # Errors
    /// When it is the address of nothing that there is.
    pub fn of(text: &Path) -> Result<Self, Error> {
        let refused = |message: &str| {
            Err(Error::new(ErrorKind::Unsupported, "open", text.display().to_string(), message))
        };
        let behind = |prefix: &str| text.to_str().and_then(|text| text.strip_prefix(prefix));
        if behind(IVSHMEM).is_some() {
            return refused(
                "a virtqueue in the memory of an ivshmem device is not supported yet; use a virtual disk (/dev/vdX), \
                 or `vhost-user:/SOCKET` between processes",
            );
        }
        match behind(VHOST_USER) {
            None => Ok(Self::File(text.into())),
            Some("") => refused("it names no socket; write `vhost-user:/PATH`"),
            Some(socket) => Ok(Self::VhostUser(socket.into())),
        }
    }

    /// What there is of it in this machine's file system: the file, the device, or the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::VhostUser(path) => path,
        }
    }

    /// The same for a process with another working directory.
    ///
    /// # Errors
    /// When this one is not known.
    pub fn absolute(&self) -> io::Result<Self> {
        let path = path::absolute(self.path())?;
        Ok(self.with(path))
    }

    /// The same by the one name that links do not change.
    ///
    /// # Errors
    /// When it is not there.
    pub fn canonical(&self) -> io::Result<Self> {
        let path = std::fs::canonicalize(self.path())?;
        Ok(self.with(path))
    }

    fn with(&self, path: PathBuf) -> Self {
        match self {
            Self::File(_) => Self::File(path),
            Self::VhostUser(_) => Self::VhostUser(path),
        }
    }

    /// Whether somebody else says how large it is, as of a device.
    #[must_use]
    pub fn is_served(&self) -> bool {
        matches!(self, Self::VhostUser(_))
    }

    /// As a user would write it.
    #[must_use]
    pub fn to_path(&self) -> PathBuf {
        match self {
            Self::File(path) => path.clone(),
            Self::VhostUser(socket) => {
                let mut text = std::ffi::OsString::from(VHOST_USER);
                text.push(socket);
                text.into()
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_path().display().fmt(f)
    }
}

/// Opens the store at an address, alone: nobody else may have it open for writing.
///
/// # Errors
/// What keeps it from being opened; each says what to do about it.
pub fn open(address: &Address, access: Access) -> Result<Arc<dyn Store>, Error> {
    let Access { buffered, read_only, create, deadline } = access;
    match address {
        Address::File(path) => {
            let options = Options { direct: !buffered, read_only, create, ..Options::default() };
            let options = Options { deadline: deadline.unwrap_or(options.deadline), ..options };
            Ok(Arc::new(FileStore::open(path, options)?))
        }
        Address::VhostUser(socket) => {
            if buffered || create.is_some() {
                let message = "its server decides how large it is, and whether it goes through a page cache";
                return Err(Error::new(ErrorKind::Unsupported, "open", address.to_string(), message));
            }
            let options = RingOptions { read_only, ..RingOptions::default() };
            let options = RingOptions { deadline: deadline.unwrap_or(options.deadline), ..options };
            Ok(Arc::new(RingStore::connect(socket, options)?))
        }
    }
}

/// The first bytes of a store: at least so many, or all that there are.
///
/// # Errors
/// When they cannot be read.
pub fn read_start(store: &dyn Store, bytes: usize) -> Result<Vec<u8>, Error> {
    let most = usize::try_from(store.blocks()).unwrap_or(usize::MAX);
    let mut queue = store.queue(1)?;
    let buffer = queue.buffer(bytes.div_ceil(BLOCK_SIZE).min(most));
    queue.submit(0, Operation::Read { block: 0, buffer });
    let mut completions = Vec::new();
    while completions.is_empty() {
        queue.wait(None, &mut completions);
    }
    let Completion { buffer, result, .. } = completions.remove(0);
    result?;
    let Some(buffer) = buffer else { return Ok(Vec::new()) };
    let mut start = vec![0; buffer.len()];
    buffer.copy_to(0, &mut start);
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_file_or_a_socket_and_nothing_else() {
        let of = |text: &str| Address::of(Path::new(text));
        let (file, socket) =
            (|path: &str| Address::File(path.into()), |path: &str| Address::VhostUser(path.into()));
        for (text, expected) in [
            ("/dev/vdb", file("/dev/vdb")),
            ("disk.img", file("disk.img")),
            ("./vhost-user:x", file("./vhost-user:x")),
            ("vhost-user:/run/s", socket("/run/s")),
            ("vhost-user:s", socket("s")),
        ] {
            let address = of(text).unwrap();
            assert_eq!((address.clone(), address.to_string()), (expected, text.to_owned()));
            assert_eq!(Address::of(&address.to_path()), Ok(address));
        }
        for (text, expected) in
            [("vhost-user:", "names no socket"), ("ivshmem:0000:00:05.0", "not supported yet")]
        {
            let error = of(text).unwrap_err();
            assert!(error.kind == ErrorKind::Unsupported && error.message.contains(expected), "{error}");
        }
        let absolute = of("vhost-user:s").unwrap().absolute().unwrap();
        assert!(absolute.path().is_absolute() && absolute.is_served(), "{absolute}");
    }
}
