//! A TPM to test with, and what may stand between it and an anchor.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anchor::{MOVED_TO_SIZE, Stamp, State};
use anchor_tpm::error::Error;
use anchor_tpm::tpm::{KeyDigest, Tpm};
use anchor_tpm::transport::Place;
use anchor_tpm::{Settings, TpmAnchor};
use seal::SecretBytes;
use tempfile::TempDir;

pub const INDEX: u32 = 0x0180_0100;
pub const SECRET: [u8; 32] = [0x5e; 32];

/// Whether this machine has swtpm; if not, says so.
pub fn is_able() -> bool {
    let able = Command::new("swtpm").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !able {
        // Not by println: what a test prints is kept from sight when it passes.
        let thread = thread::current();
        let name = thread.name().unwrap_or("a test");
        let _ = writeln!(std::io::stderr(), "\nSKIPPED {name}: swtpm is not installed");
    }
    able
}

pub fn stamp(generation: u64) -> Stamp {
    Stamp {
        volume: [0x11; 16],
        generation,
        head: [0x22; 32],
        session: [0x33; 16],
        claims: 5,
        header_digest: [0x44; 32],
        state: State::Claimed,
        moved_to: [0; MOVED_TO_SIZE],
        mac: [0x55; 32],
    }
}

/// swtpm with its state in a directory.
pub struct Swtpm {
    directory: PathBuf,
    child: Option<Child>,
}

impl Swtpm {
    pub fn start(directory: &Path) -> Swtpm {
        fs::create_dir_all(directory).unwrap();
        let mut swtpm = Swtpm { directory: directory.into(), child: None };
        swtpm.power_on();
        swtpm
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// As after a loss of power: the TPM was not started yet.
    pub fn power_on(&mut self) {
        let control = self.directory.join("control");
        for left in [&self.socket(), &control] {
            let _ = fs::remove_file(left);
        }
        let child = Command::new("swtpm")
            .args(["socket", "--tpm2", "--flags", "not-need-init"])
            .arg("--tpmstate")
            .arg(format!("dir={}", self.directory.display()))
            .arg("--server")
            .arg(format!("type=unixio,path={}", self.socket().display()))
            .arg("--ctrl")
            .arg(format!("type=unixio,path={}", control.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let end = Instant::now() + Duration::from_secs(30);
        // The file is there before anybody listens.
        while UnixStream::connect(self.socket()).is_err() {
            assert!(Instant::now() < end, "swtpm does not start");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// kill -9.
    pub fn power_off(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}

impl Drop for Swtpm {
    fn drop(&mut self) {
        self.power_off();
    }
}

/// A TPM and the files of an anchor in it.
pub struct Bed {
    pub swtpm: Swtpm,
    pub key: KeyDigest,
    pub directory: TempDir,
}

impl Bed {
    pub fn new() -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let swtpm = Swtpm::start(&directory.path().join("tpm"));
        let key = Tpm::new(Place::Path(swtpm.socket()), None).endorsement_key().unwrap();
        Bed { swtpm, key, directory }
    }

    /// One with an anchor that was never claimed.
    pub fn with_anchor() -> Bed {
        let bed = Bed::new();
        assert!(bed.anchor().create(b"").unwrap());
        bed
    }

    pub fn companion(&self) -> PathBuf {
        self.directory.path().join("companion")
    }

    pub fn settings(&self) -> Settings {
        Settings {
            place: Place::Path(self.swtpm.socket()),
            index: INDEX,
            endorsement_key: Some(self.key),
            secret: SecretBytes::from_slice(&SECRET),
            companion: self.companion(),
            read_only: false,
            address: format!("tpm:{},{INDEX:#010x}", self.swtpm.socket().display()),
        }
    }

    pub fn anchor(&self) -> TpmAnchor {
        TpmAnchor::new(self.settings())
    }

    /// The TPM as a user without any secret has it.
    pub fn tpm(&self) -> Tpm {
        Tpm::new(Place::Path(self.swtpm.socket()), Some(self.key))
    }
}

/// Moves an anchor that holds `from` up to `to`.
pub fn move_up(anchor: &mut TpmAnchor, from: u64, to: u64) {
    for generation in from + 1..=to {
        let before = (generation > 1).then(|| stamp(generation - 1));
        anchor.compare_and_swap(before.as_ref(), &stamp(generation)).unwrap();
    }
}

pub fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

/// What the host between an anchor and its TPM does with the n-th command (from 1) and its answer.
pub type Meddle = Box<dyn FnMut(usize, Moment, &mut Vec<u8>) -> Verdict + Send>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Command,
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    /// Nothing more comes on this connection.
    Hang,
}

/// A host that carries the messages.
pub struct Host {
    socket: PathBuf,
    ended: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
    meddle: Arc<Mutex<(usize, Option<Meddle>)>>,
}

impl Host {
    pub fn before(swtpm: &Swtpm) -> Host {
        let socket = swtpm.directory.join("host");
        let listener = UnixListener::bind(&socket).unwrap();
        let (ended, meddle) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new((0, None))));
        let (target, end, meddling) = (swtpm.socket(), Arc::clone(&ended), Arc::clone(&meddle));
        let thread = thread::spawn(move || {
            for client in listener.incoming() {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                // Where the TPM has no power, the connection ends.
                if let Ok(tpm) = UnixStream::connect(&target) {
                    carry(client.unwrap(), tpm, &meddling);
                }
            }
        });
        Host { socket, ended, thread: Some(thread), meddle }
    }

    pub fn place(&self) -> Place {
        Place::Path(self.socket.clone())
    }

    /// From now on the host does this, and counts from 1 again.
    pub fn meddle(&self, with: Option<Meddle>) {
        *self.meddle.lock().unwrap() = (0, with);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        let _ = UnixStream::connect(&self.socket);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn carry(mut client: UnixStream, mut tpm: UnixStream, meddle: &Mutex<(usize, Option<Meddle>)>) {
    let judge = |count: bool, moment, message: &mut Vec<u8>| {
        let mut guard = meddle.lock().unwrap();
        let (number, with) = &mut *guard;
        *number += usize::from(count);
        with.as_mut().map_or(Verdict::Pass, |with| with(*number, moment, message))
    };
    while let Some(mut command) = message(&mut client) {
        if judge(true, Moment::Command, &mut command) == Verdict::Hang || tpm.write_all(&command).is_err() {
            return;
        }
        let Some(mut answer) = message(&mut tpm) else { return };
        if judge(false, Moment::Answer, &mut answer) == Verdict::Hang || client.write_all(&answer).is_err() {
            return;
        }
    }
}

fn message(from: &mut UnixStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 10];
    from.read_exact(&mut bytes).ok()?;
    let size = u32::from_be_bytes(bytes[2..6].try_into().unwrap());
    bytes.resize(usize::try_from(size).unwrap().max(10), 0);
    from.read_exact(&mut bytes[10..]).ok()?;
    Some(bytes)
}
