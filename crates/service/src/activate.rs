//! Bringing a volume up and taking it down, whatever state it is in.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anchor::Anchor;
use seal::slot::{Argon2Params, Credential};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::Address;
use volume::Reading;
use volume::format::probe::{PROBE_SIZE, Probe};
use volume::policy::Policy;

use super::record::{Record, Turn};
use super::{Target, filesystem};
use cli::failure::Failure;
use cli::output;
use daemon::control::Request;
use daemon::front::{Shown, warn_of_loop};
use daemon::input::{self, Origin, Released, VolumeFiles};
use daemon::runtime::{Daemon, Peer, Place};
use daemon::tamper::{Orders, Tamper};
use daemon::{Order, events, holders, launch, system};

/// How long a volume may take to be put away by others.
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(50);

/// A volume that is up: the same words whenever they are asked for, until something changes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Active {
    name: String,
    state: &'static str,
    volume: String,
    store: PathBuf,
    size: u64,
    #[serde(flatten)]
    places: Places,
    mountpoint: Option<PathBuf>,
}

/// Where it is: one of the three at least.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Places {
    front_end: &'static str,
    /// With `fuse`: the volume's file.
    file: Option<PathBuf>,
    /// The block device: with `ublk`; with `fuse` where one is wanted.
    device: Option<PathBuf>,
    /// With `nbd`: what clients are to be told, the socket's path included.
    uri: Option<String>,
}

impl From<&Shown> for Places {
    fn from(shown: &Shown) -> Self {
        let (file, device, uri) = match shown.clone() {
            Shown::Fuse { device, loop_device } => (Some(device), loop_device, None),
            Shown::Ublk { device } => (None, Some(device), None),
            Shown::Nbd { uri } => (None, None, Some(uri)),
        };
        Self { front_end: shown.name(), file, device, uri }
    }
}

/// A volume that is not.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Inactive {
    name: String,
    state: &'static str,
}

/// Brings a volume up, or finds that it is.
///
/// # Errors
/// As of `attach`, `create` by policy, and `mount`. A volume that was not up before is not up then.
pub fn activate(target: &Target, runtime: &Path) -> Result<Active, Failure> {
    let turn = Turn::take(runtime, &target.name)?;
    let place = Place::new(runtime, &target.name);
    let found = settled(&place)?;
    let is_new = found.is_none();
    // The policy may be released with the key: then the owner is asked first.
    let released = if is_new { released(target)? } else { None };
    let policy = input::read_policy(&target.policy)?;
    VolumeFiles::known(&target.store, &target.policy, &policy)
        .opened_by(target.credential())
        .refuse_same(&[])?;
    let status = match found {
        Some(status) => status,
        None => {
            make_room(target, &turn, &place)?;
            start_or_again(target, &policy, &place, runtime, released)?;
            place.ask(&Request::Status)?
        }
    };
    let done = check_same(target, &policy, &status).and_then(|shown| show(target, &policy, &shown, &turn));
    if done.is_err() && is_new {
        // The reason counts; that it cannot be put away would only hide it.
        let _ = put_away(&place, &turn, true);
    }
    done
}

/// What the owner releases, where a policy comes with it.
fn released(target: &Target) -> Result<Option<Credential>, Failure> {
    let Some(released) = target.released().filter(Released::holds_files) else { return Ok(None) };
    if let Some(policy) = released.policy().filter(|policy| *policy != target.policy) {
        return Err(Failure::usage(format!(
            "the owner releases the attach policy of {} with the key, to {}, and the volume is told to have it at {}; name the first",
            target.name,
            policy.display(),
            target.policy.display()
        )));
    }
    system::protect()?;
    input::load(target.credential(), Origin::Known).map(Some)
}

