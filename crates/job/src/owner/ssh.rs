//! The channel to an attested guest: the system's `ssh`, with its host key pinned and nothing of the user's configuration.

use std::fs;
use std::process::{Child, Command, Stdio};

use cli::interrupt::Interrupt;

use super::state::Place;
use crate::error::{Context, Error, Result};
use crate::guest::Word;
use crate::program::{interruptible, output, unstarted};
use crate::volume::Route;

/// The name under which the host key is pinned: ports and addresses do not matter.
const ALIAS: &str = "cvmio-guest";
/// The owner's key.
const KEY: &str = "key";
/// The pinned host key.
const HOSTS: &str = "known_hosts";
/// The socket of the connection that all sessions share.
const SOCKET: &str = "ssh";
/// Longest path of a socket.
const MAX_SOCKET: usize = 90;

/// Makes the owner's key for one job. Its public half, as `TYPE BASE64`.
///
/// # Errors
/// If `ssh-keygen` fails.
pub fn make_key(place: &Place) -> Result<String> {
    let path = place.file(KEY);
    output(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-C", "", "-f"]).arg(&path))?;
    let public = path.with_extension("pub");
    let text = fs::read_to_string(&public).of(&public)?;
    Ok(text.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}

/// Pins the guest's host key, which its evidence vouches for.
///
/// # Errors
/// If it cannot be written.
pub fn pin(place: &Place, host_key: &str) -> Result<()> {
    let path = place.file(HOSTS);
    fs::write(&path, format!("{ALIAS} {host_key}\n")).of(&path)
}

/// A guest that can be talked to.
#[derive(Debug, Clone)]
pub struct Channel {
    place: Place,
    port: u16,
    routes: Vec<Route>,
    interrupt: Interrupt,
}

impl Channel {
    /// To the guest behind this port, which reaches anchors by these routes as long as the connection lasts. An interrupt ends
    /// what is waited for.
    #[must_use]
    pub fn new(place: &Place, port: u16, routes: &[Route], interrupt: &Interrupt) -> Self {
        Self { place: place.clone(), port, routes: routes.to_vec(), interrupt: interrupt.clone() }
    }

    /// Whether sessions can share a connection that lasts.
    ///
    /// # Errors
    /// If the place is too deep for a socket.
    pub fn check_lasting(place: &Place) -> Result<()> {
        let socket = place.file(SOCKET);
        match socket.as_os_str().len() <= MAX_SOCKET {
            true => Ok(()),
            false => Err(Error::usage(format!(
                "{} is too long for a socket, which a job with volumes needs; set XDG_STATE_HOME to a shorter path",
                socket.display()
            ))),
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("ssh");
        // Neither the user's nor the system's settings: some of them let unknown keys in.
        command.args(["-F", "/dev/null", "-p", &self.port.to_string(), "-i"]).arg(self.place.file(KEY));
        let hosts = self.place.file(HOSTS).display().to_string();
        let mut options = vec![
            format!("UserKnownHostsFile=\"{hosts}\""),
            "GlobalKnownHostsFile=/dev/null".into(),
            "StrictHostKeyChecking=yes".into(),
            "HostKeyAlgorithms=ssh-ed25519".into(),
            format!("HostKeyAlias={ALIAS}"),
            "UpdateHostKeys=no".into(),
            "VerifyHostKeyDNS=no".into(),
            "PreferredAuthentications=publickey".into(),
            "IdentitiesOnly=yes".into(),
            "IdentityAgent=none".into(),
            "BatchMode=yes".into(),
            "ConnectTimeout=60".into(),
            "ServerAliveInterval=30".into(),
            "ServerAliveCountMax=10".into(),
            "LogLevel=ERROR".into(),
        ];
        let socket = self.place.file(SOCKET);
        if socket.as_os_str().len() <= MAX_SOCKET {
            options.extend([
                "ControlMaster=auto".into(),
                "ControlPersist=yes".into(),
                format!("ControlPath=\"{}\"", socket.display()),
            ]);
        }
        if !self.routes.is_empty() {
            options.push("ExitOnForwardFailure=yes".into());
        }
        let forward =
            |Route { port, host, to }: &Route| ["-R".into(), format!("127.0.0.1:{port}:{host}:{to}")];
        command.args(self.routes.iter().flat_map(forward));
        command.args(options.iter().flat_map(|option| ["-o", option]));
        command
    }

    /// Says a word. Its bytes go into the child's standard input, the answer comes from its standard output.
    ///
    /// # Errors
    /// If `ssh` cannot be started.
    pub fn say(&self, word: Word) -> Result<Child> {
        let mut command = self.command();
        command.args(["root@127.0.0.1", &word.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|error| unstarted(&command, error))
    }

    /// Says a word, sends what `send` writes, and waits for the whole answer.
    ///
    /// # Errors
    /// What the guest or `ssh` said. A host key that is not the pinned one is an error of its own.
    pub fn ask(
        &self,
        word: Word,
        send: impl FnOnce(&mut dyn std::io::Write) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let mut child = self.say(word)?;
        let (sent, answer) = self.interruptible(child.id(), || {
            let sent = child.stdin.take().map_or(Ok(()), |mut to| send(&mut to));
            (sent, child.wait_with_output())
        })?;
        let answer = answer.of("ssh")?;
        if !answer.status.success() {
            // It explains why the guest took no more.
            return Err(complaint(word, &String::from_utf8_lossy(&answer.stderr)));
        }
        sent.map(|()| answer.stdout)
    }

    /// Does something that waits for a session, which is ended when the owner asks for the end.
    ///
    /// # Errors
    /// If there is no such session.
    pub fn interruptible<T>(&self, session: u32, work: impl FnOnce() -> T) -> Result<T> {
        interruptible(session, &self.interrupt, work)
    }

    /// Ends the connection that sessions share.
    pub fn close(&self) {
        if self.place.file(SOCKET).exists() {
            let mut command = Self { routes: Vec::new(), ..self.clone() }.command();
            let _ = output(command.args(["-O", "exit", "root@127.0.0.1"]));
        }
    }
}

/// What a failed session means, by what the guest or `ssh` said.
#[must_use]
pub fn complaint(word: Word, said: &str) -> Error {
    if said.contains("Host key verification failed") || said.contains("HOST IDENTIFICATION HAS CHANGED") {
        return Error::refused(
            "whoever answers on the guest's SSH port does not have the host key that its evidence vouches for; nothing was sent to it",
        );
    }
    let said = said.trim();
    let said = said.strip_prefix("cvmio: error: ").unwrap_or(said);
    let said = if said.is_empty() { "the connection has ended" } else { said };
    Error::io(format!("the guest did not do `{word}`: {said}"))
}

#[cfg(test)]
mod tests {
    use error_kind::{HasKind, Kind};

    use super::*;

    #[test]
    fn another_host_key_is_no_ordinary_failure() {
        let said = "@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.";
        assert_eq!(complaint(Word::Start, said).kind(), Kind::Policy);
        let cut = complaint(Word::Follow(0), "").to_string();
        assert_eq!(cut, "the guest did not do `follow 0`: the connection has ended");
        let other = complaint(Word::Start, "cvmio: error: the job has begun\n");
        assert_eq!(
            (other.kind(), other.to_string().as_str()),
            (Kind::Io, "the guest did not do `start`: the job has begun")
        );
    }
}
