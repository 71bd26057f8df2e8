//! `cvmio volume rekey`: a new volume key, begun and brought to its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use seal::slot::Credential;
use serde_json::json;
use volume::{AttachOptions, Kind, RekeyOrder, ResealProgress, ResealReport, Volume};

use super::offline::{self, Opened};
use crate::cli::rekey::Rekey;
use crate::cli::{CredentialArgs, Offline};
use cli::failure::Failure;
use cli::interrupt::Interrupt;
use cli::output;
use daemon::control::Request;
use daemon::input::{self, Origin};
use daemon::rekey::{Begun, Slot, damaged, drive};
use daemon::runtime::Place;
use daemon::session::Session;
use daemon::system;

/// How often a daemon is asked how far it is.
const LOOK: Duration = Duration::from_millis(500);

pub fn run(args: &Rekey) -> Result<(), Failure> {
    match offline::running(&args.offline.store, &args.runtime)? {
        Some(place) => change_attached(args, &place),
        None => change(args),
    }
}

/// Of an attached volume: sees to it that its daemon is at work, and waits for the end.
fn change_attached(args: &Rekey, place: &Place) -> Result<(), Failure> {
    let Offline { store, policy, buffered, .. } = &args.offline;
    offline::refuse_for_attached(store, policy.as_deref(), *buffered, args.force)?;
    let report = &place.ask_soon(&Request::Status)?["report"];
    let credential = &args.offline.credential;
    let named = credential.is_named();
    // Who has waited for the end, and was cut short, asks again.
    let ended = report["rekey"]["stage"] == "done" && !named && !args.begin;
    if report["volume"]["rekeying"] == true || ended {
        place.ask(&Request::Rekey)?;
        return if args.begin { under_way(args) } else { wait(args, None, place) };
    }
    system::protect()?.iter().for_each(|warning| output::warning(warning));
    let mut credentials = vec![input::load(credential, Origin::Known)?];
    credentials.extend(keep(args)?);
    let count =
        u8::try_from(credentials.len()).map_err(|_| Failure::usage("a volume has fewer key slots"))?;
    let request = Request::BeginRekey { credentials: count, remove_others: args.remove_other_slots };
    let spinner = output::spinner("changing the key");
    let begun = place.ask_with(&request, &credentials)?;
    drop(spinner);
    let begun = serde_json::from_value(begun).map_err(|error| Failure::internal(error.to_string()))?;
    tell(args, &begun);
    if args.begin { begun_only(args, &begun) } else { wait(args, Some(&begun), place) }
}

/// Waits until the daemon has sealed everything anew.
fn wait(args: &Rekey, begun: Option<&Begun>, place: &Place) -> Result<(), Failure> {
    let bar = output::bar("sealing anew", 0);
    loop {
        let answer = place.ask_soon(&Request::Status)?;
        let standing = &answer["report"]["rekey"];
        let number = |key: &str| standing[key].as_u64().unwrap_or(0);
        bar.set_length(number("of"));
        bar.set_position(number("blocks"));
        match standing["stage"].as_str() {
            Some("running") => std::thread::sleep(LOOK),
            Some("done") => {
                bar.finish_and_clear();
                return done(args, begun, number("resealed-blocks"));
            }
            stage => {
                let why = standing["failure"].as_str().map_or_else(
                    || format!("it was {}; run it again to go on", stage.unwrap_or("forgotten")),
                    str::to_string,
                );
                let why = format!("the change of key has not ended: {why}");
                let damaged = number("damaged-blocks") > 0;
                return Err(if damaged {
                    volume::Error::new(Kind::Corrupt, why).into()
                } else {
                    Failure::io(why)
                });
            }
        }
    }
}

