//! From a stream to an attached volume.

use std::cell::RefCell;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use memory::{BLOCK_SIZE, Buffer};

use super::read::{Opened, StreamReader};
use super::{CHUNKS_AT_ONCE, StreamProgress, WINDOW};
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::io::{Driven, Io};
use crate::mutation::{Mutation, mutated};
use crate::queue::{Request, Runs};
use crate::volume::Volume;

/// Chunks after which what was imported is made durable: what a crash may cost, and what a transaction may hold.
const COMMIT_CHUNKS: u64 = 256;

/// What an import did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Imported {
    /// Chunks of the stream.
    pub chunks: u64,
    /// Blocks of data in it.
    pub blocks: u64,
    /// Those of them that were there already.
    pub kept: u64,
}

impl Volume {
    /// Makes this volume equal to a stream, which may be shorter: what is behind its end becomes a hole. Nobody else may write meanwhile. When
    /// the job ends, also with an error, what was imported is durable.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the stream does not fit. In the job: as [`StreamReader::chunk`], [`Kind::NoSpace`], [`Kind::Io`]; the volume then
    /// holds a part of the stream. Doing it again goes on with the rest.
    pub fn import<R: Read + 'static>(
        &self,
        reader: StreamReader<R>,
        progress: Arc<StreamProgress>,
    ) -> Result<Driven<Result<Imported>>> {
        self.stream_into(reader, progress, true)
    }

    /// Finds out whether this volume is what [`import`](Self::import) would make it, for whoever was cut before he could say so. Changes nothing,
    /// so the volume may be attached for reading only. Nobody may write meanwhile.
    ///
    /// # Errors
    /// [`Kind::Usage`] when the stream does not fit, and in the job when the volume holds something else. There also: as
    /// [`StreamReader::chunk`], [`Kind::Corrupt`], [`Kind::Io`].
    pub fn compare<R: Read + 'static>(
        &self,
        reader: StreamReader<R>,
        progress: Arc<StreamProgress>,
    ) -> Result<Driven<Result<Imported>>> {
        self.stream_into(reader, progress, false)
    }

    fn stream_into<R: Read + 'static>(
        &self,
        reader: StreamReader<R>,
        progress: Arc<StreamProgress>,
        writes: bool,
    ) -> Result<Driven<Result<Imported>>> {
        let core = Arc::clone(self.core());
        let (has, needs) = (core.geometry.logical_blocks, reader.header().blocks);
        if has < needs {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "the stream is of a volume of {needs} blocks, and this one has {has}; make a larger one"
                ),
            ));
        }
        Driven::new(self.core().environment.store.as_ref(), 128, move |io| {
            async move {
                let runs = RefCell::default();
                let importing = Importing { core: &core, io: &io, runs: &runs, progress: &progress, writes };
                let imported = importing.run(reader).await;
                runs.borrow_mut().give_all_back(&core);
                imported
            }
            .boxed_local()
        })
    }
}

#[derive(Clone, Copy)]
struct Importing<'a> {
    core: &'a Core,
    io: &'a Io,
    runs: &'a RefCell<Runs>,
    progress: &'a StreamProgress,
    /// What differs is written. Otherwise it is told, and ends the job.
    writes: bool,
}

