//! `cvmio volume header`: header and key slots to a file, and back.

use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::Path;

use serde_json::{Value, json};
use volume::format::backup;
use volume::{AttachOptions, Restored};

use super::offline::{self, Opened};
use super::stream;
use crate::cli::Offline;
use crate::cli::header::{Header, HeaderBackup, HeaderRestore};
use cli::failure::Failure;
use cli::output;
use daemon::control::Request;
use daemon::input::VolumeFiles;
use daemon::runtime::{self, Place};
use daemon::{Backup, header_json};

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
    let Backup { bytes, header } = match offline::running(&args.offline.store, &args.runtime)? {
        Some(place) => {
            let Offline { store, policy, buffered, .. } = &args.offline;
            offline::refuse_for_attached(store, policy.as_deref(), *buffered, false)?;
            from_daemon(&place)?
        }
        None => from_store(args)?,
    };
    if to_pipe {
        write_out(&bytes)?;
        // Standard output has the backup.
        let _ = writeln!(std::io::stderr(), "saved {} to standard output", header_text(&header));
        return Ok(());
    }
    save(&args.file, &bytes)?;
    if args.offline.json {
        return output::print_json(&json!({ "file": args.file, "header": header }));
    }
    output::print(&format!("saved {} to {}", header_text(&header), args.file.display()));
    Ok(())
}

fn from_daemon(place: &Place) -> Result<Backup, Failure> {
    serde_json::from_value(place.ask_soon(&Request::BackUpHeader)?)
        .map_err(|error| Failure::internal(error.to_string()))
}

/// The header on a store; of one that is attached, what its daemon has in force.
fn from_store(args: &HeaderBackup) -> Result<Backup, Failure> {
    let to = stream::place(&args.file, "/proc/self/fd/1");
    let refuse_same = |files: VolumeFiles<'_>| files.refuse_same(&[vec![("backup", Some(to))]]);
    let Opened { environment, policy, credential } =
        match offline::open_with(&args.offline, false, refuse_same) {
            Err(failure) if failure.is_in_use() => {
                let runtime = args.runtime.directory()?;
                let place = runtime::attached_from(&runtime, &args.offline.store);
                return place.map_or(Err(failure), |place| from_daemon(&place));
            }
            opened => opened?,
        };
    let spinner = output::spinner("reading the header");
    let job = volume::backup_header(environment, policy, credential, AttachOptions::default())?;
    let saved = job.block()?;
    drop(spinner);
    Ok(saved.into())
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
    let header = header_json(&restored.header);
    if args.offline.json {
        return output::print_json(&json!({
            "store": args.offline.store, "copies-written": restored.copies, "anchored": restored.anchored,
            "replaced-newer-generation": restored.newer, "header": header,
        }));
    }
    let text = header_text(&header);
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

fn header_text(header: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let slots = header["slots"].as_array().into_iter().flatten();
    let slots: Vec<String> = slots
        .map(|slot| format!("{} {}", slot["index"], text(&slot["label"])).trim_end().to_string())
        .collect();
    format!(
        "the header of volume {}, generation {}, key slots: {}",
        text(&header["volume"]),
        header["generation"],
        slots.join(", ")
    )
}
