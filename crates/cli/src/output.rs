//! Words for people, JSON for programs.

use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;

use crate::failure::Failure;

/// Says what went wrong.
pub fn error(failure: &Failure) {
    let _ = writeln!(std::io::stderr(), "cvmio: error: {failure}");
}

/// What [`warning`] has said.
static WARNED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Says what the user should know though it is no failure; once, however often it is found.
pub fn warning(message: &str) {
    let mut warned = WARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if !warned.iter().any(|said| said == message) {
        warned.push(message.into());
        let _ = writeln!(std::io::stderr(), "cvmio: warning: {message}");
    }
}

/// All warnings so far, for an answer in JSON.
pub fn warned() -> Vec<String> {
    WARNED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Why a result could not be printed.
static UNPRINTED: Mutex<Option<String>> = Mutex::new(None);
/// Whether nobody reads standard output any more.
static UNHEARD: AtomicBool = AtomicBool::new(false);

/// Prints a result. That nobody reads it is no failure; that it cannot be written is one, see [`unprinted`].
pub fn print(text: &str) {
    print_by(|| writeln!(std::io::stdout(), "{}", text.trim_end()));
}

/// The same for what another one writes to standard output.
pub fn print_by(write: impl FnOnce() -> std::io::Result<()>) {
    let closed = || std::io::Error::other("it is closed");
    let open = if stdout_is_closed() { Err(closed()) } else { Ok(()) };
    match open.and_then(|()| write()).and_then(|()| std::io::stdout().flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => UNHEARD.store(true, Ordering::Relaxed),
        Err(error) => {
            let mut why = UNPRINTED.lock().unwrap_or_else(PoisonError::into_inner);
            why.get_or_insert(error.to_string());
        }
    }
}

/// Prints a line of a result, with the arguments of `println!`, by [`print`](crate::output::print).
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => { $crate::output::print(&format!($($words)*)) };
}

/// Whether it makes sense to print more: someone reads, and what was printed arrived. What goes on without an end asks for it.
pub fn can_print() -> bool {
    !UNHEARD.load(Ordering::Relaxed) && unprinted().is_none()
}

/// Whether this process was started with its standard output closed. Rust's runtime opens `/dev/null` for reading and writing in its place; a
/// user who wants the output gone opens it for writing only.
pub fn stdout_is_closed() -> bool {
    use std::os::unix::fs::MetadataExt;
    let out = std::io::stdout();
    let both = rustix::fs::fcntl_getfl(&out).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::RDWR));
    let here = rustix::fs::fstat(&out).ok().map(|status| status.st_rdev);
    both && here.is_some() && here == std::fs::metadata("/dev/null").ok().map(|null| null.rdev())
}

/// Why something that this process printed did not arrive.
pub fn unprinted() -> Option<Failure> {
    let why = UNPRINTED.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
    Some(Failure::io(format!("it is done, but the result could not be written to standard output: {why}")))
}

/// Prints a result as JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::internal(format!("the result cannot be put as JSON: {error}")))?;
    print(&text);
    Ok(())
}

/// Says a program what went wrong, in one line: some answer line by line.
pub fn json_error(failure: &Failure) {
    print(&serde_json::json!({ "error": failure.as_json() }).to_string());
}

/// A sign of life on the terminal, gone when dropped.
pub struct Spinner(ProgressBar);

/// Shows `message` and the time it takes, if there is a terminal to show it on.
pub fn spinner(message: impl Into<String>) -> Spinner {
    if !std::io::stderr().is_terminal() {
        return Spinner(ProgressBar::hidden());
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        bar.set_style(style);
    }
    bar.set_message(message.into());
    bar.enable_steady_tick(Duration::from_millis(100));
    Spinner(bar)
}

/// Bytes of a block.
const BLOCK: u64 = 4096;

/// A bar for so many blocks of 4 KiB, with the rate in bytes and the time that is left, if there is a terminal to show it on.
pub fn bar(message: &'static str, blocks: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(blocks).with_message(message);
    match ProgressStyle::with_template("{msg} {wide_bar} {percent} %, {rate}, {eta} left") {
        Ok(style) => bar.with_style(style.with_key("rate", rate)),
        Err(_) => bar,
    }
}

/// Blocks a second, in bytes.
fn rate(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "three digits are shown")]
    let blocks = state.per_sec() as u64;
    let _ = write!(out, "{}/s", bytes(blocks.saturating_mul(BLOCK)));
}

/// A bar for so many bytes, with their rate and the time that is left; where nobody knows how many, without.
pub fn bytes_bar(message: &'static str, length: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match length {
        Some(length) => (
            ProgressBar::new(length),
            "{msg} {wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
        ),
        None => {
            (ProgressBar::new_spinner(), "{spinner} {msg} {binary_bytes}, {binary_bytes_per_sec} ({elapsed})")
        }
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_message(message).with_style(style),
        Err(_) => bar,
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A number of bytes in the largest unit that keeps it above 1.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = count as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0 && value.fract() > 0.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A number with its thousands apart.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A part of a whole, in percent.
pub fn percent(part: u64, whole: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let ratio = if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    format!("{ratio:.1} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_their_unit() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1 << 30, "1 GiB"),
            (1536, "1.5 KiB"),
            (200 << 20, "200 MiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn counts_and_percentages() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(percent(1, 8), "12.5 %");
        assert_eq!(percent(0, 0), "0.0 %");
    }
}
