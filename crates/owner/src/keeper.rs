//! The one thread that reads and moves stamps.
//!
//! It takes what has been asked in batches. A batch is one transaction: all its moves, in their order, with their entries in the log. Then the
//! service's own anchor, if it has one, takes the new end of the log; and only then anything of the batch is answered, reads included. So an
//! answer never rests on something that a crash or a database that was put back could take away.

use crate::database::{Change, Checked, Database};
use crate::error::Error;
use crate::log::{ClientId, Event, Head, Move, State, Volume};
use crate::private;
use crate::root::Root;
use anchor::{Anchor, Stamp};
use anchor_owner::wire::{Name, Outcome, Position, Question, Refusal, Request, Text};
use seal::Random;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

mod admin;
mod bucket;

pub use admin::{Command, Reply, VolumeReport};
use bucket::Bucket;

/// Most requests that share a transaction.
const BATCH: usize = 256;

/// Entries after which the log gets a snapshot, and drops what is older into the archive.
const SNAPSHOT_AFTER: u64 = 200_000;

/// Entries after which that is tried again, if the archive could not be written.
const SNAPSHOT_AGAIN: u64 = 1000;

/// Most clients and volumes whose last settling read is remembered.
const MAX_FENCES: usize = 65_536;

/// The client that asked, and its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The client, by its public key.
    pub client: ClientId,
    /// The connection's number; a later connection has a higher one.
    pub connection: u64,
}

/// Something for the keeper to do.
pub enum Job {
    /// A client's request; where the answer goes.
    Ask(Origin, Request, SyncSender<(Outcome, Position)>),
    /// A message that is no request: only logged.
    Unreadable(Origin),
    /// What was released to a guest, or withheld; told once the log has it.
    Record(Event, SyncSender<()>),
    /// The owner's command.
    Administer(Command, SyncSender<Result<Reply, String>>),
    /// The end of the service.
    Stop(SyncSender<()>),
}

/// The keeper of the database.
pub struct Keeper {
    database: Database,
    archive: PathBuf,
    identity: [u8; 16],
    anchored: bool,
    root: Root,
    position: Arc<Mutex<Position>>,
    bucket: Bucket,
    /// For a client and a volume: requests on connections before this one are void.
    fences: HashMap<(ClientId, Name), u64>,
    first: u64,
    /// Entries after which the log gets a snapshot.
    snapshot_after: u64,
    /// No snapshot before this entry: the last attempt failed.
    not_before: u64,
    stop: Arc<AtomicBool>,
    report: Report,
}

/// Where lines for the owner go.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// What a job of a batch is answered with, once the batch is durable.
enum Pending {
    Answer(SyncSender<(Outcome, Position)>, Outcome),
    Reply(SyncSender<Result<Reply, String>>, Result<Reply, String>),
    Recorded(SyncSender<()>),
}

impl Keeper {
    /// Opens the database in the state directory `directory`, checks all of it, and takes the service's own anchor.
    ///
    /// # Errors
    /// If the database is damaged, was put back, is in use, or stands on another root than `own`.
    pub fn open(directory: &Path, own: Option<Arc<dyn Anchor>>, report: Report) -> Result<Keeper, Error> {
        private::check_state(directory)?;
        let (mut database, checked) = Database::open(&directory.join(crate::DATABASE))?;
        let identity = checked.state.database.ok_or_else(|| {
            Error::Usage(
                "the database was not made to its end: remove it, and run `cvmio-owner init` again".into(),
            )
        })?;
        let anchored = checked.state.anchored;
        let root = match own {
            Some(_) if !anchored => {
                return Err(Error::Usage(
                    "this database was made without an anchor of its own; only one that is made with an anchor can be served with it"
                        .into(),
                ));
            }
            None if anchored => {
                return Err(Error::Usage(
                    "this database was made with an anchor of its own: serve it with that anchor".into(),
                ));
            }
            None => Root::Disk,
            Some(anchor) => Keeper::take_anchor(&mut database, &checked, anchor, identity)?,
        };
        let first = database.first()?;
        let position = Arc::new(Mutex::new(position(identity, database.head()?)));
        Ok(Keeper {
            database,
            archive: directory.join(crate::ARCHIVE),
            identity,
            anchored,
            root,
            position,
            bucket: Bucket::default(),
            fences: HashMap::new(),
            first,
            snapshot_after: SNAPSHOT_AFTER,
            not_before: 0,
            stop: Arc::default(),
            report,
        })
    }

