//! What is said between the kernel's FUSE and its server, byte by byte.
//!
//! Source: the kernel's `include/uapi/linux/fuse.h`, from protocol 7.31 on (Linux 5.4).

use rustix::io::Errno;

/// The protocol that is spoken here. A kernel that knows a later one speaks this one with us.
pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 45;
/// The oldest that will do.
pub(super) const OLDEST: u32 = 31;

/// Bytes of what each request begins with (`struct fuse_in_header`), and each reply (`struct fuse_out_header`).
pub(super) const IN_HEADER: usize = 40;
pub(super) const OUT_HEADER: usize = 16;

/// Bytes of the smallest buffer that the kernel reads a request into, and of what stands there before a write's data.
pub(super) const SMALLEST_BUFFER: usize = 8192;
pub(super) const BEFORE_DATA: usize = IN_HEADER + 40;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;
const FALLOCATE: u32 = 43;

/// What a request begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Bytes of the whole request.
    pub(super) length: usize,
    pub(super) operation: u32,
    /// The request's number, which its reply repeats.
    pub(super) unique: u64,
    pub(super) node: u64,
}

impl Header {
    /// `None` if these are too few bytes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            length: usize::try_from(u32_at(bytes, 0)?).ok()?,
            operation: u32_at(bytes, 4)?,
            unique: u64_at(bytes, 8)?,
            node: u64_at(bytes, 16)?,
        })
        .filter(|_| bytes.len() >= IN_HEADER)
    }

    /// Bytes of the operation's own structure, which stands between the header and names or data.
    pub(super) fn argument(&self) -> usize {
        match self.operation {
            READ | WRITE | READDIR => 40,
            FALLOCATE => 32,
            SETATTR => 88,
            OPEN => 8,
            INIT => 64,
            _ => 0,
        }
    }
}

/// What the kernel asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call<'a> {
    Lookup {
        name: &'a [u8],
    },
    Attributes,
    Change(Change),
    Open {
        flags: u32,
    },
    OpenDirectory,
    Read {
        offset: u64,
        length: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        flags: u32,
    },
    Sync,
    Allocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Entries {
        after: u64,
        length: u32,
    },
    Space,
    /// Something is let go of, and there is nothing to do.
    Released,
    /// The same, and nobody waits for a reply.
    Forgotten,
    /// Nothing that a device can do.
    Other,
}

/// What of a file's attributes is to be another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) size: Option<u64>,
    /// Mode or owner.
    pub(super) access: bool,
}

impl<'a> Call<'a> {
    /// From the operation's own structure and what stands behind it. `None` if they are no such request.
    pub(super) fn decode(header: &Header, argument: &[u8], rest: &'a [u8]) -> Option<Self> {
        Some(match header.operation {
            LOOKUP => Self::Lookup { name: rest.strip_suffix(&[0])? },
            GETATTR => Self::Attributes,
            SETATTR => {
                let valid = u32_at(argument, 0)?;
                let size = u64_at(argument, 16)?;
                Self::Change(Change { size: (valid & 8 != 0).then_some(size), access: valid & 7 != 0 })
            }
            OPEN => Self::Open { flags: u32_at(argument, 0)? },
            OPENDIR => Self::OpenDirectory,
            READ => Self::Read { offset: u64_at(argument, 8)?, length: u32_at(argument, 16)? },
            WRITE => {
                let length = usize::try_from(u32_at(argument, 16)?).ok()?;
                let data = rest.get(..length)?;
                Self::Write { offset: u64_at(argument, 8)?, data, flags: u32_at(argument, 32)? }
            }
            FSYNC => Self::Sync,
            FALLOCATE => Self::Allocate {
                offset: u64_at(argument, 8)?,
                length: u64_at(argument, 16)?,
                mode: u32_at(argument, 24)?,
            },
            READDIR => Self::Entries { after: u64_at(argument, 8)?, length: u32_at(argument, 16)? },
            STATFS => Self::Space,
            RELEASE | RELEASEDIR | DESTROY => Self::Released,
            FORGET | BATCH_FORGET => Self::Forgotten,
            _ => Self::Other,
        })
    }
}

/// What the kernel says first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) features: u64,
}

/// What may be agreed on.
pub(super) mod feature {
    /// Reads may be in flight together.
    pub(in crate::fuse) const ASYNC_READ: u64 = 1 << 0;
    /// Writes may have more than a page.
    pub(in crate::fuse) const BIG_WRITES: u64 = 1 << 5;
    /// Direct reads and writes may be in flight together.
    pub(in crate::fuse) const ASYNC_DIRECT: u64 = 1 << 15;
    /// So may be looks at a directory.
    pub(in crate::fuse) const PARALLEL_DIRECTORIES: u64 = 1 << 18;
    /// The server says how many pages a request may have.
    pub(in crate::fuse) const MAX_PAGES: u64 = 1 << 22;
    /// There are more than 32 features.
    pub(in crate::fuse) const MORE: u64 = 1 << 30;
}

