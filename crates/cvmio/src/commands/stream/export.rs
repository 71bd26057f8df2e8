//! `cvmio volume export`: a volume's content as a sealed stream.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FlockOperation, flock};
use seal::slot::{Argon2Params, Credential, SlotLimits};
use serde_json::json;
use volume::format::stream::{MAGIC, START};
use volume::{AttachOptions, Kind, Reading, StreamProgress, StreamReader, StreamWriter, Tail, Volume};

use super::drive;
use crate::cli::stream::Export;
use crate::commands::offline::{self, Opened};
use cli::failure::Failure;
use cli::output;
use daemon::input::{self, Origin, VolumeFiles};

pub fn run(args: &Export) -> Result<(), Failure> {
    check(args)?;
    let to = super::place(&args.to, "/proc/self/fd/1");
    let refuse_same = |files: VolumeFiles<'_>| {
        super::with_secrets(files, &args.credential).refuse_same(&[vec![("stream", Some(to))]])
    };
    let Opened { environment, policy, credential } = offline::open_with(&args.offline, false, refuse_same)?;
    let spinner = output::spinner("opening");
    let reading = if args.force { Reading::PinnedBesideWriter } else { Reading::Pinned };
    let options = AttachOptions { reading, ..AttachOptions::default() };
    let volume = volume::attach_read_only(environment, policy, credential, options)?.block()?;
    drop(spinner);
    let credential = match args.resume {
        true => None,
        false => Some(input::load(&args.credential.as_credential(), Origin::NewStream)?),
    };
    let target = Target::open(args)?;
    let tail = if args.resume { look(args, &target, &volume)? } else { None };
    let kept = tail.as_ref().map_or(0, |tail| tail.bytes);
    let ended = match tail {
        Some(tail) if tail.complete => Ended { header: tail.header, bytes: kept },
        tail => write(args, &target, &volume, tail, credential)?,
    };
    target.finish(&args.to, ended.bytes)?;
    report(args, &ended, kept)
}

fn check(args: &Export) -> Result<(), Failure> {
    let to_pipe = args.to == Path::new("-");
    if to_pipe && std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "a stream is nothing for a terminal; name a file with --to, or use a pipe",
        ));
    }
    if to_pipe && (args.resume || args.offline.json) {
        return Err(Failure::usage(
            "standard output takes nothing but the stream: leave --resume and --json out",
        ));
    }
    if !to_pipe && args.to.exists() && !args.resume {
        return Err(Failure::usage(already_there(&args.to)));
    }
    Ok(())
}

fn already_there(path: &Path) -> String {
    format!(
        "{} exists already, and no stream is overwritten; name another file, or go on with this one with --resume",
        path.display()
    )
}

/// Where the stream goes.
struct Target {
    file: File,
    /// Whether it can be cut off, gone back in, and made durable.
    is_file: bool,
    name: String,
}

impl Target {
    fn open(args: &Export) -> Result<Self, Failure> {
        let name = args.to.display().to_string();
        let fail = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Failure::usage(already_there(&args.to)),
            _ => Failure::usage(format!("the stream {name} cannot be written: {error}")),
        };
        if args.to == Path::new("-") {
            if output::stdout_is_closed() {
                return Err(Failure::usage(
                    "standard output is closed, so the stream would go nowhere; name a file or a pipe",
                ));
            }
            let file = File::from(std::io::stdout().as_fd().try_clone_to_owned().map_err(fail)?);
            return Ok(Self { file, is_file: false, name: "standard output".into() });
        }
        cli::input::check_directory(&args.to).map_err(fail)?;
        let mut options = OpenOptions::new();
        options.read(args.resume).write(true).mode(0o600);
        match args.resume {
            true => options.create(true),
            false => options.create_new(true),
        };
        let file = options.open(&args.to).map_err(fail)?;
        let is_file = file.metadata().map_err(fail)?.is_file();
        if is_file && flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Failure::usage(format!(
                "another export writes to {name}; wait for it, or name another file"
            )));
        }
        Ok(Self { file, is_file, name })
    }

    /// Cuts off what is behind the stream, and makes it durable.
    fn finish(self, path: &Path, bytes: u64) -> Result<(), Failure> {
        if !self.is_file {
            return Ok(());
        }
        let done = self.file.set_len(bytes).and_then(|()| self.file.sync_all());
        done.and_then(|()| cli::input::sync_directory(path)).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        Failure::io(format!("the stream {}: {error}", self.name))
    }
}

