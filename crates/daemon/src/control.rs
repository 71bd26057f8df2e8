//! What is said on a control socket: a request and its reply, each one line of JSON. Secrets follow the request as they are.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use seal::slot::Credential;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::input;
use cli::failure::Failure;

/// What a daemon may be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "command")]
pub enum Request {
    /// How the volume is doing.
    Status,
    /// How long its requests took.
    Times,
    /// Make everything durable and fresh.
    Commit,
    /// Read and verify everything.
    Check,
    /// Read and verify everything in the background, at most so many bytes a second.
    Scrub {
        /// Bytes a second.
        rate: u64,
    },
    /// End that.
    StopScrub,
    /// Go on with a change of key in the background.
    Rekey,
    /// Begin one. So many credentials follow: what opens the volume, and what opens the other slots that shall stay.
    BeginRekey {
        /// How many follow.
        credentials: u8,
        /// Whether slots may go that none of them opens.
        remove_others: bool,
    },
    /// Let the volume grow to so many blocks, or as its store allows. A credential that opens it follows.
    Grow {
        /// Size that the volume shows then.
        logical_blocks: Option<u64>,
    },
    /// What opens the volume, slot by slot.
    Slots,
    /// A copy of header and key slots.
    BackUpHeader,
    /// Let another credential open the volume. It follows behind one that does.
    AddSlot {
        /// Name of the new slot.
        label: String,
    },
    /// Empty a slot. A credential that opens the volume follows.
    RemoveSlot {
        /// Its number.
        slot: usize,
    },
    /// Put the volume away, and end.
    Detach {
        /// At freshness `transaction`: forget what was not committed, instead of committing it.
        #[serde(default)]
        discard_uncommitted: bool,
        /// Also while somebody uses it, or something waits for room on the store: that is given up.
        #[serde(default)]
        force: bool,
    },
}

/// What it answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// What was asked for.
    Ok(Value),
    /// Why not.
    Error(Failure),
}

impl Request {
    /// Credentials that follow.
    fn credentials(&self) -> u8 {
        match *self {
            Self::BeginRekey { credentials, .. } => credentials,
            Self::AddSlot { .. } => 2,
            Self::RemoveSlot { .. } | Self::Grow { .. } => 1,
            _ => 0,
        }
    }
}

/// Answers a request with its credentials: calls its last argument once, and that returns when the reply is on its way.
pub type Answer = dyn Fn(Request, Vec<Credential>, &mut dyn FnMut(Reply)) + Send + Sync;

/// Most bytes of a request.
const MAX_REQUEST: usize = 4096;
/// How long somebody may take to ask.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers on the socket until the process ends. Each asker has a thread of its own: one that waits must not keep others waiting.
pub fn serve(listener: &UnixListener, answer: Arc<Answer>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let answer = Arc::clone(&answer);
        let talk = move || talk(stream, answer.as_ref());
        let _ = std::thread::Builder::new().name("control".into()).spawn(talk);
    }
}

fn talk(mut stream: UnixStream, answer: &Answer) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let Ok(line) = read_line(&mut stream) else { return };
    let asked = serde_json::from_slice(&line).map_err(|error| error.to_string());
    let asked = asked.and_then(|request: Request| {
        let mut next = |_| input::from_pipe(&mut stream).map_err(|error| format!("its credentials: {error}"));
        let credentials = (0..request.credentials()).map(&mut next).collect::<Result<Vec<_>, _>>()?;
        Ok((request, credentials))
    });
    let leaves = matches!(&asked, Ok((Request::Detach { .. }, _)));
    let mut is_last = false;
    let mut send = |reply| {
        is_last = leaves && matches!(&reply, Reply::Ok(_));
        if let Ok(mut bytes) = serde_json::to_vec(&reply) {
            bytes.push(b'\n');
            let _ = stream.write_all(&bytes);
        }
    };
    match asked {
        Ok((request, credentials)) => answer(request, credentials, &mut send),
        Err(error) => send(Reply::Error(Failure::usage(format!("this request is not understood: {error}")))),
    }
    if is_last {
        // Who cannot see this process takes note of its end by that of the connection.
        std::mem::forget(stream);
    }
}

/// Byte by byte: a buffer would keep a copy of the secrets that follow.
fn read_line(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.len() < MAX_REQUEST && stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn ask(line: &[u8]) -> Reply {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(line).unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = |request, credentials: Vec<Credential>, send: &mut dyn FnMut(Reply)| {
            let secrets: Vec<usize> =
                credentials.iter().map(|credential| credential.secret().len()).collect();
            send(Reply::Ok(format!("{request:?} {secrets:?}").into()));
        };
        let thread = std::thread::spawn(move || talk(theirs, &answer));
        let mut answer = String::new();
        BufReader::new(ours).read_line(&mut answer).unwrap();
        thread.join().unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    #[test]
    fn a_line_is_asked_and_a_line_answered() {
        assert!(
            matches!(ask(b"{\"command\":\"status\"}\n"), Reply::Ok(Value::String(text)) if text == "Status []")
        );
        assert!(
            matches!(ask(b"{\"command\":\"detach\"}\n"), Reply::Ok(Value::String(text)) if text == "Detach { discard_uncommitted: false, force: false } []")
        );
    }

    #[test]
    fn secrets_follow_the_line() {
        let request = Request::BeginRekey { credentials: 2, remove_others: true };
        let mut asked = serde_json::to_vec(&request).unwrap();
        asked.push(b'\n');
        for secret in [&b"open\nsesame"[..], b"spare"] {
            let credential = Credential::Passphrase(seal::SecretBytes::from_slice(secret));
            input::to_pipe(&credential, &mut asked).unwrap();
        }
        assert!(matches!(ask(&asked), Reply::Ok(Value::String(text)) if text.ends_with(" [11, 5]")));
        asked.pop();
        assert!(matches!(ask(&asked), Reply::Error(failure) if failure.code() == 2), "one byte is missing");
    }

    #[test]
    fn the_last_connection_stays_open_to_the_end_of_the_process() {
        let closed = |line: &[u8], reply: Reply| {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.write_all(line).unwrap();
            talk(theirs, &move |_, _, send: &mut dyn FnMut(Reply)| send(reply.clone()));
            let mut answer = String::new();
            BufReader::new(&ours).read_line(&mut answer).unwrap();
            ours.set_nonblocking(true).unwrap();
            ours.read(&mut [0]).is_ok()
        };
        let refused = || Reply::Error(Failure::usage("in use"));
        assert!(!closed(b"{\"command\":\"detach\"}\n", Reply::Ok(Value::Null)));
        assert!(closed(b"{\"command\":\"detach\"}\n", refused()));
        assert!(closed(b"{\"command\":\"status\"}\n", Reply::Ok(Value::Null)));
    }

    #[test]
    fn nonsense_is_refused_whatever_its_length() {
        assert!(matches!(ask(b"hello\n"), Reply::Error(failure) if failure.code() == 2));
        assert!(matches!(ask(b"{\"command\":\"eject\"}\n"), Reply::Error(_)));
        assert!(matches!(ask(&[b'x'; 4096]), Reply::Error(_)));
    }
}
