//! The bytes of the NBD protocol, as typed values.
//!
//! All that a client sends is taken apart here and nowhere else; nothing here waits, allocates more than it was given, or panics.
//! What is accepted is laid out again to the byte, for the fuzzer and for clients in tests.
//!
//! Source: the NBD project's `doc/proto.md`. All numbers are big-endian.

mod ask;
mod reply;

pub use ask::{Ask, MAX_OPTION, OptionHeader};
pub use reply::{
    CONTEXT, OptionReply, block_status, chunk_error, export_info, greeting, offset_data, option_reply, simple,
};

use rustix::io::Errno;
use std::fmt;

/// The only metadata context that is offered: what is allocated, and what reads as zeros.
pub const ALLOCATION: &str = "base:allocation";

/// Bytes of a client's flags after the greeting.
pub const FLAGS_BYTES: usize = 4;
/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = 28;

const REQUEST_MAGIC: u32 = 0x2560_9513;

/// Bytes that are not of the protocol. The connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// What a client says to the greeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientFlags {
    /// It wants no zeros after an answer to `NBD_OPT_EXPORT_NAME`.
    pub no_zeroes: bool,
}

impl ClientFlags {
    /// Takes the flags apart. A client that does not know the fixed newstyle negotiation is refused.
    ///
    /// # Errors
    /// For unknown flags too, as the protocol demands.
    pub fn decode(bytes: [u8; FLAGS_BYTES]) -> Result<ClientFlags, Malformed> {
        match u32::from_be_bytes(bytes) {
            1 => Ok(ClientFlags { no_zeroes: false }),
            3 => Ok(ClientFlags { no_zeroes: true }),
            _ => Err(Malformed("these client flags are unknown, or without fixed newstyle")),
        }
    }

    /// The bytes of the flags.
    #[must_use]
    pub fn encode(self) -> [u8; FLAGS_BYTES] {
        (1 | u32::from(self.no_zeroes) << 1).to_be_bytes()
    }
}

/// What a client may ask of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Send bytes.
    Read,
    /// Store the bytes that follow.
    Write,
    /// Goodbye; no reply.
    Disconnect,
    /// Make durable what has completed.
    Flush,
    /// The content is not needed any more.
    Trim,
    /// Write zeros, without sending them.
    WriteZeroes,
    /// Tell what is allocated.
    BlockStatus,
    /// Something that was not offered.
    Unknown(u16),
}

impl Command {
    const KNOWN: [(u16, Command); 7] = [
        (0, Command::Read),
        (1, Command::Write),
        (2, Command::Disconnect),
        (3, Command::Flush),
        (4, Command::Trim),
        (6, Command::WriteZeroes),
        (7, Command::BlockStatus),
    ];

    fn decode(code: u16) -> Command {
        let known = Command::KNOWN.iter().find(|(known, _)| *known == code);
        known.map_or(Command::Unknown(code), |(_, command)| *command)
    }

    fn encode(self) -> u16 {
        let known = Command::KNOWN.iter().find(|(_, known)| *known == self);
        match (self, known) {
            (Command::Unknown(code), _) => code,
            (_, Some((code, _))) => *code,
            (_, None) => u16::MAX,
        }
    }
}

/// A request's flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u16);

impl Flags {
    /// Complete only when it is durable.
    pub const FUA: Flags = Flags(1);
    /// Zeros must take up their space.
    pub const NO_HOLE: Flags = Flags(1 << 1);
    /// Reply to a read in one piece.
    pub const DONT_FRAGMENT: Flags = Flags(1 << 2);
    /// Only the first extent is wanted.
    pub const ONE_EXTENT: Flags = Flags(1 << 3);
    /// Fail rather than write zeros the slow way.
    pub const FAST_ZERO: Flags = Flags(1 << 4);

    /// Whether all of `flags` are set.
    #[must_use]
    pub fn has(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether nothing is set that has no meaning with this command. `structured`: whether structured replies were agreed upon.
    #[must_use]
    pub fn fit(self, command: Command, structured: bool) -> bool {
        let own = match command {
            Command::WriteZeroes => Flags::NO_HOLE.0 | Flags::FAST_ZERO.0,
            Command::Read if structured => Flags::DONT_FRAGMENT.0,
            Command::BlockStatus => Flags::ONE_EXTENT.0,
            _ => 0,
        };
        // Clients are known to set FUA on anything.
        self.0 & !(own | Flags::FUA.0) == 0
    }
}

/// A request's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// How.
    pub flags: Flags,
    /// What.
    pub command: Command,
    /// The client's name for it.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

impl Request {
    /// Takes a header apart.
    ///
    /// # Errors
    /// When it is none: then nobody knows where the next one begins.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Request, Malformed> {
        let mut fields = Fields(bytes);
        if fields.u32()? != REQUEST_MAGIC {
            return Err(Malformed("this is no request"));
        }
        Ok(Request {
            flags: Flags(fields.u16()?),
            command: Command::decode(fields.u16()?),
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: fields.u32()?,
        })
    }

    /// The bytes of the header.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(REQUEST_BYTES);
        bytes.extend(REQUEST_MAGIC.to_be_bytes());
        bytes.extend(self.flags.0.to_be_bytes());
        bytes.extend(self.command.encode().to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(self.offset.to_be_bytes());
        bytes.extend(self.length.to_be_bytes());
        bytes
    }
}

/// The protocol's number for an error. It knows only some; what has none is an I/O error.
#[must_use]
pub fn error_code(errno: Errno) -> u32 {
    match errno {
        Errno::PERM | Errno::ROFS => 1,
        Errno::NOMEM => 12,
        Errno::INVAL => 22,
        Errno::NOSPC => 28,
        Errno::OVERFLOW => 75,
        Errno::OPNOTSUPP => 95,
        Errno::SHUTDOWN => 108,
        _ => 5,
    }
}

/// Fields from the beginning of some bytes on.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// Text after its length.
    fn text(&mut self) -> Result<String, Malformed> {
        let length = usize::try_from(self.u32()?).map_err(|_| Malformed("a length is too large"))?;
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| Malformed("a text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("it goes on after its end")) }
    }
}

#[cfg(test)]
mod tests;
