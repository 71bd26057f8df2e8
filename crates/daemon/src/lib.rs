//! The process that serves one volume: from the order to attach to the last checkpoint.

mod allowance;
mod background;
pub mod check;
pub mod control;
mod disk;
mod environment;
pub mod events;
pub mod front;
pub mod growth;
pub mod holders;
pub mod input;
pub mod latency;
pub mod launch;
mod maintenance;
pub mod metrics;
pub mod polling;
mod rehearsal;
pub mod rekey;
pub mod runtime;
pub mod scrub;
mod service;
pub mod session;
pub mod sign;
mod slots;
pub mod status;
pub mod system;
pub mod tamper;
#[cfg(test)]
mod testing;
mod thread;
pub mod wear;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use cli::failure::Failure;
use rustix::io::Errno;
use seal::slot::Credential;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU,
};
use volume::format::protections::Freshness;
use volume::policy::Policy;
use volume::{Reading, Volume};

use control::{Reply, Request};
use disk::Queues;
use environment::{Rekeying, SessionEnvironment};
pub use front::fuse::clear_left;
use front::{Front, Show, Shown};
use runtime::{Claim, Place, being_put_away};
pub use service::LastWrites;
use service::Service;
pub use slots::{Backup, Changed as SlotsChanged, header_json};
use tamper::Tamper;

/// What to attach, and how.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    /// The name that the volume runs under.
    pub name: String,
    /// The directory of the running volumes.
    pub runtime: PathBuf,
    /// The address of the store: a file, a block device, or what else [`store::Address`] knows.
    pub store: PathBuf,
    /// The attach policy.
    pub policy: Policy,
    /// Where that is kept; a volume that grows needs another.
    pub policy_file: PathBuf,
    /// Bytes for changes and for the map's cache.
    pub memory: u64,
    /// Bytes in addition for blocks that were read or written; 0 for none.
    pub block_cache: u64,
    /// Whether free space goes back to the store; `None`: for thin volumes.
    pub discard: Option<bool>,
    /// Threads that seal and open blocks.
    pub queues: u8,
    /// How they wait for requests.
    pub poll: polling::Poll,
    /// The front end.
    pub show: Show,
    /// Only for reading, and how.
    pub reading: Option<Reading>,
    /// With freshness `interval`: how far the anchor may lag behind.
    pub interval: Duration,
    /// How long the session waits for an anchor that is away; `None` is for ever.
    pub anchor_timeout: Option<Duration>,
    /// How long the store's host may leave a request without an answer; `None` is as long as is right for the kind of store.
    pub store_timeout: Option<Duration>,
    /// Through the page cache, where the store cannot do direct I/O.
    pub buffered: bool,
    /// What to do when the host is caught.
    pub tamper: tamper::Orders,
    /// Where metrics are served.
    pub metrics: Option<metrics::Address>,
    /// The root file system will be on it.
    pub for_root: bool,
}

/// Where the volume is, when it is there.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Ready {
    /// The name that the volume runs under.
    pub name: String,
    /// The daemon's process id.
    pub process: u32,
    #[serde(flatten)]
    /// The front end, and where the device is.
    pub shown: Shown,
    /// Bytes of the device.
    pub size: u64,
    /// The volume's freshness level.
    pub freshness: Freshness,
    /// What the user should know though it is no failure.
    pub warnings: Vec<String>,
}

/// Where standard error goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errors {
    /// To the volume's log.
    ToLog,
    /// Where it is: somebody reads it.
    AsTheyAre,
}

/// What the daemon's main thread waits for.
enum Event {
    Signal,
    /// Somebody has asked for its end; with `true` whatever that costs.
    Detach(Asker, bool),
    /// The volume has grown, and its front end is to show it.
    Grown(Sender<Result<(), Failure>>),
    /// The maintenance job ended by itself, so the session has failed.
    Failed(Failure),
}

/// Somebody who waits for the end.
struct Asker {
    result: Sender<Result<Option<LastWrites>, Failure>>,
    /// What was not committed is to be forgotten.
    discard: bool,
    /// Told when the result has been passed on: the process must not end before.
    heard: Receiver<()>,
}

/// How long a signal leaves those who use the device to let go of it.
const GRACE: Duration = Duration::from_secs(10);
/// How often it is noted that the process is alive.
const PULSE: Duration = Duration::from_secs(1);