impl Hello {
    /// `None` if this is not the kernel's first request.
    pub(super) fn decode(header: &Header, argument: &[u8]) -> Option<Self> {
        if header.operation != INIT {
            return None;
        }
        let (low, high) = (u32_at(argument, 12)?, u32_at(argument, 16).unwrap_or(0));
        let mut features = u64::from(low);
        if features & feature::MORE != 0 {
            features |= u64::from(high) << 32;
        }
        Some(Self { major: u32_at(argument, 0)?, minor: u32_at(argument, 4)?, features })
    }
}

/// What is agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) minor: u32,
    pub(super) features: u64,
    pub(super) max_background: u16,
    /// Bytes of the largest write.
    pub(super) largest: u32,
}

impl Agreed {
    /// `struct fuse_init_out`.
    pub(super) fn encode(&self) -> Vec<u8> {
        let [low, high] = [self.features & 0xffff_ffff, self.features >> 32]
            .map(|half| u32::try_from(half).unwrap_or_default());
        let pages = u16::try_from(self.largest.div_ceil(4096)).unwrap_or(u16::MAX);
        let mut out = Out::new();
        out.u32(MAJOR).u32(self.minor).u32(self.largest).u32(low);
        // Beyond three quarters of what may be in flight the kernel's writers of dirty pages hold back.
        out.u16(self.max_background).u16(self.max_background - self.max_background / 4);
        out.u32(self.largest).u32(1).u16(pages).u16(0).u32(high);
        out.zeros(28);
        out.0
    }
}

/// What a file or directory looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) inode: u64,
    pub(super) size: u64,
    /// With the kind.
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) owner: (u32, u32),
}

impl Attributes {
    /// `struct fuse_attr`, of 88 bytes.
    fn put(&self, out: &mut Out) {
        out.u64(self.inode).u64(self.size).u64(self.size / 512);
        // Times: the beginning of all.
        out.zeros(36);
        out.u32(self.mode).u32(self.links).u32(self.owner.0).u32(self.owner.1);
        // No device number; the best size of a transfer; no flags.
        out.u32(0).u32(4096).u32(0);
    }

    /// `struct fuse_attr_out`: the kernel believes it for so many seconds.
    pub(super) fn encode(&self, seconds: u64) -> Vec<u8> {
        let mut out = Out::new();
        out.u64(seconds).u32(0).u32(0);
        self.put(&mut out);
        out.0
    }

    /// `struct fuse_entry_out`: the same with a name.
    pub(super) fn encode_entry(&self, seconds: u64) -> Vec<u8> {
        let mut out = Out::new();
        out.u64(self.inode).u64(0).u64(seconds).u64(seconds).u32(0).u32(0);
        self.put(&mut out);
        out.0
    }
}

/// How a file was opened.
pub(super) mod open {
    /// Past the page cache.
    pub(in crate::fuse) const DIRECT: u32 = 1 << 0;
    /// What is in the page cache stays true.
    pub(in crate::fuse) const KEEP_CACHE: u32 = 1 << 1;
    /// Closing is not told of.
    pub(in crate::fuse) const NO_FLUSH: u32 = 1 << 5;
    /// Direct writes may be in flight together.
    pub(in crate::fuse) const PARALLEL_WRITES: u32 = 1 << 6;
}

/// `struct fuse_open_out`.
pub(super) fn opened(flags: u32) -> Vec<u8> {
    let mut out = Out::new();
    out.u64(0).u32(flags).u32(0);
    out.0
}

/// `struct fuse_write_out`.
pub(super) fn written(bytes: u32) -> Vec<u8> {
    let mut out = Out::new();
    out.u32(bytes).u32(0);
    out.0
}

/// `struct fuse_statfs_out` of so many blocks, all of which are taken, and one file.
pub(super) fn space(blocks: u64) -> Vec<u8> {
    let mut out = Out::new();
    out.u64(blocks).u64(0).u64(0).u64(2).u64(0).u32(4096).u32(255).u32(4096);
    out.zeros(28);
    out.0
}

/// Entries of a directory, each with its inode and kind (the upper bits of a mode), behind the first `after`: as many as fit.
pub(super) fn entries(all: &[(u64, u32, &[u8])], after: u64, length: u32) -> Vec<u8> {
    let room = usize::try_from(length).unwrap_or(usize::MAX);
    let mut out = Out::new();
    for (next, (inode, kind, name)) in (1_u64..).zip(all) {
        let bytes = (24 + name.len()).next_multiple_of(8);
        if next <= after {
            continue;
        }
        if out.0.len() + bytes > room {
            break;
        }
        out.u64(*inode).u64(next).u32(u32::try_from(name.len()).unwrap_or_default()).u32(kind >> 12);
        out.0.extend_from_slice(name);
        out.zeros(bytes - 24 - name.len());
    }
    out.0
}

