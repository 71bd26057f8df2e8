//! Sizes as users write them.

/// A size in bytes, with K, M, G or T for powers of 1024.
///
/// # Errors
/// When it is none, or less than 1 MiB.
pub fn parse(text: &str) -> std::result::Result<u64, String> {
    let wrong = || format!("`{text}` is no size; one is 512M or 4G");
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let bytes =
        digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)).ok_or_else(wrong)?;
    // Sizes that a volume cannot have are found out by the volume.
    if bytes < 1 << 20 { Err(format!("{text}: at least 1M is needed")) } else { Ok(bytes - bytes % 4096) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse("16M").unwrap(), 16 << 20);
        assert_eq!(parse("1048577").unwrap(), 1 << 20);
        for bad in ["", "G", "1X", "4K", "99999999999T"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
