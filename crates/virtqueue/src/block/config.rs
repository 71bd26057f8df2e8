//! What a disk says of itself: `struct virtio_blk_config` up to the limits of write zeroes.

/// Bytes of the configuration.
pub const CONFIG_LENGTH: usize = 60;

/// Properties of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Config {
    /// Size in sectors.
    pub sectors: u64,
    /// Most segments of data in a request.
    pub segments: u32,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// The physical block has 2^this logical ones.
    pub physical_exponent: u8,
    /// Queues there are.
    pub queues: u16,
    /// Most sectors, most segments and best alignment in sectors of a discard.
    pub discard: [u32; 3],
    /// Most sectors and most segments of write zeroes.
    pub write_zeroes: [u32; 2],
    /// Whether write zeroes may give space back.
    pub may_unmap: bool,
}

impl Config {
    /// The bytes that a driver reads.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CONFIG_LENGTH] {
        let mut bytes = [0; CONFIG_LENGTH];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &self.sectors.to_le_bytes());
        put(12, &self.segments.to_le_bytes());
        put(20, &self.block_size.to_le_bytes());
        put(24, &[self.physical_exponent]);
        put(34, &self.queues.to_le_bytes());
        for (at, limit) in [36, 40, 44].into_iter().zip(self.discard) {
            put(at, &limit.to_le_bytes());
        }
        for (at, limit) in [48, 52].into_iter().zip(self.write_zeroes) {
            put(at, &limit.to_le_bytes());
        }
        put(56, &[u8::from(self.may_unmap)]);
        bytes
    }

    /// What a device said. Fields behind the end of what it said are zero.
    #[must_use]
    pub fn from_bytes(said: &[u8]) -> Self {
        let mut bytes = [0; CONFIG_LENGTH];
        let length = said.len().min(CONFIG_LENGTH);
        bytes[..length].copy_from_slice(&said[..length]);
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            sectors: u64::from(word(0)) | u64::from(word(4)) << 32,
            segments: word(12),
            block_size: word(20),
            physical_exponent: bytes[24],
            queues: u16::from_le_bytes([bytes[34], bytes[35]]),
            discard: [word(36), word(40), word(44)],
            write_zeroes: [word(48), word(52)],
            may_unmap: bytes[56] != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let config = Config {
            sectors: 0x0123_4567_89ab_cdef,
            segments: 126,
            block_size: 4096,
            physical_exponent: 3,
            queues: 5,
            discard: [1, 2, 3],
            write_zeroes: [4, 5],
            may_unmap: true,
        };
        assert_eq!(Config::from_bytes(&config.to_bytes()), config);
        let short = Config::from_bytes(&config.to_bytes()[..8]);
        assert_eq!(short, Config { sectors: config.sectors, ..Config::default() });
    }

    /// By hand from the specification's table.
    #[test]
    fn fields_lie_where_the_specification_has_them() {
        let config =
            Config { sectors: 1, block_size: 512, queues: 2, discard: [7, 8, 9], ..Config::default() };
        let bytes = config.to_bytes();
        assert_eq!((bytes[0], bytes[20..24].to_vec(), bytes[34]), (1, vec![0, 2, 0, 0], 2));
        assert_eq!((bytes[36], bytes[40], bytes[44]), (7, 8, 9));
    }
}
