//! The threads that keep an attached volume going.

mod sessions;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use seal::slot::{Credential, SlotInfo, SlotLimits};
use serde::{Deserialize, Serialize};
use volume::{BackedUp, CheckProgress, Clock, KeyChange, KeysChanged, Kind, Volume, WaitsForRoom};

use super::disk::{Disk, Queues, Threads};
use super::environment::SessionEnvironment;
use super::latency::{Latency, Times};
use super::maintenance::{Maintenance, SILENCE};
use super::rekey::Rekey;
use super::scrub::Scrub;
use super::status::{Checking, Report};
use super::tamper::Tamper;
use super::{Event, Ready, by_errno, events};
use crate::check;
use crate::system::SystemClock;
use cli::failure::Failure;

/// Most threads of a check beside users.
const CHECK_THREADS: usize = 4;
/// How often it is looked whether a check has ended.
const GLANCE: Duration = Duration::from_millis(5);

/// What became at the end of what was not committed, at level `transaction`. Blocks of a transaction that was too large for memory are not
/// counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LastWrites {
    /// It was committed.
    Committed {
        /// Logical blocks.
        blocks: u64,
    },
    /// It was forgotten.
    Discarded {
        /// Logical blocks.
        blocks: u64,
    },
}

/// An attached volume with its threads.
pub struct Service {
    /// Gone when it was put away: as long as it is there, nobody else can have the store.
    volume: Mutex<Option<Volume>>,
    disk: Disk,
    clock: SystemClock,
    events: Sender<Event>,
    tamper: Arc<Tamper>,
    /// The last check that was asked for, while it is under way.
    checking: Mutex<Weak<CheckProgress>>,
    /// The last one, under way or ended.
    scrub: Mutex<Option<Scrub>>,
    /// The last re-sealing, under way or ended.
    rekey: Mutex<Option<Rekey>>,
    /// Whether somebody knows that the volume is there, and nobody has put it away yet.
    settled: AtomicBool,
    /// Whether one session ends and the next begins, so that nothing may begin that needs one of them. Set with `checking` and `scrub` held.
    changing: AtomicBool,
    /// Why there is no session any more, when the next one could not be had.
    failed: Mutex<Option<Failure>>,
    threads: Mutex<Option<Running>>,
}

struct Running {
    queues: Threads,
    /// A volume that is attached for reading has none, nor one without a session.
    maintenance: Option<Maintenance>,
    environment: SessionEnvironment,
}

impl Service {
    /// Starts the threads. `events` hears of a session that fails.
    ///
    /// # Errors
    /// When the store or the system refuses a queue or a thread; the volume is put away then.
    pub fn start(
        volume: Volume,
        environment: SessionEnvironment,
        queues: Queues,
        events: Sender<Event>,
        tamper: Arc<Tamper>,
    ) -> Result<Self, Failure> {
        let clock = SystemClock::new();
        let writes = !volume.status().read_only;
        let maintenance = writes.then(|| Maintenance::start(&volume, &events, &tamper)).transpose()?;
        let (disk, queues) = match Disk::start(&volume, queues, clock, &tamper) {
            Ok(started) => started,
            Err(failure) => {
                let _ = maintenance.map(Maintenance::end);
                return Err(failure);
            }
        };
        let goes_on = volume.is_rekeying() && writes;
        let service = Self {
            volume: Mutex::new(Some(volume)),
            disk,
            clock,
            events,
            tamper,
            checking: Mutex::default(),
            scrub: Mutex::new(None),
            rekey: Mutex::new(None),
            settled: AtomicBool::new(false),
            changing: AtomicBool::new(false),
            failed: Mutex::new(None),
            threads: Mutex::new(Some(Running { queues, maintenance, environment })),
        };
        if goes_on && let Err(failure) = service.rekey() {
            let _ = service.stop();
            return Err(failure);
        }
        Ok(service)
    }

    /// The volume as a device.
    pub fn disk(&self) -> Disk {
        self.disk.clone()
    }

    /// Bytes of the device.
    pub fn size(&self) -> u64 {
        export::Device::size(&self.disk)
    }

