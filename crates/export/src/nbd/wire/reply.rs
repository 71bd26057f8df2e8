//! What the server says.

use super::ALLOCATION;
use crate::Extent;
use rustix::io::Errno;

const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// The number under which [`ALLOCATION`] is chosen.
pub const CONTEXT: u32 = 1;

/// The last chunk of a structured reply.
const DONE: u16 = 1;

/// The first words: fixed newstyle negotiation, and no zeros for who does not want them.
#[must_use]
pub fn greeting() -> Vec<u8> {
    let mut bytes = b"NBDMAGICIHAVEOPT".to_vec();
    bytes.extend(3_u16.to_be_bytes());
    bytes
}

/// An answer to an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionReply {
    /// Done, or the last of several.
    Ack,
    /// An export's name.
    Server(String),
    /// Size and transmission flags of the export.
    Export {
        /// Bytes.
        size: u64,
        /// What can be asked of it.
        flags: u16,
    },
    /// The export's own name.
    Name(String),
    /// Which requests it likes.
    BlockSize {
        /// Least bytes, and their alignment.
        least: u32,
        /// Bytes that are served without reading around them.
        preferred: u32,
        /// Most bytes of a read or write.
        most: u32,
    },
    /// The metadata context [`ALLOCATION`], under this number.
    Context(u32),
    /// Not known here.
    Unsupported,
    /// Known, but not for this server.
    Policy,
    /// Not of the option's form, or not now.
    Invalid,
    /// TLS comes first.
    TlsRequired,
    /// No such export.
    UnknownExport,
}

impl OptionReply {
    fn code(&self) -> u32 {
        match self {
            OptionReply::Ack => 1,
            OptionReply::Server(_) => 2,
            OptionReply::Export { .. } | OptionReply::Name(_) | OptionReply::BlockSize { .. } => 3,
            OptionReply::Context(_) => 4,
            OptionReply::Unsupported => 1 << 31 | 1,
            OptionReply::Policy => 1 << 31 | 2,
            OptionReply::Invalid => 1 << 31 | 3,
            OptionReply::TlsRequired => 1 << 31 | 5,
            OptionReply::UnknownExport => 1 << 31 | 6,
        }
    }

    fn data(&self) -> Vec<u8> {
        let mut data = Vec::new();
        match self {
            OptionReply::Server(name) => {
                data.extend(u32::try_from(name.len()).unwrap_or(u32::MAX).to_be_bytes());
                data.extend(name.as_bytes());
            }
            OptionReply::Export { size, flags } => {
                data.extend(0_u16.to_be_bytes());
                data.extend(export_info(*size, *flags));
            }
            OptionReply::Name(name) => {
                data.extend(1_u16.to_be_bytes());
                data.extend(name.as_bytes());
            }
            OptionReply::BlockSize { least, preferred, most } => {
                data.extend(3_u16.to_be_bytes());
                [least, preferred, most].into_iter().for_each(|size| data.extend(size.to_be_bytes()));
            }
            OptionReply::Context(number) => {
                data.extend(number.to_be_bytes());
                data.extend(ALLOCATION.as_bytes());
            }
            _ => {}
        }
        data
    }
}

/// The bytes of an answer to the option `code`.
#[must_use]
pub fn option_reply(code: u32, reply: &OptionReply) -> Vec<u8> {
    let data = reply.data();
    let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(code.to_be_bytes());
    bytes.extend(reply.code().to_be_bytes());
    bytes.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Size and transmission flags of an export.
#[must_use]
pub fn export_info(size: u64, flags: u16) -> Vec<u8> {
    let mut bytes = size.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes
}

/// The head of a simple reply; the data of a read follows if it succeeded.
#[must_use]
pub fn simple(cookie: u64, result: Result<(), Errno>) -> Vec<u8> {
    let error = result.map_or_else(super::error_code, |()| 0);
    [&SIMPLE_MAGIC.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

fn chunk(cookie: u64, kind: u16, length: u32) -> Vec<u8> {
    let mut bytes = CHUNK_MAGIC.to_be_bytes().to_vec();
    bytes.extend(DONE.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// A structured reply that is an error.
#[must_use]
pub fn chunk_error(cookie: u64, errno: Errno) -> Vec<u8> {
    let mut bytes = chunk(cookie, 1 << 15 | 1, 6);
    bytes.extend(super::error_code(errno).to_be_bytes());
    // No text: the server's log has it.
    bytes.extend(0_u16.to_be_bytes());
    bytes
}

/// The head of a structured reply to a read; `length` bytes follow.
#[must_use]
pub fn offset_data(cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = chunk(cookie, 1, length.saturating_add(8));
    bytes.extend(offset.to_be_bytes());
    bytes
}

/// A structured reply that tells what is allocated, of `length` bytes that begin `skip` bytes after the first extent does; with `one`,
/// only of the first extent. `None` if the extents do not reach that far.
#[must_use]
pub fn block_status(cookie: u64, extents: &[Extent], skip: u64, length: u32, one: bool) -> Option<Vec<u8>> {
    let (mut skip, mut left) = (skip, length);
    let mut descriptors: Vec<u8> = Vec::new();
    for extent in extents {
        let here = extent.length.saturating_sub(skip);
        skip = skip.saturating_sub(extent.length);
        let here = u32::try_from(here).unwrap_or(u32::MAX).min(left);
        if here == 0 {
            continue;
        }
        descriptors.extend(here.to_be_bytes());
        // A hole that reads as zeros.
        descriptors.extend(if extent.allocated { 0_u32 } else { 3 }.to_be_bytes());
        left -= here;
        if one || left == 0 {
            break;
        }
    }
    if descriptors.is_empty() {
        return None;
    }
    let mut bytes = chunk(cookie, 5, u32::try_from(descriptors.len()).ok()?.checked_add(4)?);
    bytes.extend(CONTEXT.to_be_bytes());
    bytes.extend(descriptors);
    Some(bytes)
}
