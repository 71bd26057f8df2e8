//! What is said between the ublk driver and its server, byte by byte.
//!
//! Source: the kernel's `include/uapi/linux/ublk_cmd.h` and `Documentation/block/ublk.rst`.

use crate::{BLOCK_SIZE, Request};
use bytes::Bytes;

/// Bytes in a sector: the unit of the kernel's block layer.
const SECTOR: u64 = 512;

/// Bytes of the largest read or write. What the kernel has more of, it splits.
pub(super) const MAX_IO: u32 = 1 << 20;

const _: () = assert!(MAX_IO as u64 <= crate::MAX_TRANSFER);

/// Bytes of a control command's own part.
const COMMAND: usize = 32;
/// Bytes of a device's description (`struct ublksrv_ctrl_dev_info`).
pub(super) const INFO: usize = 64;
/// Bytes of a device's parameters, as far as we set them (`struct ublk_params`).
pub(super) const PARAMETERS: usize = 60;
/// Bytes of a request's descriptor (`struct ublksrv_io_desc`).
pub(super) const DESCRIPTOR: usize = 24;
/// Descriptors for which each queue has room, whatever its depth.
pub(super) const MAX_DEPTH: u16 = 4096;

/// An ioctl-encoded command number: direction, size of the argument, 'u', number.
const fn code(direction: u32, size: u32, number: u32) -> u32 {
    direction << 30 | size << 16 | (b'u' as u32) << 8 | number
}
const READ: u32 = 2;
const READ_WRITE: u32 = 3;
/// Bytes of `struct ublksrv_io_cmd`.
const IO_COMMAND: u32 = 16;

/// Asks for a request.
pub(super) const FETCH: u32 = code(READ_WRITE, IO_COMMAND, 0x20);
/// Ends a request, and asks for the next one.
pub(super) const COMMIT_AND_FETCH: u32 = code(READ_WRITE, IO_COMMAND, 0x21);

/// What the control device can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    GetInfo,
    Add,
    Delete,
    /// The same, for somebody who does not wait for those who have it open.
    DeleteLater,
    Start,
    Stop,
    SetParameters,
    GetParameters,
    StartRecovery,
    EndRecovery,
    GetFeatures,
}

impl Command {
    pub(super) const fn code(self) -> u32 {
        let (direction, number) = match self {
            Self::GetInfo => (READ, 0x02),
            Self::Add => (READ_WRITE, 0x04),
            Self::Delete => (READ_WRITE, 0x05),
            Self::DeleteLater => (READ, 0x14),
            Self::Start => (READ_WRITE, 0x06),
            Self::Stop => (READ_WRITE, 0x07),
            Self::SetParameters => (READ_WRITE, 0x08),
            Self::GetParameters => (READ, 0x09),
            Self::StartRecovery => (READ_WRITE, 0x10),
            Self::EndRecovery => (READ_WRITE, 0x11),
            Self::GetFeatures => (READ, 0x13),
        };
        code(direction, 32, number)
    }
}

/// The number that stands for "any free one" when a device is added, and for "all of it" where a queue is asked for.
pub(super) const ANY: u32 = u32::MAX;

/// A control command as it stands in a submission (`struct ublksrv_ctrl_cmd`): `buffer` is an address, `value` the command's own number.
pub(super) fn command(device: u32, buffer: u64, length: u16, value: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    put(&mut bytes, 0, &device.to_ne_bytes());
    put(&mut bytes, 4, &u16::MAX.to_ne_bytes());
    put(&mut bytes, 6, &length.to_ne_bytes());
    put(&mut bytes, 8, &buffer.to_ne_bytes());
    put(&mut bytes, 16, &value.to_ne_bytes());
    const { assert!(COMMAND <= 80) };
    bytes
}

/// A command for one request of a queue (`struct ublksrv_io_cmd`).
pub(super) fn io_command(queue: u16, tag: u16, result: i32) -> [u8; 16] {
    let mut bytes = [0; 16];
    put(&mut bytes, 0, &queue.to_ne_bytes());
    put(&mut bytes, 2, &tag.to_ne_bytes());
    put(&mut bytes, 4, &result.to_ne_bytes());
    bytes
}

/// What a driver can do.
pub(super) mod feature {
    /// The kernel keeps the device when its server dies.
    pub(in crate::ublk) const RECOVERY: u64 = 1 << 3;
    /// It also repeats, for the next server, what the dead one had not answered.
    pub(in crate::ublk) const REISSUE: u64 = 1 << 4;
    /// Commands are numbered as above.
    pub(in crate::ublk) const ENCODED: u64 = 1 << 6;
    /// Data is read from and written to the character device.
    pub(in crate::ublk) const USER_COPY: u64 = 1 << 7;
}

/// A device, as the driver knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: State,
    /// Its number: N in /dev/ublkbN.
    pub(super) number: u32,
    /// The process that serves it.
    pub(super) server: u32,
    pub(super) features: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Not started, or stopped.
    Dead,
    Live,
    /// Its server has died, and it waits for another.
    Quiesced,
    /// One that this program does not know.
    Other,
}