    /// Notes whether the volume stays, or is on its way out.
    pub fn settle(&self, settled: bool) {
        self.settled.store(settled, Ordering::SeqCst);
    }

    /// Makes everything that was written durable and fresh.
    ///
    /// # Errors
    /// Why the session failed, or the volume's own.
    pub fn commit(&self) -> Result<(), Failure> {
        if self.volume()?.status().read_only {
            return Err(Failure::usage(
                "the volume is attached for reading only, so there is nothing to commit",
            ));
        }
        let (sender, done) = channel();
        self.disk.commit(Box::new(move |result| drop(sender.send(result))));
        match done.recv() {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(errno)) => Err(self.volume()?.failure().map_or_else(|| by_errno(errno), Failure::from)),
            Err(_) => Err(Failure::internal("a commit ended without a result")),
        }
    }

    /// Ends the transaction of a volume at level `transaction` that is about to be put away: what was not committed is committed, or is
    /// forgotten with the session. `None` if there is nothing of the kind.
    ///
    /// # Errors
    /// As [`commit`](Self::commit). A session that has failed keeps its reason to itself: [`stop`](Self::stop) tells it.
    pub fn end_transaction(&self, keep: bool) -> Result<Option<LastWrites>, Failure> {
        let Ok(volume) = self.volume() else { return Ok(None) };
        let Some(left) = volume.uncommitted().filter(|left| !left.is_empty() && volume.failure().is_none())
        else {
            return Ok(None);
        };
        if keep {
            self.commit()?;
            events::tell(&format!("committed at the end: {}", left.text()));
            return Ok(Some(LastWrites::Committed { blocks: left.blocks }));
        }
        events::tell(&format!("not committed, and forgotten: {}", left.text()));
        Ok(Some(LastWrites::Discarded { blocks: left.blocks }))
    }

    /// Reads and verifies everything, beside those who use it.
    ///
    /// # Errors
    /// When the store fails, when somebody else waits for one, or the volume is being put away.
    pub fn check(&self) -> Result<check::Report, Failure> {
        let progress = Arc::default();
        let volume = {
            let mut checking = self.checking.lock().unwrap_or_else(PoisonError::into_inner);
            if checking.strong_count() > 0 {
                return Err(Failure::usage("a check is under way already; wait for its end"));
            }
            self.check_no_change()?;
            *checking = Arc::downgrade(&progress);
            self.volume()?
        };
        let report = check::check(&volume, &progress, CHECK_THREADS, |_| ())?;
        if report.damaged_blocks > 0 {
            events::damage_found(report.damaged_blocks, report.damaged.first().map(|(block, _)| *block));
            let message = format!("{} blocks are not what was written there", report.damaged_blocks);
            self.tamper.note("check", &volume::Error::new(Kind::Corrupt, message));
        }
        if report.unreadable_blocks > 0 {
            let first = report.unreadable.first().map(|(block, _)| *block);
            events::unreadable_found(report.unreadable_blocks, first);
        }
        Ok(report)
    }

    /// How far a check has come that somebody waits for.
    fn checking(&self, of: u64) -> Option<Checking> {
        let progress = self.checking.lock().unwrap_or_else(PoisonError::into_inner).upgrade()?;
        Some(Checking { blocks: progress.blocks.load(Ordering::Relaxed).min(of), of })
    }

    /// Begins to read and verify everything in the background.
    ///
    /// # Errors
    /// When one is under way, or the system refuses a thread.
    pub fn scrub(&self, rate: u64) -> Result<(), Failure> {
        let mut scrub = self.scrub.lock().unwrap_or_else(PoisonError::into_inner);
        if scrub.as_ref().is_some_and(Scrub::is_running) {
            return Err(Failure::usage("a scrub is under way; wait for its end, or stop it with --stop"));
        }
        self.check_no_change()?;
        // Asked for under the lock: a volume that is being put away stops the scrub after it is taken away.
        *scrub = Some(Scrub::start(self.volume()?, rate, Arc::clone(&self.tamper))?);
        Ok(())
    }

    /// Ends that; what it found stays in the status.
    ///
    /// # Errors
    /// When there is none.
    pub fn stop_scrub(&self) -> Result<(), Failure> {
        let mut scrub = self.scrub.lock().unwrap_or_else(PoisonError::into_inner);
        match scrub.as_mut().filter(|scrub| scrub.is_running()) {
            Some(scrub) => {
                scrub.stop();
                Ok(())
            }
            None => Err(Failure::usage("no scrub is under way")),
        }
    }

    /// Goes on with a change of key, unless it does already.
    ///
    /// # Errors
    /// When none is under way, or the system refuses a thread.
    pub fn rekey(&self) -> Result<(), Failure> {
        let mut rekey = self.rekey.lock().unwrap_or_else(PoisonError::into_inner);
        // Asked for under the lock: a volume that is being put away is stopped after it is taken away.
        let volume = self.volume()?;
        let known = rekey.as_ref().is_some_and(|rekey| rekey.is_running() || !volume.is_rekeying());
        if known {
            return Ok(());
        }
        if !volume.is_rekeying() || volume.status().read_only {
            return Err(Failure::usage("no change of key is under way here"));
        }
        *rekey = Some(Rekey::start(volume, Arc::clone(&self.tamper))?);
        Ok(())
    }

    /// Changes what opens the volume, beside those who use it.
    ///
    /// # Errors
    /// The volume's own, and when it is being put away.
    pub fn change_slots(&self, credential: Credential, change: KeyChange) -> Result<KeysChanged, Failure> {
        // Held to the end: nobody puts the volume away meanwhile, or changes its session.
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.is_none() {
            return Err(by_errno(rustix::io::Errno::SHUTDOWN));
        }
        Ok(self.volume()?.change_keys(credential, change, SlotLimits::default())?.block()?)
    }

    /// What opens the volume.
    ///
    /// # Errors
    /// When it is attached for reading only, or being put away.
    pub fn slots(&self) -> Result<Vec<SlotInfo>, Failure> {
        Ok(self.volume()?.key_slots()?)
    }

    /// The header and key slots in force.
    ///
    /// # Errors
    /// When it is attached for reading only, being put away, or failed.
    pub fn header_backup(&self) -> Result<BackedUp, Failure> {
        // A change of session puts another header in force.
        self.check_no_change()?;
        Ok(self.volume()?.header_backup()?)
    }

    fn volume(&self) -> Result<Volume, Failure> {
        self.failure().map_or_else(|| self.last_volume(), Err)
    }

    /// The volume, also when its session has ended and there is no other.
    fn last_volume(&self) -> Result<Volume, Failure> {
        let volume = self.volume.lock().unwrap_or_else(PoisonError::into_inner).clone();
        volume.ok_or_else(|| by_errno(rustix::io::Errno::SHUTDOWN))
    }

    /// Why there is no session any more.
    fn failure(&self) -> Option<Failure> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Everything there is to say.
    ///
    /// # Errors
    /// When the volume is being put away.
    pub fn report(&self, ready: &Ready) -> Result<Report, Failure> {
        let mut volume = self.last_volume()?.status();
        volume.failure = self.failure().map(|failure| failure.to_string()).or(volume.failure);
        Ok(Report {
            name: ready.name.clone(),
            process: ready.process,
            seconds: self.clock.now().as_secs(),
            shown: ready.shown.clone(),
            warnings: ready.warnings.clone(),
            leaving: !self.settled.load(Ordering::SeqCst),
            failed_requests: self.disk.failed(),
            tamper: self.tamper.standing(),
            check: self.checking(volume.mapped_blocks),
            scrub: self.scrub.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Scrub::standing),
            rekey: self.rekey.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Rekey::standing),
            volume,
            polling: self.disk.polling(),
            hand_overs: self.disk.hand_overs(),
            latency: Latency::merged(self.disk.latencies()),
            queues: self.disk.latencies().map(Latency::percentiles).collect(),
        })
    }

    /// How long requests took.
    pub fn times(&self) -> Vec<Times> {
        Latency::times(self.disk.latencies())
    }

    /// Since when something waits for the store to have room.
    pub fn waits_for_room(&self) -> Option<WaitsForRoom> {
        self.last_volume().ok()?.waits_for_room()
    }

    /// Whether something waits for the store's host: for room, or for an answer.
    pub fn is_stuck(&self) -> bool {
        self.waits_for_room().is_some() || silence(self.last_volume().ok().as_ref()).is_some()
    }

    /// Lets requests in flight end, makes the last checkpoint, releases the anchor.
    ///
    /// # Errors
    /// When that failed: what was flushed is safe, but the next attach has to recover.
    pub fn stop(&self) -> Result<(), Failure> {
        self.stop_unless(|| false)
    }

    /// The same; what waits for room on the store, or for its host, is given up once `give_up` says so, which is asked again and again.
    ///
    /// # Errors
    /// As [`stop`](Self::stop), and when something was given up: it is lost.
    pub fn stop_unless(&self, mut give_up: impl FnMut() -> bool) -> Result<(), Failure> {
        let running = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Running { queues, maintenance, environment }) = running else { return Ok(()) };
        self.disk.close();
        while !queues.have_ended() {
            std::thread::sleep(GLANCE);
            give_up_silent_host(self.last_volume().ok().as_ref(), &mut give_up);
            if let Some(waits) = self.waits_for_room()
                && give_up()
                && let Ok(volume) = self.last_volume()
            {
                events::tell(&format!(
                    "what waits for room on the store since {} s is given up: what was acknowledged and not flushed is lost ({})",
                    waits.seconds, waits.error
                ));
                volume.give_up_waiting();
            }
        }
        let served = queues.join();
        let volume = self.volume.lock().unwrap_or_else(PoisonError::into_inner).take();
        let maintained = std::thread::scope(|scope| {
            let ending = scope.spawn(|| self.end_jobs(volume.as_ref(), maintenance));
            while !ending.is_finished() {
                std::thread::sleep(GLANCE);
                give_up_silent_host(volume.as_ref(), &mut give_up);
            }
            ending
                .join()
                .unwrap_or_else(|_| Err(Failure::internal("putting the volume away ended by a defect")))
        });
        // Of a session that failed when the key was to be changed, nobody else says it.
        let failed = self.failure().or(volume.as_ref().and_then(Volume::failure).map(Failure::from));
        drop((volume, environment));
        maintained.and(served).and(failed.map_or(Ok(()), Err))
    }

    /// Ends whatever uses the volume beside the queue threads.
    fn end_jobs(&self, volume: Option<&Volume>, maintenance: Option<Maintenance>) -> Result<(), Failure> {
        drop(self.scrub.lock().unwrap_or_else(PoisonError::into_inner).take());
        volume.iter().for_each(|volume| volume.stop());
        // It ends by itself then, and the maintenance job may wait for what it has under way.
        drop(self.rekey.lock().unwrap_or_else(PoisonError::into_inner).take());
        let maintained = maintenance.map_or(Ok(()), Maintenance::end);
        self.await_checks();
        maintained
    }

    /// A check ends by itself once the volume is stopped. Until then it has the store open, and the kernel would keep the ring of one that is cut
    /// off, and with it the store, for a moment after the end of this process.
    fn await_checks(&self) {
        while self.checking.lock().unwrap_or_else(PoisonError::into_inner).strong_count() > 0 {
            std::thread::sleep(GLANCE);
        }
    }
}

/// For how long the store's host is silent, if that is long.
fn silence(volume: Option<&Volume>) -> Option<Duration> {
    volume?.store_silent_for().filter(|silent| *silent >= SILENCE)
}

fn give_up_silent_host(volume: Option<&Volume>, give_up: &mut impl FnMut() -> bool) {
    if let (Some(volume), Some(silent)) = (volume, silence(volume))
        && give_up()
    {
        events::tell(&format!(
            "the store's host has not answered for {} s, and is waited for no longer: what was not flushed may be lost",
            silent.as_secs()
        ));
        volume.give_up_store();
    }
}
