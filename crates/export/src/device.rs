//! What front ends need of a volume.

use crate::attend::Attend;
use bytes::Bytes;
use rustix::io::Errno;

/// Bytes in a block: the unit of every offset and length that a [`Device`] sees.
pub const BLOCK_SIZE: u64 = 4096;

/// Bytes in the largest read or write: what front ends take, plus the rest of a block.
pub const MAX_TRANSFER: u64 = (1 << 20) + BLOCK_SIZE;

/// One request. Offsets and lengths are bytes, whole multiples of [`BLOCK_SIZE`], and inside the device;
/// lengths are never zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Answer with the `length` bytes from `offset` on.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes, at most [`MAX_TRANSFER`].
        length: u32,
    },
    /// Store `data` from `offset` on.
    Write {
        /// First byte.
        offset: u64,
        /// What to store, at most [`MAX_TRANSFER`].
        data: Bytes,
        /// Complete only when the data is durable (force unit access).
        fua: bool,
    },
    /// Make every write that completed before this was submitted durable.
    Flush,
    /// Zero the bytes and give their space back.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Zero the bytes and keep their space.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
}

/// Memory for the data of a write, which a device lends: the device gets it back when nobody needs the data any more.
pub struct Memory(Box<dyn Lent>);

/// What [`Memory`] can be made of: the same bytes for every reader.
pub trait Lent: AsRef<[u8]> + AsMut<[u8]> + Send + 'static {}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send + 'static> Lent for T {}

impl Memory {
    /// Memory of as many bytes as `lent` has, with any content.
    pub fn new(lent: impl Lent) -> Self {
        Self(Box::new(lent))
    }

    /// What is in it, for good.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        (*self.0).as_mut()
    }
}

/// Ends a request: with the bytes of a read, with nothing for the others, or with an error. It may be called on
/// any thread, also inside `submit`. A request whose `Done` is dropped fails with `EIO`.
pub type Done = Box<dyn FnOnce(Result<Bytes, Errno>) + Send>;

/// A stretch of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes; never zero.
    pub length: u64,
    /// Whether something is stored there; what is not reads as zeros.
    pub allocated: bool,
}

/// Ends a look at what is allocated, as [`Done`] ends a request.
pub type Found = Box<dyn FnOnce(Result<Vec<Extent>, Errno>) + Send>;

/// A block device: what a front end shows, and what a volume is from outside.
pub trait Device: Send + Sync + 'static {
    /// Bytes. A whole number of blocks; it may become more, and the front end is told then.
    fn size(&self) -> u64;
    /// Memory for so many bytes that are to be written. Any other memory will do, too; this is the device's to plan with.
    fn memory(&self, bytes: usize) -> Memory {
        Memory::new(vec![0; bytes])
    }
    /// Accepts a request, without waiting for its end. Any number may be in flight; between two that overlap
    /// any order is right, as long as it is an order.
    fn submit(&self, request: Request, done: Done);
    /// The threads that end requests, if they serve clients, too.
    fn attendant(&self) -> Option<&dyn Attend> {
        None
    }
    /// Tells which bytes of a range are stored: extents in order, without gaps, from `offset` on, that cover all of it. Offset
    /// and length are as in a [`Request`]. A device that cannot tell says that all are.
    fn allocated(&self, _offset: u64, length: u64, found: Found) {
        found(Ok(vec![Extent { length, allocated: true }]));
    }
}