/// Attaches and serves until told to stop. `announce` is called when the device is usable; if it fails, nobody waits for the
/// volume any more.
///
/// # Errors
/// What kept the volume from being attached, or from being put away cleanly.
pub fn run(
    order: &Order,
    credential: Credential,
    errors: Errors,
    announce: impl FnOnce(&Ready) -> std::io::Result<()>,
) -> Result<(), Failure> {
    order.show.prepare()?;
    let mut warnings = Vec::from_iter(system::protect()?);
    events::begin(&order.name, order.policy.volume);
    let claim = Place::new(&order.runtime, &order.name).claim()?;
    if errors == Errors::ToLog {
        claim.take_log()?;
    }
    let listener = claim.listen()?;
    let metrics = order.metrics.as_ref().map(metrics::Listener::open).transpose()?;
    if export::set_io_flusher().is_err() {
        warnings.push("without CAP_SYS_RESOURCE this process can lock up when memory runs out".into());
    }
    let (sender, events) = channel();
    warnings.extend(order.show.warning());
    watch_signals(sender.clone())?;
    let tamper = Arc::new(Tamper::new(&order.tamper, &order.name, &order.store.to_string_lossy())?);
    claim.rehearse()?;
    let (volume, environment) = attach(order, credential).inspect_err(|failure| {
        events::failed("the volume cannot be attached", failure);
        tamper.refused(failure);
        tamper.finish();
    })?;
    let (polling, warning) = polling::Polling::new(order.poll, order.queues);
    warnings.extend(warning);
    let queues = Queues { count: order.queues, polling };
    let service = Service::start(volume, environment, queues, sender.clone(), Arc::clone(&tamper))?;
    warnings.extend(clear_left(&claim).err().map(|failure| failure.to_string()));
    let front = show(order, &claim, &service, sender.clone())?;
    warnings.extend(claim.open_left(front.covered()).err().map(|failure| failure.to_string()));
    let ready = Ready {
        name: order.name.clone(),
        process: std::process::id(),
        shown: front.shown(),
        size: service.size(),
        freshness: order.policy.freshness,
        warnings,
    };
    let service = Arc::new(service);
    let begun = metrics.map(|metrics| measure(metrics, &service, &ready)).transpose().and_then(|metrics| {
        answer(listener, claim.place().clone(), &service, &ready, sender)?;
        Ok(metrics)
    });
    let _metrics = match begun {
        Ok(metrics) => metrics,
        Err(failure) => {
            // As above: the anchor must not stay claimed by a session that nobody can ask to end.
            let _ = service.stop();
            return Err(failure);
        }
    };
    let told = announce(&ready);
    service.settle(told.is_ok());
    if let Err(error) = &told {
        events::tell(&format!("nobody waits for this volume any more ({error}); putting it away"));
    }
    let ended = stay(&service, front, claim, &events, told.is_ok());
    tamper.finish();
    ended
}

/// Starts the front end. A session whose volume cannot be shown is put away.
fn show(
    order: &Order,
    claim: &Claim,
    service: &Service,
    sender: Sender<Event>,
) -> Result<Box<dyn Front>, Failure> {
    let failed: front::Failed = Arc::new(move |failure| drop(sender.send(Event::Failed(failure))));
    order.show.show(claim, service.disk(), order.reading.is_some(), &failed).inspect_err(|_| {
        // The reason counts; that the volume could not be put away either would only hide it.
        let _ = service.stop();
    })
}

/// Starts answering to who measures. What is returned takes the socket away when it is dropped.
fn measure(
    metrics: metrics::Listener,
    service: &Arc<Service>,
    ready: &Ready,
) -> Result<Option<metrics::Remove>, Failure> {
    let (service, ready) = (Arc::clone(service), ready.clone());
    metrics.serve(move || {
        let (report, times) = (service.report(&ready)?, service.times());
        Ok(metrics::Snapshot { report, times, tampering: events::seen() })
    })
}

fn attach(order: &Order, credential: Credential) -> Result<(Volume, SessionEnvironment), Failure> {
    let environment = SessionEnvironment::new(order)?;
    let memory = order.memory.saturating_add(order.block_cache);
    rehearsal::rehearse(environment.store(), order.queues, memory)?;
    Ok((environment.attach(credential, None)?, environment))
}

