//! What opens an attached volume: asked for and changed over the control socket.

use seal::slot::{Argon2Params, Credential, SlotInfo};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use volume::dump::SlotDump;
use volume::{BackedUp, HeaderInfo, KeyChange, KeysChanged};

use super::service::Service;
use cli::failure::Failure;

/// The slots in force.
///
/// # Errors
/// The volume's own.
pub fn list(service: &Service) -> Result<Value, Failure> {
    to_json(dumps(service.slots()?))
}

/// A header backup, and what is in it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Backup {
    /// The file's content.
    #[serde(with = "hex::serde")]
    pub bytes: Vec<u8>,
    /// Volume, generation and slots of the header.
    pub header: Value,
}

impl From<BackedUp> for Backup {
    fn from(saved: BackedUp) -> Self {
        Self { bytes: saved.bytes, header: header_json(&saved.header) }
    }
}

/// A header as it is shown to programs.
pub fn header_json(info: &HeaderInfo) -> Value {
    let slots: Vec<Value> =
        info.slots.iter().map(|slot| json!({ "index": slot.index, "label": slot.label })).collect();
    json!({ "volume": hex::encode(info.volume), "generation": info.generation, "slots": slots })
}

/// A copy of header and key slots.
///
/// # Errors
/// The volume's own.
pub fn back_up(service: &Service) -> Result<Value, Failure> {
    to_json(Backup::from(service.header_backup()?))
}

/// What is answered to who has changed the slots.
#[derive(Debug, Serialize, Deserialize)]
pub struct Changed {
    /// The slots in force.
    pub slots: Vec<SlotDump>,
    /// What the owner may not have meant.
    pub warning: Option<String>,
}

/// Lets the second credential open what the first one opens.
///
/// # Errors
/// The volume's own; those who use it have seen nothing of it.
pub fn add(service: &Service, credentials: Vec<Credential>, label: String) -> Result<Value, Failure> {
    let mut credentials = credentials.into_iter();
    let by = next(&mut credentials)?;
    let credential = next(&mut credentials)?;
    let change = KeyChange::Add { credential, label, argon2: Argon2Params::default() };
    changed(service.change_slots(by, change)?)
}

/// Empties a slot.
///
/// # Errors
/// The volume's own; those who use it have seen nothing of it.
pub fn remove(service: &Service, credentials: Vec<Credential>, slot: usize) -> Result<Value, Failure> {
    changed(service.change_slots(next(&mut credentials.into_iter())?, KeyChange::Remove { slot })?)
}

fn next(credentials: &mut impl Iterator<Item = Credential>) -> Result<Credential, Failure> {
    credentials.next().ok_or_else(|| Failure::usage("a credential is missing"))
}

fn changed(change: KeysChanged) -> Result<Value, Failure> {
    let warning = change.notice.map(|notice| notice.to_string());
    to_json(Changed { slots: dumps(change.slots), warning })
}

fn dumps(slots: Vec<SlotInfo>) -> Vec<SlotDump> {
    slots.into_iter().map(SlotDump::from).collect()
}

fn to_json(answer: impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(answer).map_err(|error| Failure::internal(error.to_string()))
}
