//! Passphrases and key files: read into locked memory, never taken from the command line.

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, tcgetattr, tcsetattr};
use seal::SecretBytes;
use seal::slot::Credential;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroize;

use super::Released;
use cli::failure::Failure;
use cli::input::{take, without_mark};

/// Most bytes of a key file.
const MAX_KEY_FILE: usize = 8192;
/// Most bytes of a passphrase.
const MAX_PASSPHRASE: usize = 1024;

/// Where the secret comes from that opens a key slot: one of these. Without any, a passphrase is asked for on the terminal.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// Its content is the key.
    pub key_file: Option<PathBuf>,
    /// Its first line is the passphrase.
    pub passphrase_file: Option<PathBuf>,
    /// The owner releases it to this guest.
    pub released: Option<Released>,
}

/// Whether a credential exists or is made up now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It opens a slot.
    Known,
    /// It is to open a new slot, so a typing error would lock the owner out.
    New,
    /// It opens a stream.
    KnownStream,
    /// It is to open a new stream.
    NewStream,
}

impl Origin {
    /// What the terminal asks, and whether it asks again.
    fn prompt(self) -> (&'static str, bool) {
        match self {
            Self::Known => ("Passphrase: ", false),
            Self::New => ("New passphrase: ", true),
            Self::KnownStream => ("Passphrase of the stream: ", false),
            Self::NewStream => ("New passphrase for the stream: ", true),
        }
    }
}

/// The same once more: what uses a credential takes it.
pub fn copy(credential: &Credential) -> Credential {
    let same = |secret: &SecretBytes| SecretBytes::from_slice(secret.expose());
    match credential {
        Credential::Passphrase(secret) => Credential::Passphrase(same(secret)),
        Credential::KeyFile(secret) => Credential::KeyFile(same(secret)),
        Credential::Released(secret) => Credential::Released(same(secret)),
    }
}

/// Gets the secret from where the user says.
///
/// # Errors
/// When a file cannot be read or is too long, or there is no terminal to ask on.
pub fn load(source: impl Into<Source>, origin: Origin) -> Result<Credential, Failure> {
    let source = source.into();
    if let Some(path) = &source.key_file {
        return Ok(Credential::KeyFile(read_file(path, MAX_KEY_FILE, "key file")?));
    }
    if let Some(path) = &source.passphrase_file {
        return Ok(Credential::Passphrase(first_line(read_file(path, MAX_PASSPHRASE, "passphrase file")?)));
    }
    if let Some(released) = &source.released {
        return Ok(Credential::Released(released.fetch()?));
    }
    let (prompt, again) = origin.prompt();
    let passphrase = ask(prompt)?;
    if again && ask("The same again: ")? != passphrase {
        return Err(Failure::usage("the two passphrases differ; nothing was changed"));
    }
    Ok(Credential::Passphrase(passphrase))
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
fn ask(prompt: &str) -> Result<SecretBytes, Failure> {
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

/// Hands a credential to the daemon: its kind, its length in four bytes, and its bytes.
pub fn to_pipe(credential: &Credential, pipe: &mut impl Write) -> io::Result<()> {
    let kind = match credential {
        Credential::Passphrase(_) => b'p',
        Credential::KeyFile(_) => b'k',
        Credential::Released(_) => b'r',
    };
    let secret = credential.secret();
    let length = u32::try_from(secret.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    pipe.write_all(&[kind])?;
    pipe.write_all(&length.to_le_bytes())?;
    pipe.write_all(secret.expose())
}

/// What [`to_pipe`] wrote. Hand in the pipe itself: a buffered reader keeps a copy.
///
/// # Errors
/// When something else is in the pipe.
pub fn from_pipe(pipe: &mut impl Read) -> io::Result<Credential> {
    let (mut kind, mut length) = ([0], [0; 4]);
    pipe.read_exact(&mut kind)?;
    pipe.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_KEY_FILE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let secret = SecretBytes::read_from(&mut pipe.take(length as u64), length)?;
    if secret.len() != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match kind[0] {
        b'p' => Ok(Credential::Passphrase(secret)),
        b'k' => Ok(Credential::KeyFile(secret)),
        b'r' => Ok(Credential::Released(secret)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_go_through_a_pipe_one_behind_the_other() {
        let credentials = [
            Credential::Passphrase(SecretBytes::from_slice(b"open sesame")),
            Credential::KeyFile(SecretBytes::from_slice(&[7; 64])),
            Credential::Released(SecretBytes::from_slice(&[8; 64])),
        ];
        let mut pipe = Vec::new();
        credentials.iter().for_each(|credential| to_pipe(credential, &mut pipe).unwrap());
        let mut rest = &pipe[..];
        for credential in credentials {
            match (from_pipe(&mut rest).unwrap(), credential) {
                (Credential::Passphrase(a), Credential::Passphrase(b))
                | (Credential::KeyFile(a), Credential::KeyFile(b))
                | (Credential::Released(a), Credential::Released(b)) => assert_eq!(a, b),
                other => panic!("{other:?}"),
            }
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn what_is_no_credential_is_refused() {
        assert!(from_pipe(&mut &b""[..]).is_err());
        assert!(from_pipe(&mut &b"x\x03\x00\x00\x00123"[..]).is_err(), "of no kind");
        assert!(from_pipe(&mut &b"p\x03\x00\x00\x0012"[..]).is_err(), "cut short");
        assert!(from_pipe(&mut &b"p\xff\xff\xff\xff123"[..]).is_err(), "as long as memory");
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