/// Of a volume that is not attached: begins, and seals anew.
fn change(args: &Rekey) -> Result<(), Failure> {
    let opened = offline::open(&args.offline, true)?;
    let interrupt = Interrupt::on_signals()?;
    let order = RekeyOrder { keep: keep(args)?, remove_others: args.remove_other_slots, force: args.force };
    let spinner = output::spinner("changing the key");
    let Opened { environment, policy, credential } = opened;
    let (first, last) = (input::copy(&credential), input::copy(&credential));
    let options = AttachOptions::default();
    let begun =
        volume::begin_rekey(environment.clone(), policy.clone(), credential, order, options)?.block()?.into();
    drop(spinner);
    tell(args, &begun);
    if args.begin {
        return begun_only(args, &begun);
    }
    let volume = volume::attach(environment.clone(), policy.clone(), first, options)?.block()?;
    let report = reseal(volume, &interrupt)?;
    if report.ended {
        // Another session, which overwrites the superblocks that are still under the old key.
        let volume = volume::attach(environment, policy, last, options)?.block()?;
        reseal(volume, &interrupt)?;
        return done(args, Some(&begun), report.resealed);
    }
    if report.damage.lost() > 0 {
        return Err(damaged(&report).into());
    }
    Err(Failure::io(format!(
        "interrupted after {} blocks; run it again to go on, or attach the volume",
        output::count(report.resealed)
    )))
}

/// The credentials of the other slots that stay.
fn keep(args: &Rekey) -> Result<Vec<Credential>, Failure> {
    let key_files = args
        .keep_key_file
        .iter()
        .map(|path| CredentialArgs { key_file: Some(path.clone()), ..CredentialArgs::default() });
    let passphrases = args
        .keep_passphrase_file
        .iter()
        .map(|path| CredentialArgs { passphrase_file: Some(path.clone()), ..CredentialArgs::default() });
    key_files.chain(passphrases).map(|one| input::load(&one, Origin::Known)).collect()
}

/// Seals everything anew, with nobody else on the volume, and puts the volume away.
fn reseal(volume: Volume, interrupt: &Interrupt) -> Result<ResealReport, Failure> {
    let session = Session::begin(volume)?;
    let progress = Arc::<ResealProgress>::default();
    let of = session.volume.status().mapped_blocks;
    let bar = output::bar("sealing anew", of);
    let show = || {
        let blocks = progress.blocks.load(Ordering::Relaxed).min(of);
        if progress.walks.load(Ordering::Relaxed) == 0 {
            bar.set_position(blocks);
        }
    };
    let report = drive(&session.volume, &progress, interrupt.flag(), show);
    bar.finish_and_clear();
    let ended = session.end();
    let report = report?;
    ended?;
    Ok(report)
}

/// Says which slots are gone.
fn tell(args: &Rekey, begun: &Begun) {
    for slot in &begun.removed_slots {
        output::warning(&format!("key slot {slot} was removed: nothing was given that opens it"));
    }
    if begun.under_way_before && !args.offline.json {
        output::print("a change of key is under way already; going on with it");
    }
}

fn begun_only(args: &Rekey, begun: &Begun) -> Result<(), Failure> {
    if args.offline.json {
        return output::print_json(&json!({
            "ended": false, "under-way-before": begun.under_way_before,
            "slots": begun.slots, "removed-slots": begun.removed_slots,
        }));
    }
    let kept: Vec<String> = begun.slots.iter().map(Slot::to_string).collect();
    output::print(&format!(
        "the volume has a new key, in key slots: {}\nwhile it is attached, what was there before is sealed anew; make a new header backup when that has ended",
        kept.join(", ")
    ));
    Ok(())
}

fn under_way(args: &Rekey) -> Result<(), Failure> {
    if args.offline.json {
        return output::print_json(&json!({ "ended": false, "under-way-before": true }));
    }
    output::print("a change of key is under way already; its daemon goes on with it");
    Ok(())
}

fn done(args: &Rekey, begun: Option<&Begun>, resealed: u64) -> Result<(), Failure> {
    if args.offline.json {
        let mut result = json!({ "ended": true, "resealed-blocks": resealed });
        if let Some(begun) = begun {
            result["slots"] = json!(begun.slots);
            result["removed-slots"] = json!(begun.removed_slots);
        }
        return output::print_json(&result);
    }
    output::print(&format!(
        "{} blocks sealed anew; the old key opens nothing that the volume refers to. Make a new header backup",
        output::count(resealed)
    ));
    Ok(())
}
