//! Sizes as users write them.

/// A size in bytes, in whole blocks of 4 KiB: `512M`, `4G`; the units are powers of 1024.
///
/// # Errors
/// When it is none, or less than 1 MiB.
pub fn parse(text: &str) -> std::result::Result<u64, String> {
    let bytes = cli::input::parse_size(text)?;
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
