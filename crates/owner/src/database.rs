//! The database: the audit log, and the table of volumes that follows from it, moved together in one transaction.

use crate::error::Error;
use crate::log::{Chain, ENTRY_SIZE, Entry, Event, Fault, Head, MAX_VOLUMES, State, Volume};
use anchor_owner::wire::Name;
use redb::{
    Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition, WriteTransaction,
};
use std::path::{Path, PathBuf};

mod row;

/// Entries by their number.
const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");
/// Volumes by their name; a row as in `row.rs`.
const VOLUMES: TableDefinition<&str, &[u8]> = TableDefinition::new("volumes");
/// `format`: the version, 1. `head`: number and hash of the last entry.
const ABOUT: TableDefinition<&str, &[u8]> = TableDefinition::new("about");

const FORMAT: &[u8] = b"cvmio-owner 1";

/// An open database. The file is locked: one process has it at a time.
pub struct Database {
    database: redb::Database,
    path: PathBuf,
}

/// What a check of the whole database found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Number of the oldest entry that is there.
    pub first: u64,
    /// The last entry.
    pub head: Head,
    /// What is held.
    pub state: State,
}

/// An entry that a log was found to have, and what was held there.
pub struct Reached {
    head: Head,
    state: State,
}

impl Reached {
    /// Which.
    #[must_use]
    pub fn head(&self) -> Head {
        self.head
    }
}

impl Database {
    /// Makes a database. It has no entry yet.
    ///
    /// # Errors
    /// If the file is there already, or can't be written.
    pub fn create(path: &Path) -> Result<Database, Error> {
        if path.exists() {
            return Err(Error::Usage(format!("{} is there already", path.display())));
        }
        let fail = |error| Error::database(path, error);
        let database = redb::Database::create(path).map_err(|error| fail(error.into()))?;
        let database = Database { database, path: path.to_owned() };
        let transaction = database.write()?;
        {
            let mut about = transaction.open_table(ABOUT).map_err(|error| fail(error.into()))?;
            about.insert("format", FORMAT).map_err(|error| fail(error.into()))?;
            about
                .insert("head", head_bytes(Head::default()).as_slice())
                .map_err(|error| fail(error.into()))?;
            transaction.open_table(LOG).map_err(|error| fail(error.into()))?;
            transaction.open_table(VOLUMES).map_err(|error| fail(error.into()))?;
        }
        transaction.commit().map_err(|error| fail(error.into()))?;
        Ok(database)
    }

    /// Opens a database.
    ///
    /// # Errors
    /// If there is none, it is in use, or it is none of ours.
    pub fn open(path: &Path) -> Result<Database, Error> {
        if !path.exists() {
            return Err(Error::Usage(format!(
                "{} does not exist: run `cvmio-owner init` first",
                path.display()
            )));
        }
        let database = redb::Database::open(path).map_err(|error| Error::database(path, error.into()))?;
        let database = Database { database, path: path.to_owned() };
        match database.about("format")? {
            Some(format) if format == FORMAT => Ok(database),
            _ => {
                Err(Error::Usage(format!("{} is no database of this version of cvmio-owner", path.display())))
            }
        }
    }

    /// Reads the whole log, and compares the table of volumes with it.
    ///
    /// # Errors
    /// [`Error::Fault`] with the first thing that is wrong.
    pub fn check(&self) -> Result<Checked, Error> {
        let (first, chain) = self.walk(u64::MAX)?;
        let (head, state) = chain.end().map_err(Error::Fault)?;
        let recorded = self.head()?;
        if recorded.number > head.number {
            return Err(Error::Fault(Fault::Cut { expected: recorded.number, found: head.number }));
        }
        if recorded != head {
            return Err(Error::Fault(Fault::Other(head.number.min(recorded.number))));
        }
        let held = self.volumes()?;
        for (name, volume) in &held {
            if state.volumes.get(name) != Some(volume) {
                return Err(Error::Fault(Fault::Table(format!("volume {name}"))));
            }
        }
        match state.volumes.keys().find(|name| !held.iter().any(|(there, _)| there == *name)) {
            Some(missing) => Err(Error::Fault(Fault::Table(format!("volume {missing} is missing")))),
            None => Ok(Checked { first, head, state }),
        }
    }

    /// Walks the log up to the entry `last`.
    fn walk(&self, last: u64) -> Result<(u64, Chain), Error> {
        let mut chain = Chain::default();
        let mut first = 0;
        self.each_entry(0, last, |number, bytes| {
            if first == 0 {
                first = number;
            }
            let entry = chain.push(bytes).map_err(Error::Fault)?;
            match entry.number == number {
                true => Ok(()),
                false => Err(Error::Fault(Fault::Misplaced { expected: number, found: entry.number })),
            }
        })?;
        Ok((first, chain))
    }

