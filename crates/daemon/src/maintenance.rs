//! What a session needs that writes: its maintenance job, and somebody who looks at the clock for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use volume::Volume;

use super::tamper::Tamper;
use super::thread::Thread;
use super::{Event, events};
use cli::failure::Failure;

/// How often the volume may look at the clock.
const TICK: Duration = Duration::from_millis(100);
/// How often a certificate that is about to end is worth a line.
const DAY: Duration = Duration::from_hours(24);

/// How long a store's host may leave a request without an answer before that is worth a line, and before somebody who wants to end the session may
/// do so without the host.
pub const SILENCE: Duration = Duration::from_secs(5);

/// Attempts that fail before an anchor counts as away.
const ATTEMPTS: u64 = 3;

/// The threads of one session.
pub struct Maintenance {
    volume: Volume,
    stopping: Arc<AtomicBool>,
    maintenance: Thread<Result<(), Failure>>,
    ticker: Option<Thread<()>>,
}

impl Maintenance {
    /// Starts them. `events` hears of a session that fails.
    ///
    /// # Errors
    /// When the store refuses a queue or the system a thread; the volume is put away then.
    pub fn start(volume: &Volume, events: &Sender<Event>, tamper: &Arc<Tamper>) -> Result<Self, Failure> {
        let stopping = Arc::new(AtomicBool::new(false));
        let maintenance =
            maintain(volume.clone(), events.clone(), Arc::clone(&stopping), Arc::clone(tamper))?;
        let mut maintenance =
            Self { volume: volume.clone(), stopping: Arc::clone(&stopping), maintenance, ticker: None };
        match tick(volume.clone(), stopping) {
            Ok(ticker) => maintenance.ticker = Some(ticker),
            Err(failure) => {
                // The reason counts; that the volume could not be put away either would only hide it.
                let _ = maintenance.end();
                return Err(failure);
            }
        }
        Ok(maintenance)
    }

    /// Ends the session: the last checkpoint is made, and the anchor released. Nobody has anything under way any more.
    ///
    /// # Errors
    /// When that failed: what was flushed is safe, but the next session has to recover.
    pub fn end(self) -> Result<(), Failure> {
        self.stopping.store(true, Ordering::SeqCst);
        self.volume.stop();
        let maintained = self.maintenance.end().unwrap_or_else(|_| {
            Err(Failure::internal("the maintenance thread ended by a defect; see the log, and report it"))
        });
        let _ = self.ticker.map(Thread::end);
        maintained
    }
}

fn maintain(
    volume: Volume,
    events: Sender<Event>,
    stopping: Arc<AtomicBool>,
    tamper: Arc<Tamper>,
) -> Result<Thread<Result<(), Failure>>, Failure> {
    let (sender, started) = channel();
    let job = move || {
        let driven = match volume.maintenance() {
            Ok(driven) => driven,
            Err(error) => {
                let failure = Failure::from(error);
                let _ = sender.send(Err(failure.clone()));
                return Err(failure);
            }
        };
        let _ = sender.send(Ok(()));
        let result = driven.block().map_err(|error| {
            tamper.note("maintenance", &error);
            Failure::from(error)
        });
        if let (Err(failure), false) = (&result, stopping.load(Ordering::SeqCst)) {
            let _ = events.send(Event::Failed(failure.clone()));
        }
        result
    };
    let thread = spawn("maintenance", job)?;
    started.recv().map_err(|_| Failure::internal("the maintenance thread ended before it began"))??;
    Ok(thread)
}

fn tick(volume: Volume, stopping: Arc<AtomicBool>) -> Result<Thread<()>, Failure> {
    spawn("ticker", move || {
        let (mut away, mut waits, mut silent) = (false, false, false);
        let mut told: Option<Instant> = None;
        while !stopping.load(Ordering::SeqCst) {
            std::thread::sleep(TICK);
            volume.tick();
            away = tell_of_anchor(&volume, away);
            if told.is_none_or(|told| told.elapsed() > DAY)
                && let Some(notice) = certificate_notice(volume.anchor_certificate_until())
            {
                events::tell(&notice);
                told = Some(Instant::now());
            }
            waits = tell_of_room(&volume, waits);
            silent = tell_of_silence(&volume, silent);
        }
    })
}

/// A word about a certificate that the anchor is reached with, in its last 60 days; `until` is in seconds since 1970.
pub fn certificate_notice(until: Option<u64>) -> Option<String> {
    let until = UNIX_EPOCH + Duration::from_secs(until?);
    let when = anchor::certificate_notice(until, SystemTime::now())?;
    Some(format!(
        "a certificate that the anchor is reached with {when}; renew it, be it ours or the server's"
    ))
}

/// Tells the operator when something waits for room on the store, and when it does no more.
fn tell_of_room(volume: &Volume, waited: bool) -> bool {
    let waits = volume.waits_for_room();
    match &waits {
        // It may be there at the next attempt.
        Some(now) if !waited && now.seconds == 0 => return false,
        Some(now) if !waited => events::tell(&format!(
            "the store has no room for what was acknowledged; flushes wait until it has: {}",
            now.error
        )),
        None if waited => events::tell("the store has room again, and nothing waits for it"),
        _ => {}
    }
    waits.is_some()
}

/// Tells the operator when the store's host is silent, and when it answers again.
fn tell_of_silence(volume: &Volume, was_silent: bool) -> bool {
    let silent = volume.store_silent_for().filter(|silent| *silent >= SILENCE);
    match silent {
        Some(now) if !was_silent => events::tell(&format!(
            "the store's host has not answered for {} s, and requests wait for it",
            now.as_secs()
        )),
        None if was_silent && volume.failure().is_none() => events::tell("the store's host answers again"),
        _ => {}
    }
    silent.is_some()
}

/// Tells the operator when the anchor goes away, and when it is back.
fn tell_of_anchor(volume: &Volume, was_away: bool) -> bool {
    let away = volume.anchor_away();
    match &away {
        // One attempt that failed is no news yet: the next one mostly finds another server.
        Some(now) if !was_away && now.attempts < ATTEMPTS => return false,
        Some(now) if !was_away => events::tell(&format!(
            "the anchor is away, and what needs it waits until it is back: {}",
            now.error
        )),
        None if was_away => events::tell("the anchor is back"),
        _ => {}
    }
    away.is_some()
}

fn spawn<T: Send + 'static>(
    name: &str,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<Thread<T>, Failure> {
    Thread::start(name, job).map_err(|error| Failure::io(format!("no thread can be started: {error}")))
}
