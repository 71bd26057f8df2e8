//! What the service holds, as the entries of the log make it.

use super::entry::{ClientId, Entry, Event, Move};
use anchor::{Stamp, State as Life};
use anchor_owner::wire::Name;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Most volumes that one service keeps.
pub const MAX_VOLUMES: usize = 4096;

/// Most clients that may move one volume.
pub const MAX_CLIENTS: usize = 16;

/// One volume's place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Volume {
    /// Its stamp does not move any more.
    pub retired: bool,
    /// The clients that may read and move it.
    pub clients: BTreeSet<ClientId>,
    /// Its stamp; `None` before the first claim.
    pub stamp: Option<Box<Stamp>>,
}

/// What the service holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// Identity of the database; `None` before the first entry.
    pub database: Option<[u8; 16]>,
    /// Whether the service has an anchor of its own.
    pub anchored: bool,
    /// The volumes by name.
    pub volumes: BTreeMap<Name, Volume>,
}

/// An entry that can't follow on the state before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateError(pub String);

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StateError {}

fn impossible(why: impl fmt::Display) -> StateError {
    StateError(why.to_string())
}

impl State {
    /// What is held after `entry`.
    ///
    /// # Errors
    /// If the entry can't follow: the service writes no such log.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), StateError> {
        match &entry.event {
            Event::Made { database, anchored } => self.begin(entry.number == 1, database, *anchored),
            Event::Snapshot { database, anchored } => {
                // The snapshot must say the same as what was before, where that is known; `Chain` compares.
                self.volumes.clear();
                let same = self.database.is_none_or(|known| known == *database);
                self.database = None;
                self.begin(same, database, *anchored)
            }
            _ if self.database.is_none() => {
                Err(impossible("the log begins neither with its making nor with a snapshot"))
            }
            Event::Started
            | Event::Stopped
            | Event::Cut(_)
            | Event::Refused { .. }
            | Event::Released { .. }
            | Event::Withheld { .. } => Ok(()),
            Event::Added(name) => self.add(name, false),
            Event::KeptVolume(name, retired) => self.add(name, *retired),
            Event::Allowed(name, client) | Event::KeptClient(name, client) => self.allow(name, client),
            Event::Disallowed(name, client) => match self.volume(name)?.clients.remove(client) {
                true => Ok(()),
                false => Err(impossible("the client was not allowed before")),
            },
            Event::Retired(name) => {
                self.volume(name)?.retired = true;
                Ok(())
            }
            Event::Removed(name) => match self.volumes.remove(name) {
                Some(_) => Ok(()),
                None => Err(impossible(format!("there is no volume {name}"))),
            },
            Event::Moved(kind, name, client, new) => self.moved(*kind, name, client, new),
            Event::Conflict { name, .. } => self.volume(name).map(|_| ()),
            Event::KeptStamp(name, stamp) => {
                self.volume(name)?.stamp = Some(stamp.clone());
                Ok(())
            }
        }
    }

    fn begin(&mut self, fits: bool, database: &[u8; 16], anchored: bool) -> Result<(), StateError> {
        if !fits || self.database.is_some() {
            return Err(impossible("another log begins here"));
        }
        self.database = Some(*database);
        self.anchored = anchored;
        Ok(())
    }

    fn volume(&mut self, name: &Name) -> Result<&mut Volume, StateError> {
        self.volumes.get_mut(name).ok_or_else(|| impossible(format!("there is no volume {name}")))
    }

    fn add(&mut self, name: &Name, retired: bool) -> Result<(), StateError> {
        if self.volumes.len() >= MAX_VOLUMES {
            return Err(impossible(format!("there are {MAX_VOLUMES} volumes, which is the limit")));
        }
        match self.volumes.insert(name.clone(), Volume { retired, ..Volume::default() }) {
            None => Ok(()),
            Some(_) => Err(impossible(format!("the volume {name} is there already"))),
        }
    }

    fn allow(&mut self, name: &Name, client: &ClientId) -> Result<(), StateError> {
        let volume = self.volume(name)?;
        if volume.clients.len() >= MAX_CLIENTS {
            return Err(impossible(format!(
                "the volume {name} has {MAX_CLIENTS} clients, which is the limit"
            )));
        }
        match volume.clients.insert(*client) {
            true => Ok(()),
            false => Err(impossible(format!("the client may move {name} already"))),
        }
    }

    fn moved(&mut self, kind: Move, name: &Name, client: &ClientId, new: &Stamp) -> Result<(), StateError> {
        let volume = self.volume(name)?;
        if volume.retired || !volume.clients.contains(client) {
            return Err(impossible(format!("the client must not move {name}")));
        }
        if !volume.takes(new) {
            return Err(impossible(format!(
                "the stamp of {name} belongs to another volume, or follows its end"
            )));
        }
        if Move::between(volume.stamp.as_deref(), new) != kind {
            return Err(impossible(format!("the move of {name} is of another kind")));
        }
        volume.stamp = Some(Box::new(new.clone()));
        Ok(())
    }
}

impl Volume {
    /// Whether `new` may follow on what is held: it is of the same volume, and the held one is not terminal.
    #[must_use]
    pub fn takes(&self, new: &Stamp) -> bool {
        self.stamp.as_ref().is_none_or(|held| held.volume == new.volume && held.state != Life::Terminal)
    }
}