    fn each_entry(
        &self,
        from: u64,
        last: u64,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let transaction = self.database.begin_read().map_err(|error| self.fail(error))?;
        let log = transaction.open_table(LOG).map_err(|error| self.fail(error))?;
        for entry in log.range(from..=last).map_err(|error| self.fail(error))? {
            let (number, bytes) = entry.map_err(|error| self.fail(error))?;
            take(number.value(), bytes.value())?;
        }
        Ok(())
    }

    /// At most `limit` entries from `from` on, as they lie there.
    ///
    /// # Errors
    /// If the database can't be read.
    pub fn entries(&self, from: u64, limit: usize) -> Result<Vec<Vec<u8>>, Error> {
        let mut found = Vec::new();
        let last = from.saturating_add(limit as u64).saturating_sub(1);
        self.each_entry(from, last, |_, bytes| {
            found.push(bytes.to_vec());
            Ok(())
        })?;
        Ok(found)
    }

    /// Number of the oldest entry that is there; 0 if there is none.
    ///
    /// # Errors
    /// If the database can't be read.
    pub fn first(&self) -> Result<u64, Error> {
        let transaction = self.database.begin_read().map_err(|error| self.fail(error))?;
        let log = transaction.open_table(LOG).map_err(|error| self.fail(error))?;
        let first = log.first().map_err(|error| self.fail(error))?;
        Ok(first.map_or(0, |(number, _)| number.value()))
    }

    /// The volumes, by their names.
    ///
    /// # Errors
    /// If the database can't be read, or a row is no row.
    pub fn volumes(&self) -> Result<Vec<(Name, Volume)>, Error> {
        let transaction = self.database.begin_read().map_err(|error| self.fail(error))?;
        let table = transaction.open_table(VOLUMES).map_err(|error| self.fail(error))?;
        let mut volumes = Vec::new();
        for found in table.iter().map_err(|error| self.fail(error))? {
            let (name, bytes) = found.map_err(|error| self.fail(error))?;
            let unreadable =
                |why: String| Error::Fault(Fault::Table(format!("volume {:?}: {why}", name.value())));
            let volume = row::decode(bytes.value()).map_err(|error| unreadable(error.to_string()))?;
            volumes.push((Name::new(name.value()).map_err(|error| unreadable(error.to_string()))?, volume));
        }
        Ok(volumes)
    }

    /// The end of the log, as it was recorded with the last transaction.
    ///
    /// # Errors
    /// If the database can't be read.
    pub fn head(&self) -> Result<Head, Error> {
        let bytes = self.about("head")?.unwrap_or_default();
        parse_head(&bytes).ok_or_else(|| Error::Fault(Fault::Table("it has no end of the log".into())))
    }

    /// Whether the log has the entry `covered`: evidence that this is the database that somebody vouches for, or one that went on from it.
    ///
    /// # Errors
    /// [`Error::Fault`] if it has not.
    pub fn reach(&self, covered: Head) -> Result<Reached, Error> {
        let (_, chain) = self.walk(covered.number)?;
        let (head, state) = chain.end().map_err(Error::Fault)?;
        if head != covered {
            return Err(Error::Fault(Fault::Other(covered.number)));
        }
        Ok(Reached { head, state })
    }

    /// Drops what stands behind `covered` in the log, and makes the table of volumes anew. Returns what is held then.
    ///
    /// # Errors
    /// [`Error::Fault`] if the log does not have the entry `covered`.
    pub fn cut(&self, covered: Head) -> Result<State, Error> {
        let Reached { state, .. } = self.reach(covered)?;
        let transaction = self.write()?;
        {
            let mut log = transaction.open_table(LOG).map_err(|error| self.fail(error))?;
            log.retain_in(covered.number + 1.., |_, _| false).map_err(|error| self.fail(error))?;
            let mut table = transaction.open_table(VOLUMES).map_err(|error| self.fail(error))?;
            table.retain(|_, _| false).map_err(|error| self.fail(error))?;
            for (name, volume) in &state.volumes {
                table
                    .insert(name.as_str(), row::encode(volume).as_slice())
                    .map_err(|error| self.fail(error))?;
            }
            let mut about = transaction.open_table(ABOUT).map_err(|error| self.fail(error))?;
            about.insert("head", head_bytes(covered).as_slice()).map_err(|error| self.fail(error))?;
        }
        transaction.commit().map_err(|error| self.fail(error))?;
        Ok(state)
    }

    /// Begins a change.
    ///
    /// # Errors
    /// If the database can't be written.
    pub fn begin(&self) -> Result<Change<'_>, Error> {
        let head = self.head()?;
        Ok(Change { database: self, transaction: self.write()?, head, changed: false })
    }

    fn about(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let transaction = self.database.begin_read().map_err(|error| self.fail(error))?;
        let table = match transaction.open_table(ABOUT) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(self.fail(error)),
        };
        let found = table.get(key).map_err(|error| self.fail(error))?;
        Ok(found.map(|value| value.value().to_vec()))
    }

    fn write(&self) -> Result<WriteTransaction, Error> {
        let mut transaction = self.database.begin_write().map_err(|error| self.fail(error))?;
        transaction.set_durability(Durability::Immediate).map_err(|error| self.fail(error))?;
        // A client chooses bytes that are stored. In one phase, a crash could then leave a half-written state that its checksum calls whole.
        transaction.set_two_phase_commit(true);
        // A database that is opened after a crash must not take time in proportion to its size.
        transaction.set_quick_repair(true);
        Ok(transaction)
    }

    fn fail(&self, error: impl Into<redb::Error>) -> Error {
        Error::database(&self.path, error.into())
    }
}

