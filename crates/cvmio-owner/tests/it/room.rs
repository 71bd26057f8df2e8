//! A state directory, the service on it, and its clients.

use anchor::{MOVED_TO_SIZE, Stamp, State};
use anchor_owner::{Client, Files, Times};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::thread::JoinHandle;

pub struct Room {
    directory: tempfile::TempDir,
    server: Option<(Child, JoinHandle<String>)>,
    port: u16,
    /// What each command that opens the database needs beside the state directory.
    anchor: Vec<String>,
}

/// What a command said, and its exit code.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub error: String,
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_cvmio-owner"))
}

fn said(output: Output) -> Said {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap_or(-1), out: text(output.stdout), error: text(output.stderr) }
}

impl Room {
    /// A new state directory; its service stands on its disk.
    pub fn new() -> Room {
        Room::made(|_| Vec::new())
    }

    /// The same with an anchor of the service's own, in a file.
    pub fn anchored() -> Room {
        Room::made(|directory| vec!["--anchor".into(), format!("file:{}", directory.join("own").display())])
    }

    /// One that serves the volume `ledger` to the client `guest`.
    pub fn serving() -> Room {
        Room::new().with_ledger()
    }

    /// The same with an anchor of the service's own.
    pub fn serving_anchored() -> Room {
        Room::anchored().with_ledger()
    }

    fn with_ledger(self) -> Room {
        let mut room = self.with_ledger_at_rest();
        room.start();
        room
    }

    /// With the volume and its client, and no service yet.
    pub fn with_ledger_at_rest(self) -> Room {
        self.volume("ledger", &["guest"]);
        self
    }

    fn made(anchor: impl FnOnce(&Path) -> Vec<String>) -> Room {
        let directory = tempfile::Builder::new().prefix("cvmio-owner-").tempdir().unwrap();
        let anchor = anchor(directory.path());
        let room = Room { directory, server: None, port: 0, anchor };
        room.done("init", &["--host", "127.0.0.1", "--host", "localhost"]);
        room
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn database(&self) -> PathBuf {
        self.path("state").join(owner::DATABASE)
    }

    /// A command on this state directory. Its first words may be two: `volume add`.
    pub fn run(&self, command: &str, more: &[&str]) -> Said {
        said(self.command("state", command).args(more).output().unwrap())
    }

    pub fn command(&self, state: &str, command: &str) -> Command {
        let mut program = program();
        program.args(command.split(' ')).arg("--state").arg(self.path(state)).args(&self.anchor);
        program
    }

    /// Runs what must succeed.
    pub fn done(&self, command: &str, more: &[&str]) -> String {
        let said = self.run(command, more);
        assert_eq!(said.code, 0, "cvmio-owner {command} {more:?}: {}{}", said.out, said.error);
        said.out
    }

    /// Starts the service, on the same port as before.
    pub fn start(&mut self) {
        let mut command = self.command("state", "serve");
        command.arg("--listen").arg(format!("127.0.0.1:{}", self.port));
        self.server = Some(spawn(&mut command, &mut self.port));
    }

    /// Kills the service where it is.
    pub fn kill(&mut self) {
        let (mut child, errors) = self.server.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        errors.join().unwrap();
    }

    /// Ends the service as systemd does. Returns its exit code, and what it wrote on standard error.
    pub fn stop(&mut self) -> (i32, String) {
        let (child, _) = self.server.as_ref().unwrap();
        let pid = child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.wait()
    }

    /// Waits for the service to end by itself.
    pub fn wait(&mut self) -> (i32, String) {
        let (mut child, errors) = self.server.take().unwrap();
        let code = child.wait().unwrap().code().unwrap_or(-1);
        (code, errors.join().unwrap())
    }

    /// A service on another state directory.
    pub fn start_other(&self, state: &str) -> (Child, u16) {
        let mut port = 0;
        let (child, _) = spawn(self.command(state, "serve").arg("--listen").arg("127.0.0.1:0"), &mut port);
        (child, port)
    }

    /// A place for a volume, which these clients may move; each is made if it is not there.
    pub fn volume(&self, name: &str, clients: &[&str]) {
        self.done("volume add", &[name]);
        for client in clients {
            let path = self.path(client);
            let path = path.to_str().unwrap();
            match self.path(client).exists() {
                true => self.done("volume allow", &[name, "--client", &format!("{path}/client.pem")]),
                false => self.done("volume allow", &[name, "--new-client", path]),
            };
        }
    }

    pub fn files(&self, client: &str) -> Files {
        let directory = self.path(client);
        Files {
            authority: directory.join("ca.pem"),
            certificate: directory.join("client.pem"),
            key: directory.join("client.key"),
        }
    }

    pub fn client(&self, volume: &str, client: &str) -> Client {
        self.client_at(&format!("127.0.0.1:{}/{volume}", self.port), self.files(client))
    }

    pub fn client_at(&self, address: &str, files: Files) -> Client {
        Client::new(address.parse().unwrap(), files, Times::default()).unwrap()
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

fn spawn(command: &mut Command, port: &mut u16) -> (Child, JoinHandle<String>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let errors = collect(child.stderr.take().unwrap());
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    match line.trim().rsplit_once(':').and_then(|(_, number)| number.parse().ok()) {
        Some(number) => *port = number,
        None => {
            child.wait().unwrap();
            panic!("the service did not start: {line}{}", errors.join().unwrap());
        }
    }
    (child, errors)
}

fn collect(mut from: ChildStderr) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = from.read_to_string(&mut text);
        text
    })
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.server.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A stamp of the volume that all tests share, by this session.
pub fn stamp(session: u8, generation: u64) -> Stamp {
    Stamp {
        volume: [0x11; 16],
        generation,
        head: [session; 32],
        session: [session; 16],
        claims: 1,
        header_digest: [0x44; 32],
        state: State::Claimed,
        moved_to: [0; MOVED_TO_SIZE],
        mac: [0x55; 32],
    }
}
