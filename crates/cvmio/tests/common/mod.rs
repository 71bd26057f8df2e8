//! Running the program, and looking at what it says.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod database;
pub mod derived;
pub mod fio;
pub mod machine;
pub mod memory;
pub mod pages;
pub mod programs;
pub mod records;
pub mod session;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory with a key file, and the program run in it.
pub struct Desk {
    directory: tempfile::TempDir,
}

impl Drop for Desk {
    /// The directories that killed daemons have closed cannot be removed before they are opened again.
    fn drop(&mut self) {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let below = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
        let places = below(self.path("run")).map(|entry| entry.path().join("mnt"));
        let closed = places.chain([self.path("shown")]).filter(|path| {
            !mounts.contains(&format!(" {} ", path.display())) && path.join("disk").is_symlink()
        });
        for path in closed.collect::<Vec<_>>() {
            let _ = Command::new("chattr").args(["-f", "-i"]).arg(path).status();
        }
    }
}

/// Exit code, standard output, standard error; the directory's path is written as `[DIR]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub error: String,
}

impl Desk {
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("cvmio-").tempdir().unwrap();
        let desk = Self { directory };
        desk.write("key", &[7; 32]);
        desk.write("other", &[8; 32]);
        for key in ["key", "other"] {
            let owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(desk.path(key), owner).unwrap();
        }
        desk
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    /// The program, ready to run here.
    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(programs::cvmio());
        command.args(arguments.split_whitespace()).current_dir(self.directory.path());
        command
            .env("CVMIO_RUNTIME_DIR", self.path("run"))
            .env_remove("XDG_RUNTIME_DIR")
            .env("COLUMNS", "100");
        command
    }

    pub fn run(&self, arguments: &str) -> Said {
        self.said(self.command(arguments).output().unwrap())
    }

    /// The same in a session of its own, where there is no terminal to ask on.
    pub fn run_without_terminal(&self, arguments: &str) -> Said {
        let program = self.command(arguments);
        let mut command = Command::new("setsid");
        command
            .arg("-w")
            .arg(program.get_program())
            .args(program.get_args())
            .current_dir(self.directory.path());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        self.said(command.output().unwrap())
    }

    fn said(&self, output: Output) -> Said {
        let Output { status, stdout, stderr } = output;
        let text = |bytes: Vec<u8>| {
            let here = self.directory.path().to_str().unwrap();
            String::from_utf8(bytes).unwrap().replace(here, "[DIR]")
        };
        Said { code: status.code().unwrap_or(-1), out: text(stdout), error: text(stderr) }
    }

    /// Runs what must succeed.
    pub fn done(&self, arguments: &str) -> String {
        let said = self.run(arguments);
        assert_eq!(said.code, 0, "cvmio {arguments}: {}{}", said.out, said.error);
        said.out
    }

    /// A small volume in `disk.img`.
    pub fn create(&self, more: &str) {
        let anchor = format!("--anchor file:{}", self.path("anchor").display());
        let anchor = if more.contains("freshness off") { "" } else { &anchor };
        let credential = if more.contains("passphrase") { "" } else { "--key-file key" };
        self.done(&format!("volume create disk.img --size 16M {anchor} {credential} {more}"));
    }
}

/// Whether a command of `cvmio` is done by a program that is not beside it here. It is told so, and which package has it.
pub fn is_elsewhere(desk: &Desk, word: &str) -> bool {
    let program = match word {
        "run" | "job" | "image" => "cvmio-job",
        "attest" => "cvmio-attest",
        "host" => "cvmio-host",
        "owner" => "cvmio-owner",
        "scm" => "cvmio-scm",
        _ => return false,
    };
    if programs::cvmio().with_file_name(program).exists() {
        return false;
    }
    let said = desk.run(word);
    assert!(
        said.code == 2 && said.error.contains(&format!("install the package {program}")),
        "{}",
        said.error
    );
    true
}

/// Compares with the file `name` in `tests/snapshots`; with `UPDATE_SNAPSHOTS=1` in the environment, writes it.
pub fn snapshot(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        return std::fs::write(path, found).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    for (known, found) in known.lines().zip(found.lines()) {
        assert_eq!(
            found, known,
            "{name} has changed; if that is right, run the tests with UPDATE_SNAPSHOTS=1"
        );
    }
    assert_eq!(
        found.len(),
        known.len(),
        "{name} has changed; if that is right, run the tests with UPDATE_SNAPSHOTS=1"
    );
}