fn watch_signals(events: Sender<Event>) -> Result<(), Failure> {
    let fail = |error| Failure::io(format!("signals cannot be watched: {error}"));
    // The last two would end it as well, and with nothing put away: a limit on its time (`ulimit -t`), and Ctrl-\.
    let ends = [SIGTERM, SIGINT, SIGHUP, SIGXCPU, SIGQUIT];
    let mut signals = signal_hook::iterator::Signals::new(ends).map_err(fail)?;
    // Nor should those end it that mean nothing to it.
    let unknown = [SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, libc::SIGIO, libc::SIGPWR, libc::SIGSTKFLT];
    for ignored in unknown.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
        signal_hook::flag::register(ignored, Arc::default()).map_err(fail)?;
    }
    let watch = move || signals.forever().take_while(|_| events.send(Event::Signal).is_ok()).for_each(drop);
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(fail)?;
    Ok(())
}

/// Starts answering on the control socket.
fn answer(
    listener: std::os::unix::net::UnixListener,
    place: Place,
    service: &Arc<Service>,
    ready: &Ready,
    events: Sender<Event>,
) -> Result<(), Failure> {
    let (service, ready) = (Arc::clone(service), ready.clone());
    let events = std::sync::Mutex::new(events);
    let pulse = std::thread::Builder::new().name("pulse".into());
    // Ends with the place, or the process.
    let beat = move || {
        while place.beat().is_ok() {
            std::thread::sleep(PULSE)
        }
    };
    pulse.spawn(beat).map_err(|error| Failure::io(format!("no thread can be started: {error}")))?;
    let answer = move |request, credentials, send: &mut dyn FnMut(Reply)| match request {
        Request::Status => send(reply(service.report(&ready).and_then(|report| {
            let text = report.text();
            let json = serde_json::to_value(report).map_err(|error| Failure::internal(error.to_string()))?;
            Ok(serde_json::json!({ "text": text, "report": json }))
        }))),
        Request::Times => send(reply(
            serde_json::to_value(service.times()).map_err(|error| Failure::internal(error.to_string())),
        )),
        Request::Commit => send(reply(service.commit().map(|()| serde_json::Value::Null))),
        Request::Check => send(reply(service.check().and_then(|report| {
            serde_json::to_value(report).map_err(|error| Failure::internal(error.to_string()))
        }))),
        Request::Scrub { rate } => send(reply(service.scrub(rate).map(|()| serde_json::Value::Null))),
        Request::StopScrub => send(reply(service.stop_scrub().map(|()| serde_json::Value::Null))),
        Request::Rekey => send(reply(service.rekey().map(|()| serde_json::Value::Null))),
        Request::BeginRekey { remove_others, .. } => {
            send(reply(begin_rekey(&service, credentials, remove_others)))
        }
        Request::Grow { logical_blocks } => {
            let told = || tell_front(&events);
            send(reply(growth::grow(&service, &ready.shown, credentials, logical_blocks, told)));
        }
        Request::Slots => send(reply(slots::list(&service))),
        Request::BackUpHeader => send(reply(slots::back_up(&service))),
        Request::AddSlot { label } => send(reply(slots::add(&service, credentials, label))),
        Request::RemoveSlot { slot } => send(reply(slots::remove(&service, credentials, slot))),
        Request::Detach { discard_uncommitted: discard, force } => {
            let (result, ended) = channel();
            let (said, heard) = channel();
            let asker = Asker { result, discard, heard };
            let asked = events.lock().map(|events| events.send(Event::Detach(asker, force)));
            let ended = asked.ok().and_then(|_| ended.recv().ok());
            let ended = ended.unwrap_or_else(|| Err(being_put_away()));
            send(reply(ended.and_then(|last| {
                serde_json::to_value(last).map_err(|error| Failure::internal(error.to_string()))
            })));
            let _ = said.send(());
        }
    };
    let serve = move || control::serve(&listener, Arc::new(answer));
    let thread = std::thread::Builder::new().name("socket".into()).spawn(serve);
    thread.map(drop).map_err(|error| Failure::io(format!("no thread can be started: {error}")))
}

fn begin_rekey(
    service: &Service,
    credentials: Vec<Credential>,
    remove_others: bool,
) -> Result<serde_json::Value, Failure> {
    let mut credentials = credentials.into_iter();
    let credential =
        credentials.next().ok_or_else(|| Failure::usage("nothing was given that opens the volume"))?;
    let begun = service.begin_rekey(&Rekeying { credential, keep: credentials.collect(), remove_others })?;
    serde_json::to_value(rekey::Begun::from(begun)).map_err(|error| Failure::internal(error.to_string()))
}

