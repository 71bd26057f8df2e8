//! Requests of virtio-blk and its configuration (virtio 1.x, section 5.2). All integers are little-endian; a sector has 512 bytes.

mod config;
mod request;

pub use config::{CONFIG_LENGTH, Config};
pub use request::{HEADER_LENGTH, Kind, Request, Segment, header, parse, segments};

use virtio_bindings::virtio_blk as numbers;
use virtio_bindings::virtio_config::{VIRTIO_F_ACCESS_PLATFORM, VIRTIO_F_VERSION_1};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// The unit of every position and length.
pub const SECTOR: u64 = 512;
/// Bytes of what a disk is called, padded with zeros.
pub const ID_LENGTH: usize = 20;

/// Bits that two parties agree on before they use a queue.
pub mod features {
    use super::*;

    /// Virtio 1.0 or later.
    pub const VERSION_1: u64 = 1 << VIRTIO_F_VERSION_1;
    /// The driver restricts what memory it hands out. The guest of a confidential machine insists on it.
    pub const ACCESS_PLATFORM: u64 = 1 << VIRTIO_F_ACCESS_PLATFORM;
    /// A descriptor may name a table of them.
    pub const INDIRECT: u64 = 1 << VIRTIO_RING_F_INDIRECT_DESC;
    /// Notifications by position instead of by a flag.
    pub const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
    /// The most segments of a request are in the configuration.
    pub const SEG_MAX: u64 = 1 << numbers::VIRTIO_BLK_F_SEG_MAX;
    /// The disk is only to be read.
    pub const READ_ONLY: u64 = 1 << numbers::VIRTIO_BLK_F_RO;
    /// The size of a logical block is in the configuration.
    pub const BLOCK_SIZE: u64 = 1 << numbers::VIRTIO_BLK_F_BLK_SIZE;
    /// There are flushes. Without it each write is durable when it completes.
    pub const FLUSH: u64 = 1 << numbers::VIRTIO_BLK_F_FLUSH;
    /// Physical blocks and the best sizes are in the configuration.
    pub const TOPOLOGY: u64 = 1 << numbers::VIRTIO_BLK_F_TOPOLOGY;
    /// Several queues.
    pub const QUEUES: u64 = 1 << numbers::VIRTIO_BLK_F_MQ;
    /// There are discards.
    pub const DISCARD: u64 = 1 << numbers::VIRTIO_BLK_F_DISCARD;
    /// Zeros are written without sending them.
    pub const WRITE_ZEROES: u64 = 1 << numbers::VIRTIO_BLK_F_WRITE_ZEROES;
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// As it was asked.
    Ok = 0,
    /// Not.
    Error = 1,
    /// The device does not know such requests.
    Unsupported = 2,
}

const _: () = assert!(
    Status::Ok as u32 == numbers::VIRTIO_BLK_S_OK
        && Status::Error as u32 == numbers::VIRTIO_BLK_S_IOERR
        && Status::Unsupported as u32 == numbers::VIRTIO_BLK_S_UNSUPP
        && ID_LENGTH == numbers::VIRTIO_BLK_ID_BYTES as usize
);
