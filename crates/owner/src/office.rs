//! The owner's commands, through the running service where there is one, else on the database itself.

use crate::control;
use crate::error::Error;
use crate::keeper::{Command, Keeper, Reply, Report};
use crate::log::{Chain, ENTRY_SIZE, Entry, Fault, Head, State};
use anchor::Anchor;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the owner's commands go.
pub enum Office {
    /// To the service that runs on this state directory.
    Running(PathBuf),
    /// To the database itself, which no service uses.
    Resting(Box<Keeper>),
}

/// What the check of a log found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    /// Number of the first entry that was checked.
    pub first: u64,
    /// The last entry.
    pub head: Head,
    /// What is held after it.
    pub state: State,
}

impl Office {
    /// Finds out where commands go.
    ///
    /// # Errors
    /// Without a running service: as for starting it.
    pub fn open(
        directory: &Path,
        own: impl FnOnce() -> Result<Option<Arc<dyn Anchor>>, Error>,
        report: Report,
    ) -> Result<Office, Error> {
        let socket = directory.join(crate::CONTROL);
        if control::ask(&socket, &Command::List {})?.is_some() {
            return Ok(Office::Running(socket));
        }
        Ok(Office::Resting(Box::new(Keeper::open(directory, own()?, report)?)))
    }

    /// Carries out a command.
    ///
    /// # Errors
    /// [`Error::Usage`] with the reason, if it is refused.
    pub fn order(&mut self, command: Command) -> Result<Reply, Error> {
        let reply = match self {
            Office::Running(socket) => match control::ask(socket, &command)? {
                Some(reply) => reply,
                None => return Err(Error::Usage("the service has just ended; try again".into())),
            },
            Office::Resting(keeper) => keeper.administer(command)?,
        };
        reply.map_err(Error::Usage)
    }

    /// Each entry of the log that the database has.
    ///
    /// # Errors
    /// If the log can't be read.
    pub fn each_entry(&mut self, mut take: impl FnMut(&[u8]) -> Result<(), Error>) -> Result<(), Error> {
        let mut from = 0;
        loop {
            let Reply::Entries { first, entries } = self.order(Command::Entries { from })? else {
                return Err(Error::Usage("the service gives no entries".into()));
            };
            if from == 0 && entries.is_empty() && first > 0 {
                from = first;
                continue;
            }
            if entries.is_empty() {
                return Ok(());
            }
            from = from.max(first) + entries.len() as u64;
            for text in entries {
                take(&hex::decode(text).map_err(|error| Error::Usage(error.to_string()))?)?;
            }
        }
    }

    /// Checks the log: that of the archive, where there is one, and behind it that of the database. `vouched`, if given, must be in it.
    ///
    /// # Errors
    /// [`Error::Fault`] with the first thing that is wrong.
    pub fn verify(&mut self, directory: &Path, vouched: Option<Head>) -> Result<Verified, Error> {
        let mut walk = Walk::new(vouched);
        for file in archived(&directory.join(crate::ARCHIVE))? {
            walk.file(&file)?;
        }
        self.each_entry(|bytes| walk.entry(bytes))?;
        walk.end()
    }
}

/// Checks a log in files: an archive, or what `cvmio-owner audit export` wrote.
///
/// # Errors
/// [`Error::Fault`] with the first thing that is wrong.
pub fn verify_files(files: &[PathBuf], vouched: Option<Head>) -> Result<Verified, Error> {
    let mut walk = Walk::new(vouched);
    for file in files {
        walk.file(file)?;
    }
    walk.end()
}

fn archived(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let fail = |error| Error::Io("read", directory.to_owned(), error);
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A check under way.
struct Walk {
    chain: Chain,
    first: u64,
    vouched: Option<Head>,
    found: bool,
}

impl Walk {
    fn new(vouched: Option<Head>) -> Walk {
        Walk { chain: Chain::default(), first: 0, vouched, found: false }
    }

    fn file(&mut self, path: &Path) -> Result<(), Error> {
        let bytes = fs::read(path).map_err(|error| Error::Io("read", path.to_owned(), error))?;
        bytes.chunks(ENTRY_SIZE).try_for_each(|entry| self.entry(entry))
    }

    fn entry(&mut self, bytes: &[u8]) -> Result<(), Error> {
        // A crash between archiving and dropping leaves entries in two places.
        let again = Entry::decode(bytes).is_ok_and(|(entry, ..)| entry.number <= self.chain.head().number);
        if again && self.first > 0 {
            return Ok(());
        }
        let entry = self.chain.push(bytes).map_err(Error::Fault)?;
        if self.first == 0 {
            self.first = entry.number;
        }
        if self.vouched.is_some_and(|vouched| vouched.number == entry.number) {
            self.found = self.vouched == Some(self.chain.head());
            if !self.found {
                return Err(Error::Fault(Fault::Other(entry.number)));
            }
        }
        Ok(())
    }

    fn end(self) -> Result<Verified, Error> {
        let (head, state) = self.chain.end().map_err(Error::Fault)?;
        match self.vouched {
            Some(vouched) if !self.found => {
                Err(Error::Fault(Fault::Cut { expected: vouched.number, found: head.number }))
            }
            _ if head.number == 0 => Err(Error::Usage("there is no entry to check".into())),
            _ => Ok(Verified { first: self.first, head, state }),
        }
    }
}
