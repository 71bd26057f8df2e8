//! Imports into a guest's volume, which may be cut short with it and are then done again; and streams that are damaged.

use std::io::Cursor;
use std::sync::Arc;

use seal::slot::SlotLimits;
use volume::format::protections::Freshness;
use volume::{Driven, Error, Imported, Kind, StreamReader, Volume};

use crate::exporting::Stream;
use crate::simulation::{Failure, Outcomes, Simulation, say};

/// How a stream is refused that was changed or cut.
const DAMAGE: &[Kind] = &[Kind::Usage, Kind::Corrupt, Kind::Locked, Kind::Io];

/// A stream that the volume is to become equal to, however often it takes.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) stream: Stream,
    /// An import of it has begun.
    pub(crate) begun: bool,
}

/// A stream on its way into a volume, or held against it.
pub(crate) struct Importing {
    job: Job,
    stream: Stream,
    /// The model's moments of its changes and of its commit.
    begin: u64,
    commit: u64,
    purpose: Purpose,
}

type Job = Driven<Result<Imported, Error>>;

/// What is done with a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The volume becomes equal to it.
    Import,
    /// The same, but it is not what was exported, and must be refused.
    ImportDamaged,
    /// It is held against the volume.
    Compare,
}

impl Simulation {
    /// The owner makes the guest's volume equal to a stream, or holds it against one. Nobody else writes meanwhile.
    pub(crate) fn begin_import(&mut self) -> Outcomes {
        let Some(stream) = self.stream.clone() else { return Ok(()) };
        self.settle("before an import")?;
        let mut bytes = stream.bytes.as_ref().clone();
        let purpose = if self.once_in(6) {
            self.damage(&mut bytes);
            Purpose::ImportDamaged
        } else if self.once_in(4) {
            Purpose::Compare
        } else {
            self.wanted = Some(Wanted { stream: stream.clone(), begun: false });
            Purpose::Import
        };
        self.import(stream, bytes, purpose)
    }

    /// A volume that was to become equal to a stream becomes that, whatever has come in between.
    pub(crate) fn go_on_importing(&mut self) -> Outcomes {
        let Some(Wanted { stream, begun }) = self.wanted.clone() else { return Ok(()) };
        self.coverage.imports_gone_on += u64::from(begun);
        let bytes = stream.bytes.as_ref().clone();
        self.import(stream, bytes, Purpose::Import)
    }

    fn damage(&mut self, bytes: &mut Vec<u8>) {
        let at = self.rng.usize(..bytes.len());
        if self.rng.bool() {
            bytes.truncate(at);
        } else {
            bytes[at] ^= 1 << self.rng.u32(..8);
        }
    }

    fn import(&mut self, stream: Stream, bytes: Vec<u8>, purpose: Purpose) -> Outcomes {
        let Some(guest) = self.guest.as_ref().filter(|guest| guest.import.is_none() && !guest.stopping)
        else {
            return Ok(());
        };
        say!(self, "guest {}: {purpose:?}, a stream of {} blocks", guest.name, stream.versions.len());
        let volume = guest.volume.clone();
        let Some(job) = self.begin_job(&volume, &stream, bytes, purpose)? else { return Ok(()) };
        let (begin, commit) = if purpose == Purpose::Compare {
            (self.model.tick(), 0)
        } else {
            let version = |block| version_in(&stream, block);
            (self.model.begin_change(0, self.geometry.logical_blocks, version), self.model.begin_commit())
        };
        if let Some(wanted) = self.wanted.as_mut().filter(|_| purpose == Purpose::Import) {
            wanted.begun = true;
        }
        if let Some(guest) = &mut self.guest {
            guest.import = Some(Importing { job, stream, begin, commit, purpose });
        }
        Ok(())
    }

    /// Nothing, if the stream is refused before it begins, as it must be.
    fn begin_job(
        &mut self,
        volume: &Volume,
        stream: &Stream,
        bytes: Vec<u8>,
        purpose: Purpose,
    ) -> Result<Option<Job>, Failure> {
        let opened = StreamReader::open(Cursor::new(bytes), &Self::credential(), &SlotLimits::default());
        let reader = match opened {
            Ok(reader) => reader,
            Err(error) if purpose == Purpose::ImportDamaged && DAMAGE.contains(&error.kind()) => {
                say!(self, "the stream is refused: {error}");
                self.coverage.damaged_streams += 1;
                return Ok(None);
            }
            Err(error) => return Err(Failure(format!("a stream that was exported does not open: {error}"))),
        };
        let job = match purpose {
            Purpose::Compare => volume.compare(reader, Arc::default()),
            Purpose::Import | Purpose::ImportDamaged => volume.import(reader, Arc::default()),
        };
        let fits = stream.versions.len() as u64 <= volume.blocks();
        match job {
            Ok(job) if fits => Ok(Some(job)),
            Err(error) if !fits && error.kind() == Kind::Usage => {
                self.wanted = None;
                Ok(None)
            }
            Ok(_) => Err(Failure("a stream of a larger volume is taken".into())),
            Err(error) => Err(Failure(format!("an import does not begin: {error}"))),
        }
    }

