//! Starting a daemon: the order and the secret go to it, and its first word comes back.
//!
//! The program that calls [`start`] is started again, and must call [`serve`] for `volume serve NAME`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use seal::slot::Credential;
use serde::{Deserialize, Serialize};

use crate::runtime::{self, Claim, Place};
use crate::{Errors, Order, Ready, input, system};
use cli::failure::Failure;

/// Most bytes of an order.
const MAX_ORDER: u64 = 1 << 20;
/// Most bytes that are told of what a daemon said before it had a log.
const MAX_LAST_WORDS: u64 = 4096;

/// The daemon's first and only words to who started it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Word {
    Ready(Ready),
    Failed(Failure),
}

/// Starts the daemon and waits for its word.
pub fn start(order: &Order, credential: &Credential) -> Result<Ready, Failure> {
    let fail = |error: std::io::Error| match std::path::Path::new("/proc/self").exists() {
        true => Failure::io(format!("the daemon cannot be started: {error}")),
        false => Failure::usage(
            "/proc is not mounted, and the daemon is started from there: mount -t proc proc /proc",
        ),
    };
    let place = Place::new(&order.runtime, &order.name);
    // This very program, also if another was installed in its place meanwhile.
    let mut child = Command::new("/proc/self/exe")
        // The sign by which systemd knows whom the root file system needs (https://systemd.io/ROOT_STORAGE_DAEMONS).
        .arg0(if order.for_root { "@cvmio" } else { "cvmio" })
        .args(["volume", "serve", &order.name])
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(fail)?;
    let word = brief(&mut child, order, credential).and_then(|()| hear(&mut child));
    match word.map_err(fail)? {
        Some(Word::Ready(ready)) => Ok(ready),
        Some(Word::Failed(failure)) => {
            let _ = child.wait();
            Err(explain(failure, order))
        }
        None => {
            let end = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            Err(Failure::internal(format!(
                "the daemon ended before the volume was there ({end}): {}; see also {}",
                last_words(&mut child),
                place.log().display()
            )))
        }
    }
}

/// The secret goes through a pipe: what is on a command line, everybody can see.
fn brief(child: &mut Child, order: &Order, credential: &Credential) -> std::io::Result<()> {
    let Some(mut pipe) = child.stdin.take() else { return Ok(()) };
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    pipe.write_all(&line)?;
    input::to_pipe(credential, &mut pipe)
}

fn hear(child: &mut Child) -> std::io::Result<Option<Word>> {
    let Some(pipe) = child.stdout.take() else { return Ok(None) };
    let mut line = String::new();
    BufReader::new(pipe.take(MAX_ORDER)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line).ok())
}

/// What a daemon said that ended before it had a log.
fn last_words(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(pipe) = child.stderr.take() {
        // What is no text is not worth another error.
        let _ = pipe.take(MAX_LAST_WORDS).read_to_string(&mut text);
    }
    text.trim().into()
}

/// Says who has the store, if it is one of ours.
fn explain(failure: Failure, order: &Order) -> Failure {
    if !failure.is_in_use() {
        return failure;
    }
    let store = order.store.to_string_lossy();
    let holder = runtime::running(&order.runtime).into_iter().find_map(|(name, status)| {
        let status = status.ok()?;
        let report = status.get("report")?;
        let held = report.get("volume")?.get("store")?.as_str()?;
        (held == store).then(|| format!("it is attached as {name}, by process {}", report["process"]))
    });
    match holder {
        Some(holder) => failure.with(holder),
        None => failure,
    }
}

/// The daemon's side.
pub fn serve() -> Result<(), Failure> {
    let (order, credential) = match receive() {
        Ok(received) => received,
        Err(error) => {
            return Err(Failure::usage(format!("this is started by `cvmio volume attach` only ({error})")));
        }
    };
    // It was started by a path that ends in `exe`, and tools would list it so.
    let _ = rustix::thread::set_name(c"cvmio");
    // A session of its own: the terminal's hang-up is none of its business.
    let _ = rustix::process::setsid();
    let mut told = false;
    let result = crate::run(&order, credential, Errors::ToLog, |ready| {
        told = true;
        say(&Word::Ready(ready.clone()))
    });
    if let (Err(failure), false) = (&result, told) {
        let _ = say(&Word::Failed(failure.clone()));
    }
    result
}

fn say(word: &Word) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(word)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

/// Reads the order byte by byte: a buffer would keep a copy of the secret that follows it.
fn receive() -> std::io::Result<(Order, Credential)> {
    system::protect().map_err(|failure| std::io::Error::other(failure.to_string()))?;
    let mut pipe = File::from(rustix::io::dup(std::io::stdin())?);
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        pipe.read_exact(&mut byte)?;
        if byte[0] == b'\n' {
            break;
        }
        if line.len() as u64 == MAX_ORDER {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        line.push(byte[0]);
    }
    Ok((serde_json::from_slice(&line)?, input::from_pipe(&mut pipe)?))
}

/// Clears away what a daemon of this name left that was killed, and with which nobody has gone on. Says whether there was one.
///
/// # Errors
/// When a device is still in use; it stays, then.
pub fn clear_left(place: &Place) -> Result<bool, Failure> {
    let Some(claim) = place.claim_left() else { return Ok(false) };
    let clear = |claim: &Claim| -> Result<(), Failure> {
        crate::clear_left(claim)?;
        claim.open_left(None)?;
        let ublk = claim.place().ublk();
        if ublk.exists() {
            export::ublk::remove_left(&ublk)?;
        }
        Ok(())
    };
    if let Err(failure) = clear(&claim) {
        claim.keep();
        return Err(failure);
    }
    drop(claim);
    match place.strange_files().as_slice() {
        [] => Ok(true),
        files => {
            let files: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            Err(Failure::usage(format!(
                "what a killed daemon left of {} is cleared away, but for {}, which no daemon has put there: remove it",
                place.name(),
                files.join(", ")
            )))
        }
    }
}
