//! What the owner can order: through the control socket of the running service, or on the database itself while there is none.

use crate::database::Change;
use crate::error::Error;
use crate::log::{ClientId, Event, MAX_CLIENTS};
use anchor_owner::wire::Name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Most entries of the log in one reply.
const ENTRIES: usize = 1000;

/// An order. Clients are 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Which volumes there are.
    List {},
    /// A place for a volume, and the clients that may move it.
    Add {
        /// The volume.
        name: String,
        /// Its clients.
        clients: Vec<String>,
    },
    /// One more client may move a volume.
    Allow {
        /// The volume.
        name: String,
        /// The client.
        client: String,
    },
    /// A client may not move a volume any more.
    Disallow {
        /// The volume.
        name: String,
        /// The client.
        client: String,
    },
    /// A volume's stamp does not move any more.
    Retire {
        /// The volume.
        name: String,
    },
    /// A volume's place is given up.
    Remove {
        /// The volume.
        name: String,
    },
    /// Entries of the log, from this number on.
    Entries {
        /// The number of the first one.
        from: u64,
    },
}

/// What an order gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reply {
    /// It was done.
    Done,
    /// The volumes.
    Volumes(Vec<VolumeReport>),
    /// A part of the log.
    Entries {
        /// Number of the oldest entry that the database has.
        first: u64,
        /// Entries, each in hexadecimal digits.
        entries: Vec<String>,
    },
}

/// One volume, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct VolumeReport {
    /// Its name.
    pub name: String,
    /// `unclaimed`, `claimed`, `released`, `terminal`.
    pub state: String,
    /// Its stamp does not move any more.
    pub retired: bool,
    /// The volume's own identity, once it was claimed.
    pub volume: Option<String>,
    /// Number of the last anchored journal record.
    pub generation: Option<u64>,
    /// How many times it was claimed.
    pub claims: Option<u64>,
    /// The clients that may move it.
    pub clients: Vec<String>,
}

/// Carries out an order. The inner error is for the owner: nothing was changed.
pub(super) fn carry_out(
    change: &mut Change<'_>,
    time: u64,
    command: Command,
) -> Result<Result<Reply, String>, Error> {
    let events = match prepare(command) {
        Err(why) => return Ok(Err(why)),
        Ok(Plan::List) => return list(change).map(Ok),
        Ok(Plan::Entries(from)) => {
            let (first, entries) = change.entries(from, ENTRIES)?;
            return Ok(Ok(Reply::Entries { first, entries: entries.iter().map(hex::encode).collect() }));
        }
        Ok(Plan::Events(events)) => events,
    };
    for event in events {
        match change.push(time, event) {
            Ok(()) => {}
            Err(Error::Usage(why)) => return Ok(Err(why)),
            Err(error) => return Err(error),
        }
    }
    Ok(Ok(Reply::Done))
}

enum Plan {
    List,
    Entries(u64),
    Events(Vec<Event>),
}

fn prepare(command: Command) -> Result<Plan, String> {
    Ok(Plan::Events(match command {
        Command::List {} => return Ok(Plan::List),
        Command::Entries { from } => return Ok(Plan::Entries(from)),
        Command::Add { name, clients } => {
            let name = parse_name(&name)?;
            // All is checked before the first entry: a command is carried out whole or not at all.
            let clients: BTreeSet<ClientId> =
                clients.iter().map(|client| parse_client(client)).collect::<Result<_, _>>()?;
            if clients.len() > MAX_CLIENTS {
                return Err(format!("a volume has at most {MAX_CLIENTS} clients"));
            }
            let added = Event::Added(name.clone());
            let allowed = clients.into_iter().map(|client| Event::Allowed(name.clone(), client));
            std::iter::once(added).chain(allowed).collect()
        }
        Command::Allow { name, client } => vec![Event::Allowed(parse_name(&name)?, parse_client(&client)?)],
        Command::Disallow { name, client } => {
            vec![Event::Disallowed(parse_name(&name)?, parse_client(&client)?)]
        }
        Command::Retire { name } => vec![Event::Retired(parse_name(&name)?)],
        Command::Remove { name } => vec![Event::Removed(parse_name(&name)?)],
    }))
}

fn parse_name(text: &str) -> Result<Name, String> {
    text.parse().map_err(|error| format!("{text:?} is no name of a volume: {error}"))
}

fn parse_client(text: &str) -> Result<ClientId, String> {
    let mut client = [0; 32];
    hex::decode_to_slice(text, &mut client).map_err(|_| {
        format!("{text:?} is no client: give 64 hexadecimal digits, or the certificate's file")
    })?;
    Ok(client)
}

fn list(change: &Change<'_>) -> Result<Reply, Error> {
    let volumes = change.volumes()?;
    let report = volumes.into_iter().map(|(name, volume)| VolumeReport {
        name: name.to_string(),
        state: match &volume.stamp {
            None => "unclaimed".into(),
            Some(stamp) => format!("{:?}", stamp.state).to_lowercase(),
        },
        retired: volume.retired,
        volume: volume.stamp.as_ref().map(|stamp| hex::encode(stamp.volume)),
        generation: volume.stamp.as_ref().map(|stamp| stamp.generation),
        claims: volume.stamp.as_ref().map(|stamp| stamp.claims),
        clients: volume.clients.iter().map(hex::encode).collect(),
    });
    Ok(Reply::Volumes(report.collect()))
}
