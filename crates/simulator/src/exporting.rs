//! Exports of the volume: while nobody has it, cut short and gone on with, and beside a guest that writes.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use anchor::State;
use memory::BLOCK_SIZE;
use seal::slot::{Argon2Params, SlotLimits};
use testkit::hostile::Session;
use volume::format::stream::StreamHeader;
use volume::{
    AttachOptions, Driven, Error, Kind, Reading, StreamReader, StreamWriter, Tail, Volume, attach_read_only,
};

use crate::answers::version_of;
use crate::model::{Model, Promise};
use crate::simulation::{Failure, Outcomes, Simulation, say};

const CHEAP: Argon2Params = Argon2Params { memory_kib: 8, passes: 1, lanes: 1 };

/// A whole stream.
#[derive(Clone)]
pub(crate) struct Stream {
    pub(crate) bytes: Rc<Vec<u8>>,
    /// What each block of its volume was, 0 for zeros.
    pub(crate) versions: Rc<Vec<u64>>,
}

/// Where an export goes: what has arrived there outlives it.
#[derive(Clone, Default)]
struct Output(Rc<RefCell<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An export under way.
pub(crate) struct Exporting {
    session: Session,
    job: Driven<Result<Output, Error>>,
    out: Output,
    /// What it may show: what would have survived, had the last session ended when it began.
    shows: (Model, Promise),
}

impl Simulation {
    /// While nobody has the volume.
    pub(crate) fn perhaps_export(&mut self) -> Outcomes {
        if !self.plan.streams || !self.is_idle() || self.guests == 0 || !self.once_in(2) {
            return Ok(());
        }
        let readings = [Reading::Latest, Reading::Pinned, Reading::PinnedBesideWriter];
        let reading = readings[self.rng.usize(..readings.len())];
        let promise = match reading {
            Reading::Latest => self.promise(true),
            _ => Promise::Anchored(self.pinned()),
        };
        let Some(exporting) = self.begin_export(reading, promise)? else { return Ok(()) };
        let Exporting { session, job, out, shows } = exporting;
        let dies = self.once_in(2).then(|| self.rng.u32(..12));
        match self.drive_or_die(&session, job, dies, ("exporting", 20_000))? {
            Some(Ok(_)) => self.exported(&out, shows),
            Some(Err(error)) => self.expect(&error, "exporting"),
            None => {
                self.cut_export(&out);
                Ok(())
            }
        }
    }

    /// The record that a reader stops at. Without an anchor there is none.
    fn pinned(&self) -> u64 {
        self.anchor.held().map_or(u64::MAX, |stamp| stamp.generation)
    }

    /// Beside a guest: what its reader finds no more is told, and never anything else.
    pub(crate) fn export_beside(&mut self) -> Outcomes {
        // Without integrity, what a guest has used again looks like what was there; and an anchor that lies has a test of its own.
        let honest = !self.tainted && !self.plan.mischief.anchor;
        if self.export.is_some() || !honest || !self.plan.create.integrity {
            return Ok(());
        }
        let promise = Promise::Anchored(self.pinned());
        self.export = self.begin_export(Reading::PinnedBesideWriter, promise)?;
        Ok(())
    }

    pub(crate) fn poll_export(&mut self) -> Outcomes {
        let Some(ended) = self.export.as_mut().and_then(|exporting| exporting.job.poll()) else {
            return Ok(());
        };
        let Some(Exporting { out, shows, .. }) = self.export.take() else { return Ok(()) };
        match ended {
            Ok(_) => {
                self.coverage.exports_beside += 1;
                self.exported(&out, shows)
            }
            Err(error) => self.reader_failed(&error, "the export"),
        }
    }

    fn reader_failed(&mut self, error: &Error, what: &str) -> Outcomes {
        say!(self, "{what} fails: {error}");
        // What a guest has used again cannot be read any more, nor what is not there while the host shows something else.
        let gone = error.kind() == Kind::Corrupt && self.guest.is_some();
        let mischief = self.plan.mischief;
        let shorter = error.kind() == Kind::Io && (mischief.rollback || mischief.tamper);
        if gone || shorter { Ok(()) } else { self.expect(error, what) }
    }

    /// Attaches for reading, and goes on with what there is of a stream, or begins one. Nothing, if that is refused.
    fn begin_export(&mut self, reading: Reading, promise: Promise) -> Result<Option<Exporting>, Failure> {
        say!(self, "the owner exports the volume: {reading:?}");
        let before = self.anchor.held();
        let may_write = before.as_ref().is_some_and(|stamp| stamp.state == State::Claimed);
        let session = self.store.attach();
        let environment = self.environment(&self.audit.watch(&session));
        let options = AttachOptions { reading, ..self.plan.attach };
        let fault = |error: Error| Failure(format!("exporting: {error}"));
        let job = attach_read_only(environment, self.owners_policy()?, self.keys.credential(), options)
            .map_err(fault)?;
        let volume = match self.drive_or_die(&session, job, None, ("attaching for reading", 20_000))? {
            Some(Ok(_)) if reading == Reading::Pinned && may_write && self.anchor.held() == before => {
                return Err(Failure("a reader is told that it is alone, and a guest may be writing".into()));
            }
            Some(Ok(volume)) => volume,
            Some(Err(error)) if error.kind() == Kind::Usage && reading == Reading::Pinned && may_write => {
                say!(self, "the reader is refused: {error}");
                self.coverage.unpinned += 1;
                return Ok(None);
            }
            Some(Err(error)) => return self.reader_failed(&error, "attaching for reading").map(|()| None),
            None => return Ok(None),
        };
        let shows = (self.model.clone(), promise);
        let out = Output::default();
        let writer = match self.half_a_stream(&volume, &out)? {
            Some(tail) => StreamWriter::resume(out.clone(), tail, self.random.as_ref()),
            None => {
                let header: StreamHeader = volume.stream_header();
                StreamWriter::begin(out.clone(), header, Self::credential(), CHEAP, self.random.as_ref())
            }
        };
        let job = volume.export(writer.map_err(fault)?, std::sync::Arc::default()).map_err(fault)?;
        Ok(Some(Exporting { session, job, out, shows }))
    }

    /// What an export that was cut has left, if it is of the state that the volume is in now.
    fn half_a_stream(&mut self, volume: &Volume, out: &Output) -> Result<Option<Tail>, Failure> {
        let Some(half) = self.half_a_stream.take() else { return Ok(None) };
        let opened = StreamReader::open(&half[..], &Self::credential(), &SlotLimits::default());
        // One that was cut in its header holds nothing.
        let Ok(reader) = opened else { return Ok(None) };
        let tail = reader.tail(|_| ()).map_err(|error| Failure(format!("half a stream: {error}")))?;
        if let Some(damage) = &tail.damage {
            return Err(Failure(format!("half a stream is taken for a damaged one: {damage}")));
        }
        match volume.check_continues(&tail) {
            Ok(()) if !tail.complete => {
                say!(self, "the export goes on at block {}", tail.blocks);
                self.coverage.exports_gone_on += 1;
                let whole = usize::try_from(tail.bytes).unwrap_or(half.len());
                out.0.borrow_mut().extend_from_slice(&half[..whole]);
                Ok(Some(tail))
            }
            Ok(()) => Ok(None),
            Err(error) if error.kind() == Kind::Usage => {
                say!(self, "the export begins anew: {error}");
                self.coverage.other_states += 1;
                Ok(None)
            }
            Err(error) => Err(Failure(format!("going on with an export: {error}"))),
        }
    }

    /// The last that was written may be lost with the machine.
    fn cut_export(&mut self, out: &Output) {
        self.coverage.cut_exports += 1;
        let mut half = out.0.take();
        if self.once_in(3) {
            half.truncate(self.rng.usize(..=half.len()));
        }
        say!(self, "the export is cut short after {} bytes", half.len());
        self.half_a_stream = Some(half);
    }

    /// Compares a stream with what it may show, and keeps it.
    fn exported(&mut self, out: &Output, (mut model, promise): (Model, Promise)) -> Outcomes {
        let bytes = out.0.take();
        let versions = read_stream(&bytes).map_err(|what| Failure(format!("a stream: {what}")))?;
        say!(self, "the export has ended: {} blocks, {} bytes", versions.len(), bytes.len());
        self.coverage.exports += 1;
        let found: Vec<Option<u64>> = versions.iter().copied().map(Some).collect();
        model.recover(&found, promise).map_err(|what| Failure(format!("an export: {what}")))?;
        self.stream = Some(Stream { bytes: Rc::new(bytes), versions: Rc::new(versions) });
        Ok(())
    }
}

/// Exports a volume that nothing happens to.
pub(crate) fn export_all(
    volume: &Volume,
    random: &dyn seal::Random,
    finish: impl FnOnce(Driven<Result<Vec<u8>, Error>>) -> Result<Vec<u8>, Failure>,
) -> Result<Stream, Failure> {
    let fault = |error: Error| Failure(format!("exporting: {error}"));
    let writer =
        StreamWriter::begin(Vec::new(), volume.stream_header(), Simulation::credential(), CHEAP, random);
    let job = volume.export(writer.map_err(fault)?, std::sync::Arc::default()).map_err(fault)?;
    let bytes = finish(job)?;
    let versions = read_stream(&bytes).map_err(|what| Failure(format!("a stream: {what}")))?;
    Ok(Stream { bytes: Rc::new(bytes), versions: Rc::new(versions) })
}

/// Which version each block of a stream is.
fn read_stream(bytes: &[u8]) -> Result<Vec<u64>, String> {
    let told = |error: Error| error.to_string();
    let mut reader =
        StreamReader::open(bytes, &Simulation::credential(), &SlotLimits::default()).map_err(told)?;
    let blocks = usize::try_from(reader.header().blocks).map_err(|error| error.to_string())?;
    let mut versions = vec![0; blocks];
    while let Some(opened) = reader.chunk().map_err(told)? {
        let pages = opened.data().chunks_exact(BLOCK_SIZE);
        for (block, page) in opened.chunk.stretches.iter().cloned().flatten().zip(pages) {
            let version = version_of(block, page)?;
            *versions.get_mut(usize::try_from(block).unwrap_or(blocks)).ok_or("a block behind the end")? =
                version;
        }
    }
    Ok(versions)
}