impl Info {
    pub(super) fn encode(&self) -> [u8; INFO] {
        let mut bytes = [0; INFO];
        put(&mut bytes, 0, &self.queues.to_ne_bytes());
        put(&mut bytes, 2, &self.depth.to_ne_bytes());
        put(&mut bytes, 8, &MAX_IO.to_ne_bytes());
        put(&mut bytes, 12, &self.number.to_ne_bytes());
        put(&mut bytes, 16, &self.server.to_ne_bytes());
        put(&mut bytes, 24, &self.features.to_ne_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; INFO]) -> Self {
        Self {
            queues: u16::from_ne_bytes(take(bytes, 0)),
            depth: u16::from_ne_bytes(take(bytes, 2)),
            state: match u16::from_ne_bytes(take(bytes, 4)) {
                0 => State::Dead,
                1 => State::Live,
                2 => State::Quiesced,
                _ => State::Other,
            },
            number: u32::from_ne_bytes(take(bytes, 12)),
            server: u32::from_ne_bytes(take(bytes, 16)),
            features: u64::from_ne_bytes(take(bytes, 24)),
        }
    }
}

/// Which parts of the parameters are set: the basic ones, and those of discards.
const BASIC_AND_DISCARD: u32 = 3;
/// The driver refuses what would change the device.
const READ_ONLY: u32 = 1;
/// Writes stay in a cache until a flush; the driver may ask for single ones that do not.
const VOLATILE_CACHE_AND_FUA: u32 = 1 << 2 | 1 << 3;
/// log2 of a block.
const BLOCK_SHIFT: u8 = 12;
/// Sectors of the largest discard or zeroing: a volume takes any, but one of them should not keep others waiting for long.
const MAX_DISCARD: u32 = 1 << 21;

/// The parameters of a device of `size` bytes.
pub(super) fn parameters(size: u64, read_only: bool) -> [u8; PARAMETERS] {
    let attributes = VOLATILE_CACHE_AND_FUA | if read_only { READ_ONLY } else { 0 };
    let mut bytes = [0; PARAMETERS];
    put(&mut bytes, 0, &60_u32.to_ne_bytes());
    put(&mut bytes, 4, &BASIC_AND_DISCARD.to_ne_bytes());
    put(&mut bytes, 8, &attributes.to_ne_bytes());
    // Logical block, physical block, best and smallest transfer.
    put(&mut bytes, 12, &[BLOCK_SHIFT; 4]);
    put(&mut bytes, 16, &(MAX_IO >> 9).to_ne_bytes());
    put(&mut bytes, 24, &(size / SECTOR).to_ne_bytes());
    // Granularity of discards, in bytes; their and zeroings' largest size; how many in one request.
    put(&mut bytes, 44, &4096_u32.to_ne_bytes());
    put(&mut bytes, 48, &MAX_DISCARD.to_ne_bytes());
    put(&mut bytes, 52, &MAX_DISCARD.to_ne_bytes());
    put(&mut bytes, 56, &1_u16.to_ne_bytes());
    bytes
}

/// Bytes of the device that has these parameters.
pub(super) fn size(parameters: &[u8; PARAMETERS]) -> u64 {
    u64::from_ne_bytes(take(parameters, 24)).saturating_mul(SECTOR)
}

/// What the kernel wants; a write's data has to be fetched still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Write { offset: u64, length: u32, fua: bool },
    Read { offset: u64, length: u32 },
    Flush,
    Discard { offset: u64, length: u64 },
    WriteZeroes { offset: u64, length: u64 },
}

impl Wanted {
    /// From a descriptor. `None` for what a device of `size` bytes cannot do.
    pub(super) fn decode(descriptor: &[u8; DESCRIPTOR], size: u64) -> Option<Self> {
        const FUA: u32 = 1 << 13;
        const NO_UNMAP: u32 = 1 << 15;
        let word = u32::from_ne_bytes(take(descriptor, 0));
        let operation = word & 0xff;
        // It has no place: the rest of its descriptor says nothing.
        if operation == 2 {
            return Some(Self::Flush);
        }
        let length = u64::from(u32::from_ne_bytes(take(descriptor, 4))) * SECTOR;
        let offset = u64::from_ne_bytes(take(descriptor, 8)).checked_mul(SECTOR)?;
        let whole = length > 0 && length.is_multiple_of(BLOCK_SIZE) && offset.is_multiple_of(BLOCK_SIZE);
        if !whole || offset.checked_add(length)? > size {
            return None;
        }
        let transfer = u32::try_from(length).ok().filter(|&length| length <= MAX_IO);
        Some(match operation {
            0 => Self::Read { offset, length: transfer? },
            1 => Self::Write { offset, length: transfer?, fua: word & FUA != 0 },
            3 => Self::Discard { offset, length },
            // A hole will do, as it will for the other front ends.
            5 if word & NO_UNMAP == 0 => Self::Discard { offset, length },
            5 => Self::WriteZeroes { offset, length },
            _ => return None,
        })
    }

