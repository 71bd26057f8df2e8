//! Hexadecimal for the known answers in tests.

/// The bytes that `text` writes in hexadecimal.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "an odd number of digits");
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// As [`hex`], of just `N` bytes.
pub(crate) fn array<const N: usize>(text: &str) -> [u8; N] {
    hex(text).try_into().unwrap()
}
