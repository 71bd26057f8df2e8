//! What the user types, made into typed values; files that are written whole or not at all; what can be read once only.

mod file;
mod once;

pub use file::{check_directory, check_new_file, new_file, sync_directory, unwritten};
pub use once::take;

use std::time::Duration;

use parse_size::{ByteSuffix, Config};

/// A text without the mark of the order of its bytes, with which some editors begin it (UTF-8: RFC 3629, section 6).
pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// Bytes from text such as `4096`, `512M`, `1.5G` or `2T`; the units are powers of 1024, with or without `B` or `iB` behind them.
pub fn parse_size(text: &str) -> Result<u64, String> {
    match parse_size_or_zero(text)? {
        0 => Err("a size of zero makes no sense".into()),
        bytes => Ok(bytes),
    }
}

/// The same where zero means "none".
pub fn parse_size_or_zero(text: &str) -> Result<u64, String> {
    let units = Config::new().with_binary().with_byte_suffix(ByteSuffix::Allow);
    units
        .parse_size(text)
        .map_err(|_| format!("`{text}` is not a size; write it like 512M, 1G or 2T (powers of 1024)"))
}

/// A time such as `500ms`, `1s`, `2m` or `1h 30m`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| format!("`{text}` is not a time; write it like 500ms, 1s or 2m"))
}

/// `on` or `off`.
pub fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}` is neither `on` nor `off`")),
    }
}

/// A name that is safe as a directory's and readable in a list.
pub fn parse_name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text.is_empty() || text.len() > 64 || !text.chars().all(good) || text.starts_with(['.', '-']) {
        return Err(format!(
            "`{text}` cannot be a volume's name; use up to 64 letters, digits, `.`, `_` and `-`, and begin with a letter or digit"
        ));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_in_powers_of_1024() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("1K", 1024),
            ("4k", 4096),
            ("3MiB", 3 << 20),
            ("3 MiB", 3 << 20),
            ("1G", 1 << 30),
            ("1g", 1 << 30),
            ("1.5G", 3 << 29),
            ("2TB", 2 << 40),
            ("1P", 1 << 50),
            ("10b", 10),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1X", "1..5G", "0", "0K", "99999999999999999999", "99999999P", "1 G G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(parse_size_or_zero("0"), Ok(0));
        assert!(parse_size_or_zero("none").is_err());
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("1h 30m"), Ok(Duration::from_secs(5400)));
        for text in ["", "1", "s", "0s", "1x", "-1s", "18446744073709551615m"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_stay_inside_their_directory() {
        assert_eq!(parse_name("ledger-2.v1_a"), Ok("ledger-2.v1_a".into()));
        for text in ["", ".", "..", "a/b", "-x", "a b", "\u{e4}", &"x".repeat(65)] {
            assert!(parse_name(text).is_err(), "{text}");
        }
    }
}
