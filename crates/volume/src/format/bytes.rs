//! A cursor to read fields in the order of the specification's tables, and one to write them.

use super::Malformed;

/// Reads a structure from front to back.
pub(super) struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    pub(super) fn malformed(&self, field: &'static str, message: impl Into<String>) -> Malformed {
        Malformed { what: self.what, field, message: message.into() }
    }

    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Malformed> {
        let Some((array, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.malformed(field, "the bytes end before it"));
        };
        self.rest = rest;
        Ok(*array)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, Malformed> {
        self.array(field).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, Malformed> {
        self.array(field).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, Malformed> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, Malformed> {
        self.array(field).map(u64::from_le_bytes)
    }

    pub(super) fn magic(&mut self, magic: &[u8; 8]) -> Result<(), Malformed> {
        let found: [u8; 8] = self.array("magic")?;
        if found == *magic { Ok(()) } else { Err(self.malformed("magic", "there is something else here")) }
    }

    /// Reads the format's version, which must be this one.
    pub(super) fn version(&mut self, known: u32) -> Result<(), Malformed> {
        let found = self.u32("version")?;
        if found == known {
            return Ok(());
        }
        Err(self.malformed("version", format!("it is {found}, and this program knows {known}")))
    }

    /// Skips `count` bytes that must be zero.
    pub(super) fn zeros(&mut self, count: usize, field: &'static str) -> Result<(), Malformed> {
        let Some((zeros, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.malformed(field, "the bytes end before it"));
        };
        if let Some(at) = zeros.iter().position(|&byte| byte != 0) {
            return Err(self.malformed(field, format!("byte {at} of it must be zero")));
        }
        self.rest = rest;
        Ok(())
    }

    /// Ends reading: nothing may be left.
    pub(super) fn end(self) -> Result<(), Malformed> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(self.malformed("length", format!("{left} bytes too many"))),
        }
    }
}

/// Writes a structure of `N` bytes from front to back; what is not written stays zero.
pub(super) struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    pub(super) fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    pub(super) fn put(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    pub(super) fn skip(mut self, count: usize) -> Self {
        self.at += count;
        assert!(self.at <= N, "a structure of {N} bytes has no byte {}", self.at);
        self
    }

    /// The bytes; all of them must have been written or skipped.
    pub(super) fn end(self) -> [u8; N] {
        assert_eq!(self.at, N, "a structure of {N} bytes was written to byte {}", self.at);
        self.bytes
    }
}