/// Has the main thread tell the front end, which is its own.
fn tell_front(events: &std::sync::Mutex<Sender<Event>>) -> Result<(), Failure> {
    let (told, done) = channel();
    let asked = events.lock().map(|events| events.send(Event::Grown(told)));
    let done = asked.ok().and_then(|_| done.recv().ok());
    done.unwrap_or_else(|| Err(Failure::usage("the volume is being put away")))
}

fn reply(result: Result<serde_json::Value, Failure>) -> Reply {
    match result {
        Ok(value) => Reply::Ok(value),
        Err(failure) => Reply::Error(failure),
    }
}

/// Serves until somebody says stop, and puts everything away.
fn stay(
    service: &Service,
    front: Box<dyn Front>,
    claim: Claim,
    events: &Receiver<Event>,
    wanted: bool,
) -> Result<(), Failure> {
    let told = if wanted { until_told(service, front.as_ref(), events) } else { Told::Signal };
    service.settle(false);
    let (asker, grace) = match told {
        Told::Detach(asker) => (Some(asker), None),
        Told::Force(asker) => (Some(asker), Some(Duration::ZERO)),
        Told::Signal => (None, Some(GRACE)),
    };
    // Where users were cut off, or something waits for room, the transaction has not come to its end.
    let is_over = match grace {
        None => true,
        Some(grace) => front.hide_within(grace) && wanted && !service.is_stuck(),
    };
    let keep = is_over && asker.as_ref().is_none_or(|asker| !asker.discard);
    let last = service.end_transaction(keep);
    let ended = put_away(service, grace, events).and(last);
    // The front end goes last: until then requests are answered, with errors.
    drop(front);
    drop(claim);
    // Clients that asked after the first one hear it now, and not that there is no answer.
    for event in events.try_iter() {
        if let Event::Detach(asker, _) = event {
            let _ = asker.result.send(Err(being_put_away()));
        }
    }
    if let Some(asker) = asker {
        let _ = asker.result.send(ended.clone());
        let _ = asker.heard.recv_timeout(GRACE);
    }
    ended.map(drop)
}

/// Ends the session. What waits for room on the store is given up when `grace` has passed, or when somebody asks for that meanwhile.
fn put_away(service: &Service, grace: Option<Duration>, events: &Receiver<Event>) -> Result<(), Failure> {
    let begun = std::time::Instant::now();
    let mut forced = false;
    service.stop_unless(|| {
        for event in events.try_iter() {
            match event {
                Event::Signal | Event::Detach(_, true) => forced = true,
                Event::Detach(asker, false) => drop(asker.result.send(Err(being_put_away()))),
                Event::Grown(_) | Event::Failed(_) => {}
            }
        }
        forced || grace.is_some_and(|grace| begun.elapsed() >= grace)
    })
}

/// How the volume is to be put away.
enum Told {
    /// Nobody uses it any more.
    Detach(Asker),
    /// Whoever uses it.
    Force(Asker),
    Signal,
}

/// A volume that waits for room cannot be put away, and says so before anything is changed.
fn refuse_while_waiting(service: &Service) -> Result<(), Failure> {
    let Some(waits) = service.waits_for_room() else { return Ok(()) };
    Err(Failure::usage(format!(
        "what was acknowledged waits for room on the store since {} s: {}. Make room there; or detach it with --force, which gives up all that was not flushed",
        waits.seconds, waits.error
    )))
}

/// Waits for a signal, or for somebody who may put the volume away.
fn until_told(service: &Service, front: &dyn Front, events: &Receiver<Event>) -> Told {
    loop {
        match events.recv() {
            Err(_) | Ok(Event::Signal) => return Told::Signal,
            // Reads may still work, and a file system on it must see errors, not a device that is gone.
            Ok(Event::Failed(failure)) => events::failed("the session has failed", &failure),
            Ok(Event::Grown(told)) => drop(told.send(front.resized())),
            Ok(Event::Detach(asker, true)) => return Told::Force(asker),
            Ok(Event::Detach(asker, false)) => {
                match refuse_while_waiting(service).and_then(|()| front.hide()) {
                    Ok(()) => return Told::Detach(asker),
                    Err(failure) => drop(asker.result.send(Err(failure))),
                }
            }
        }
    }
}

/// The errors of requests that the daemon makes itself.
fn by_errno(errno: Errno) -> Failure {
    match errno {
        Errno::NOSPC => {
            Failure::from(volume::Error::new(volume::Kind::NoSpace, "no space is left on the volume"))
        }
        Errno::SHUTDOWN => Failure::usage("the volume is being put away"),
        other => Failure::io(format!("the volume failed: {other}; see its status")),
    }
}
