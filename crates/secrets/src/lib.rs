//! Secrets as a user gives them to a program: in a file, on standard input, or on the terminal. They are read into locked memory, and never taken
//! from the command line.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cli::failure::Failure;
use cli::input::{take, without_mark};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};
use seal::SecretBytes;
use zeroize::Zeroize;

/// Most bytes of a key file.
pub const MAX_KEY_FILE: usize = 64 << 10;
/// Most bytes of a passphrase.
const MAX_PASSPHRASE: usize = 1024;

/// The content of a key file; `-` is standard input. Warns of a file that everybody can read.
///
/// # Errors
/// When it cannot be read, is longer than [`MAX_KEY_FILE`], or is a pipe that was read for something else.
pub fn key_file(path: &Path) -> Result<SecretBytes, Failure> {
    read_file(path, MAX_KEY_FILE, "key file")
}

/// The first line of a passphrase file; otherwise as [`key_file`].
///
/// # Errors
/// As [`key_file`], with at most 1024 bytes.
pub fn passphrase_file(path: &Path) -> Result<SecretBytes, Failure> {
    read_file(path, MAX_PASSPHRASE, "passphrase file").map(first_line)
}

fn read_file(path: &Path, limit: usize, what: &'static str) -> Result<SecretBytes, Failure> {
    let fail = |error: io::Error| {
        Failure::usage(format!("the {what} {} cannot be read: {error}; name the right one", path.display()))
    };
    take(path, what)?;
    if path == Path::new("-") {
        return SecretBytes::read_from(&mut io::stdin().lock(), limit).map_err(fail);
    }
    let mut file = File::open(path).map_err(fail)?;
    let found = file.metadata().map_err(fail)?;
    // A terminal is everybody's, and holds nothing.
    if found.is_file() && found.mode() & 0o004 != 0 {
        cli::output::warning(&format!(
            "every user of this machine can read the {what} {}; take that away: chmod go= {}",
            path.display(),
            path.display()
        ));
    }
    SecretBytes::read_from(&mut file, limit).map_err(fail)
}

/// As it would be typed: what an editor adds to a line, nobody types.
fn first_line(mut secret: SecretBytes) -> SecretBytes {
    let text = without_mark(secret.expose());
    if text.len() < secret.len() {
        secret = SecretBytes::from_slice(text);
    }
    if let Some(end) = secret.expose().iter().position(|&byte| byte == b'\n') {
        // Some end a line with two characters.
        let returns = end > 0 && secret.expose()[end - 1] == b'\r';
        secret.truncate(end - usize::from(returns));
    }
    secret
}

/// Asks on the terminal, without an echo. The terminal's own line editing is off, so that its buffers hold nothing, and so that Ctrl-C
/// leaves the terminal as it was.
///
/// # Errors
/// When there is no terminal, it fails, or somebody interrupts.
pub fn ask(prompt: &str) -> Result<SecretBytes, Failure> {
    let mut terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(|_| {
        Failure::usage("there is no terminal to ask for a passphrase on; use --key-file, --passphrase-file or --key-from")
    })?;
    let fail = |error: io::Error| Failure::io(format!("the terminal cannot be used: {error}"));
    let before = tcgetattr(&terminal).map_err(|errno| fail(errno.into()))?;
    let mut silent = before.clone();
    silent.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
    silent.special_codes[SpecialCodeIndex::VMIN] = 1;
    silent.special_codes[SpecialCodeIndex::VTIME] = 0;
    // Silent before it asks: an answer that comes at once must not be shown, nor lose its beginning.
    tcsetattr(&terminal, OptionalActions::Flush, &silent).map_err(|errno| fail(errno.into()))?;
    let answer = terminal.write_all(prompt.as_bytes()).map_err(fail).and_then(|()| type_in(&mut terminal));
    tcsetattr(&terminal, OptionalActions::Flush, &before).map_err(|errno| fail(errno.into()))?;
    terminal.write_all(b"\n").map_err(fail)?;
    answer
}

fn type_in(terminal: &mut File) -> Result<SecretBytes, Failure> {
    // Never grows, so no copy is left behind.
    let mut typed = Vec::with_capacity(MAX_PASSPHRASE);
    let mut byte = [0];
    let ended = loop {
        match terminal.read(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Err(Failure::io(format!("the terminal cannot be read: {error}"))),
            Ok(0) => break Ok(()),
            Ok(_) => match byte[0] {
                b'\n' | b'\r' | 4 => break Ok(()),
                3 => break Err(Failure::usage("interrupted; nothing was changed")),
                8 | 127 => drop(typed.pop()),
                other if typed.len() < MAX_PASSPHRASE => typed.push(other),
                _ => break Err(Failure::usage(format!("a passphrase has at most {MAX_PASSPHRASE} bytes"))),
            },
        }
    };
    byte.zeroize();
    let secret = SecretBytes::from_vec(typed);
    ended.map(|()| secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_taken_as_it_is_up_to_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        for len in [0, 32, MAX_KEY_FILE] {
            std::fs::write(&path, vec![b'\n'; len]).unwrap();
            assert_eq!(key_file(&path).unwrap().expose(), vec![b'\n'; len]);
        }
        std::fs::write(&path, vec![7; MAX_KEY_FILE + 1]).unwrap();
        for (path, about) in
            [(path, "longer than 65536 bytes"), (directory.path().join("none"), "No such file")]
        {
            let failure = key_file(&path).unwrap_err();
            assert!(failure.is_usage() && failure.to_string().contains(about), "{failure}");
        }
    }

    #[test]
    fn a_passphrase_file_counts_up_to_the_line_feed() {
        assert_eq!(first_line(SecretBytes::from_slice(b"a b\nc\n")).expose(), b"a b");
        assert_eq!(first_line(SecretBytes::from_slice(b"a b")).expose(), b"a b");
        assert_eq!(first_line(SecretBytes::from_slice(b"a b\r\nc\r\n")).expose(), b"a b");
        assert_eq!(first_line(SecretBytes::from_slice(b"\r\n")).expose(), b"");
        assert_eq!(first_line(SecretBytes::from_slice(b"\xef\xbb\xbfa b\r\nc")).expose(), b"a b");
        assert_eq!(first_line(SecretBytes::from_slice(b"a\xef\xbb\xbfb\n")).expose(), b"a\xef\xbb\xbfb");
        assert_eq!(first_line(SecretBytes::from_slice(b"\xef\xbb\n")).expose(), b"\xef\xbb");
    }
}