    /// Moves that on.
    pub(crate) fn poll_import(&mut self) -> Outcomes {
        let Some(guest) = &mut self.guest else { return Ok(()) };
        let Some(ended) = guest.import.as_mut().and_then(|importing| importing.job.poll()) else {
            return Ok(());
        };
        let Some(importing) = guest.import.take() else { return Ok(()) };
        match &ended {
            Ok(imported) => say!(self, "guest {}: the stream has ended: {imported:?}", guest.name),
            Err(error) => say!(self, "guest {}: the stream ends: {error}", guest.name),
        }
        if importing.purpose == Purpose::Compare {
            return self.compared(&importing, ended);
        }
        self.model.end_change(0, self.geometry.logical_blocks, importing.begin, ended.is_ok(), None);
        self.model.end_commit(importing.commit, false);
        match ended {
            Ok(_) if importing.purpose == Purpose::ImportDamaged => {
                Err(Failure("a damaged stream was imported".into()))
            }
            Ok(imported) => self.imported(&importing.stream, imported),
            Err(error) => self.import_failed(importing.purpose, &error),
        }
    }

    /// All of it is durable.
    fn imported(&mut self, stream: &Stream, imported: Imported) -> Outcomes {
        self.wanted = None;
        self.coverage.imports += 1;
        self.coverage.kept_blocks += imported.kept;
        let begin = self.model.begin_commit();
        self.model.end_commit(begin, true);
        if let Some(guest) = &self.guest {
            self.model.end_flush(begin, guest.volume.status().generation);
        }
        if self.once_in(2) {
            // So what is asked for next can tell nothing else.
            let bytes = stream.bytes.as_ref().clone();
            return self.import(stream.clone(), bytes, Purpose::Compare);
        }
        Ok(())
    }

    fn import_failed(&mut self, purpose: Purpose, error: &Error) -> Outcomes {
        let Some(guest) = &self.guest else { return Ok(()) };
        if purpose == Purpose::ImportDamaged && DAMAGE.contains(&error.kind()) {
            self.coverage.damaged_streams += 1;
            return Ok(());
        }
        let full = self.is_thin() || self.plan.create.freshness == Freshness::Transaction;
        if full && error.kind() == Kind::NoSpace {
            // It will never fit.
            self.wanted = None;
            return Ok(());
        }
        if guest.stopping || guest.volume.failure().is_some() {
            return Ok(());
        }
        self.expect(error, "the import")
    }

    /// Whether the volume holds what the stream does, as it was told.
    fn compared(&mut self, importing: &Importing, ended: Result<Imported, Error>) -> Outcomes {
        let same = match ended {
            Ok(_) => true,
            Err(error) if error.kind() == Kind::Usage => false,
            Err(error) => return self.expect(&error, "comparing"),
        };
        if self.tainted || self.guest.as_ref().is_none_or(|guest| guest.stopping) {
            return Ok(());
        }
        self.coverage.comparisons += 1;
        let can_be =
            |block: u64, version: u64| self.model.check_read(block, version, importing.begin).is_ok();
        let must_be = |block: u64, version: u64| self.model.is_settled(block, version, importing.begin);
        let mut each =
            (0..self.geometry.logical_blocks).map(|block| (block, version_in(&importing.stream, block)));
        let right = if same {
            each.all(|(block, version)| can_be(block, version))
        } else {
            each.any(|(block, version)| !must_be(block, version))
        };
        if right {
            return Ok(());
        }
        Err(Failure(format!(
            "a stream is said to be {}what the volume holds",
            if same { "" } else { "not " }
        )))
    }
}

/// Behind its end there is nothing.
fn version_in(stream: &Stream, block: u64) -> u64 {
    usize::try_from(block).ok().and_then(|block| stream.versions.get(block)).copied().unwrap_or(0)
}
