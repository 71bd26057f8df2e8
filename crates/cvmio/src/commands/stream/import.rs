//! `cvmio volume import`: a new volume of a sealed stream.
//!
//! The policy is what makes a volume one that can be attached. Until the stream has ended it lies under another name, which is also how the next
//! import knows that the store, the anchor and what is on them are its own to go on with. Where it is in force already, an import only looks
//! whether it had ended.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use seal::Random;
use seal::slot::Credential;
use serde_json::json;
use store::BLOCK_SIZE;
use volume::format::stream::StreamHeader;
use volume::policy::{self, Policy};
use volume::{AttachOptions, CreateOptions, Imported, Kind, Reading, StreamProgress, StreamReader, Volume};

use super::{check, drive, source};
use crate::cli::stream::Import;
use crate::commands::create::{self, Wanted};
use cli::failure::Failure;
use cli::output;
use daemon::input::{self, Origin};
use daemon::session::Session;
use daemon::sign::Sign;
use daemon::system;

pub fn run(args: &Import) -> Result<(), Failure> {
    if args.check {
        return check::run(args);
    }
    let policy_path = input::default_policy(args.to(), args.new.policy.as_deref())?;
    // What is replaced is the file, not a link to it.
    let target = policy_path.is_symlink().then(|| std::fs::canonicalize(&policy_path).ok()).flatten();
    let policy_path = target.unwrap_or(policy_path);
    let files = create::files(args.to(), &policy_path, &args.new)?;
    let stream = super::place(&args.from, "/proc/self/fd/0");
    super::with_secrets(files, &args.stream).refuse_same(&[vec![("stream", Some(stream))]])?;
    let is_there = !args.new.force && policy_path.exists();
    create::check_anchor(&args.new)?;
    let (reader, length) = source::open(args)?;
    let header = reader.header().clone();
    if is_there {
        return done_already(args, reader, length, &policy_path);
    }
    input::check_new_policy(&policy_path, args.new.force)?;
    let target = Target::find(args, &header, &policy_path)?;
    let session = Session::begin(target.open()?)?;
    let imported = copy(&session, reader, length);
    let ended = session.end();
    let imported = imported.map_err(explain)?;
    ended?;
    target.finish()?;
    report(args, &target.policy, &policy_path, &header, imported, false)
}

/// There is a policy. It may be that of this very import, which ended and was cut before it could say so: whether that is so, what the volume
/// holds knows, and nothing else does. Writes nothing.
fn done_already(
    args: &Import,
    reader: StreamReader<File>,
    length: Option<u64>,
    policy_path: &Path,
) -> Result<(), Failure> {
    let header = reader.header().clone();
    let there = input::already_there(policy_path);
    let wanted = Wanted { store: args.to(), size: Some(size(args, &header)?), new: &args.new };
    let wanted = policy(args, &create::options(wanted)?, wanted.size.unwrap_or_default());
    let policy = input::read_policy(policy_path)?;
    if input::unfinished(policy_path).exists() || wanted != (Policy { volume: [0; 16], ..policy.clone() }) {
        return Err(Failure::usage(there));
    }
    let compared = compare(args, &policy, reader, length);
    let imported = compared.map_err(|failure| {
        failure.with(format!("so nothing says that this import had ended: {there}. Nothing was changed"))
    })?;
    // An import that was cut may not have come to this.
    cli::input::sync_directory(policy_path)
        .map_err(|error| Failure::io(format!("{}: {error}", policy_path.display())))?;
    report(args, &policy, policy_path, &header, imported, true)
}

fn compare(
    args: &Import,
    policy: &Policy,
    reader: StreamReader<File>,
    length: Option<u64>,
) -> Result<Imported, Failure> {
    let credential = input::load(&args.new.credential, Origin::Known)?;
    let store = system::open_store_read_only(args.to(), args.new.buffered)?;
    let environment = system::environment(store, system::open_anchor_read_only(policy)?);
    let options = AttachOptions { reading: Reading::Pinned, ..AttachOptions::default() };
    let volume = volume::attach_read_only(environment, policy.clone(), credential, options)?.block()?;
    let progress = Arc::new(StreamProgress::default());
    let bar = output::bytes_bar("comparing", length);
    let job = volume.compare(reader, Arc::clone(&progress))?;
    Ok(drive(job, &bar, || progress.bytes.load(Ordering::Relaxed))?)
}

/// The size that the volume is to show.
fn size(args: &Import, header: &StreamHeader) -> Result<u64, Failure> {
    let has = header.blocks * BLOCK_SIZE as u64;
    match args.size {
        Some(size) if size < has => Err(Failure::usage(format!(
            "the stream is of a volume of {}, and cannot become a smaller one; leave --size out, or raise it",
            output::bytes(has)
        ))),
        size => Ok(size.unwrap_or(has)),
    }
}

/// The policy of the volume that is to be made; only its id is not known yet.
fn policy(args: &Import, options: &CreateOptions, size: u64) -> Policy {
    Policy {
        version: policy::VERSION,
        volume: [0; 16],
        suite: options.suite,
        confidentiality: options.confidentiality,
        integrity: options.integrity,
        freshness: options.freshness,
        size,
        anchor: args.new.anchor.clone(),
        format_if_blank: false,
        anchor_options: options.anchor_options.clone(),
    }
}

