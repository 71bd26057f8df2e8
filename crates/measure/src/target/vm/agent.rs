//! What the host says to a guest, and the guest's answers: the only place where these are read.
//!
//! The host sends a script in one line of base64. The guest answers `done CODE SAID COMPLAINED`, a line, and then as many bytes of each.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::program::excerpt;

/// A guest's answers beyond this are refused.
const LARGEST: usize = 64 << 20;
/// Nor does a head have more bytes.
const LONGEST_LINE: usize = 200;
/// How long one attempt to read waits.
const GLANCE: Duration = Duration::from_millis(20);

/// How a script ended in a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its exit code.
    pub code: i32,
    /// What it printed.
    pub said: String,
    /// What it printed on its error output.
    pub complained: String,
}

impl Answer {
    /// # Errors
    /// When the script failed: with what it printed.
    pub fn must_succeed(self) -> Result<Self> {
        if self.code == 0 {
            return Ok(self);
        }
        let said = format!("{}{}", self.said, self.complained);
        Err(Error::io(format!("in the guest, code {}: {}", self.code, excerpt(&said))))
    }
}

/// A message of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Head {
    Ready(String),
    Done { code: i32, said: usize, complained: usize },
}

fn head(line: &str) -> Option<Head> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["ready", version] => Some(Head::Ready((*version).into())),
        ["done", code, said, complained] => {
            let (said, complained) = (said.parse::<usize>().ok()?, complained.parse::<usize>().ok()?);
            let fits = said.checked_add(complained)? <= LARGEST;
            fits.then_some(Head::Done { code: code.parse().ok()?, said, complained })
        }
        _ => None,
    }
}

/// Why the guest is waited for no more.
pub type Alive<'a> = &'a mut dyn FnMut() -> Result<()>;

/// The guest's end of the line.
#[derive(Debug)]
pub struct Agent {
    stream: UnixStream,
    /// What has arrived and was not looked at.
    read: Vec<u8>,
}

impl Agent {
    /// Calls a guest that boots, at the socket that QEMU has made.
    ///
    /// # Errors
    /// When nobody is there.
    pub fn call(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).doing(socket.display())?;
        stream.set_read_timeout(Some(GLANCE)).doing(socket.display())?;
        Ok(Self { stream, read: Vec::new() })
    }

    /// Waits until the guest is up; its kernel's version.
    ///
    /// # Errors
    /// When it does not come up in that time, or `alive` says so.
    pub fn ready(&mut self, limit: Duration, alive: Alive<'_>) -> Result<String> {
        match self.head(limit, alive)? {
            Head::Ready(version) => Ok(version),
            Head::Done { .. } => Err(Error::io("the guest answers before it was asked")),
        }
    }

    /// Runs a script in the guest.
    ///
    /// # Errors
    /// When the guest does not answer in that time, or `alive` says so.
    pub fn run(&mut self, script: &str, limit: Duration, alive: Alive<'_>) -> Result<Answer> {
        let mut line = base64(script.as_bytes());
        line.push('\n');
        self.stream.write_all(line.as_bytes()).doing("the guest does not listen")?;
        match self.head(limit, alive)? {
            Head::Ready(_) => Err(Error::io("the guest has booted again")),
            Head::Done { code, said, complained } => {
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                let said = text(self.take(said, limit, alive)?);
                Ok(Answer { code, said, complained: text(self.take(complained, limit, alive)?) })
            }
        }
    }

    fn head(&mut self, limit: Duration, alive: Alive<'_>) -> Result<Head> {
        let began = Instant::now();
        let end = loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                break end;
            }
            if self.read.len() > LONGEST_LINE {
                return Err(Error::io("the guest says what it should not"));
            }
            self.more(began, limit, alive)?;
        };
        let line: Vec<u8> = self.read.drain(..=end).collect();
        let line = String::from_utf8_lossy(&line);
        head(&line).ok_or_else(|| Error::io(format!("the guest says what it should not: {}", line.trim())))
    }

    fn take(&mut self, count: usize, limit: Duration, alive: Alive<'_>) -> Result<Vec<u8>> {
        let began = Instant::now();
        while self.read.len() < count {
            self.more(began, limit, alive)?;
        }
        Ok(self.read.drain(..count).collect())
    }

    fn more(&mut self, began: Instant, limit: Duration, alive: Alive<'_>) -> Result<()> {
        let mut buffer = [0; 1 << 16];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(Error::io("the guest has hung up")),
            Ok(count) => {
                self.read.extend_from_slice(buffer.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                alive()?;
                if began.elapsed() > limit {
                    return Err(Error::io(format!("the guest did not answer within {} s", limit.as_secs())));
                }
                Ok(())
            }
            Err(error) => Err(Error::io("the guest").because(error)),
        }
    }
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Source: RFC 4648, section 4.
pub fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let index = usize::try_from(bits >> (18 - 6 * place) & 63).unwrap_or(0);
            text.push(if place <= chunk.len() { char::from(DIGITS[index]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::os::unix::net::UnixListener;

    /// A guest that says this, whatever it is asked.
    fn says(bytes: Vec<u8>) -> Result<Answer> {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let guest = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut asked = String::new();
            std::io::BufReader::new(&stream).read_line(&mut asked).unwrap();
            (&stream).write_all(&bytes).unwrap();
            asked
        });
        let answer = Agent::call(&socket).unwrap().run("true", Duration::from_millis(100), &mut || Ok(()));
        assert_eq!(guest.join().unwrap(), "dHJ1ZQ==\n");
        answer
    }

    #[test]
    fn an_answer_is_as_long_as_it_says() {
        let answer = says(b"done 3 5 2\nab\ncd!?".to_vec()).unwrap();
        assert_eq!((answer.code, answer.said.as_str(), answer.complained.as_str()), (3, "ab\ncd", "!?"));
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        for (bytes, word) in [
            ("done 0 99999999999999999999 1\n", "should not"),
            ("done 0 99999999 1\n", "should not"),
            ("done x 1 1\n", "should not"),
            ("ready 6.1\n", "booted again"),
            ("done 0 3 0\nab", "hung up"),
            ("", "hung up"),
            (&"x".repeat(300), "should not"),
        ] {
            let error = says(bytes.into()).unwrap_err().to_string();
            assert!(error.contains(word), "{bytes}: {error}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let length = random.usize(..60);
            let words = ["done", "ready", " ", "0", "-1", "18446744073709551615", "\t", "x"];
            let text: String = (0..length).map(|_| words[random.usize(..words.len())]).collect();
            if let Some(Head::Done { said, complained, .. }) = head(&text) {
                assert!(said + complained <= LARGEST);
            }
        }
    }

    #[test]
    fn base64_is_the_standards() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }
}
