//! What the owner's key may do: one [`Word`] for each SSH session.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::boot::private;
use super::log::copy_from;
use super::words::{Phase, Setup, State, Word};
use super::{CONTENT, place};
use crate::error::{Context, Error, Result};
use crate::file::Job;
use crate::manifest::Resource;
use crate::tree::{Digesting, Room, Source, pack, unpack};

/// How often a log is looked at.
const PAUSE: Duration = Duration::from_millis(200);
/// Most bytes of a setup.
const MAX_SETUP: u64 = 4 << 20;

/// Does what the session's command asks for.
///
/// # Errors
/// If it is no word, out of turn, or cannot be done.
pub fn session(command: &str) -> Result<()> {
    match Word::parse(command)? {
        Word::Setup => setup(),
        Word::Image => image(),
        Word::Input(number) => input(number),
        Word::Secret(number) => secret(number),
        Word::Volume(number) => volume(number),
        Word::Start => start(),
        Word::Follow(from) => follow(from),
        Word::Output(number) => output(number),
        Word::Manifest => send(&place::manifest()),
        Word::State => send(&place::state()),
        Word::Wipe => wipe(),
    }
}

/// The job, as it was set up.
///
/// # Errors
/// If it was not, or cannot be read.
pub fn job() -> Result<(Setup, Job)> {
    let path = place::setup();
    let bytes = fs::read(&path).map_err(|error| Error::usage("the guest has no job yet").because(error))?;
    let setup: Setup = serde_json::from_slice(&bytes)
        .map_err(|error| Error::protocol(format!("the setup has another form: {error}")))?;
    let job = Job::parse(setup.file.as_bytes(), &setup.name)
        .map_err(|error| Error::protocol(error.to_string()).because(error))?;
    Ok((setup, job))
}

/// Says how far the job is: readers see the old state or the new one.
pub fn tell(state: &State) -> Result<()> {
    let path = place::state();
    let fresh = path.with_extension("new");
    let text = serde_json::to_vec(state).map_err(|error| Error::io(error.to_string()))?;
    fs::write(&fresh, text).of(&fresh)?;
    fs::rename(&fresh, &path).of(&path)
}

fn state() -> Result<State> {
    let bytes =
        fs::read(place::state()).map_err(|error| Error::usage("the guest has no job yet").because(error))?;
    serde_json::from_slice(&bytes).map_err(|error| Error::io(error.to_string()))
}

/// Refuses what comes when the job has begun already.
fn check_waiting() -> Result<()> {
    match state()?.phase {
        Phase::Waiting => Ok(()),
        _ => Err(Error::usage("the job has begun; what it works on does not change any more")),
    }
}

fn setup() -> Result<()> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(MAX_SETUP + 1).read_to_end(&mut bytes).of("the setup")?;
    private(&place::setup(), &bytes)?;
    job()?;
    tell(&State::new(Phase::Waiting))
}

fn image() -> Result<()> {
    check_waiting()?;
    let (_, job) = job()?;
    let from = io::stdin().lock();
    let Some(wanted) = job.image.digest else {
        let path = place::context();
        fs::create_dir(&path).of(&path)?;
        let mut reader = io::BufReader::new(from);
        unpack(&mut reader, &path, Room { bytes: u64::MAX })?;
        return drain(reader);
    };
    let path = place::archive();
    let mut to = Digesting::new(File::create_new(&path).of(&path)?);
    io::copy(&mut BufReader::new(from), &mut to).of(&path)?;
    let found = to.finish().1;
    if found != wanted {
        fs::remove_file(&path).of(&path)?;
        return Err(Error::refused(format!(
            "the image that arrived has {found}, and the job file pins {wanted}"
        )));
    }
    Ok(())
}

/// Reads what follows a stream's end, so that its sender is not cut off.
fn drain(mut from: impl Read) -> Result<()> {
    io::copy(&mut from, &mut io::sink()).of("the stream").map(drop)
}

