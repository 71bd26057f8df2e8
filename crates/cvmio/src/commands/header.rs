//! `cvmio volume header`: header and key slots to a file, and back.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::Path;

use serde_json::{Value, json};
use volume::format::backup;
use volume::{AttachOptions, BackedUp, HeaderInfo, Restored};

use super::offline::{self, Opened};
use super::stream;
use crate::cli::header::{Header, HeaderBackup, HeaderRestore};
use cli::failure::Failure;
use cli::output;
use daemon::input::VolumeFiles;

pub fn run(args: &Header) -> Result<(), Failure> {
    match args {
        Header::Backup(args) => back_up(args),
        Header::Restore(args) => restore(args),
    }
}

fn back_up(args: &HeaderBackup) -> Result<(), Failure> {
    let to_pipe = args.file == Path::new("-");
    if to_pipe {
        check_output(args)?;
    }
    let to = stream::place(&args.file, "/proc/self/fd/1");
    let refuse_same = |files: VolumeFiles<'_>| files.refuse_same(&[vec![("backup", Some(to))]]);
    let Opened { environment, policy, credential } = offline::open_with(&args.offline, false, refuse_same)?;
    let spinner = output::spinner("reading the header");
    let job = volume::backup_header(environment, policy, credential, AttachOptions::default())?;
    let BackedUp { bytes, header: info } = job.block()?;
    drop(spinner);
    if to_pipe {
        write_out(&bytes)?;
        // Standard output has the backup.
        let _ = writeln!(std::io::stderr(), "saved {} to standard output", header_text(&info));
        return Ok(());
    }
    save(&args.file, &bytes)?;
    if args.offline.json {
        return output::print_json(&json!({ "file": args.file, "header": header_json(&info) }));
    }
    output::print(&format!("saved {} to {}", header_text(&info), args.file.display()));
    Ok(())
}

fn restore(args: &HeaderRestore) -> Result<(), Failure> {
    let bytes = load(&args.file)?;
    let from = stream::place(&args.file, "/proc/self/fd/0");
    let refuse_same = |files: VolumeFiles<'_>| files.refuse_same(&[vec![("backup", Some(from))]]);
    let Opened { environment, policy, credential } = offline::open_with(&args.offline, true, refuse_same)?;
    let spinner = output::spinner("restoring the header");
    let options = AttachOptions::default();
    let restored = volume::restore_header(environment, policy, credential, bytes, options)?.block()?;
    drop(spinner);
    warn(&restored);
    if args.offline.json {
        return output::print_json(&json!({
            "store": args.offline.store, "copies-written": restored.copies, "anchored": restored.anchored,
            "replaced-newer-generation": restored.newer, "header": header_json(&restored.header),
        }));
    }
    let text = header_text(&restored.header);
    output::print(&match restored.copies {
        0 => format!("both copies are {text} already; nothing was written"),
        1 => format!("restored one copy, the other was whole: {text}"),
        _ => format!("restored {text}"),
    });
    Ok(())
}

/// What the anchor would have refused.
fn warn(restored: &Restored) {
    if let Some(newer) = restored.newer {
        output::warning(&format!(
            "this header is older than the one that it replaced (generation {newer}): key slots that were removed since are back; look at them with `cvmio volume key list`"
        ));
    } else if !restored.anchored {
        output::warning(
            "freshness is off, so nothing says whether this header is the latest: key slots that were removed since the backup are back",
        );
    }
}

/// Standard output takes nothing but the backup.
fn check_output(args: &HeaderBackup) -> Result<(), Failure> {
    let why = if std::io::stdout().is_terminal() {
        "a backup is nothing for a terminal; name a file, or use a pipe"
    } else if output::stdout_is_closed() {
        "standard output is closed, so the backup would go nowhere; name a file, or use a pipe"
    } else if args.offline.json {
        "standard output takes nothing but the backup: leave --json out, or name a file"
    } else {
        return Ok(());
    };
    Err(Failure::usage(why))
}

/// That nobody reads it is a failure: there is no backup then.
fn write_out(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(|error| Failure::io(format!("the backup cannot be written to standard output: {error}")))
}

/// A new file, durable with its directory, for its owner only.
fn save(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let fail = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::usage(format!(
            "{} exists already, and a backup is never overwritten; name another file",
            path.display()
        )),
        _ => cli::input::unwritten("backup", path, &error),
    };
    cli::input::new_file(path, bytes, 0o600, false).map_err(fail)
}

fn load(path: &Path) -> Result<Vec<u8>, Failure> {
    let fail = |error: std::io::Error| {
        Failure::usage(format!("the backup {} cannot be read: {error}", path.display()))
    };
    cli::input::take(path, "backup")?;
    let source: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(path).map_err(fail)?),
    };
    let mut bytes = Vec::new();
    // One more than there should be, to notice a file that is longer.
    let limit = backup::SIZE as u64 + 1;
    source.take(limit).read_to_end(&mut bytes).map_err(fail)?;
    Ok(bytes)
}

fn header_text(info: &HeaderInfo) -> String {
    let slots: Vec<String> = info
        .slots
        .iter()
        .map(|slot| format!("{} {}", slot.index, slot.label).trim_end().to_string())
        .collect();
    format!(
        "the header of volume {}, generation {}, key slots: {}",
        hex::encode(info.volume),
        info.generation,
        slots.join(", ")
    )
}

fn header_json(info: &HeaderInfo) -> Value {
    let slots: Vec<Value> =
        info.slots.iter().map(|slot| json!({ "index": slot.index, "label": slot.label })).collect();
    json!({ "volume": hex::encode(info.volume), "generation": info.generation, "slots": slots })
}
