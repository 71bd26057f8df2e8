//! Files that are written for the user: run files, pages, pictures.
//!
//! They are written where the user says, and nothing else is harmed there: what is no file of ours is never replaced, a link is never
//! followed, and a run that has measured something is replaced only if that is said.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use clap::Args;
use report::run::{ParseError, Run};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::error::{Context, Error, Result};
use crate::ledger;

/// Where a run file goes.
#[derive(Args, Debug, Clone, Default)]
pub struct OutArgs {
    /// Where the run file goes [default: one named by the time]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Replace the run file that is there, with what it has measured
    #[arg(long, requires = "out")]
    pub replace: bool,
}

/// How many names are tried for a run file that was given none.
const NAMES: u32 = 1000;
/// So much of a file is read to find out whether it is one of ours.
const HEAD: u64 = 4096;

/// A run file that this process writes. It is whole at any moment.
#[derive(Debug)]
pub struct RunFile {
    path: PathBuf,
    /// Whether another name will do.
    made_up: bool,
    /// The file that has the name. None, if nothing has it yet.
    own: Option<Identity>,
}

impl RunFile {
    /// Where the user says, or at a name of its own.
    ///
    /// # Errors
    /// When there is something that may not be replaced.
    pub fn new(args: &OutArgs, kind: &str) -> Result<Self> {
        let Some(path) = &args.out else {
            let time: String = crate::machine::now().chars().filter(char::is_ascii_alphanumeric).collect();
            let path = PathBuf::from(format!("cvmio-bench-{kind}-{time}.json"));
            return Ok(Self { path, made_up: true, own: None });
        };
        let shown = path.display();
        let own = match seen(path)? {
            None => None,
            Some(metadata) => {
                match read(path)? {
                    Ok(run) if run.samples.is_empty() || args.replace => {}
                    Err(ParseError::OtherVersion(_)) if args.replace => {}
                    Ok(_) | Err(ParseError::OtherVersion(_)) => {
                        return Err(Error::usage(format!(
                            "{shown} is a run that has measured something; choose another --out, or say --replace to lose it \
                             (one that was cut short is gone on with by cvmio bench resume)"
                        )));
                    }
                    Err(error) => {
                        let message =
                            format!("{shown} is no run file, so it is not replaced; choose another --out");
                        return Err(Error::usage(message).because(error));
                    }
                }
                Some(identity(&metadata))
            }
        };
        Ok(Self { path: path.clone(), made_up: false, own })
    }

    /// One that is there, to be gone on with; with what it says.
    ///
    /// # Errors
    /// When it is no run file.
    pub fn existing(path: &Path) -> Result<(Self, Run)> {
        let shown = path.display();
        let metadata = seen(path)?.ok_or_else(|| Error::usage(format!("{shown} is not there")))?;
        let run = read(path)?.map_err(|error| Error::usage(format!("{shown}")).because(error))?;
        Ok((Self { path: path.into(), made_up: false, own: Some(identity(&metadata)) }, run))
    }

    /// Where it is; after the first [`save`](Self::save), if it was given no name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes it beside its place and then gives it its name.
    ///
    /// # Errors
    /// When there is no space, the directory cannot be written, or somebody else has put something there meanwhile.
    pub fn save(&mut self, run: &Run) -> Result<()> {
        let text = run.to_json().doing("the run")?;
        let first = self.path.clone();
        for number in 2..NAMES {
            let written = self.write(text.as_bytes());
            match &written {
                Err(error) if self.made_up && self.own.is_none() && is_taken(error) => {
                    // Another run began in the same second.
                    let stem = first.file_stem().unwrap_or_default().to_string_lossy();
                    self.path = first.with_file_name(format!("{stem}-{number}.json"));
                }
                _ => return written,
            }
        }
        Err(Error::io(format!("{} and what it might be called instead are there already", first.display())))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let shown = self.path.display();
        if let Some(own) = self.own {
            let there = fs::symlink_metadata(&self.path).doing(format!("{shown}, which this run writes"))?;
            if identity(&there) != own {
                return Err(Error::io(format!(
                    "{shown} is no longer the file of this run: somebody has replaced it"
                )));
            }
        }
        let beside = Beside::write(&self.path, bytes)?;
        self.own = Some(beside.rename(&self.path, self.own.is_some())?);
        Ok(())
    }
}

/// Whether a name was taken.
fn is_taken(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    source
        .and_then(|source| source.downcast_ref::<std::io::Error>())
        .is_some_and(|error| error.kind() == ErrorKind::AlreadyExists)
}

/// What is at a path: nothing, or a file. Links and what is no file are refused.
fn seen(path: &Path) -> Result<Option<Metadata>> {
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::usage(format!("{shown}")).because(error)),
        Ok(seen) if seen.is_symlink() => Err(Error::usage(format!(
            "{shown} is a link, which is not followed and not replaced; name the file that it leads to, or another one"
        ))),
        Ok(seen) if !seen.is_file() => {
            Err(Error::usage(format!("{shown} is there, and it is no file; choose another name")))
        }
        Ok(seen) => Ok(Some(seen)),
    }
}

/// What tells a file from others: device, number, and when it was written, since numbers are given again.
type Identity = (u64, u64, i64, i64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino(), metadata.mtime(), metadata.mtime_nsec())
}

/// A run file that is there.
fn read(path: &Path) -> Result<std::result::Result<Run, ParseError>> {
    let bytes = fs::read(path).map_err(|error| Error::usage(format!("{}", path.display())).because(error))?;
    Ok(Run::parse(&bytes))
}

