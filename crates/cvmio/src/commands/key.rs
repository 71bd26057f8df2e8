//! `cvmio volume key`: what opens a volume, attached or not.

use seal::slot::{Argon2Params, Credential};
use volume::dump::SlotDump;
use volume::{AttachOptions, Environment, KeyChange};

use super::offline::{self, Opened, slot_line};
use crate::cli::header::{Key, KeyAdd, KeyList, KeyRemove};
use crate::cli::{CredentialArgs, Offline};
use cli::failure::Failure;
use cli::output;
use daemon::control::Request;
use daemon::input::{self, Origin};
use daemon::runtime::Place;
use daemon::{SlotsChanged, system};

pub fn run(args: &Key) -> Result<(), Failure> {
    match args {
        Key::Add(args) => add(args),
        Key::Remove(args) => remove(args),
        Key::List(args) => list(args),
    }
}

fn add(args: &KeyAdd) -> Result<(), Failure> {
    let new = || -> Result<Credential, Failure> {
        let key_file = args.new_key_file.clone().or(args.new_released_file.clone());
        let passphrase_file = args.new_passphrase_file.clone();
        let args_of_new = CredentialArgs { key_file, passphrase_file, ..CredentialArgs::default() };
        match input::load(&args_of_new, Origin::New)? {
            Credential::KeyFile(secret) if args.new_released_file.is_some() => {
                Ok(Credential::Released(secret))
            }
            other => Ok(other),
        }
    };
    if let Some(place) = offline::running(&args.offline.store, &args.runtime)? {
        let request = Request::AddSlot { label: args.label.clone() };
        return change_attached(&args.offline, args.force, &place, &request, || Ok(vec![new()?]));
    }
    let opened = offline::open(&args.offline, true)?;
    let (credential, label) = (new()?, args.label.clone());
    let change = KeyChange::Add { credential, label, argon2: Argon2Params::default() };
    change_keys(&args.offline, opened, change, args.force)
}

fn remove(args: &KeyRemove) -> Result<(), Failure> {
    if let Some(place) = offline::running(&args.offline.store, &args.runtime)? {
        let request = Request::RemoveSlot { slot: args.slot };
        return change_attached(&args.offline, args.force, &place, &request, || Ok(Vec::new()));
    }
    let opened = offline::open(&args.offline, true)?;
    change_keys(&args.offline, opened, KeyChange::Remove { slot: args.slot }, args.force)
}

/// Lets the daemon do it.
fn change_attached(
    args: &Offline,
    force: bool,
    place: &Place,
    request: &Request,
    more: impl FnOnce() -> Result<Vec<Credential>, Failure>,
) -> Result<(), Failure> {
    offline::refuse_for_attached(&args.store, args.policy.as_deref(), args.buffered, force)?;
    // That there is somebody to ask is found out before anybody types a passphrase.
    place.ask_soon(&Request::Slots)?;
    system::protect()?.iter().for_each(|warning| output::warning(warning));
    let mut credentials = vec![input::load(&args.credential, Origin::Known)?];
    credentials.extend(more()?);
    let spinner = output::spinner("changing the key slots");
    let answer = place.ask_with(request, &credentials)?;
    drop(spinner);
    let SlotsChanged { slots, warning } = from_daemon(answer)?;
    warning.iter().for_each(|warning| output::warning(warning));
    show(&slots, args.json)
}

fn change_keys(args: &Offline, opened: Opened, change: KeyChange, force: bool) -> Result<(), Failure> {
    let spinner = output::spinner("changing the key slots");
    let Opened { environment, policy, credential } = opened;
    let options = AttachOptions::default();
    let job = volume::change_keys(environment.clone(), policy, credential, change, force, options)?;
    let notice = job.block()?.notice;
    drop(spinner);
    notice.iter().for_each(|notice| output::warning(&notice.to_string()));
    show(&on_store(environment)?, args.json)
}

fn list(args: &KeyList) -> Result<(), Failure> {
    let KeyList { store, policy, buffered, json, .. } = args;
    if let Some(place) = offline::running(store, &args.runtime)? {
        offline::refuse_for_attached(store, policy.as_deref(), *buffered, false)?;
        return show(&from_daemon::<Vec<SlotDump>>(place.ask_soon(&Request::Slots)?)?, *json);
    }
    let (environment, _) = offline::open_public(store, policy.as_deref(), *buffered)?;
    show(&on_store(environment)?, *json)
}

fn on_store(environment: Environment) -> Result<Vec<SlotDump>, Failure> {
    let dump = volume::dump::dump(environment, None, None, AttachOptions::default())?.block()?;
    Ok(dump.slots()?.to_vec())
}

fn from_daemon<T: serde::de::DeserializeOwned>(answer: serde_json::Value) -> Result<T, Failure> {
    serde_json::from_value(answer).map_err(|error| Failure::internal(error.to_string()))
}

fn show(slots: &[SlotDump], json: bool) -> Result<(), Failure> {
    if json {
        return output::print_json(&slots);
    }
    output::print(&slots.iter().map(slot_line).collect::<Vec<_>>().join("\n"));
    Ok(())
}
