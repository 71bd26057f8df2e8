//! From an image to a guest that has answered its challenge.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use cli::interrupt::Interrupt;
use vm::{Disk, Forward, Launch, Platform, Running};

use super::prepare::Prepared;
use super::state::Place;
use crate::challenge::{Answer, Exchange, MAX_MESSAGE, NONCE, Question};
use crate::error::{Context, Error, Result};
use crate::guest::{CHALLENGE_PORT, SSH_PORT};
use crate::image::Image;

/// How often a guest that boots is asked.
const PAUSE: Duration = Duration::from_millis(300);
/// How long it may take to answer once it is connected.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most of a console that is shown when a guest ends by itself.
const SHOWN: usize = 2000;

/// A guest that is booting.
pub struct Booting {
    /// QEMU.
    pub running: Running,
    /// The port here that leads to its SSH.
    pub port: u16,
    challenge: u16,
    console: PathBuf,
    log: PathBuf,
}

/// How a machine is launched.
#[derive(Debug, Clone)]
pub struct Machine {
    /// QEMU: a path, or a name to look for.
    pub qemu: PathBuf,
    /// The image's directory.
    pub image: PathBuf,
    /// How its memory is protected.
    pub platform: Platform,
    /// What a simulated platform's launcher hands to its guest.
    pub seat: Option<PathBuf>,
}

/// A free port of this machine. Another program may take it before QEMU does, which QEMU then says.
fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).of("a port of this machine")?;
    Ok(listener.local_addr().of("a port of this machine")?.port())
}

/// Starts the machine.
///
/// # Errors
/// If this machine cannot run it.
pub fn launch(machine: &Machine, image: &Image, prepared: &Prepared, place: &Place) -> Result<Booting> {
    let (port, challenge) = (free_port()?, free_port()?);
    let (console, log) = (place.file("console"), place.file("qemu"));
    let launch = Launch {
        qemu: machine.qemu.clone(),
        platform: machine.platform.clone(),
        kernel: image.kernel.path(&machine.image),
        initramfs: image.initramfs.path(&machine.image),
        words: image.words(prepared.plan.storage),
        disks: disks(machine, image, prepared),
        memory: prepared.job.guest.memory.0 >> 20 << 20,
        processors: prepared.job.guest.processors,
        forwards: vec![
            Forward { host: port, guest: SSH_PORT },
            Forward { host: challenge, guest: CHALLENGE_PORT },
        ],
        files: machine.seat.iter().map(|seat| ("seat".to_string(), seat.clone())).collect(),
        console: console.clone(),
    };
    let running = launch.start(&log)?;
    Ok(Booting { running, port, challenge, console, log })
}

/// The root file system's, then those of volumes in their order.
fn disks(machine: &Machine, image: &Image, prepared: &Prepared) -> Vec<Disk> {
    let root = Disk { path: image.root.path(&machine.image), read_only: true };
    let volumes = prepared.job.volumes.iter();
    let volumes = volumes.map(|volume| Disk { path: prepared.path(&volume.disk), read_only: false });
    std::iter::once(root).chain(volumes).collect()
}

impl Booting {
    /// Asks the guest for its evidence as soon as it can answer. **Nothing is judged here.**
    ///
    /// # Errors
    /// If it does not answer within `limit`, ends, or answers with something else.
    pub fn challenge(
        &mut self,
        owner_key: String,
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<Exchange> {
        let mut nonce = [0; NONCE];
        SystemRandom::new()
            .fill(&mut nonce)
            .map_err(|_| Error::io("the cipher library gave no random bytes"))?;
        let question = Question { nonce: hex::encode(nonce), owner_key };
        let begun = Instant::now();
        loop {
            interrupt.check().map_err(|error| Error::usage(error.to_string()))?;
            if !self.running.is_alive() {
                return Err(Error::io(format!(
                    "the machine has ended before it showed evidence. {}",
                    self.complaints()
                )));
            }
            // The port is QEMU's, which takes a connection before the guest does, and drops it then.
            if let Some(answer) = ask(self.challenge, &question)? {
                let exchange = Exchange { question, answer };
                exchange.check()?;
                return Ok(exchange);
            }
            if begun.elapsed() > limit {
                return Err(Error::io(format!(
                    "the guest has not shown its evidence within {} s (guest.boot-time). {}",
                    limit.as_secs(),
                    self.complaints()
                )));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// What QEMU and the guest's console said last.
    fn complaints(&self) -> String {
        let last = |path: &Path| {
            let bytes = fs::read(path).unwrap_or_default();
            let text: String = String::from_utf8_lossy(&bytes)
                .chars()
                .filter(|one| *one == '\n' || !one.is_control())
                .collect();
            let from = text.char_indices().rev().nth(SHOWN).map_or(0, |(place, _)| place);
            text[from..].trim().to_string()
        };
        format!("QEMU: {:?}; the guest's console: {:?}", last(&self.log), last(&self.console))
    }
}

/// The answer; `None` when nobody is there yet.
fn ask(port: u16, question: &Question) -> Result<Option<Answer>> {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return Ok(None) };
    stream.set_read_timeout(Some(PATIENCE)).of("the challenge")?;
    stream.set_write_timeout(Some(PATIENCE)).of("the challenge")?;
    let mut line = serde_json::to_vec(question).map_err(|error| Error::io(error.to_string()))?;
    line.push(b'\n');
    if stream.write_all(&line).is_err() {
        return Ok(None);
    }
    let mut text = Vec::new();
    match BufReader::new(stream.take(MAX_MESSAGE)).read_until(b'\n', &mut text) {
        Ok(0) | Err(_) => Ok(None),
        Ok(_) => serde_json::from_slice(&text).map(Some).map_err(|error| {
            Error::protocol(format!("the guest's answer has another form: {error}")).because(error)
        }),
    }
}
