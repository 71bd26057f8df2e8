//! What opens an attached volume: asked for and changed over the control socket.

use seal::slot::{Argon2Params, Credential, SlotInfo};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use volume::dump::SlotDump;
use volume::{KeyChange, KeysChanged};

use super::service::Service;
use cli::failure::Failure;

/// The slots in force.
///
/// # Errors
/// The volume's own.
pub fn list(service: &Service) -> Result<Value, Failure> {
    json(dumps(service.slots()?))
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
    json(Changed { slots: dumps(change.slots), warning })
}

fn dumps(slots: Vec<SlotInfo>) -> Vec<SlotDump> {
    slots.into_iter().map(SlotDump::from).collect()
}

fn json(answer: impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(answer).map_err(|error| Failure::internal(error.to_string()))
}