/// Takes a volume down, or finds that it is. At level `transaction` what was not committed is committed, or forgotten if
/// `discard_uncommitted`.
///
/// # Errors
/// When it is in use, and then it stays up; when it cannot be put away cleanly.
pub fn deactivate(name: &str, runtime: &Path, discard_uncommitted: bool) -> Result<Inactive, Failure> {
    let turn = Turn::take(runtime, name)?;
    put_away(&Place::new(runtime, name), &turn, discard_uncommitted)?;
    Ok(Inactive { name: name.into(), state: "inactive" })
}

fn put_away(place: &Place, turn: &Turn, discard_uncommitted: bool) -> Result<(), Failure> {
    if waits_for_daemon(place) {
        refuse_users(turn, place)?;
    }
    unmount(turn)?;
    match settled(place)? {
        Some(_) => drop(place.detach(discard_uncommitted, false)?),
        None => clear(turn, place)?,
    }
    turn.remember(&Record::default())
}

/// What the daemon says; one that is just leaving, since it was told to or since its starter was killed, is waited for.
fn settled(place: &Place) -> Result<Option<Value>, Failure> {
    let begun = Instant::now();
    let mut leaving: Option<Peer> = None;
    loop {
        let Some(Daemon { said, peer }) = place.status()? else {
            // It has given up its name, and ends.
            return leaving.map_or(Ok(()), |peer| peer.wait(&place.name(), PATIENCE)).map(|()| None);
        };
        let trouble = match said {
            Ok(status) if status["report"]["leaving"] != true => return Ok(Some(status)),
            Ok(_) => Failure::io("the volume is being put away, and that does not end; see its log"),
            // It has no volume any more, or ended while it was asked.
            Err(failure) => failure,
        };
        leaving = Some(peer);
        if begun.elapsed() > PATIENCE {
            return Err(trouble);
        }
        std::thread::sleep(GLANCE);
    }
}

fn unmount(turn: &Turn) -> Result<(), Failure> {
    let record = turn.record();
    match (&record.device, &record.mountpoint) {
        (Some(device), Some(mountpoint)) => filesystem::take_down(device, mountpoint, turn),
        _ => Ok(()),
    }
}

/// Whether a ublk device has outlived its daemon: its users wait, and an unmount would wait, too.
fn waits_for_daemon(place: &Place) -> bool {
    place.ublk().exists() && !place.is_taken()
}

/// What is on a ublk device that waits for its daemon is not lost, and not to be thrown away by a service.
fn refuse_users(turn: &Turn, place: &Place) -> Result<(), Failure> {
    let Record { device: Some(device), mountpoint } = turn.record() else { return Ok(()) };
    let mut users = holders::of_block_device(&device);
    users.extend(
        mountpoint
            .filter(|at| filesystem::is_mounted(&device, at))
            .map(|at| format!("mounted on {}", at.display())),
    );
    match users.is_empty() {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "the daemon of {name} was killed, and {} waits for it, in use: {}. Activate {name} again, which goes on with it, and then deactivate \
             it; `cvmio volume detach {name}` gives up what waits",
            device.display(),
            users.join(", "),
            name = place.name()
        ))),
    }
}

/// Clears away what a killed daemon left, but for a ublk device that is to go on.
fn make_room(target: &Target, turn: &Turn, place: &Place) -> Result<(), Failure> {
    match (waits_for_daemon(place), target.may_go_on()) {
        (true, true) => Ok(()),
        (true, false) => Err(Failure::usage(format!(
            "the daemon of {name} was killed, and its ublk device waits for it: activate {name} with `as` ublk or auto, for writing, to go \
             on with it, or deactivate it first",
            name = place.name()
        ))),
        (false, _) => clear(turn, place),
    }
}

/// Clears away what a daemon left that was killed: the file system on its device, and the device.
fn clear(turn: &Turn, place: &Place) -> Result<(), Failure> {
    unmount(turn)?;
    launch::clear_left(place).map(drop)
}

