//! From an attached volume to a stream.

use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::try_join_all;
use futures::stream::unfold;
use futures::{FutureExt, Stream, TryStreamExt};
use memory::{BLOCK_SIZE, Buffer};

use super::write::StreamWriter;
use super::{CHUNKS_AT_ONCE, StreamProgress, Tail, WINDOW};
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::stream::{CHUNK_BLOCKS, Chunk, StreamHeader};
use crate::io::{Driven, Io};
use crate::mutation::{Mutation, mutated};
use crate::survey::StateName;
use crate::volume::Volume;

impl Volume {
    /// The header of a stream of this volume, as it is now.
    #[must_use]
    pub fn stream_header(&self) -> StreamHeader {
        let core = self.core();
        let (generation, head) = core.commit.position();
        let mut stream = [0; 16];
        core.random.fill(&mut stream);
        StreamHeader {
            stream,
            volume: core.header.volume,
            generation,
            head,
            blocks: core.geometry.logical_blocks,
        }
    }

    /// Whether a stream that was cut is of this volume in the very state that it is in.
    ///
    /// # Errors
    /// [`Kind::Usage`] if not: a stream holds one state.
    pub fn check_continues(&self, tail: &Tail) -> Result<()> {
        let now = self.stream_header();
        let StreamHeader { volume, generation, head, blocks, .. } = &tail.header;
        if *volume != now.volume {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "the stream is of another volume, {}; nothing was changed. Name another file",
                    hex::encode(volume)
                ),
            ));
        }
        let same = (*generation, *head, *blocks) == (now.generation, now.head, now.blocks);
        if !same && !mutated(Mutation::StreamOfTwoStates) {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "the stream is of the state {}, and the volume is at {} now; nothing was changed. A stream holds one state: begin a new one",
                    tail.header.state(),
                    now.state()
                ),
            ));
        }
        Ok(())
    }

    /// Writes what the stream lacks of this volume, which must not change meanwhile: attach it for reading. The result is the output.
    ///
    /// # Errors
    /// In the job: [`Kind::Corrupt`] with the logical blocks that are damaged, and then the stream has no end; [`Kind::Io`].
    pub fn export<W: Write + 'static>(
        &self,
        writer: StreamWriter<W>,
        progress: Arc<StreamProgress>,
    ) -> Result<Driven<Result<W>>> {
        let core = Arc::clone(self.core());
        if !core.read_only {
            return Err(Error::new(
                Kind::Usage,
                "a volume is exported only where it is attached for reading",
            ));
        }
        Driven::new(self.core().environment.store.as_ref(), 128, move |io| {
            async move { export(&core, &io, writer, &progress).await }.boxed_local()
        })
    }
}

impl StreamHeader {
    /// The name of the state that the stream holds.
    #[must_use]
    pub fn state(&self) -> StateName {
        StateName::of(self.generation, &self.head)
    }
}

async fn export<W: Write>(
    core: &Core,
    io: &Io,
    mut writer: StreamWriter<W>,
    progress: &StreamProgress,
) -> Result<W> {
    let planning = Planning { core, io, at: writer.at(), known: Vec::new() };
    let filled = planning.chunks().map_ok(|chunk| fill(core, io, chunk)).try_buffered(CHUNKS_AT_ONCE);
    let mut filled = std::pin::pin!(filled);
    while let Some((chunk, payload)) = filled.try_next().await? {
        writer.chunk(&chunk, &payload)?;
        progress.blocks.fetch_add(chunk.data_blocks() as u64, Ordering::Relaxed);
        progress.bytes.store(writer.bytes(), Ordering::Relaxed);
    }
    writer.finish()
}

/// Cuts a volume into chunks.
struct Planning<'a> {
    core: &'a Core,
    io: &'a Io,
    /// The block that the next chunk begins with.
    at: u64,
    /// Stretches with data from there on that were looked up already, the next one last.
    known: Vec<Range<u64>>,
}

impl<'a> Planning<'a> {
    fn chunks(self) -> impl Stream<Item = Result<Chunk>> + 'a {
        unfold(self, |mut planning| async move {
            let next = planning.next().await.transpose()?;
            Some((next, planning))
        })
    }

    async fn next(&mut self) -> Result<Option<Chunk>> {
        let end = self.core.geometry.logical_blocks;
        if self.at == end {
            return Ok(None);
        }
        let start = self.at;
        let mut stretches: Vec<Range<u64>> = Vec::new();
        let mut room = CHUNK_BLOCKS as u64;
        while room > 0 && self.look().await? {
            let Some(found) = self.known.pop() else { break };
            let cut = found.end.min(found.start + room);
            if cut < found.end {
                self.known.push(cut..found.end);
            }
            room -= cut - found.start;
            self.at = cut;
            match stretches.last_mut() {
                Some(last) if last.end == found.start => last.end = cut,
                _ => stretches.push(found.start..cut),
            }
        }
        // Without room there may be more data; else all the rest is a hole.
        Ok(Some(Chunk { range: start..self.at, stretches }))
    }

    /// Looks for data from `at` on; false at the volume's end.
    async fn look(&mut self) -> Result<bool> {
        let end = self.core.geometry.logical_blocks;
        while self.known.is_empty() {
            if self.at == end {
                return Ok(false);
            }
            let blocks = WINDOW.min(end - self.at);
            let mut block = self.at;
            for extent in self.core.allocation(self.io, self.at, blocks).await? {
                if extent.allocated {
                    self.known.push(block..block + extent.blocks);
                }
                block += extent.blocks;
            }
            self.known.reverse();
            if self.known.is_empty() {
                self.at += blocks;
            }
        }
        Ok(true)
    }
}

/// Reads a chunk's data.
async fn fill(core: &Core, io: &Io, chunk: Chunk) -> Result<(Chunk, Vec<u8>)> {
    let read = |stretch: Range<u64>| async move {
        let mut buffer = Buffer::private_zeroed(usize::try_from(stretch.end - stretch.start).unwrap_or(0));
        core.read(io, stretch.start, &mut buffer).await.map(|()| buffer)
    };
    let buffers = match try_join_all(chunk.stretches.iter().cloned().map(read)).await {
        Err(error) if error.kind() == Kind::Corrupt => {
            return Err(damaged(core, io, &chunk).await?.unwrap_or(error));
        }
        read => read?,
    };
    let mut payload = chunk.encode();
    let mut at = chunk.table_bytes();
    for buffer in buffers {
        buffer.copy_to(0, &mut payload[at..at + buffer.len()]);
        at += buffer.len();
    }
    debug_assert_eq!(at, chunk.table_bytes() + chunk.data_blocks() * BLOCK_SIZE);
    Ok((chunk, payload))
}

/// Which blocks of a chunk are damaged; none if they are not any more.
async fn damaged(core: &Core, io: &Io, chunk: &Chunk) -> Result<Option<Error>> {
    let mut blocks = Vec::new();
    for logical in chunk.stretches.iter().cloned().flatten() {
        match core.read(io, logical, &mut Buffer::private_zeroed(1)).await {
            Err(error) if error.kind() == Kind::Corrupt => blocks.push(logical),
            read => read?,
        }
    }
    if blocks.is_empty() {
        return Ok(None);
    }
    let named: Vec<String> = blocks.iter().take(8).map(u64::to_string).collect();
    let more = if blocks.len() > named.len() { ", ..." } else { "" };
    let message = format!(
        "logical blocks {}{more} are not what was written there, so the stream has no end; `cvmio volume check` lists all that are damaged. Write them anew or restore them, and export again",
        named.join(", ")
    );
    Ok(Some(Error::corrupt_blocks(message, blocks)))
}
