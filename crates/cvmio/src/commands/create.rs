//! `cvmio volume create`

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use anchor::Created;
use seal::slot::Argon2Params;
use store::{Access, Address, Store};
use volume::format::protections::{Freshness, Provision, SuiteCode};
use volume::geometry::{Geometry, Shape};
use volume::policy::Policy;
use volume::{CreateOptions, Environment, SavePolicy};

use crate::cli::{Create, NewVolume};
use cli::failure::Failure;
use cli::output;
use daemon::input::{self, Origin, VolumeFiles};
use daemon::system;

/// A volume to be made.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub store: &'a Path,
    pub size: Option<u64>,
    pub new: &'a NewVolume,
}

pub fn run(args: &Create) -> Result<(), Failure> {
    let wanted = Wanted { store: &args.store, size: args.size, new: &args.new };
    let policy_path = input::default_policy(&args.store, args.new.policy.as_deref())?;
    files(&args.store, &policy_path, &args.new)?.refuse_same(&[])?;
    input::check_new_policy(&policy_path, args.new.force)?;
    let options = options(wanted)?;
    check_anchor(&args.new)?;
    system::protect()?.iter().for_each(|warning| output::warning(warning));
    let credential = input::load(&args.new.credential, Origin::New)?;
    let saved = Rc::new(Cell::new(false));
    let save = save_policy(&policy_path, args.new.force, Rc::clone(&saved));
    let made = make(wanted, options, |environment, options| {
        let _spinner = output::spinner(format!("creating {}", args.store.display()));
        Ok(volume::create(environment, options, credential, save)?.block()?)
    });
    if made.is_err() && saved.get() {
        let _ = fs::remove_file(&policy_path);
    }
    report(args, &made?, &policy_path)
}

/// The files of a volume that is to be made, of which none may be given for two things.
pub(super) fn files<'a>(
    store: &'a Path,
    policy: &'a Path,
    new: &NewVolume,
) -> Result<VolumeFiles<'a>, Failure> {
    let options = input::anchor_options(&new.anchor_options.anchor_options)?;
    Ok(VolumeFiles::new(store, policy, new.anchor.as_deref(), &options).opened_by(&new.credential))
}

/// Makes store and anchor where they are not there, and lets `create` make the volume. If that fails, what was made goes again.
pub(super) fn make<T>(
    wanted: Wanted<'_>,
    options: CreateOptions,
    create: impl FnOnce(Environment, CreateOptions) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut made = Made::default();
    let store = open_or_make(wanted, &options, &mut made)?;
    let mut anchor = None;
    if let Some(address) = &wanted.new.anchor {
        let created = new_anchor(address, &options.anchor_options)?;
        made.anchor = created.undo;
        anchor = Some(created.anchor);
    }
    let created = create(system::environment(store, anchor), options)?;
    made.keep();
    Ok(created)
}

/// Writes the policy when the volume wants it, and notes whether that made a new file.
fn save_policy(path: &Path, force: bool, made: Rc<Cell<bool>>) -> SavePolicy {
    let path = path.to_path_buf();
    Box::new(move |policy| {
        let is_new = !path.exists();
        input::save_policy(&path, policy, force)
            .map_err(|failure| volume::Error::new(volume::Kind::Policy, failure.to_string()))?;
        made.set(is_new);
        Ok(())
    })
}

pub(super) fn options(wanted: Wanted<'_>) -> Result<CreateOptions, Failure> {
    let Wanted { size, new, .. } = wanted;
    let logical_blocks = size.map(input::whole_blocks).transpose()?;
    let unauthenticated = new.no_integrity && !new.no_confidentiality;
    let suite = if unauthenticated { SuiteCode::Aes256Xts } else { SuiteCode::Aes256Gcm };
    let options = CreateOptions {
        suite: new.suite.unwrap_or(suite),
        confidentiality: !new.no_confidentiality,
        integrity: !new.no_integrity,
        freshness: new.level(),
        provision: new.provision,
        logical_blocks,
        force: new.force,
        shape: Shape::STANDARD,
        argon2: Argon2Params::default(),
        label: new.label.clone(),
        anchor_options: input::anchor_options(&new.anchor_options.anchor_options)?,
    };
    volume::format::protections::check_protections(
        options.suite,
        options.confidentiality,
        options.integrity,
        options.freshness,
    )
    .map_err(|(field, message)| Failure::usage(format!("{field}: {message}{}", hint(field))))?;
    Ok(options)
}

fn hint(field: &str) -> &'static str {
    if field == "freshness" { "; give up both with --no-integrity --freshness off" } else { "" }
}