impl Importing<'_> {
    async fn run<R: Read>(self, mut reader: StreamReader<R>) -> Result<Imported> {
        if !self.writes {
            return self.chunks(&mut reader, false).await;
        }
        // Nothing is looked up in a volume that has nothing yet. An acknowledged write that is on its way is something, and what a checkpoint
        // takes out of the overlay is in the map by then.
        if !mutated(Mutation::ImportMissesBehind) {
            self.core.all_landed().await?;
        }
        let blank = self.core.overlay.logical_blocks().is_empty() && self.core.roots().mapped == 0;
        let done = self.chunks(&mut reader, blank).await;
        if mutated(Mutation::ImportNotDurable) {
            return done;
        }
        // Also behind a chunk that is damaged: what came before it need not come again.
        let committed = self.ask(Request::Commit).await;
        let imported = done?;
        committed.map(|()| imported)
    }

    async fn chunks<R: Read>(self, reader: &mut StreamReader<R>, blank: bool) -> Result<Imported> {
        let mut imported = Imported::default();
        let mut under_way = FuturesUnordered::new();
        // What is under way ends before the first error is told: among it are writes that were acknowledged, and commits that others wait for.
        let mut trouble = None;
        let note = |kept: Result<u64>, trouble: &mut Option<Error>| match kept {
            Ok(kept) => kept,
            Err(error) => {
                trouble.get_or_insert(error);
                0
            }
        };
        while trouble.is_none() {
            match reader.chunk() {
                Ok(Some(opened)) => {
                    imported.chunks += 1;
                    imported.blocks += opened.chunk.data_blocks() as u64;
                    under_way.push(self.chunk(opened, blank));
                }
                Ok(None) => break,
                Err(error) => trouble = Some(error),
            }
            let full = if imported.chunks.is_multiple_of(COMMIT_CHUNKS) { 1 } else { CHUNKS_AT_ONCE };
            while under_way.len() >= full
                && let Some(kept) = under_way.next().await
            {
                imported.kept += note(kept, &mut trouble);
            }
            if full == 1 && self.writes && trouble.is_none() {
                trouble = self.ask(Request::Commit).await.err();
            }
            self.progress.blocks.store(imported.blocks, Ordering::Relaxed);
            self.progress.bytes.store(reader.bytes(), Ordering::Relaxed);
        }
        while let Some(kept) = under_way.next().await {
            imported.kept += note(kept, &mut trouble);
        }
        if let Some(error) = trouble {
            return Err(error);
        }
        if !blank {
            self.clear(reader.header().blocks..self.core.geometry.logical_blocks, &[]).await?;
        }
        Ok(imported)
    }

    /// Makes a chunk's range equal to it; how many of its blocks were so already.
    async fn chunk(self, opened: Opened, blank: bool) -> Result<u64> {
        let chunk = &opened.chunk;
        if !blank {
            self.clear(chunk.range.clone(), &chunk.stretches).await?;
        }
        let mut data = opened.data();
        let mut stretches = Vec::with_capacity(chunk.stretches.len());
        for stretch in chunk.stretches.iter().cloned() {
            for piece in self.pieces(stretch) {
                let blocks = usize::try_from(piece.end - piece.start).unwrap_or(0);
                let (bytes, rest) = data.split_at(blocks * BLOCK_SIZE);
                data = rest;
                stretches.push(self.stretch(piece, bytes, blank));
            }
        }
        // All of them end, whatever becomes of one.
        join_all(stretches).await.into_iter().sum()
    }

    /// No request may change more.
    fn pieces(self, stretch: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let most = self.core.largest_request();
        let starts = stretch.clone().step_by(usize::try_from(most).unwrap_or(usize::MAX));
        starts.map(move |start| start..stretch.end.min(start + most))
    }

    async fn stretch(self, stretch: Range<u64>, bytes: &[u8], blank: bool) -> Result<u64> {
        if !blank && self.holds(stretch.clone(), bytes).await? {
            return Ok(stretch.end - stretch.start);
        }
        if !self.writes {
            return Err(differs(&stretch));
        }
        let data = Bytes::copy_from_slice(bytes);
        self.ask(Request::Write { block: stretch.start, data, fua: false }).await?;
        Ok(0)
    }

    /// Whether this is what the volume has there, as data.
    async fn holds(self, stretch: Range<u64>, bytes: &[u8]) -> Result<bool> {
        let blocks = stretch.end - stretch.start;
        let extents = self.core.allocation(self.io, stretch.start, blocks).await?;
        if !extents.iter().all(|extent| extent.allocated) {
            return Ok(false);
        }
        if mutated(Mutation::KeptUnread) {
            return Ok(true);
        }
        let mut buffer = Buffer::private_zeroed(bytes.len() / BLOCK_SIZE);
        match self.core.read(self.io, stretch.start, &mut buffer).await {
            Ok(()) => Ok(buffer.private() == Some(bytes)),
            // It is written anew.
            Err(error) if error.kind() == Kind::Corrupt && self.writes => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Discards what the volume has in `range` but for `keep`.
    async fn clear(self, range: Range<u64>, keep: &[Range<u64>]) -> Result<()> {
        if mutated(Mutation::StreamHolesLeft) {
            return Ok(());
        }
        let mut at = range.start;
        for kept in keep.iter().cloned().chain(std::iter::once(range.end..range.end)) {
            while at < kept.start {
                let blocks = WINDOW.min(kept.start - at);
                let extents = self.core.allocation(self.io, at, blocks).await?;
                if extents.iter().any(|extent| extent.allocated) {
                    if !self.writes {
                        return Err(differs(&(at..at + blocks)));
                    }
                    self.ask(Request::Discard { block: at, blocks }).await?;
                }
                at += blocks;
            }
            at = kept.end;
        }
        Ok(())
    }

    async fn ask(self, request: Request) -> Result<()> {
        let mut extents = Vec::new();
        let (_, result) =
            self.core.serve(self.io, self.runs, request, &mut extents, &|| ()).boxed_local().await;
        result
    }
}

fn differs(range: &Range<u64>) -> Error {
    Error::new(
        Kind::Usage,
        format!(
            "the volume holds something else than the stream, in logical blocks {} to {}",
            range.start,
            range.end - 1
        ),
    )
}