/// What is whole of the file, if it holds the beginning of a stream of this volume.
fn look(args: &Export, target: &Target, volume: &Volume) -> Result<Option<Tail>, Failure> {
    if !target.is_file {
        return Err(Failure::usage(format!("{} is no file, and nothing to go on with", target.name)));
    }
    let length = target.file.metadata().map_err(|error| target.failed(&error))?.len();
    let mut start = Vec::new();
    let read = (&target.file).take(MAGIC.len() as u64).read_to_end(&mut start);
    read.and_then(|_| (&target.file).rewind()).map_err(|error| target.failed(&error))?;
    // An export that was cut in its header: there is nothing in it to keep.
    if length < START as u64 && MAGIC.starts_with(&start) {
        return Ok(None);
    }
    let credential = input::load(&args.credential.as_credential(), Origin::KnownStream)?;
    let reader = StreamReader::open(&target.file, &credential, &SlotLimits::default())?;
    let bar = output::bytes_bar("verifying", Some(length));
    let tail = reader.tail(|bytes| bar.set_position(bytes))?;
    bar.finish_and_clear();
    volume.check_continues(&tail)?;
    if let Some(damage) = &tail.damage {
        output::warning(&format!("{damage}. It is written anew, with all that follows"));
    }
    Ok(Some(tail))
}

/// An export that has come to its end.
struct Ended {
    header: volume::format::stream::StreamHeader,
    /// Bytes of the whole stream.
    bytes: u64,
}

fn write(
    args: &Export,
    target: &Target,
    volume: &Volume,
    tail: Option<Tail>,
    credential: Option<Credential>,
) -> Result<Ended, Failure> {
    let mut out = target.file.try_clone().map_err(|error| target.failed(&error))?;
    let random = &seal::SystemRandom;
    let mut covered = 0;
    let writer = match tail {
        Some(tail) => {
            let cut = out.set_len(tail.bytes).and_then(|()| out.seek(SeekFrom::Start(tail.bytes)));
            cut.map_err(|error| target.failed(&error))?;
            covered = tail.blocks;
            StreamWriter::resume(out, tail, random)?
        }
        None => {
            let credential = match credential {
                Some(credential) => credential,
                None => input::load(&args.credential.as_credential(), Origin::NewStream)?,
            };
            if target.is_file {
                out.set_len(0).map_err(|error| target.failed(&error))?;
            }
            StreamWriter::begin(out, volume.stream_header(), credential, Argon2Params::default(), random)?
        }
    };
    let header = writer.header().clone();
    let progress = Arc::new(StreamProgress::default());
    // How much of the data is in what is there already is not known; where all of it lies together, this is right.
    let left = volume.status().mapped_blocks.min(header.blocks - covered);
    let bar = output::bytes_bar("exporting", Some(left * volume::format::BLOCK_SIZE as u64));
    let job = volume.export(writer, Arc::clone(&progress))?;
    drive(job, &bar, || progress.blocks.load(Ordering::Relaxed) * volume::format::BLOCK_SIZE as u64)
        .map_err(|error| explain(args, error))?;
    let bytes = progress.bytes.load(Ordering::Relaxed);
    Ok(Ended { header, bytes })
}

fn explain(args: &Export, error: volume::Error) -> Failure {
    let kind = error.kind();
    let failure = Failure::from(error);
    match kind {
        Kind::Corrupt if args.force => failure.with("or a session that is writing has used them again"),
        Kind::Io if args.to != Path::new("-") => failure.with("go on with --resume"),
        _ => failure,
    }
}

fn report(args: &Export, ended: &Ended, kept: u64) -> Result<(), Failure> {
    let (header, state) = (&ended.header, ended.header.state().to_string());
    if args.offline.json {
        return output::print_json(&json!({
            "file": args.to,
            "volume": hex::encode(header.volume),
            "state": state,
            "size": header.blocks * volume::format::BLOCK_SIZE as u64,
            "bytes": ended.bytes,
            "kept-bytes": kept,
        }));
    }
    let kept = match kept {
        0 => String::new(),
        kept => format!(" ({} of them were there already)", output::bytes(kept)),
    };
    let text = format!(
        "exported volume {} in its state {state} to {}: {}{kept}\nKeep the state's name: `import --expect {state}` refuses any other.",
        hex::encode(header.volume),
        if args.to == Path::new("-") { "standard output".into() } else { args.to.display().to_string() },
        output::bytes(ended.bytes),
    );
    if args.to == Path::new("-") {
        // Standard output has the stream.
        let _ = writeln!(std::io::stderr(), "{text}");
    } else {
        output::print(&text);
    }
    Ok(())
}
