//! A server answers how its disks are, in JSON, to whoever may open its control socket.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use cli::failure::Failure;
use cli::output;
use host::Server;
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of an answer.
const LARGEST: u64 = 64 << 20;

/// A control socket; it goes when this is dropped.
pub struct Control(PathBuf);

impl Control {
    /// Answers at `path` from now on. What a server that was killed has left there is taken over.
    pub fn start(path: &Path, server: &Arc<Server>) -> Result<Self, Failure> {
        let failed =
            |error: std::io::Error| Failure::io(format!("{}: no control socket: {error}", path.display()));
        if let Ok(found) = fs::symlink_metadata(path) {
            if !found.file_type().is_socket() || UnixStream::connect(path).is_ok() {
                let message = format!("{}: another server answers there, or it is no socket", path.display());
                return Err(Failure::usage(message));
            }
            fs::remove_file(path).map_err(failed)?;
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let server = Arc::downgrade(server);
        let answer = move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let Some(text) = text(&server) else { return };
                let _ = stream.set_write_timeout(Some(PATIENCE));
                // A caller that has gone wants no answer.
                let _ = stream.write_all(text.as_bytes());
            }
        };
        thread::Builder::new().name("control".into()).spawn(answer).map_err(failed)?;
        Ok(Self(path.into()))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn text(server: &Weak<Server>) -> Option<String> {
    let server = server.upgrade()?;
    serde_json::to_string_pretty(&server.status()).ok()
}

/// Asks a server, and says what it answers.
pub fn status(path: &Path, is_json: bool) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        let advice = "is a server running, with this --control?";
        Failure::io(format!("{}: no server answers: {error}; {advice}", path.display()))
    };
    let stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let mut text = String::new();
    stream.take(LARGEST).read_to_string(&mut text).map_err(failed)?;
    let disks: Vec<Value> = serde_json::from_str(&text).map_err(Failure::io)?;
    if is_json {
        return output::print_json(&disks);
    }
    output::print(disks.iter().map(words).collect::<Vec<_>>().join("\n").trim_end());
    Ok(())
}

/// One disk, for people.
fn words(disk: &Value) -> String {
    let word = |name: &str| disk[name].as_str().unwrap_or_default();
    let count = |name: &str| disk["counters"][name].as_u64().unwrap_or(0);
    let mut text = format!("{}: {}\n", word("socket"), word("file"));
    let state = match (disk["connected"].as_bool(), &disk["ended"]) {
        (_, Value::String(reason)) => format!("not served: {reason}"),
        (Some(true), _) => format!("a VMM is connected, {} queues are served", disk["queues"]),
        _ => "no VMM is connected".into(),
    };
    let _ = writeln!(text, "  {state}; mode {}", word("mode"));
    if disk["failed"] == Value::Bool(true) {
        let _ = writeln!(text, "  a flush has failed: nothing is written until this server is started again");
    }
    let _ = writeln!(
        text,
        "  {} reads, {} writes, {} flushes, {} discards, {} errors",
        count("reads"),
        count("writes"),
        count("flushes"),
        count("discards"),
        count("errors")
    );
    let _ = writeln!(
        text,
        "  {} kicks, {} interrupts, {} sleeps, {} times held back by limits",
        count("kicks"),
        count("interrupts"),
        count("sleeps"),
        count("throttled")
    );
    text
}
