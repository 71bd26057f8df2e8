//! A directory with a key and regions, and the program.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub const PAGE: usize = 4096;

/// Between two signals to a server that does not stop yet.
const AGAIN: Duration = Duration::from_millis(500);

pub struct Place {
    directory: tempfile::TempDir,
}

/// What a command said, and how it ended.
pub struct Said {
    pub code: Option<i32>,
    pub text: String,
    pub errors: String,
}

impl Place {
    /// In memory: regions there have shared mappings and minor faults.
    pub fn new() -> Place {
        Place::on(Path::new("/dev/shm"))
    }

    pub fn on(parent: &Path) -> Place {
        let directory = tempfile::tempdir_in(parent).expect("a temporary directory can be made");
        let key = directory.path().join("key");
        fs::write(&key, [0x5a; 64]).expect("a key can be written");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("it is ours");
        fs::create_dir(directory.path().join("mnt")).expect("a directory can be made");
        Place { directory }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs the program in the directory; words are split at spaces.
    pub fn run(&self, words: &str) -> Said {
        let Output { status, stdout, stderr } = self.command(words).output().expect("it starts");
        Said {
            code: status.code(),
            text: String::from_utf8_lossy(&stdout).into_owned(),
            errors: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// The same, for what must succeed.
    pub fn succeed(&self, words: &str) -> String {
        let said = self.run(words);
        assert_eq!(said.code, Some(0), "{words}: {}{}", said.text, said.errors);
        said.text
    }

    /// The same, for what must fail with this code and these words.
    pub fn fail(&self, words: &str, code: i32, about: &str) {
        let said = self.run(words);
        assert_eq!(said.code, Some(code), "{words}: {}{}", said.text, said.errors);
        assert!(said.errors.contains(about), "{words}: {:?} does not say {about:?}", said.errors);
    }

    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cvmio-scm"));
        command.current_dir(self.directory.path()).args(words.split(' ')).stdin(Stdio::null());
        command
    }

    /// Starts a server, and returns when it is ready.
    pub fn serve(&self, words: &str) -> Server {
        let mut child = self.command(words).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        let ready = lines.find(|line| line.as_ref().map_or(true, |line| line.starts_with("ready")));
        assert!(matches!(ready, Some(Ok(_))), "{words}: it is never ready");
        Server { child, lines }
    }
}

pub struct Server {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Server {
    pub fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to stop.
    pub fn ask_to_stop(&self) {
        let id = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: a signal to a child of ours that was not waited for yet.
        unsafe { libc::kill(id, libc::SIGTERM) };
    }

    /// Asks it to stop, and returns what it said at its end. It asks again and again: a program that another test starts has this test's files
    /// between its fork and its exec, and while the file of a mount is in use a server waits for the next signal.
    pub fn stop(mut self) -> String {
        while self.child.try_wait().expect("a child can be waited for").is_none() {
            self.ask_to_stop();
            let asked = Instant::now();
            while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && asked.elapsed() < AGAIN {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self.ended()
    }

    /// Waits for its end, and returns what it said there.
    pub fn ended(self) -> String {
        self.ended_with(0)
    }

    /// The same with this exit code.
    pub fn ended_with(mut self, code: i32) -> String {
        let text: Vec<String> = self.lines.by_ref().map_while(Result::ok).collect();
        let status = self.child.wait().expect("a child can be waited for");
        assert_eq!(status.code(), Some(code), "it ended with {status}: {text:?}");
        text.join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a file has these bytes somewhere.
pub fn holds(path: &Path, bytes: &[u8]) -> bool {
    fs::read(path).expect("it can be read").windows(bytes.len()).any(|window| window == bytes)
}
