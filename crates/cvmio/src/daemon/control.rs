//! What is said on a control socket: a request and its reply, each one line of JSON.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;

/// What a daemon may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    Scrub { rate: u64 },
    /// End that.
    StopScrub,
    /// Go on with a change of key in the background.
    Rekey,
    /// Put the volume away, and end.
    Detach,
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

/// Answers a request: calls its second argument once, and that returns when the reply is on its way.
pub type Answer = dyn Fn(Request, &mut dyn FnMut(Reply)) + Send + Sync;

/// Most bytes of a request.
const MAX_REQUEST: u64 = 4096;
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
    let mut line = String::new();
    let Ok(half) = stream.try_clone() else { return };
    if BufReader::new(half.take(MAX_REQUEST)).read_line(&mut line).is_err() {
        return;
    }
    let mut send = |reply| {
        if let Ok(mut bytes) = serde_json::to_vec(&reply) {
            bytes.push(b'\n');
            let _ = stream.write_all(&bytes);
        }
    };
    match serde_json::from_str(&line) {
        Ok(request) => answer(request, &mut send),
        Err(error) => send(Reply::Error(Failure::usage(format!("this request is not understood: {error}")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(line: &[u8]) -> Reply {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.write_all(line).unwrap();
        let answer = |request, send: &mut dyn FnMut(Reply)| send(Reply::Ok(format!("{request:?}").into()));
        let thread = std::thread::spawn(move || talk(theirs, &answer));
        let mut answer = String::new();
        BufReader::new(ours).read_line(&mut answer).unwrap();
        thread.join().unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    #[test]
    fn a_line_is_asked_and_a_line_answered() {
        assert!(
            matches!(ask(b"{\"command\":\"status\"}\n"), Reply::Ok(Value::String(text)) if text == "Status")
        );
        assert!(
            matches!(ask(b"{\"command\":\"detach\"}\n"), Reply::Ok(Value::String(text)) if text == "Detach")
        );
    }

    #[test]
    fn nonsense_is_refused_whatever_its_length() {
        assert!(matches!(ask(b"hello\n"), Reply::Error(failure) if failure.code() == 2));
        assert!(matches!(ask(b"{\"command\":\"eject\"}\n"), Reply::Error(_)));
        assert!(matches!(ask(&[b'x'; 4096]), Reply::Error(_)));
    }
}