    /// Claims the anchor. What the log has beyond the anchored entry was never answered, and may be forged: it is dropped.
    fn take_anchor(
        database: &mut Database,
        checked: &Checked,
        anchor: Arc<dyn Anchor>,
        identity: [u8; 16],
    ) -> Result<Root, Error> {
        let look = Root::look(anchor, identity)?;
        let covered = look.covered();
        if covered.number > checked.head.number {
            let fault = crate::log::Fault::Cut { expected: covered.number, found: checked.head.number };
            return Err(Error::RolledBack(fault));
        }
        let rolled_back = |error| match error {
            Error::Fault(fault) => Error::RolledBack(fault),
            error => error,
        };
        let reached = database.reach(covered).map_err(rolled_back)?;
        let mut session = [0; 16];
        seal::SystemRandom.fill(&mut session);
        let mut root = look.claim(session, &reached)?;
        let dropped = checked.head.number - covered.number;
        if dropped > 0 || covered != checked.head {
            database.cut(covered).map_err(rolled_back)?;
            let mut change = database.begin()?;
            change.push(now(), Event::Cut(dropped))?;
            let head = change.commit()?;
            root.cover(head, &AtomicBool::new(true), &mut |_| {})?;
        }
        Ok(root)
    }

    /// How far what is answered reaches; shared with the threads that answer clients.
    #[must_use]
    pub fn position(&self) -> Arc<Mutex<Position>> {
        Arc::clone(&self.position)
    }

