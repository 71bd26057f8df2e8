//! What happens to one request, from the first look at it to its completion.
//!
//! Invariant: a write names its new place only after the store has acknowledged it; the entry becomes visible with its sequence number. Its
//! submitter may be told before (see [`landing`](crate::landing)).

use std::cell::RefCell;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::FutureExt;
use memory::{BLOCK_SIZE, Buffer};
use seal::TAG_SIZE;

use crate::allocation::Extent;
use crate::commit::Want;
use crate::core::Core;
use crate::error::{Error, Kind, Result};
use crate::format::ad::data_ad;
use crate::format::entry::Entry;
use crate::format::protections::{Freshness, Provision};
use crate::io::{Io, Transfer};
use crate::keys::Use;
use crate::landing::Change;
use crate::mutation::{Mutation, mutated};
use crate::node_room::Changes;
use crate::overlay::items_of_discard;
use crate::places::Placing;
use crate::queue::{Request, Runs};
use crate::read::Via;

/// Transfers under way, each with the first physical block that it writes.
type OnTheirWay = Vec<(u64, Transfer)>;

/// Blocks of zeros that are written at a time.
const ZERO_BLOCKS: usize = 64;
static ZEROS: [u8; ZERO_BLOCKS * BLOCK_SIZE] = [0; ZERO_BLOCKS * BLOCK_SIZE];

fn usize_of(blocks: u64) -> usize {
    usize::try_from(blocks).unwrap_or(usize::MAX)
}