/// A change under way: entries and the rows that follow from them. Nothing of it is there before [`Change::commit`].
pub struct Change<'a> {
    database: &'a Database,
    transaction: WriteTransaction,
    head: Head,
    changed: bool,
}

impl Change<'_> {
    /// A volume as it is after the entries so far.
    ///
    /// # Errors
    /// If the database can't be read.
    pub fn volume(&self, name: &Name) -> Result<Option<Volume>, Error> {
        let table = self.transaction.open_table(VOLUMES).map_err(|error| self.database.fail(error))?;
        let found = table.get(name.as_str()).map_err(|error| self.database.fail(error))?;
        found
            .map(|bytes| row::decode(bytes.value()))
            .transpose()
            .map_err(|error| Error::Fault(Fault::Table(format!("volume {name}: {error}"))))
    }

    /// Adds an entry, and brings the volume's row up to it.
    ///
    /// # Errors
    /// [`Error::Usage`] if the event can't follow; nothing was changed then.
    pub fn push(&mut self, time: u64, event: Event) -> Result<(), Error> {
        let entry = Entry { number: self.head.number + 1, time, event };
        if let Some(name) = entry.event.changes() {
            self.change_row(&name.clone(), &entry)?;
        }
        let bytes: [u8; ENTRY_SIZE] = entry.encode(&self.head.hash);
        let mut log = self.transaction.open_table(LOG).map_err(|error| self.database.fail(error))?;
        log.insert(entry.number, bytes.as_slice()).map_err(|error| self.database.fail(error))?;
        let mut hash = [0; 32];
        hash.copy_from_slice(&bytes[ENTRY_SIZE - 32..]);
        self.head = Head { number: entry.number, hash };
        self.changed = true;
        Ok(())
    }

    /// Applies the entry by the rules of the log, on a state that has this volume only.
    fn change_row(&self, name: &Name, entry: &Entry) -> Result<(), Error> {
        let volumes = self.volume(name)?.map(|volume| (name.clone(), volume)).into_iter().collect();
        let mut state = State { database: Some([0; 16]), anchored: false, volumes };
        state.apply(entry).map_err(|error| Error::Usage(error.to_string()))?;
        let mut table = self.transaction.open_table(VOLUMES).map_err(|error| self.database.fail(error))?;
        let is_full = table.len().map_err(|error| self.database.fail(error))? >= MAX_VOLUMES as u64;
        if is_full && matches!(entry.event, Event::Added(_)) {
            return Err(Error::Usage(format!("there are {MAX_VOLUMES} volumes, which is the limit")));
        }
        match state.volumes.get(name) {
            Some(volume) => table.insert(name.as_str(), row::encode(volume).as_slice()).map(|_| ()),
            None => table.remove(name.as_str()).map(|_| ()),
        }
        .map_err(|error| self.database.fail(error))
    }

    /// Whether there is something to commit.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// Drops the entries before `first`, which a snapshot has made needless.
    ///
    /// # Errors
    /// If the database can't be written.
    pub fn drop_before(&mut self, first: u64) -> Result<(), Error> {
        let mut log = self.transaction.open_table(LOG).map_err(|error| self.database.fail(error))?;
        log.retain_in(..first, |_, _| false).map_err(|error| self.database.fail(error))?;
        self.changed = true;
        Ok(())
    }

    /// The last entry so far.
    #[must_use]
    pub fn head(&self) -> Head {
        self.head
    }

    /// Makes the change durable.
    ///
    /// # Errors
    /// Whether it is there is unknown then: the database must be opened anew.
    pub fn commit(self) -> Result<Head, Error> {
        {
            let mut about = self.transaction.open_table(ABOUT).map_err(|error| self.database.fail(error))?;
            about
                .insert("head", head_bytes(self.head).as_slice())
                .map_err(|error| self.database.fail(error))?;
        }
        self.transaction.commit().map_err(|error| self.database.fail(error))?;
        Ok(self.head)
    }
}

fn head_bytes(head: Head) -> [u8; 40] {
    let mut out = [0; 40];
    out[..8].copy_from_slice(&head.number.to_le_bytes());
    out[8..].copy_from_slice(&head.hash);
    out
}

fn parse_head(bytes: &[u8]) -> Option<Head> {
    let (number, hash) = bytes.split_first_chunk::<8>()?;
    Some(Head { number: u64::from_le_bytes(*number), hash: hash.try_into().ok()? })
}

#[cfg(test)]
mod tests;