    /// Whether something would be different afterwards.
    pub(super) fn changes(self) -> bool {
        match self {
            Self::Read { .. } | Self::Flush => false,
            Self::Write { .. } | Self::Discard { .. } | Self::WriteZeroes { .. } => true,
        }
    }

    /// Bytes that the driver is to be told when it is done.
    pub(super) fn transferred(self) -> u32 {
        match self {
            Self::Read { length, .. } | Self::Write { length, .. } => length,
            _ => 0,
        }
    }

    /// The device's request for it, with the data of a write.
    pub(super) fn request(self, data: Bytes) -> Request {
        match self {
            Self::Read { offset, length } => Request::Read { offset, length },
            Self::Write { offset, fua, .. } => Request::Write { offset, data, fua },
            Self::Flush => Request::Flush,
            Self::Discard { offset, length } => Request::Discard { offset, length },
            Self::WriteZeroes { offset, length } => Request::WriteZeroes { offset, length },
        }
    }
}

/// Where on the character device the data of a request is.
pub(super) fn data_position(queue: u16, tag: u16) -> u64 {
    const DATA: u64 = 0x8000_0000;
    DATA + (u64::from(queue) << 41 | u64::from(tag) << 25)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers that a C program with the kernel's header prints.
    #[test]
    fn commands_have_the_kernels_numbers() {
        assert_eq!(Command::Add.code(), 0xc020_7504);
        assert_eq!(Command::GetInfo.code(), 0x8020_7502);
        assert_eq!(Command::GetFeatures.code(), 0x8020_7513);
        assert_eq!((FETCH, COMMIT_AND_FETCH), (0xc010_7520, 0xc010_7521));
        assert_eq!(data_position(1, 2), 0x8000_0000 + (1 << 41) + (2 << 25));
    }

    #[test]
    fn a_device_is_described_and_read_back() {
        let info = Info {
            queues: 2,
            depth: 64,
            state: State::Dead,
            number: ANY,
            server: 77,
            features: feature::USER_COPY,
        };
        assert_eq!(Info::decode(&info.encode()), info);
        let mut quiesced = info.encode();
        quiesced[4] = 2;
        assert_eq!(Info::decode(&quiesced).state, State::Quiesced);
        for read_only in [false, true] {
            let bytes = parameters(123 << 20, read_only);
            assert_eq!(size(&bytes), 123 << 20);
            // UBLK_ATTR_READ_ONLY, _VOLATILE_CACHE and _FUA.
            assert_eq!(bytes[8], 4 | 8 | u8::from(read_only));
        }
    }

    fn descriptor(word: u32, sectors: u32, sector: u64) -> [u8; DESCRIPTOR] {
        let mut bytes = [0; DESCRIPTOR];
        put(&mut bytes, 0, &word.to_ne_bytes());
        put(&mut bytes, 4, &sectors.to_ne_bytes());
        put(&mut bytes, 8, &sector.to_ne_bytes());
        bytes
    }

    #[test]
    fn requests_are_the_kernels() {
        let found = |word, sectors, sector| Wanted::decode(&descriptor(word, sectors, sector), 1 << 20);
        assert_eq!(found(0, 8, 16), Some(Wanted::Read { offset: 8192, length: 4096 }));
        assert_eq!(found(1, 16, 0), Some(Wanted::Write { offset: 0, length: 8192, fua: false }));
        // With flags of all kinds beside it.
        assert_eq!(
            found(1 << 13 | 1 << 8 | 1, 8, 0),
            Some(Wanted::Write { offset: 0, length: 4096, fua: true })
        );
        assert_eq!(found(2, 0, u64::MAX), Some(Wanted::Flush), "as the kernel sends it");
        assert_eq!(found(3, 2048, 0), Some(Wanted::Discard { offset: 0, length: 1 << 20 }));
        assert_eq!(found(5, 8, 8), Some(Wanted::Discard { offset: 4096, length: 4096 }));
        assert_eq!(found(5 | 1 << 15, 8, 8), Some(Wanted::WriteZeroes { offset: 4096, length: 4096 }));
    }

    #[test]
    fn what_no_device_can_do_is_refused() {
        for (word, sectors, sector) in [
            (4, 8, 0),
            (0, 0, 0),
            (0, 7, 0),
            (0, 8, 1),
            (1, 8, 2048),
            (3, 2056, 0),
            (0, 8, u64::MAX),
            (0, 8, u64::MAX / 512),
        ] {
            assert_eq!(
                Wanted::decode(&descriptor(word, sectors, sector), 1 << 20),
                None,
                "{word} {sectors} {sector}"
            );
        }
        let large = descriptor(0, 4096, 0);
        assert_eq!(Wanted::decode(&large, 1 << 30), None, "more than was agreed on");
    }
}