/// The volume that is made.
struct Target<'a> {
    wanted: Wanted<'a>,
    options: CreateOptions,
    credential: Credential,
    policy: Policy,
    policy_path: &'a Path,
    /// Where the policy lies until the end.
    unfinished: PathBuf,
    /// Whether an import has begun it before.
    begun: bool,
}

impl<'a> Target<'a> {
    /// What was begun, or a new one. Writes nothing.
    fn find(args: &'a Import, header: &StreamHeader, policy_path: &'a Path) -> Result<Self, Failure> {
        let size = size(args, header)?;
        let wanted = Wanted { store: args.to(), size: Some(size), new: &args.new };
        let options = create::options(wanted)?;
        let unfinished = input::unfinished(policy_path);
        let begun = unfinished.exists();
        let mut policy = policy(args, &options, size);
        if begun {
            let before = input::read_policy(&unfinished)?;
            policy.volume = before.volume;
            if policy != before {
                return Err(Failure::usage(format!(
                    "an import with other options was cut short here: {} says which. Use those, or remove that file, the store and the anchor, and begin anew",
                    unfinished.display()
                )));
            }
        } else {
            seal::SystemRandom.fill(&mut policy.volume);
        }
        let origin = if begun { Origin::Known } else { Origin::New };
        let credential = input::load(&args.new.credential, origin)?;
        Ok(Self { wanted, options, credential, policy, policy_path, unfinished, begun })
    }

    /// Attaches it, and makes it before if it is not there yet.
    fn open(&self) -> Result<Volume, Failure> {
        if !self.begun {
            input::save_policy(&self.unfinished, &self.policy, false)?;
            if let Err(failure) = self.make() {
                // What was refused was not begun.
                if !failure.is_io() {
                    let _ = fs::remove_file(&self.unfinished);
                }
                return Err(failure);
            }
            return self.attach();
        }
        let failure = match self.attach() {
            Ok(volume) => return Ok(volume),
            Err(failure) => failure,
        };
        // The import before may have been cut while it made the volume. What is another's, or was used, is not made anew.
        match self.make() {
            Ok(()) => self.attach(),
            Err(why) if failure.is_usage() || Sign::of(why.kind()).is_some() => Err(why),
            Err(_) => Err(failure),
        }
    }

    fn make(&self) -> Result<(), Failure> {
        create::make(self.wanted, self.options.clone(), |environment, options| {
            let _spinner = output::spinner(format!("creating {}", self.wanted.store.display()));
            if let (false, Some(anchor)) = (self.begun, &environment.anchor) {
                service::refuse_claimed(anchor.as_ref())?;
            }
            let credential = input::copy(&self.credential);
            volume::create_as(environment, options, self.policy.volume, credential)?.block()?;
            Ok(())
        })
    }

    fn attach(&self) -> Result<Volume, Failure> {
        let _spinner = output::spinner("opening");
        let store = system::open_store(self.wanted.store, self.wanted.new.buffered)?;
        let environment = system::environment(store, system::open_anchor(&self.policy)?);
        let (policy, credential) = (self.policy.clone(), input::copy(&self.credential));
        Ok(volume::attach(environment, policy, credential, AttachOptions::default())?.block()?)
    }

    /// From here on it is a volume like any other.
    fn finish(&self) -> Result<(), Failure> {
        fs::rename(&self.unfinished, self.policy_path)
            .and_then(|()| cli::input::sync_directory(self.policy_path))
            .map_err(|error| {
                Failure::io(format!("the policy {} cannot be written: {error}", self.policy_path.display()))
            })
    }
}

fn copy(session: &Session, reader: StreamReader<File>, length: Option<u64>) -> volume::Result<Imported> {
    let progress = Arc::new(StreamProgress::default());
    let bar = output::bytes_bar("importing", length);
    let job = session.volume.import(reader, Arc::clone(&progress))?;
    drive(job, &bar, || progress.bytes.load(Ordering::Relaxed))
}

fn explain(error: volume::Error) -> Failure {
    let more = match error.kind() {
        Kind::NoSpace => {
            "its store is too small for this stream; remove store, anchor and the policy's .importing, and import to a larger one"
        }
        _ => {
            "the volume is not whole, and cannot be attached; what was imported is kept. Run the same command again, with the whole stream, to go on"
        }
    };
    Failure::from(error).with(more)
}

fn report(
    args: &Import,
    policy: &Policy,
    policy_path: &Path,
    header: &StreamHeader,
    imported: Imported,
    already: bool,
) -> Result<(), Failure> {
    let bytes = |blocks: u64| blocks * BLOCK_SIZE as u64;
    if args.new.json {
        return output::print_json(&json!({
            "store": args.to(),
            "policy": policy_path,
            "volume": policy,
            "from": { "volume": hex::encode(header.volume), "state": header.state().to_string() },
            "chunks": imported.chunks,
            "data-bytes": bytes(imported.blocks),
            "kept-bytes": bytes(imported.kept),
            "done-already": already,
        }));
    }
    let kept = match imported.kept {
        0 => String::new(),
        _ if already => " (all of it compared: this import had ended before, and nothing was written)".into(),
        kept => format!(" ({} were there already)", output::bytes(bytes(kept))),
    };
    output::print(&format!(
        "imported volume {} in its state {} to {}: {} of data{kept}, {}\n  policy  {}\nKeep policy and anchor where the host of the store cannot change them.",
        hex::encode(header.volume),
        header.state(),
        args.to().display(),
        output::bytes(bytes(imported.blocks)),
        output::bytes(policy.size),
        policy_path.display()
    ));
    Ok(())
}
