//! What comes back: fetched beside its place, checked against the signed manifest, then moved there.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use super::ssh::{Channel, complaint};
use super::state::Record;
use crate::error::{Context, Error, Result};
use crate::file::Job;
use crate::guest::{CONTENT, Word};
use crate::manifest::{Resource, Statement};
use crate::tree::{Room, unpack};

/// Bytes of outputs at most, where the job file does not say: what the guest has memory for.
fn room(job: &Job) -> Room {
    Room { bytes: job.guest.memory.0 }
}

/// Fetches each output of a job that has ended, and compares it with the manifest: each file that was signed, and no other.
///
/// # Errors
/// If something cannot be fetched or written, or differs. Then nothing is put into place.
pub fn collect(channel: &Channel, record: &Record, job: &Job, statement: &Statement) -> Result<Vec<PathBuf>> {
    let mut ready = Vec::new();
    for (number, output) in job.outputs.iter().enumerate() {
        let name = output.from.file_name();
        let signed = signed_files(statement, &output.to, name);
        if signed.is_empty()
            && (output.optional
                || statement.predicate.end.exit_code != 0
                || statement.predicate.end.stopped_by.is_some())
        {
            continue;
        }
        // Beside its place: a file system of its own may be mounted there.
        let directory = record.base.join(&output.to);
        fs::create_dir_all(&directory).of(&directory)?;
        let work = tempfile::Builder::new().prefix(".cvmio-").tempdir_in(&directory).of(&directory)?;
        let found = fetch(channel, number, work.path(), room(job))?;
        compare(&found, &signed, name)?;
        ready.push((work, directory.join(name)));
    }
    let mut placed = Vec::new();
    for (work, to) in ready {
        if record.replace {
            remove(&to)?;
        } else if fs::symlink_metadata(&to).is_ok() {
            return Err(Error::usage(format!(
                "{} has appeared while the job ran, and is not replaced",
                to.display()
            )));
        }
        fs::rename(work.path().join(CONTENT), &to).of(&to)?;
        placed.push(to);
    }
    Ok(placed)
}

/// Removes what is to be replaced.
pub fn remove(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(status) if status.is_dir() => fs::remove_dir_all(path).of(path),
        Ok(_) => fs::remove_file(path).of(path),
        Err(_) => Ok(()),
    }
}

/// What was signed of an output: names below it, with digests.
fn signed_files(statement: &Statement, to: &Path, name: &str) -> Vec<(String, String)> {
    let top = to.join(name);
    let below = |file: &Resource| {
        let rest = Path::new(&file.name).strip_prefix(&top).ok()?;
        Some((rest.to_string_lossy().into_owned(), file.sha256()?.to_string()))
    };
    statement.subject.iter().filter_map(below).collect()
}

fn compare(found: &[Resource], signed: &[(String, String)], name: &str) -> Result<()> {
    let below = |file: &Resource| {
        let rest = Path::new(&file.name).strip_prefix(CONTENT).unwrap_or(Path::new(&file.name));
        (rest.to_string_lossy().into_owned(), file.sha256().unwrap_or_default().to_string())
    };
    let mut found: Vec<_> = found.iter().map(below).collect();
    let mut signed = signed.to_vec();
    found.sort();
    signed.sort();
    if found == signed {
        return Ok(());
    }
    let odd = found
        .iter()
        .find(|file| !signed.contains(file))
        .or_else(|| signed.iter().find(|file| !found.contains(file)));
    Err(Error::refused(format!(
        "the output {name} is not the one that the guest has signed: {:?} differs",
        odd.map(|(file, _)| file.as_str()).unwrap_or_default()
    )))
}

fn fetch(channel: &Channel, number: usize, directory: &Path, room: Room) -> Result<Vec<Resource>> {
    let mut child = channel.say(Word::Output(number))?;
    drop(child.stdin.take());
    let from = child.stdout.take().ok_or_else(|| Error::io("ssh has no output"))?;
    let mut from = BufReader::new(from);
    let found = unpack(&mut from, directory, room);
    let _ = std::io::copy(&mut from, &mut std::io::sink());
    let mut said = String::new();
    if let Some(mut errors) = child.stderr.take() {
        let _ = errors.read_to_string(&mut said);
    }
    if !child.wait().of("ssh")?.success() {
        return Err(complaint(Word::Output(number), &said));
    }
    found
}

/// Writes the manifest, new or in place of another.
pub fn keep_manifest(path: &Path, bytes: &[u8], replace: bool) -> Result<()> {
    let mut fresh = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new("."))).of(path)?;
    fresh.write_all(bytes).of(path)?;
    let kept = if replace { fresh.persist(path) } else { fresh.persist_noclobber(path) };
    kept.map(drop).map_err(|error| Error::file(path, error.error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Digest;

    #[test]
    fn a_file_that_differs_is_missing_or_was_added_is_noticed() {
        let file = |name: &str, byte| Resource::new(format!("{CONTENT}{name}"), Digest::new([byte; 32]));
        let signed = |name: &str, byte| (name.to_string(), Digest::new([byte; 32]).digits());
        assert!(compare(&[file("/a", 1), file("/b", 2)], &[signed("b", 2), signed("a", 1)], "o").is_ok());
        assert!(compare(&[file("", 1)], &[signed("", 1)], "o").is_ok(), "one file");
        for (found, wanted) in [
            (vec![file("/a", 2)], vec![signed("a", 1)]),
            (vec![], vec![signed("a", 1)]),
            (vec![file("/a", 1), file("/b", 1)], vec![signed("a", 1)]),
        ] {
            assert!(compare(&found, &wanted, "o").is_err());
        }
    }
}
