//! What the user types and what stands in files, made into typed values.

mod credential;
mod distinct;
mod file;
mod ground;
mod once;
mod policy;

pub use credential::{Origin, Source, copy, from_pipe, load, to_pipe};
pub use distinct::{Named, VolumeFiles, anchor_files, named, refuse_same};
pub use file::{check_directory, new_file, sync_directory, unwritten};
pub use once::take;
pub use policy::{
    already_there, check_new_policy, check_policy_can_follow, default_policy, read_policy, save_policy,
    save_when_grown, unfinished,
};

use std::time::Duration;

use store::BLOCK_SIZE;

use crate::failure::Failure;

/// A text without the mark of the order of its bytes, with which some editors begin it (UTF-8: RFC 3629, section 6).
pub fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// Options of an anchor: `KEY=VALUE` and `KEY=@FILE`.
///
/// # Errors
/// When one is neither, is said twice, or its file cannot be read.
pub fn anchor_options(typed: &[String]) -> Result<anchor::Options, Failure> {
    anchor::typed_options(typed).map_err(Failure::usage)
}

/// Bytes from text such as `4096`, `512M` or `2T`; the units are powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size; write it like 512M, 1G or 2T (powers of 1024)");
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let shift = match unit.trim_start().to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        "P" => 50,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number.checked_shl(shift).filter(|bytes| bytes >> shift == number).ok_or_else(wrong)?;
    if bytes == 0 { Err("a size of zero makes no sense".into()) } else { Ok(bytes) }
}

/// The logical blocks of a volume of so many bytes.
///
/// # Errors
/// When they are no whole number of blocks.
pub fn whole_blocks(size: u64) -> Result<u64, Failure> {
    let block = BLOCK_SIZE as u64;
    if size.is_multiple_of(block) {
        return Ok(size / block);
    }
    Err(Failure::usage(format!(
        "a size of {size} bytes is no whole number of blocks of {block} bytes; choose a multiple"
    )))
}

/// A time such as `500ms`, `1s` or `2m`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time; write it like 500ms, 1s or 2m");
    let split = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (digits, unit) = text.split_at(split);
    let factor = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(factor).filter(|&ms| ms > 0).map(Duration::from_millis).ok_or_else(wrong)
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
        for (text, bytes) in
            [("1", 1), ("4096", 4096), ("1K", 1024), ("3MiB", 3 << 20), ("1G", 1 << 30), ("2TB", 2 << 40)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1X", "1.5G", "0", "99999999999999999999", "99999999P", "1 G G"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "1", "s", "0s", "1h", "18446744073709551615m"] {
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