/// Starts the daemon; the secret is read once, however often that is tried. One that an activation began which was killed may have taken the
/// name meanwhile: it finds that nobody waits for it, and leaves.
fn start_or_again(
    target: &Target,
    policy: &Policy,
    place: &Place,
    runtime: &Path,
    released: Option<Credential>,
) -> Result<(), Failure> {
    system::protect()?;
    let credential = released.map_or_else(|| input::load(target.credential(), Origin::Known), Ok)?;
    match start(target, policy, runtime, &credential) {
        Err(failure) if failure.is_usage() => {
            let begun = Instant::now();
            while place.is_taken() && begun.elapsed() < PATIENCE {
                std::thread::sleep(GLANCE);
            }
            start(target, policy, runtime, &credential)
        }
        ended => ended,
    }
}

fn start(target: &Target, policy: &Policy, runtime: &Path, credential: &Credential) -> Result<(), Failure> {
    let (show, why_loop) = target.show(policy.volume);
    show.check(&Place::new(runtime, &target.name))?;
    if let (Some(fs), Some(mountpoint)) = (target.fs, &target.mountpoint) {
        filesystem::check(fs, mountpoint, policy.format_if_blank && !target.read_only)?;
    }
    warn_of_loop(why_loop.as_ref());
    let tamper = target.tamper()?;
    first_use(target, policy, credential).inspect_err(|failure| tell_of(failure, &tamper, target, policy))?;
    let order = Order {
        name: target.name.clone(),
        runtime: runtime.into(),
        store: target.store.clone(),
        policy: policy.clone(),
        policy_file: target.policy.clone(),
        memory: target.memory,
        block_cache: target.block_cache,
        discard: target.discard,
        queues: target.queues,
        poll: target.poll,
        show,
        reading: target.read_only.then_some(Reading::Pinned),
        tamper,
        interval: daemon::wear::interval(target.interval, policy.anchor.as_deref()),
        anchor_timeout: target.anchor_timeout,
        store_timeout: target.store_timeout,
        buffered: target.buffered,
        metrics: target.metrics.clone(),
        for_root: false,
    };
    let ready = launch::start(&order, credential)?;
    ready.warnings.iter().for_each(|warning| output::warning(warning));
    Ok(())
}

/// Tells the operator why a volume cannot be used, as its daemon would.
fn tell_of(failure: &Failure, orders: &Orders, target: &Target, policy: &Policy) {
    events::refused(&target.name, policy.volume, failure);
    if let Ok(tamper) = Tamper::new(orders, &target.name, &target.store.to_string_lossy()) {
        tamper.refused(failure);
        tamper.finish();
    }
}

/// Makes the volume if there is none and never was one.
fn first_use(target: &Target, policy: &Policy, credential: &Credential) -> Result<(), Failure> {
    let claimed = match system::open_anchor(policy)? {
        Some(anchor) => is_claimed(anchor.as_ref())?,
        None => true,
    };
    match Probe::of(&start_of(target)?) {
        // Attaching finds out whether it is the right one.
        Probe::Volume if claimed || !policy.format_if_blank => return Ok(()),
        Probe::Foreign(kind) => {
            return Err(Failure::usage(format!(
                "{} holds {kind}, and no volume; nothing was written. Attach the right store, or wipe this one by hand if nobody needs it",
                target.store.display()
            )));
        }
        _ if target.read_only && !claimed => {
            return Err(Failure::usage(format!(
                "there is no volume yet on {}, and for reading only none is made; bring it up for writing once",
                target.store.display()
            )));
        }
        Probe::Blank | Probe::Volume => {}
    }
    let store = system::open_store(&target.store, target.buffered)?;
    let environment = system::environment(store, system::open_anchor(policy)?);
    let argon2 = Argon2Params::default();
    let credential = input::copy(credential);
    let job = volume::create_by_policy(environment, policy.clone(), target.provision, credential, argon2)?;
    Ok(job.block()?)
}

/// The first bytes of a store. Nobody else is asked whether they use it: a file or device may be read beside them.
fn start_of(target: &Target) -> Result<Vec<u8>, Failure> {
    let address = Address::of(&target.store)?;
    if !address.is_served() {
        return filesystem::start_of(address.path());
    }
    let store = system::open_store_read_only(&target.store, target.buffered)?;
    Ok(store::read_start(store.as_ref(), PROBE_SIZE)?)
}