impl Core {
    /// Runs a request to its end. `early` is told of a write that completes before that, once.
    #[expect(clippy::manual_async_fn, reason = "an `async fn` would have room for the request twice")]
    pub(crate) fn serve<'a>(
        &'a self,
        io: &'a Io,
        runs: &'a RefCell<Runs>,
        request: Request,
        extents: &'a mut Vec<Extent>,
        early: &'a dyn Fn(),
    ) -> impl Future<Output = (Option<Buffer>, Result<()>)> + 'a {
        async move {
            let result = match request {
                Request::Read { block, mut buffer } => {
                    let result = self.read(io, block, &mut buffer).await;
                    return (Some(buffer), result);
                }
                Request::Write { block, data, fua } if self.is_room_scarce() => {
                    self.write_where_room_is_scarce(io, runs, block, data, fua).boxed_local().await
                }
                Request::Write { block, data, fua } => self.write(io, runs, block, data, fua, early).await,
                Request::Zero { block, blocks } => self.zero(io, runs, block, blocks).boxed_local().await,
                Request::Flush => self.flush(io).await,
                Request::Discard { block, blocks } => self.discard(io, runs, block, blocks).await,
                Request::Allocation { block, blocks } => {
                    let found = self.allocation(io, block, blocks).boxed_local().await;
                    found.map(|found| *extents = found)
                }
                Request::Commit => self.commit_transaction(io).await,
            };
            (None, result)
        }
    }

    pub(crate) fn check_range(&self, block: u64, blocks: u64) -> Result<()> {
        let size = self.geometry.logical_blocks;
        if block.checked_add(blocks).is_some_and(|end| end <= size) {
            return Ok(());
        }
        Err(Error::new(
            Kind::Usage,
            format!(
                "blocks {block} to {} are not in this volume of {size} blocks",
                block.saturating_add(blocks)
            ),
        ))
    }

    pub(crate) async fn write(
        &self,
        io: &Io,
        runs: &RefCell<Runs>,
        block: u64,
        data: Bytes,
        fua: bool,
        early: &dyn Fn(),
    ) -> Result<()> {
        let before = self.asked();
        if !data.len().is_multiple_of(BLOCK_SIZE) {
            let length = data.len();
            return Err(Error::new(Kind::Usage, format!("{length} bytes are not in blocks of {BLOCK_SIZE}")));
        }
        let blocks = (data.len() / BLOCK_SIZE) as u64;
        self.check_range(block, blocks)?;
        let claim = self.keep_node_places(blocks, Changes::Writes).await?;
        let promise = self.admit(io, blocks).await?;
        drop(claim);
        let (places, placing) = self.allocate(io, runs, block, &promise).await?;
        let give_up = |error| {
            runs.borrow_mut().put_back(self, places.clone());
            Err(error)
        };
        let (entries, transfers) =
            match self.seal(io, |index| block + index as u64, &data, &places, Via::Cache) {
                Ok(sealed) => sealed,
                Err(error) => return give_up(error),
            };
        drop(data);
        let mut stored = pin!(stored(transfers));
        let (behind, ended) = self.acknowledge(block..block + blocks, fua, stored.as_mut()).await;
        if behind.is_some() {
            early();
        }
        let mut ended = match ended {
            Some(ended) => ended,
            None => stored.as_mut().await,
        };
        self.note_room(&ended);
        if behind.is_some() && !stored.refused.is_empty() {
            // It has completed: it must not fail for want of room, which may come.
            ended = self.store_again(io, std::mem::take(&mut stored.refused), ended).boxed_local().await;
        }
        if ended.is_ok() && behind.is_none() {
            ended = self.landed_before(before).await;
        }
        // The session may have ended meanwhile: then no commit would ever hold this, and it must not be called done.
        if let Err(error) = ended.and_then(|()| self.check_alive()) {
            if let Some(behind) = behind {
                behind.lose(&error);
            }
            return give_up(error);
        }
        placing.keep();
        self.counters.written_blocks.add(blocks);
        let change = Change::Write { block, entries, places };
        match behind {
            Some(behind) => self.arrive_behind(runs, behind, change, promise),
            None => self.arrive(runs, change, promise),
        }
        let durable =
            fua && self.header.freshness != Freshness::Transaction && !mutated(Mutation::FuaNotDurable);
        if durable || self.header.freshness == Freshness::Write {
            self.commit(io, Want { data: true, ..Want::default() }).boxed_local().await?;
        }
        Ok(())
    }

    /// Seals blocks and writes them to their places; their entries. `logical` says where the block with this index belongs.
    pub(crate) async fn place(
        &self,
        io: &Io,
        logical: impl Fn(usize) -> u64,
        plaintext: &[u8],
        places: &[Range<u64>],
    ) -> Result<Vec<Entry>> {
        let (entries, transfers) = self.seal(io, logical, plaintext, places, Via::Store)?;
        stored(transfers).await.map(|()| entries)
    }

    /// Waits for room for what the store refused.
    async fn store_again(
        &self,
        io: &Io,
        mut refused: Vec<(u64, Buffer)>,
        mut ended: Result<()>,
    ) -> Result<()> {
        let mut waits = None;
        while let Err(error) = &ended
            && error.kind() == Kind::NoSpace
        {
            waits.get_or_insert_with(|| self.begin_to_wait());
            self.wait_for_store(error.clone()).await?;
            let transfers = refused.drain(..).map(|(place, buffer)| (place, io.begin_write(place, buffer)));
            let mut again = stored(transfers.collect());
            ended = (&mut again).await;
            refused = again.refused;
            self.note_room(&ended);
        }
        ended
    }

    /// Seals blocks and sends them to their places: their entries, and what is on its way.
    fn seal(
        &self,
        io: &Io,
        logical: impl Fn(usize) -> u64,
        plaintext: &[u8],
        places: &[Range<u64>],
        via: Via,
    ) -> Result<(Vec<Entry>, OnTheirWay)> {
        let total = plaintext.len() / BLOCK_SIZE;
        let (epoch, first_nonce) = self.keys.nonces(Use::Data, total as u64)?;
        let mut entries = Vec::with_capacity(total);
        let mut transfers = Vec::with_capacity(places.len());
        for place in places {
            let mut sealed = io.buffer(usize::try_from(place.end - place.start).unwrap_or(0));
            for (at, physical) in place.clone().enumerate() {
                let index = entries.len();
                let nonce = first_nonce + index as u64;
                let ad = data_ad(&self.header.volume, logical(index));
                let page = &plaintext[index * BLOCK_SIZE..(index + 1) * BLOCK_SIZE];
                let entry = |tag| Entry { physical, epoch: epoch.number, nonce, flags: 0, tag };
                let keep = |tag: &[u8; TAG_SIZE], bytes: &[u8]| {
                    if via == Via::Cache {
                        self.blocks.keep(&entry(*tag), bytes);
                    }
                };
                let target = sealed.target(at * BLOCK_SIZE..(at + 1) * BLOCK_SIZE);
                entries.push(entry(epoch.keys.data.seal_into(nonce, &ad, page, target, keep)));
            }
            transfers.push((place.start, io.begin_write(place.start, sealed)));
        }
        if mutated(Mutation::VisibleBeforeStored) {
            entries
                .iter()
                .enumerate()
                .for_each(|(index, entry)| self.overlay.insert(logical(index), &[*entry]));
        }
        Ok((entries, transfers))
    }

    async fn flush(&self, io: &Io) -> Result<()> {
        self.counters.flushes.add(1);
        if self.header.freshness == Freshness::Transaction {
            return self.check_alive();
        }
        if self.read_only {
            return Ok(());
        }
        self.all_landed().await?;
        self.commit(io, Want { data: true, ..Want::default() }).boxed_local().await.map(drop)
    }

    async fn zero(&self, io: &Io, runs: &RefCell<Runs>, block: u64, blocks: u64) -> Result<()> {
        if self.header.provision == Provision::Full {
            return self.discard(io, runs, block, blocks).await;
        }
        self.check_range(block, blocks)?;
        let zeros = Bytes::from_static(&ZEROS);
        for at in (block..block + blocks).step_by(ZERO_BLOCKS) {
            let part = zeros.slice(..ZERO_BLOCKS.min(usize_of(block + blocks - at)) * BLOCK_SIZE);
            match self.is_room_scarce() {
                true => self.write_where_room_is_scarce(io, runs, at, part, false).await?,
                false => self.write(io, runs, at, part, false, &|| ()).await?,
            }
        }
        Ok(())
    }

    async fn discard(&self, io: &Io, runs: &RefCell<Runs>, block: u64, blocks: u64) -> Result<()> {
        let before = self.asked();
        self.check_range(block, blocks)?;
        if blocks == 0 {
            return Ok(());
        }
        let claim = self.keep_node_places(items_of_discard(blocks) + 1, Changes::Discard).await?;
        let promise = self.admit(io, items_of_discard(blocks)).await?;
        drop(claim);
        let placing = Placing::counted(self, &promise);
        // Elsewhere a checkpoint gets its blocks back; a transaction keeps all of them to its end.
        if self.header.freshness == Freshness::Transaction && self.space.free() < self.node_reserve(0) {
            return Err(Error::new(
                Kind::NoSpace,
                "this transaction has used up the space for the volume's own map; commit it before you go on",
            ));
        }
        self.landed_before(before).await?;
        // As a write: after the last commit nothing holds this any more.
        self.check_alive()?;
        placing.keep();
        self.arrive(runs, Change::Discard(block..block + blocks), promise);
        self.counters.discarded_blocks.add(blocks);
        if self.header.freshness == Freshness::Write {
            self.commit(io, Want { data: true, ..Want::default() }).boxed_local().await?;
        }
        Ok(())
    }

    async fn commit_transaction(&self, io: &Io) -> Result<()> {
        self.check_writable()?;
        self.all_landed().await?;
        if self.header.freshness != Freshness::Transaction {
            return self
                .commit(io, Want { data: true, anchor: true, ..Want::default() })
                .boxed_local()
                .await
                .map(drop);
        }
        // One that began after us: the one under way may have made its cut before our last write.
        let number = self.publish_wanted.fetch_add(1, Ordering::SeqCst) + 1;
        loop {
            let progress = self.progress.listen();
            self.check_alive()?;
            if self.publish_done.load(Ordering::SeqCst) >= number {
                return Ok(());
            }
            self.work.notify(usize::MAX);
            progress.await;
        }
    }
}

/// Writes that are on their way. All of them must have ended, also when one fails: their blocks may be used again after that.
struct Stored {
    transfers: Vec<(u64, Transfer)>,
    /// What the store had no room for, and where it was to go.
    refused: Vec<(u64, Buffer)>,
    result: Result<()>,
}

fn stored(transfers: Vec<(u64, Transfer)>) -> Stored {
    Stored { transfers, refused: Vec::new(), result: Ok(()) }
}

impl Future for Stored {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Self { transfers, refused, result } = self.get_mut();
        while let Some((place, transfer)) = transfers.last_mut() {
            let ended = ready!(transfer.poll_unpin(context));
            if let Err(error) = ended.result {
                let error = Error::from(error);
                if error.kind() == Kind::NoSpace {
                    refused.extend(ended.buffer.map(|buffer| (*place, buffer)));
                }
                // A failure of another kind is what counts: waiting does not mend it.
                if result.is_ok() || error.kind() != Kind::NoSpace {
                    *result = Err(error);
                }
            }
            transfers.pop();
        }
        Poll::Ready(std::mem::replace(result, Ok(())))
    }
}
