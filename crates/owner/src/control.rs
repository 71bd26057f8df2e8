//! The socket through which the owner's commands reach the running service: one line of JSON each way.
//!
//! It lies in the state directory, which only its owner can enter.

use crate::error::Error;
use crate::keeper::{Command, Job, Reply};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// Bytes of a command's line.
const COMMAND_LIMIT: u64 = 64 * 1024;

/// Bytes of a reply's line: 4096 volumes with 16 clients each.
const REPLY_LIMIT: u64 = 16 * 1024 * 1024;

const PATIENCE: Duration = Duration::from_secs(30);

/// Begins to listen. What a killed service left there is removed: the database's lock says that no other one runs.
pub(crate) fn listen(path: &Path, jobs: SyncSender<Job>) -> Result<(), Error> {
    let fail = |error| Error::Io("listen at", path.to_owned(), error);
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(fail)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(fail)?;
    let serve = move || {
        for stream in listener.incoming().flatten() {
            // One at a time: the owner is one person.
            let _ = answer(&stream, &jobs);
        }
    };
    std::thread::Builder::new().name("control".into()).spawn(serve).map(drop).map_err(fail)
}

fn answer(stream: &UnixStream, jobs: &SyncSender<Job>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(COMMAND_LIMIT)).read_line(&mut line)?;
    let reply = match serde_json::from_str::<Command>(&line) {
        Ok(command) => pass_on(command, jobs),
        Err(error) => Err(format!("this is no command: {error}")),
    };
    let mut out = serde_json::to_string(&reply)?;
    out.push('\n');
    (&*stream).write_all(out.as_bytes())
}

fn pass_on(command: Command, jobs: &SyncSender<Job>) -> Result<Reply, String> {
    let (sender, receiver) = sync_channel(1);
    jobs.try_send(Job::Administer(command, sender)).map_err(|_| "the service is busy or ending")?;
    receiver.recv_timeout(PATIENCE).unwrap_or_else(|_| {
        Err("the service does not answer; whether it was done shows `cvmio-owner list`".into())
    })
}

/// Asks the running service. `None` if there is none.
pub(crate) fn ask(path: &Path, command: &Command) -> Result<Option<Result<Reply, String>>, Error> {
    let fail = |error| Error::Io("talk to the service at", path.to_owned(), error);
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(fail(error)),
    };
    let work = || -> io::Result<Result<Reply, String>> {
        stream.set_read_timeout(Some(PATIENCE * 2))?;
        let mut out = serde_json::to_string(command)?;
        out.push('\n');
        (&stream).write_all(out.as_bytes())?;
        let mut line = String::new();
        BufReader::new((&stream).take(REPLY_LIMIT)).read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    };
    work().map(Some).map_err(fail)
}