    /// Ends waiting for an anchor that is away.
    #[must_use]
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// What the service stands on, in a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        self.root.sentence()
    }

    /// Works until a job says stop, or there is no connection left that could ask.
    ///
    /// # Errors
    /// After an error what is durable is unknown: the service must end, and start anew.
    pub fn run(&mut self, jobs: &Receiver<Job>) -> Result<(), Error> {
        self.note(Event::Started)?;
        let mut batch = Vec::new();
        while let Ok(job) = jobs.recv() {
            batch.push(job);
            while batch.len() < BATCH {
                let Ok(job) = jobs.try_recv() else { break };
                batch.push(job);
            }
            if let Some(done) = self.work(batch.drain(..))? {
                let ended = self.end();
                let _ = done.send(());
                return ended;
            }
        }
        self.end()
    }

    /// Carries out one command, as the running service would.
    ///
    /// # Errors
    /// As [`Keeper::run`]; a command that is refused is the inner error.
    pub fn administer(&mut self, command: Command) -> Result<Result<Reply, String>, Error> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.work([Job::Administer(command, sender)].into_iter())?;
        Ok(receiver.recv().unwrap_or_else(|_| Err("the command was not carried out".into())))
    }

    fn note(&mut self, event: Event) -> Result<(), Error> {
        let mut change = self.database.begin()?;
        change.push(now(), event)?;
        let head = change.commit()?;
        self.cover(head)
    }

    /// Ends this run: the log says so, and the anchor is released.
    ///
    /// # Errors
    /// As [`Keeper::run`].
    pub fn end(&mut self) -> Result<(), Error> {
        self.note(Event::Stopped)?;
        self.root.release()
    }

    fn cover(&mut self, head: Head) -> Result<(), Error> {
        let report = Arc::clone(&self.report);
        self.root.cover(head, &self.stop, &mut |line| report(line))?;
        *self.position.lock().unwrap_or_else(PoisonError::into_inner) = position(self.identity, head);
        Ok(())
    }

    /// One batch. Returns where to report the end, if a job asked for it.
    fn work(&mut self, jobs: impl Iterator<Item = Job>) -> Result<Option<SyncSender<()>>, Error> {
        let mut change = self.database.begin()?;
        let mut pending = Vec::new();
        let mut stop = None;
        let mut desk = Desk { bucket: &mut self.bucket, fences: &mut self.fences, time: now() };
        for job in jobs {
            match job {
                Job::Ask(origin, request, to) => {
                    pending.push(Pending::Answer(to, desk.ask(&mut change, origin, &request)?));
                }
                Job::Unreadable(origin) => {
                    desk.refuse(&mut change, origin.client, None, Refusal::BadRequest, "")?;
                }
                Job::Record(event, to) => {
                    desk.record(&mut change, event)?;
                    pending.push(Pending::Recorded(to));
                }
                Job::Administer(command, to) => {
                    let reply = admin::carry_out(&mut change, desk.time, command)?;
                    pending.push(Pending::Reply(to, reply));
                }
                Job::Stop(done) => stop = Some(done),
            }
        }
        // A change that is not committed ends here, too: what follows begins changes of its own.
        if let Some(head) = change.finish()? {
            self.cover(head)?;
        }
        let position = *self.position.lock().unwrap_or_else(PoisonError::into_inner);
        for answer in pending {
            // A client that has gone does not hear.
            match answer {
                Pending::Answer(to, outcome) => drop(to.try_send((outcome, position))),
                Pending::Reply(to, reply) => drop(to.try_send(reply)),
                Pending::Recorded(to) => drop(to.try_send(())),
            }
        }
        let last = position.number;
        if last >= self.not_before && last.saturating_sub(self.first) >= self.snapshot_after {
            self.snapshot(last)?;
        }
        Ok(stop)
    }

    /// Moves the entries up to `last`, which are all there are, into a file of the archive, and writes what is held anew into the log. Cut short
    /// anywhere, it is done again from its beginning: entries may lie in the archive and in the database, or in two files of the archive.
    fn snapshot(&mut self, last: u64) -> Result<(), Error> {
        match crate::archive::write(&self.archive, &self.database, self.first, last) {
            Ok(()) => {}
            // The service needs no archive to do its work, and the log can wait in the database.
            Err(error @ Error::Io(..)) => {
                self.not_before = last + SNAPSHOT_AGAIN;
                let why = "the log grows until its older entries can be archived";
                (self.report)(&format!("{error}; {why}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let mut change = self.database.begin()?;
        let volumes = change.volumes()?;
        let (begin, time) = (change.head().number + 1, now());
        change.push(time, Event::Snapshot { database: self.identity, anchored: self.anchored })?;
        for (name, volume) in volumes {
            for event in kept(&name, volume) {
                change.push(time, event)?;
            }
        }
        let head = change.commit()?;
        self.cover(head)?;
        let mut change = self.database.begin()?;
        change.drop_before(begin)?;
        change.commit()?;
        self.first = begin;
        Ok(())
    }
}

/// The entries of a snapshot for one volume.
fn kept(name: &Name, volume: Volume) -> Vec<Event> {
    let mut events = vec![Event::KeptVolume(name.clone(), volume.retired)];
    events.extend(volume.clients.iter().map(|client| Event::KeptClient(name.clone(), *client)));
    events.extend(volume.stamp.map(|stamp| Event::KeptStamp(name.clone(), stamp)));
    events
}

/// What the requests of a batch are answered with.
struct Desk<'a> {
    bucket: &'a mut Bucket,
    fences: &'a mut HashMap<(ClientId, Name), u64>,
    time: u64,
}

impl Desk<'_> {
    fn ask(&mut self, change: &mut Change<'_>, from: Origin, request: &Request) -> Result<Outcome, Error> {
        let name = &request.name;
        let volume = change.volume(name)?.filter(|volume| volume.clients.contains(&from.client));
        let Some(volume) = volume else {
            // Which of the two it is would tell a client which volumes there are.
            let why = format!("no volume {name} for this client");
            return self.refuse(change, from.client, Some(name), Refusal::NotAllowed, &why);
        };
        let fence = self.fences.get(&(from.client, name.clone())).copied().unwrap_or(0);
        if from.connection < fence {
            // Not logged: the client takes care of itself, and nothing was attempted by anyone else.
            return Ok(Outcome::Refused(
                Refusal::Superseded,
                Text::new("a newer connection has settled this volume"),
            ));
        }
        match &request.question {
            Question::Read { settle } => {
                if *settle {
                    self.settle(from, name);
                }
                Ok(Outcome::Held(volume.stamp))
            }
            Question::Move { expected, new } => {
                self.advance(change, from, name, &volume, (expected.as_deref(), new))
            }
        }
    }

    /// From now on, older connections of this client can't move the volume.
    fn settle(&mut self, from: Origin, name: &Name) {
        if self.fences.len() >= MAX_FENCES {
            // Connections live for minutes at most without being used; the oldest fences fence nothing any more.
            let mut connections: Vec<u64> = self.fences.values().copied().collect();
            connections.sort_unstable();
            let middle = connections[connections.len() / 2];
            self.fences.retain(|_, connection| *connection > middle);
        }
        self.fences.insert((from.client, name.clone()), from.connection);
    }

    fn advance(
        &mut self,
        change: &mut Change<'_>,
        from: Origin,
        name: &Name,
        volume: &Volume,
        (expected, new): (Option<&Stamp>, &Stamp),
    ) -> Result<Outcome, Error> {
        if volume.retired {
            return self.refuse(change, from.client, Some(name), Refusal::Retired, "retired by the owner");
        }
        if volume.stamp.as_deref() != expected {
            if let Some(left_out) = self.bucket.take(self.time) {
                let wanted = Box::new(new.clone());
                let event = Event::Conflict { left_out, name: name.clone(), client: from.client, wanted };
                change.push(self.time, event)?;
            }
            return Ok(Outcome::Conflict(volume.stamp.clone()));
        }
        if !volume.takes(new) {
            let why = "the new stamp is of another volume, or the held one is terminal";
            return self.refuse(change, from.client, Some(name), Refusal::OtherVolume, why);
        }
        let kind = Move::between(volume.stamp.as_deref(), new);
        change.push(self.time, Event::Moved(kind, name.clone(), from.client, Box::new(new.clone())))?;
        Ok(Outcome::Moved)
    }

    /// What is released is always recorded; what is withheld, as other refusals.
    fn record(&mut self, change: &mut Change<'_>, event: Event) -> Result<(), Error> {
        let event = match event {
            Event::Withheld { name, key, evidence, .. } => match self.bucket.take(self.time) {
                Some(left_out) => Event::Withheld { left_out, name, key, evidence },
                None => return Ok(()),
            },
            event => event,
        };
        change.push(self.time, event)
    }

    fn refuse(
        &mut self,
        change: &mut Change<'_>,
        client: ClientId,
        name: Option<&Name>,
        reason: Refusal,
        why: &str,
    ) -> Result<Outcome, Error> {
        if let Some(left_out) = self.bucket.take(self.time) {
            change.push(self.time, Event::Refused { reason, left_out, name: name.cloned(), client })?;
        }
        Ok(Outcome::Refused(reason, Text::new(why)))
    }
}

fn position(database: [u8; 16], head: Head) -> Position {
    Position { database, number: head.number, head: head.hash }
}

/// Milliseconds since 1970. Entries carry it for people; nothing else depends on it.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Makes the first entry of a new database.
pub(crate) fn make(database: &mut Database, own: Option<&dyn Anchor>) -> Result<State, Error> {
    let mut identity = [0; 16];
    seal::SystemRandom.fill(&mut identity);
    let mut change = database.begin()?;
    change.push(now(), Event::Made { database: identity, anchored: own.is_some() })?;
    let head = change.commit()?;
    if let Some(anchor) = own {
        Root::make(anchor, identity, head)?;
    }
    Ok(database.check()?.state)
}

#[cfg(test)]
mod tests;