/// A file that is whole and has no proper name yet.
struct Beside {
    path: PathBuf,
    /// So that nothing is left that nobody knows, if this process is killed now.
    _recorded: Option<ledger::Recorded>,
}

impl Beside {
    fn write(place: &Path, bytes: &[u8]) -> Result<Self> {
        let shown = place.display();
        let directory =
            place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let cannot = || format!("{shown} cannot be written");
        let directory = directory.canonicalize().doing(cannot())?;
        let letters: String = std::iter::repeat_with(fastrand::alphanumeric).take(8).collect();
        let path = directory.join(format!(".cvmio-bench-{letters}"));
        let beside = Self { _recorded: ledger::file(&path).ok(), path };
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(0o644).open(&beside.path).doing(cannot())?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        written.doing(format!("{}; what was there is whole", cannot()))?;
        Ok(beside)
    }

    /// Gives it its name, in the place of what had it or only if nothing has it; what tells it from others.
    fn rename(self, to: &Path, replace: bool) -> Result<Identity> {
        let shown = to.display();
        let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        let own = identity(&fs::symlink_metadata(&self.path).doing(&shown)?);
        match renameat_with(CWD, &self.path, CWD, to, flags) {
            // Some file systems cannot promise it.
            Err(rustix::io::Errno::INVAL) if !replace => fs::hard_link(&self.path, to),
            renamed => renamed.map_err(Into::into),
        }
        .doing(format!("{shown} cannot be written"))?;
        Ok(own)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // It has another name by now, or none is wanted any more.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes a page or picture as a whole. What is there is replaced if `is_ours` says of its beginning that a program like this one wrote it.
///
/// # Errors
/// When something else is there, there is no space, or the directory cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8], is_ours: fn(&[u8]) -> bool) -> Result<()> {
    let shown = path.display();
    let there = seen(path)?;
    if there.is_some() {
        let mut head = Vec::new();
        let read = File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
        read.doing(&shown)?;
        if !is_ours(&head) {
            return Err(Error::usage(format!(
                "{shown} was not written by cvmio bench report, so it is not replaced; choose another name"
            )));
        }
    }
    Beside::write(path, bytes)?.rename(path, there.is_some()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn run() -> Run {
        Run::parse(include_bytes!("../../report/tests/it/golden/run.json")).unwrap()
    }

    fn args(path: &Path, replace: bool) -> OutArgs {
        OutArgs { out: Some(path.into()), replace }
    }

    #[test]
    fn what_is_no_run_of_ours_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("precious"), "not for you").unwrap();
        symlink(at("precious"), at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        for replace in [false, true] {
            for (path, word) in [
                (at("precious"), "no run file"),
                (at("link"), "is a link"),
                (at("dangling"), "is a link"),
                (at("."), "no file"),
                ("/dev/null".into(), "no file"),
            ] {
                let said = RunFile::new(&args(&path, replace), "x").unwrap_err().to_string();
                assert!(said.contains(word), "{said}");
            }
        }
        assert_eq!(fs::read_to_string(at("precious")).unwrap(), "not for you");
        assert!(!at("nowhere").exists());
    }

    #[test]
    fn a_run_that_measured_something_is_replaced_only_if_that_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.json");
        RunFile::new(&args(&path, false), "x").unwrap().save(&run()).unwrap();
        let said = RunFile::new(&args(&path, false), "x").unwrap_err().to_string();
        assert!(said.contains("--replace") && said.contains("resume"), "{said}");
        let mut second = RunFile::new(&args(&path, true), "x").unwrap();
        let empty = Run { samples: Vec::new(), ..run() };
        second.save(&empty).unwrap();
        second.save(&empty).unwrap();
        // Nothing was measured yet.
        let mut third = RunFile::new(&args(&path, false), "x").unwrap();
        third.save(&run()).unwrap();
        let said = second.save(&empty).unwrap_err().to_string();
        assert!(said.contains("somebody has replaced it"), "{said}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing lies beside it");
    }

    #[test]
    fn what_appears_after_the_look_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.json");
        let mut file = RunFile::new(&args(&path, true), "x").unwrap();
        fs::write(&path, "somebody else's").unwrap();
        assert!(file.save(&run()).unwrap_err().to_string().contains("cannot be written"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody else's");
    }

    #[test]
    fn two_runs_of_one_second_have_two_names() {
        let directory = tempfile::tempdir().unwrap();
        let file =
            || RunFile { path: directory.path().join("cvmio-bench-fio-1.json"), made_up: true, own: None };
        let (mut first, mut second, mut third) = (file(), file(), file());
        for file in [&mut first, &mut second, &mut third] {
            file.save(&run()).unwrap();
            file.save(&run()).unwrap();
        }
        assert_eq!(second.path(), directory.path().join("cvmio-bench-fio-1-2.json"));
        assert_eq!(third.path(), directory.path().join("cvmio-bench-fio-1-3.json"));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_page_replaces_a_page_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("page.html");
        let is_page = |head: &[u8]| head.starts_with(b"page");
        write_whole(&path, b"page 1", is_page).unwrap();
        write_whole(&path, b"page 2", is_page).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"page 2");
        fs::write(&path, "thesis").unwrap();
        assert!(write_whole(&path, b"page 3", is_page).unwrap_err().to_string().contains("not replaced"));
        assert!(write_whole(Path::new("/dev/null"), b"page", is_page).is_err());
    }
}