/// Before anything is made.
pub(super) fn check_anchor(new: &NewVolume) -> Result<(), Failure> {
    match (&new.anchor, new.level()) {
        (None, Freshness::Off) => Ok(()),
        (None, level) => Err(Failure::usage(format!(
            "freshness `{level}` needs an anchor, outside the reach of the store's host; name one with --anchor, such as file:/PATH, or give up freshness with --freshness off"
        ))),
        (Some(_), Freshness::Off) => {
            Err(Failure::usage("with --freshness off there is nothing to anchor; leave --anchor out"))
        }
        (Some(address), _) => {
            let options = input::anchor_options(&new.anchor_options.anchor_options)?;
            Ok(anchor::check_address(address, &options).map(drop)?)
        }
    }
}

/// What is taken away again if the creation fails.
#[derive(Default)]
struct Made {
    store: Option<PathBuf>,
    anchor: Option<Box<dyn FnOnce() + Send>>,
}

impl Made {
    fn keep(&mut self) {
        self.store = None;
        self.anchor = None;
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(path) = self.store.take() {
            let _ = fs::remove_file(path);
        }
        if let Some(undo) = self.anchor.take() {
            undo();
        }
    }
}

fn open_or_make(
    wanted: Wanted<'_>,
    options: &CreateOptions,
    made: &mut Made,
) -> Result<Arc<dyn Store>, Failure> {
    let buffered = wanted.new.buffered;
    if Address::of(wanted.store)?.is_served() {
        return Ok(system::open_store(wanted.store, buffered)?);
    }
    let there = fs::metadata(wanted.store).ok();
    // An empty file is what an interrupted creation leaves, or `touch`: it gets its length like a new one.
    let is_empty = there.as_ref().is_some_and(|there| there.is_file() && there.len() == 0);
    let logical = match (&there, options.logical_blocks) {
        (None, None) => {
            return Err(Failure::usage(format!(
                "{} does not exist; give the size of the volume to be made with --size",
                wanted.store.display()
            )));
        }
        (None, Some(logical)) => logical,
        (Some(_), Some(logical)) if is_empty => logical,
        (Some(_), _) => return Ok(system::open_store(wanted.store, buffered)?),
    };
    let geometry = Geometry::for_logical(logical, Shape::STANDARD).map_err(Failure::usage)?;
    let create = Some(geometry.physical_blocks);
    let store = system::open_store_with(wanted.store, Access { buffered, create, ..Access::default() })?;
    if there.is_none() {
        made.store = Some(wanted.store.to_path_buf());
    }
    Ok(store)
}

/// A new anchor; or one that was made, and never claimed: what an interrupted creation leaves.
pub(super) fn new_anchor(address: &str, options: &anchor::Options) -> Result<Created, Failure> {
    let created = anchor::create_address(address, options, Some(system::ANCHOR_PATIENCE))?;
    created.notes.iter().for_each(|note| output::warning(note));
    Ok(created)
}

/// A policy as it may be shown.
pub(super) fn shown(policy: &Policy) -> Policy {
    let address = policy.anchor.as_deref().unwrap_or_default();
    let anchor_options = anchor::schemes().shown(address, &policy.anchor_options);
    Policy { anchor_options, ..policy.clone() }
}

/// A line about what a user of this level should know before the first write.
pub(super) fn meaning(freshness: Freshness) -> String {
    match freshness {
        Freshness::Transaction => format!(
            "Freshness transaction: {}. For a volume that keeps what was flushed: --freshness interval.\n",
            daemon::wear::TRANSACTION
        ),
        _ => String::new(),
    }
}

fn report(args: &Create, policy: &Policy, policy_path: &Path) -> Result<(), Failure> {
    if args.new.json {
        return output::print_json(&serde_json::json!({
            "store": args.store,
            "policy": policy_path,
            "volume": shown(policy),
        }));
    }
    let on = |protected| if protected { "on" } else { "OFF" };
    let provision = if args.new.provision == Provision::Full { "" } else { " (thin)" };
    let mut text = format!(
        "created {}{provision} on {}: {}, confidentiality {}, integrity {}, freshness {}\n  policy  {}\n",
        output::bytes(policy.size),
        args.store.display(),
        policy.suite,
        on(policy.confidentiality),
        on(policy.integrity),
        policy.freshness,
        policy_path.display()
    );
    if let Some(anchor) = &policy.anchor {
        text += &format!("  anchor  {anchor}\n");
    }
    text += &meaning(policy.freshness);
    text += "Keep these where the host of the store cannot change them: they are what the volume is checked against.";
    output::print(&text);
    Ok(())
}
