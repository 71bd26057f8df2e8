//! A room for one job: its files, its image, and what stands for QEMU and the guest.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use attest::simulated::Issuer;
use base64ct::{Base64, Encoding};
use job::challenge::{Answer, Question};
use job::manifest::SigningKey;

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(20);
/// The guest's ports.
const CHALLENGE: u16 = 1024;
const SSH: u16 = 22;

/// How a guest answers its challenge.
#[derive(Debug, Clone, Copy)]
pub enum Answers {
    Well,
    /// As it has answered an earlier nonce.
    AnotherQuestion,
    /// As it has answered somebody with another key.
    ForAnotherOwner,
}

fn ssh_key(fill: u8) -> String {
    let bytes = [&b"\0\0\0\x0bssh-ed25519\0\0\0\x20"[..], &[fill; 32]].concat();
    format!("ssh-ed25519 {}", Base64::encode_string(&bytes))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not in time");
        std::thread::sleep(PAUSE);
    }
}

pub struct Room {
    directory: tempfile::TempDir,
}

impl Room {
    /// One whose machine runs until it is ended.
    pub fn new() -> Self {
        Self::ending("exec sleep 1000")
    }

    /// One whose machine goes on with this line of a shell.
    pub fn ending(line: &str) -> Self {
        let room = Self { directory: tempfile::tempdir().unwrap() };
        fs::create_dir_all(room.path("context")).unwrap();
        fs::write(room.path("context/Dockerfile"), "FROM scratch\n").unwrap();
        fs::write(room.path("work.toml"), "name = \"work\"\n[image]\ncontext = \"context\"\n").unwrap();
        fs::create_dir(room.path("image")).unwrap();
        let part = |name: &str| {
            let path = room.path("image").join(name);
            fs::write(&path, name).unwrap();
            serde_json::json!({ "file": name, "digest": job::tree::digest_of(name.as_bytes()).unwrap().to_string() })
        };
        let image = serde_json::json!({
            "version": 1, "kernel": part("vmlinuz"), "initramfs": part("initramfs"), "root": part("root.img"),
            "root-hash": "ab".repeat(32), "hash-offset": 4096,
        });
        fs::write(room.path("image/image.json"), image.to_string()).unwrap();
        let at = |name: &str| room.path(name).display().to_string();
        let script = format!(
            "#!/bin/sh\necho $$ >'{}'\nprintf '%s\\n' \"$@\" >'{}'\nmv '{}' '{}'\n{line}\n",
            at("process"),
            at("arguments.new"),
            at("arguments.new"),
            at("arguments")
        );
        fs::write(room.path("qemu"), script).unwrap();
        fs::set_permissions(room.path("qemu"), fs::Permissions::from_mode(0o755)).unwrap();
        room
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn run(&self, more: &[&str]) -> Run {
        self.start(&[&["--allow-simulated"], more].concat())
    }

    pub fn run_without_the_flag(&self) -> Run {
        self.start(&[])
    }

    fn start(&self, more: &[&str]) -> Run {
        let mut command = self.command(&["run", "work.toml", "--image", "image", "--qemu"]);
        command.arg(self.path("qemu")).args(more);
        self.spawn(command)
    }

    /// Builds an image into `out`, with a line of a shell in mmdebstrap's place.
    pub fn build_with(&self, line: &str) -> Run {
        let program = self.path("mmdebstrap");
        fs::write(&program, format!("#!/bin/sh\n{line}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places = std::iter::once(self.directory.path().into()).chain(std::env::split_paths(&path));
        let mut command = self.command(&["image", "build", "--out", "out"]);
        command.env("PATH", std::env::join_paths(places).unwrap());
        self.spawn(command)
    }

    fn spawn(&self, mut command: Command) -> Run {
        // As a terminal has it: a key reaches all of the group.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (to, lines) = channel();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let reader = std::thread::spawn(move || copy(errors, |line| drop(to.send(line))));
        Run { child, lines, reader, room: self.directory.path().into() }
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cvmio-job"));
        command.args(words).current_dir(self.directory.path()).env("XDG_STATE_HOME", self.path("state"));
        command
    }

    /// Whether the machine runs.
    pub fn is_left(&self) -> bool {
        // The process that adopts an orphan may take its time to reap it.
        let process = fs::read_to_string(self.path("process")).unwrap();
        job::owner::state::began(process.trim().parse().unwrap()).is_some()
    }

    /// Whether neither the machine nor anything of the job is there any more.
    pub fn nothing_is_left(&self) {
        let jobs = self.path("state/cvmio/jobs");
        let left: Vec<_> =
            fs::read_dir(jobs).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(!self.path("process").exists() || !self.is_left(), "the machine runs on");
    }
}

fn copy(from: BufReader<ChildStderr>, to: impl Fn(String)) -> String {
    let mut all = String::new();
    for line in from.lines().map_while(Result::ok) {
        all += &format!("{line}\n");
        to(line);
    }
    all
}

/// `cvmio run`.
pub struct Run {
    child: Child,
    lines: Receiver<String>,
    reader: JoinHandle<String>,
    room: PathBuf,
}

impl Run {
    pub fn wait_for(&mut self, words: &str) {
        while !self
            .lines
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|error| panic!("{words}: {error}"))
            .contains(words)
        {}
    }

    pub fn wait_until_there(&self, name: &str) {
        wait_until(name, || self.room.join(name).exists());
    }

    /// Presses Ctrl-C. How long it took until the program had ended.
    pub fn interrupt(&mut self) -> Duration {
        self.signal("-INT", &format!("-{}", self.child.id()))
    }

    /// Asks the program for its end, and none of those that it waits for.
    pub fn terminate(&mut self) -> Duration {
        self.signal("-TERM", &self.child.id().to_string())
    }

    fn signal(&mut self, signal: &str, to: &str) -> Duration {
        let begun = Instant::now();
        assert!(Command::new("kill").args([signal, "--", to]).status().unwrap().success());
        wait_until("its end", || self.child.try_wait().unwrap().is_some());
        begun.elapsed()
    }

    /// Kills the program itself, and nothing beside it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its exit code, and what it said.
    pub fn wait(mut self) -> (Option<i32>, String) {
        wait_until("its end", || self.child.try_wait().unwrap().is_some());
        (self.child.wait().unwrap().code(), self.reader.join().unwrap())
    }

    /// Stands for the guest, as soon as there is a machine.
    pub fn machine(&mut self, answers: Answers) -> Machine {
        let arguments = self.room.join("arguments");
        wait_until("a machine", || arguments.exists());
        let arguments = fs::read_to_string(arguments).unwrap();
        let between = |before: &str, after: &str| {
            let (_, rest) =
                arguments.split_once(before).unwrap_or_else(|| panic!("{before} is not in {arguments}"));
            rest.split_once(after).unwrap().0.to_string()
        };
        let port = |guest: u16| {
            let lines = arguments.split("hostfwd=tcp:127.0.0.1:");
            let port = lines.filter_map(|line| line.split_once(&format!("-:{guest}"))?.0.parse().ok()).next();
            TcpListener::bind((Ipv4Addr::LOCALHOST, port.unwrap())).unwrap()
        };
        // The file may be changed when the answer has arrived: all is read before.
        let seat = fs::read(between("name=opt/cvmio/seat,file=", "\n")).unwrap();
        let (challenge, ssh) = (port(CHALLENGE), port(SSH));
        let answering = std::thread::spawn(move || answer(&challenge, &seat, answers));
        Machine { ssh, answering }
    }
}

fn answer(challenge: &TcpListener, seat: &[u8], answers: Answers) {
    let (mut owner, _) = challenge.accept().unwrap();
    let mut line = String::new();
    BufReader::new(owner.try_clone().unwrap()).read_line(&mut line).unwrap();
    let question: Question = serde_json::from_str(&line).unwrap();
    let answered = match answers {
        Answers::Well => question,
        Answers::AnotherQuestion => Question { nonce: "00".repeat(32), ..question },
        Answers::ForAnotherOwner => Question { owner_key: ssh_key(9), ..question },
    };
    let (host_key, signing_key) = (ssh_key(2), SigningKey::generate().unwrap().public());
    let evidence =
        Issuer::read(seat).unwrap().evidence(answered.report_data(&host_key, &signing_key)).unwrap();
    let evidence = serde_json::from_slice(evidence.to_json().as_bytes()).unwrap();
    let text = serde_json::to_string(&Answer { evidence, host_key, signing_key }).unwrap();
    writeln!(owner, "{text}").unwrap();
}

/// What stands for the guest: it answers its challenge, and its SSH server takes connections and says nothing.
pub struct Machine {
    ssh: TcpListener,
    answering: JoinHandle<()>,
}

impl Machine {
    pub fn wait_for_login(&self) {
        let (mut owner, _) = self.ssh.accept().unwrap();
        let mut banner = [0; 4];
        owner.read_exact(&mut banner).unwrap();
        assert_eq!(&banner, b"SSH-");
        // It stays silent, and open.
        std::mem::forget(owner);
    }

    /// Whether anybody has connected to its SSH server.
    pub fn was_logged_in_to(self) -> bool {
        self.answering.join().unwrap();
        self.ssh.set_nonblocking(true).unwrap();
        self.ssh.accept().is_ok()
    }
}
