//! The socket on which a server says how it is.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{Gid, Uid};
use rustix::process::umask;
use scm::protocol::{self, ClientMessage, ServerMessage};
use scm::{Engine, Status};

use cli::failure::Failure;

/// More than a status has.
const LIMIT: u64 = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(5);

/// Who may connect to a socket.
#[derive(Debug, Clone, Copy)]
pub struct Permissions {
    pub mode: u32,
    pub owner: Option<(u32, Option<u32>)>,
}

/// Answers until it is dropped.
pub struct Server {
    path: PathBuf,
}

impl Server {
    /// # Errors
    /// If the socket cannot be made: a server that lives has it, or the directory does not take it.
    pub fn start(path: &Path, permissions: Permissions, engine: Arc<Engine>) -> Result<Server, Failure> {
        let listener = listen(path, permissions)?;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // One at a time, each with a limit: who asks and does not read holds up the next by seconds.
                let _ = answer(&stream, &engine);
            }
        });
        Ok(Server { path: path.into() })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Takes the place of a socket whose server is dead, and of no other file.
pub fn listen(path: &Path, permissions: Permissions) -> Result<UnixListener, Failure> {
    let failed = |error| Failure::io(format!("the socket {}: {error}", path.display()));
    if UnixStream::connect(path).is_ok() {
        return Err(Failure::usage(format!(
            "{}: a server that lives has this socket: use another",
            path.display()
        )));
    }
    let is_socket = std::fs::symlink_metadata(path)
        .is_ok_and(|found| std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()));
    if is_socket {
        std::fs::remove_file(path).map_err(failed)?;
    }
    // At no moment may somebody connect who may not.
    let before = umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    umask(before);
    let listener = listener.map_err(failed)?;
    if let Some((user, group)) = permissions.owner {
        let owned = rustix::fs::chown(path, Some(Uid::from_raw(user)), group.map(Gid::from_raw));
        owned.map_err(|errno| failed(errno.into()))?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(permissions.mode)).map_err(failed)?;
    Ok(listener)
}

fn answer(mut stream: &UnixStream, engine: &Engine) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut question = Vec::new();
    BufReader::new(stream.take(LIMIT)).read_until(b'\n', &mut question)?;
    let asked = protocol::decode(&question, engine.geometry());
    let answer = match asked {
        Ok(Some(ClientMessage::Status)) => serde_json::to_vec(&engine.status())?,
        Ok(_) => {
            ServerMessage::Error("this server gives its region by FUSE: use the file under its mount".into())
                .encode()
        }
        Err(why) => ServerMessage::Error(why).encode(),
    };
    stream.write_all(&answer)
}

/// Asks a server.
pub fn ask(path: &Path) -> Result<Status, Failure> {
    let failed = |error: std::io::Error| {
        Failure::io(format!(
            "no server answers on {}: {error}; start one with `cvmio scm serve`",
            path.display()
        ))
    };
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(&ClientMessage::Status.encode()).map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(LIMIT).read_to_end(&mut answer).map_err(failed)?;
    serde_json::from_slice(&answer).map_err(|error| {
        Failure::io(format!("what answers on {} is no server of this version: {error}", path.display()))
    })
}
