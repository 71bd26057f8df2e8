//! What opens a volume: where it comes from, and how the daemon gets it.

use seal::SecretBytes;
use seal::slot::Credential;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use super::Released;
use cli::failure::Failure;
use secrets::MAX_KEY_FILE;

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
        return Ok(Credential::KeyFile(secrets::key_file(path)?));
    }
    if let Some(path) = &source.passphrase_file {
        return Ok(Credential::Passphrase(secrets::passphrase_file(path)?));
    }
    if let Some(released) = &source.released {
        return Ok(Credential::Released(released.fetch()?));
    }
    let (prompt, again) = origin.prompt();
    let passphrase = secrets::ask(prompt)?;
    if again && secrets::ask("The same again: ")? != passphrase {
        return Err(Failure::usage("the two passphrases differ; nothing was changed"));
    }
    Ok(Credential::Passphrase(passphrase))
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
}
