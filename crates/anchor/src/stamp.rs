//! The stamp's 192 bytes, little-endian throughout:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic `cvmioST1` |
//! | 8 | 2 | version, 1 |
//! | 10 | 1 | state: 1 claimed, 2 released, 3 terminal |
//! | 11 | 5 | zero |
//! | 16 | 16 | volume id |
//! | 32 | 8 | generation |
//! | 40 | 8 | claims |
//! | 48 | 16 | session |
//! | 64 | 32 | head of the journal's chain |
//! | 96 | 32 | digest of header and key slots |
//! | 128 | 32 | state terminal: the end of the new anchor's address (UTF-8, zero-padded); else zero |
//! | 160 | 32 | MAC over bytes 0 to 159 |

use crate::{STAMP_SIZE, Stamp, State};
use std::fmt;

const MAGIC: &[u8; 8] = b"cvmioST1";

/// The version of the encoding that this crate writes, and the only one that it reads.
pub const STAMP_VERSION: u16 = 1;

/// Bytes of an encoded stamp that the MAC covers: all but the MAC itself.
pub const AUTHENTICATED_SIZE: usize = 160;

/// Bytes of an address that a terminal stamp has room for.
pub const MOVED_TO_SIZE: usize = 32;

/// Why bytes are not a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StampError {
    /// A stamp has [`STAMP_SIZE`] bytes; here is how many there were.
    Length(usize),
    /// The bytes don't begin with a stamp's magic.
    Magic,
    /// The stamp has this version, which this program does not know.
    Version(u16),
    /// There is no state with this number.
    State(u8),
    /// A byte that must be zero is not.
    Reserved,
}

impl fmt::Display for StampError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StampError::Length(found) => write!(f, "a stamp has {STAMP_SIZE} bytes, not {found}"),
            StampError::Magic => f.write_str("this is not a stamp"),
            StampError::Version(found) => write!(
                f,
                "the stamp has version {found}, this program reads version {STAMP_VERSION}: use a newer one"
            ),
            StampError::State(found) => write!(f, "a stamp has no state {found}"),
            StampError::Reserved => f.write_str("a reserved byte of the stamp is not zero"),
        }
    }
}

impl std::error::Error for StampError {}

impl State {
    fn to_byte(self) -> u8 {
        match self {
            State::Claimed => 1,
            State::Released => 2,
            State::Terminal => 3,
        }
    }

    fn from_byte(byte: u8) -> Result<State, StampError> {
        match byte {
            1 => Ok(State::Claimed),
            2 => Ok(State::Released),
            3 => Ok(State::Terminal),
            other => Err(StampError::State(other)),
        }
    }
}

impl Stamp {
    /// The stamp as it lies in an anchor.
    #[must_use]
    pub fn encode(&self) -> [u8; STAMP_SIZE] {
        let mut out = [0; STAMP_SIZE];
        out[..AUTHENTICATED_SIZE].copy_from_slice(&self.authenticated_bytes());
        out[AUTHENTICATED_SIZE..].copy_from_slice(&self.mac);
        out
    }

    /// The bytes that [`Stamp::mac`] covers: the encoding without the MAC.
    #[must_use]
    pub fn authenticated_bytes(&self) -> [u8; AUTHENTICATED_SIZE] {
        let mut out = [0; AUTHENTICATED_SIZE];
        out[0..8].copy_from_slice(MAGIC);
        out[8..10].copy_from_slice(&STAMP_VERSION.to_le_bytes());
        out[10] = self.state.to_byte();
        out[16..32].copy_from_slice(&self.volume);
        out[32..40].copy_from_slice(&self.generation.to_le_bytes());
        out[40..48].copy_from_slice(&self.claims.to_le_bytes());
        out[48..64].copy_from_slice(&self.session);
        out[64..96].copy_from_slice(&self.head);
        out[96..128].copy_from_slice(&self.header_digest);
        out[128..160].copy_from_slice(&self.moved_to);
        out
    }

    /// What a terminal stamp says of the anchor at `address`, which the volume has moved to: as much of the address' end as it has
    /// room for, which of a path tells most.
    #[must_use]
    pub fn hint_of(address: &str) -> [u8; MOVED_TO_SIZE] {
        let mut from = address.len().saturating_sub(MOVED_TO_SIZE);
        while !address.is_char_boundary(from) {
            from += 1;
        }
        let end = &address.as_bytes()[from..];
        let mut hint = [0; MOVED_TO_SIZE];
        hint[..end.len()].copy_from_slice(end);
        hint
    }

    /// Where a terminal stamp says that the volume went, for people to read; it is never opened. `None` if it says nothing
    /// that is fit for a terminal.
    #[must_use]
    pub fn moved_to(&self) -> Option<String> {
        let end = self.moved_to.iter().rposition(|&byte| byte != 0)? + 1;
        let text = std::str::from_utf8(self.moved_to.get(..end)?).ok()?;
        (!text.chars().any(char::is_control)).then(|| text.to_owned())
    }

    /// Reads what [`Stamp::encode`] wrote. Whether the MAC is good is the caller's to check: the
    /// anchor has no key.
    ///
    /// # Errors
    /// Every byte is accounted for: a stamp that decodes encodes to the same bytes again.
    pub fn decode(bytes: &[u8]) -> Result<Stamp, StampError> {
        let bytes: &[u8; STAMP_SIZE] = bytes.try_into().map_err(|_| StampError::Length(bytes.len()))?;
        if array::<8>(bytes, 0) != *MAGIC {
            return Err(StampError::Magic);
        }
        let version = u16::from_le_bytes(array(bytes, 8));
        if version != STAMP_VERSION {
            return Err(StampError::Version(version));
        }
        let state = State::from_byte(bytes[10])?;
        let moved_to: [u8; MOVED_TO_SIZE] = array(bytes, 128);
        let no_move = state != State::Terminal && moved_to != [0; MOVED_TO_SIZE];
        if no_move || bytes[11..16].iter().any(|&byte| byte != 0) {
            return Err(StampError::Reserved);
        }
        Ok(Stamp {
            state,
            moved_to,
            volume: array(bytes, 16),
            generation: u64::from_le_bytes(array(bytes, 32)),
            claims: u64::from_le_bytes(array(bytes, 40)),
            session: array(bytes, 48),
            head: array(bytes, 64),
            header_digest: array(bytes, 96),
            mac: array(bytes, 160),
        })
    }
}