/// Refuses an anchor that a volume lives by, for one that is to be new.
pub fn refuse_claimed(anchor: &dyn Anchor) -> Result<(), Failure> {
    match is_claimed(anchor)? {
        false => Ok(()),
        true => Err(anchor::Error::Unusable(format!(
            "the anchor {} belongs to a volume already; name a new one",
            anchor.address()
        ))
        .into()),
    }
}

/// Whether a volume lives by an anchor. Asked without waiting for anything but the anchor.
fn is_claimed(anchor: &dyn Anchor) -> Result<bool, Failure> {
    let mut reading = anchor.read();
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    loop {
        match reading.as_mut().poll(&mut context) {
            std::task::Poll::Ready(stamp) => return Ok(stamp?.is_some()),
            std::task::Poll::Pending => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    }
}

/// A name may be taken by another volume, and that one may be shown in another way.
fn check_same(target: &Target, policy: &Policy, status: &Value) -> Result<Shown, Failure> {
    let volume = &status["report"]["volume"];
    if volume["volume"].as_str() != Some(hex::encode(policy.volume).as_str()) {
        return Err(Failure::usage(format!(
            "another volume is attached as {}, from {}; detach that first, or choose another name",
            target.name,
            volume["store"].as_str().unwrap_or("an unknown store")
        )));
    }
    if let Some(failure) = volume["failure"].as_str() {
        return Err(Failure::io(format!(
            "{} is attached, but its session has failed: {failure}. Deactivate it, and activate it again",
            target.name
        )));
    }
    if volume["read-only"].as_bool() != Some(target.read_only) {
        let way = |read_only| if read_only { "for reading only" } else { "for writing" };
        return Err(Failure::usage(format!(
            "{} is attached {}, and wanted {}. Nothing was changed; deactivate it, and activate it again",
            target.name,
            way(!target.read_only),
            way(target.read_only)
        )));
    }
    let shown = Shown::deserialize(&status["report"]).map_err(|error| {
        Failure::internal(format!("the daemon of {} speaks otherwise: {error}", target.name))
    })?;
    match target.accepts(&shown) {
        true => Ok(shown),
        false => Err(Failure::usage(format!(
            "{} is attached in another way than is asked for: by {}, as {shown}. Nothing was changed; deactivate it, and activate it again",
            target.name,
            shown.name()
        ))),
    }
}

/// Somebody may have changed the configuration of a volume that is up.
fn check_moved(target: &Target, record: &Record) -> Result<(), Failure> {
    match (&record.device, &record.mountpoint) {
        (Some(device), Some(before))
            if target.mountpoint.as_ref() != Some(before) && filesystem::is_mounted(device, before) =>
        {
            Err(Failure::usage(format!(
                "{} is mounted on {} now; deactivate it, and activate it again to have it elsewhere",
                target.name,
                before.display()
            )))
        }
        _ => Ok(()),
    }
}

/// What lies on top of the device; and what there is now.
fn show(target: &Target, policy: &Policy, shown: &Shown, turn: &Turn) -> Result<Active, Failure> {
    let places = Places::from(shown);
    check_moved(target, &turn.record())?;
    turn.remember(&Record { device: places.device.clone(), mountpoint: target.mountpoint.clone() })?;
    if let (Some(device), Some(fs), Some(mountpoint)) = (&places.device, target.fs, &target.mountpoint) {
        let options = target.mount_options();
        let may_make = policy.format_if_blank && !target.read_only;
        filesystem::bring_up(device, policy.volume, fs, mountpoint, options.as_deref(), may_make, turn)?;
    }
    Ok(Active {
        name: target.name.clone(),
        state: "active",
        volume: hex::encode(policy.volume),
        store: target.store.clone(),
        size: policy.size,
        places,
        mountpoint: target.mountpoint.clone(),
    })
}