fn input(number: usize) -> Result<()> {
    check_waiting()?;
    let (_, job) = job()?;
    if number >= job.inputs.len() {
        return Err(Error::protocol(format!("the job has no input {number}")));
    }
    let directory = place::input(number);
    fs::create_dir(&directory).of(&directory)?;
    let mut from = BufReader::new(io::stdin().lock());
    let found = unpack(&mut from, &directory, Room { bytes: u64::MAX })?;
    drain(from)?;
    let text = serde_json::to_vec(&found).map_err(|error| Error::io(error.to_string()))?;
    private(&place::received(&format!("input-{number}")), &text)?;
    answer(&text)
}

/// The files of an input, as they arrived.
pub fn received(number: usize) -> Result<Vec<Resource>> {
    let path = place::received(&format!("input-{number}"));
    let bytes = fs::read(&path)
        .map_err(|error| Error::usage(format!("input {number} has not arrived")).because(error))?;
    serde_json::from_slice(&bytes).map_err(|error| Error::io(error.to_string()))
}

fn secret(number: usize) -> Result<()> {
    check_waiting()?;
    let (_, job) = job()?;
    if number >= job.secrets.len() {
        return Err(Error::protocol(format!("the job has no secret {number}")));
    }
    let path = place::secret(number);
    let mut file = File::options().write(true).create_new(true).mode(0o400).open(&path).of(&path)?;
    // Its user is known when the image is: it is handed over then.
    io::copy(&mut io::stdin().lock(), &mut file).of(&path).map(drop)
}

fn volume(number: usize) -> Result<()> {
    check_waiting()?;
    let (_, job) = job()?;
    super::volume::receive(&job, number, io::stdin().lock())
}

/// Begins the work, which goes on when the owner is gone.
fn start() -> Result<()> {
    check_waiting()?;
    let (_, job) = job()?;
    for number in 0..job.inputs.len() {
        received(number)?;
    }
    for number in 0..job.secrets.len() {
        place::secret(number)
            .try_exists()
            .of(place::secret(number))?
            .then_some(())
            .ok_or_else(|| Error::usage(format!("secret {number} has not arrived")))?;
    }
    if let Some(number) = (0..job.volumes.len()).find(|number| !super::volume::has_arrived(*number)) {
        return Err(Error::usage(format!("what opens volume {number} has not arrived")));
    }
    tell(&State::new(Phase::Preparing))?;
    let program = std::env::current_exe().of("this program")?;
    let mut command = Command::new(program);
    command
        .args(["guest", "work"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    command.spawn().of("the work").map(drop)
}

/// Sends the log until the job has ended, then its state, which is no frame.
fn follow(mut from: u64) -> Result<()> {
    let mut to = io::stdout().lock();
    loop {
        // First the state, then the log: so the last line is there.
        let state = state()?;
        from = copy_from(&place::log(), from, &mut to)?;
        if state.is_final() {
            let text = serde_json::to_vec(&state).map_err(|error| Error::io(error.to_string()))?;
            return answer(&text);
        }
        std::thread::sleep(PAUSE);
    }
}

fn output(number: usize) -> Result<()> {
    let (_, job) = job()?;
    let wanted =
        job.outputs.get(number).ok_or_else(|| Error::protocol(format!("the job has no output {number}")))?;
    if state()?.phase != Phase::Ended {
        return Err(Error::usage("the job has not ended; there are no outputs yet"));
    }
    let (root, path) = super::container::output(&job, wanted)?;
    let (mut to, _) = pack(Source::Below(&root, &path), CONTENT, io::stdout().lock())?;
    to.flush().of("the output")
}

fn send(path: &Path) -> Result<()> {
    let bytes = fs::read(path)
        .map_err(|error| Error::usage(format!("{} is not there yet", path.display())).because(error))?;
    answer(&bytes)
}

fn answer(bytes: &[u8]) -> Result<()> {
    let mut to = io::stdout().lock();
    to.write_all(bytes).and_then(|()| to.write_all(b"\n")).and_then(|()| to.flush()).of("the answer")
}

/// Powers the machine off. Its memory, which held everything, is gone with it.
fn wipe() -> Result<()> {
    crate::program::output(Command::new("busybox").args(["poweroff", "-f"])).map(drop)
}
