//! What opens an attached volume: asked for and changed over the control socket.

use seal::slot::{Argon2Params, Credential, SlotInfo};
use serde_json::Value;
use volume::KeyChange;
use volume::dump::SlotDump;

use super::service::Service;
use crate::failure::Failure;

/// The slots in force.
///
/// # Errors
/// The volume's own.
pub fn list(service: &Service) -> Result<Value, Failure> {
    json(service.slots()?)
}

/// Lets the second credential open what the first one opens. The slots in force then.
///
/// # Errors
/// The volume's own; those who use it have seen nothing of it.
pub fn add(service: &Service, credentials: Vec<Credential>, label: String) -> Result<Value, Failure> {
    let mut credentials = credentials.into_iter();
    let by = next(&mut credentials)?;
    let credential = next(&mut credentials)?;
    let change = KeyChange::Add { credential, label, argon2: Argon2Params::default() };
    json(service.change_slots(by, change)?)
}

/// Empties a slot. The slots in force then.
///
/// # Errors
/// The volume's own; those who use it have seen nothing of it.
pub fn remove(service: &Service, credentials: Vec<Credential>, slot: usize) -> Result<Value, Failure> {
    json(service.change_slots(next(&mut credentials.into_iter())?, KeyChange::Remove { slot })?)
}

fn next(credentials: &mut impl Iterator<Item = Credential>) -> Result<Credential, Failure> {
    credentials.next().ok_or_else(|| Failure::usage("a credential is missing"))
}

fn json(slots: Vec<SlotInfo>) -> Result<Value, Failure> {
    let slots: Vec<SlotDump> = slots.into_iter().map(SlotDump::from).collect();
    serde_json::to_value(slots).map_err(|error| Failure::internal(error.to_string()))
}