/// `N` bytes at `offset`; offsets are constants of the layout, so the range always exists.
pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[offset..offset + N]);
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn sample(generation: u64) -> Stamp {
        Stamp {
            volume: [0x11; 16],
            generation,
            head: [0x22; 32],
            session: [0x33; 16],
            claims: 5,
            header_digest: [0x44; 32],
            state: State::Claimed,
            moved_to: [0; MOVED_TO_SIZE],
            mac: [0x55; 32],
        }
    }

    fn any_stamp() -> impl Strategy<Value = Stamp> {
        let state = prop_oneof![Just(State::Claimed), Just(State::Released), Just(State::Terminal)];
        (any::<([u8; 16], u64, [u8; 32], [u8; 16], u64, [u8; 32], [u8; 32])>(), state).prop_map(
            |((volume, generation, head, session, claims, header_digest, mac), state)| Stamp {
                volume,
                generation,
                head,
                session,
                claims,
                header_digest,
                state,
                moved_to: if state == State::Terminal { header_digest } else { [0; MOVED_TO_SIZE] },
                mac,
            },
        )
    }

    /// The format is for ever: these bytes were laid out by hand from the table above.
    #[test]
    fn golden_vector() {
        let stamp = Stamp {
            volume: *b"volume-id-16-byt",
            generation: 0x0102_0304_0506_0708,
            head: [0xa1; 32],
            session: *b"session-16-bytes",
            claims: 0x1112_1314_1516_1718,
            header_digest: [0xb2; 32],
            state: State::Released,
            moved_to: [0; MOVED_TO_SIZE],
            mac: [0xc3; 32],
        };
        let golden = [
            b"cvmioST1".as_slice(),
            &[0x01, 0x00, 0x02, 0, 0, 0, 0, 0],
            b"volume-id-16-byt",
            &[0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01],
            &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11],
            b"session-16-bytes",
            &[0xa1; 32],
            &[0xb2; 32],
            &[0; 32],
            &[0xc3; 32],
        ]
        .concat();
        assert_eq!(stamp.encode().as_slice(), golden);
        assert_eq!(stamp.authenticated_bytes().as_slice(), &golden[..160]);
        assert_eq!(Stamp::decode(&golden), Ok(stamp));
    }

    #[test]
    fn what_is_not_a_stamp_is_refused_by_name() {
        let good = sample(7).encode();
        let with = |offset: usize, byte: u8| {
            let mut bytes = good;
            bytes[offset] = byte;
            Stamp::decode(&bytes)
        };
        assert_eq!(Stamp::decode(&good[..191]), Err(StampError::Length(191)));
        assert_eq!(Stamp::decode(&[]), Err(StampError::Length(0)));
        assert_eq!(with(0, b'X'), Err(StampError::Magic));
        assert_eq!(with(8, 2), Err(StampError::Version(2)));
        assert_eq!(with(10, 0), Err(StampError::State(0)));
        assert_eq!(with(10, 4), Err(StampError::State(4)));
        for reserved in (11..16).chain(128..160) {
            assert_eq!(with(reserved, 1), Err(StampError::Reserved), "byte {reserved}");
        }
    }

    #[test]
    fn only_a_terminal_stamp_says_where_the_volume_went() {
        let moved =
            |address: &str| Stamp { state: State::Terminal, moved_to: Stamp::hint_of(address), ..sample(7) };
        let long = format!("file:/var/lib/cvmio/{}/new.anchor", "x".repeat(40));
        for (address, hint) in [
            ("file:/a", Some("file:/a")),
            (long.as_str(), Some(&long[long.len() - 32..])),
            // A character is not cut in two.
            ("file:/\u{e4}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", Some("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")),
            ("file:/a\u{1b}[2J", None),
            ("", None),
        ] {
            let stamp = moved(address);
            assert_eq!(stamp.moved_to().as_deref(), hint, "{address}");
            assert_eq!(Stamp::decode(&stamp.encode()), Ok(stamp));
        }
        let claimed = Stamp { state: State::Claimed, ..moved("file:/a") };
        assert_eq!(Stamp::decode(&claimed.encode()), Err(StampError::Reserved));
    }

    proptest! {
        #[test]
        fn encoding_round_trips(stamp in any_stamp()) {
            prop_assert_eq!(Stamp::decode(&stamp.encode()), Ok(stamp));
        }

        /// Bytes near a real stamp reach every check; whatever is accepted is canonical.
        #[test]
        fn decoding_never_panics_and_accepts_only_canonical_bytes(
            stamp in any_stamp(),
            changes in prop::collection::vec((0..STAMP_SIZE, any::<u8>()), 0..4),
            length in prop_oneof![8 => Just(STAMP_SIZE), 1 => 0..STAMP_SIZE],
        ) {
            let mut bytes = stamp.encode();
            for (offset, byte) in changes {
                bytes[offset] = byte;
            }
            if let Ok(decoded) = Stamp::decode(&bytes[..length]) {
                prop_assert_eq!(decoded.encode(), bytes);
            }
        }

        #[test]
        fn decoding_garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(Stamp::decode(&bytes).is_err());
        }
    }
}