/// `struct fuse_out_header` of a reply with so many bytes behind it.
pub(super) fn reply(unique: u64, error: Option<Errno>, body: usize) -> [u8; OUT_HEADER] {
    let length = u32::try_from(OUT_HEADER + body).unwrap_or(u32::MAX);
    message(length, -error.map_or(0, Errno::raw_os_error), unique)
}

/// The notice that what the kernel knows of a file is not true any more; its pages in the cache are.
pub(super) fn forget_attributes(inode: u64) -> Vec<u8> {
    const INVALIDATE_INODE: i32 = 2;
    let mut out = Out::new();
    out.0.extend_from_slice(&message(40, INVALIDATE_INODE, 0));
    // A negative offset is for attributes alone.
    out.u64(inode).u64(u64::MAX).u64(0);
    out.0
}

fn message(length: u32, code: i32, unique: u64) -> [u8; OUT_HEADER] {
    let mut bytes = [0; OUT_HEADER];
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..8].copy_from_slice(&code.to_ne_bytes());
    bytes[8..].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

/// A structure that grows.
struct Out(Vec<u8>);

impl Out {
    fn new() -> Self {
        Self(Vec::with_capacity(128))
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn zeros(&mut self, bytes: usize) {
        self.0.resize(self.0.len() + bytes, 0);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(operation: u32) -> Header {
        Header { length: 0, operation, unique: 1, node: 2 }
    }

    #[test]
    fn structures_have_the_kernels_sizes() {
        let attributes = Attributes { inode: 2, size: 8192, mode: 0o100_600, links: 1, owner: (3, 4) };
        let agreed = Agreed { minor: 31, features: feature::MORE, max_background: 8, largest: 1 << 20 };
        let sizes = [
            agreed.encode().len(),
            attributes.encode(1).len(),
            attributes.encode_entry(1).len(),
            opened(1).len(),
            written(1).len(),
            space(1).len(),
            forget_attributes(2).len(),
        ];
        assert_eq!(sizes, [64, 104, 128, 16, 8, 80, 40]);
        // Where fields lie that follow others of odd sizes.
        let entry = attributes.encode_entry(1);
        assert_eq!(u32_at(&entry, 40 + 60), Some(0o100_600));
        assert_eq!((u32_at(&entry, 40 + 68), u32_at(&entry, 40 + 80)), (Some(3), Some(4096)));
        let agreed = Agreed { features: 1 << 41, ..agreed }.encode();
        assert_eq!((u32_at(&agreed, 20), u32_at(&agreed, 32)), (Some(1 << 20), Some(1 << 9)));
        assert_eq!(agreed[28..30], 256_u16.to_ne_bytes());
    }

    #[test]
    fn a_directory_is_read_in_parts() {
        let all: [(u64, u32, &[u8]); 3] =
            [(1, 0o40_000, b"."), (1, 0o40_000, b".."), (2, 0o100_000, b"volume")];
        assert_eq!(entries(&all, 0, 4096).len(), 32 * 3);
        assert_eq!(entries(&all, 0, 70).len(), 64);
        let last = entries(&all, 2, 4096);
        assert_eq!((u64_at(&last, 0), u64_at(&last, 8), u32_at(&last, 20)), (Some(2), Some(3), Some(8)));
        assert!(entries(&all, 3, 4096).is_empty());
    }

    #[test]
    fn requests_are_told_from_each_other() {
        let mut argument = [0; 40];
        argument[8..16].copy_from_slice(&4096_u64.to_ne_bytes());
        argument[16..20].copy_from_slice(&3_u32.to_ne_bytes());
        assert_eq!(
            Call::decode(&header(WRITE), &argument, b"abcd"),
            Some(Call::Write { offset: 4096, data: b"abc", flags: 0 })
        );
        assert_eq!(Call::decode(&header(WRITE), &argument, b"ab"), None, "fewer bytes than it says");
        assert_eq!(Call::decode(&header(READ), &argument, b""), Some(Call::Read { offset: 4096, length: 3 }));
        assert_eq!(Call::decode(&header(READ), &argument[..19], b""), None);
        assert_eq!(Call::decode(&header(LOOKUP), &[], b"name\0"), Some(Call::Lookup { name: b"name" }));
        assert_eq!(Call::decode(&header(LOOKUP), &[], b"name"), None);
        assert_eq!(Call::decode(&header(35), &[], b"x"), Some(Call::Other));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_none(operation in 0_u32..60, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Header::decode(&bytes);
            let header = header(operation);
            let (argument, rest) = bytes.split_at(bytes.len().min(header.argument()));
            let _ = (Call::decode(&header, argument, rest), Hello::decode(&header, argument));
        }
    }
}
