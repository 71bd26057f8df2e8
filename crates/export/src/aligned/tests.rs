use super::*;
use proptest::prelude::*;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard};

/// Whole blocks in memory. Requests wait until they are let go, in whatever order; while `eager`, they don't.
struct Blocks {
    inner: Mutex<Inner>,
}

struct Inner {
    bytes: Vec<u8>,
    eager: bool,
    fail: Option<Errno>,
    waiting: Vec<(Request, Done)>,
    seen: Vec<Request>,
}

impl Blocks {
    fn new(bytes: Vec<u8>, eager: bool) -> Arc<Blocks> {
        let inner = Inner { bytes, eager, fail: None, waiting: Vec::new(), seen: Vec::new() };
        Arc::new(Blocks { inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    fn let_go(&self, index: usize) {
        let (request, done) = self.lock().waiting.remove(index);
        self.execute(request, done);
    }

    fn execute(&self, request: Request, done: Done) {
        let mut inner = self.lock();
        let result = inner.fail.map_or_else(|| Ok(apply(&mut inner.bytes, &request)), Err);
        drop(inner);
        done(result.map(Bytes::from));
    }
}

impl Device for Blocks {
    fn size(&self) -> u64 {
        self.lock().bytes.len() as u64
    }

    fn submit(&self, request: Request, done: Done) {
        if let Some((offset, length)) = extent(&request) {
            assert!(length > 0 && offset % BLOCK_SIZE == 0 && length % BLOCK_SIZE == 0, "{request:?}");
            assert!(offset + length <= self.size(), "{request:?}");
        }
        let mut inner = self.lock();
        inner.seen.push(request.clone());
        if inner.eager {
            drop(inner);
            self.execute(request, done);
        } else {
            inner.waiting.push((request, done));
        }
    }
}

/// The meaning of a request, of any alignment.
fn apply(bytes: &mut [u8], request: &Request) -> Vec<u8> {
    let Some((offset, length)) = extent(request) else { return Vec::new() };
    let range = to_usize(offset)..to_usize(offset + length);
    match request {
        Request::Read { .. } => return bytes[range].to_vec(),
        Request::Write { data, .. } => bytes[range].copy_from_slice(data),
        _ => bytes[range].fill(0),
    }
    Vec::new()
}

fn submit(device: &Aligned, request: Request) -> std::sync::mpsc::Receiver<Result<Bytes, Errno>> {
    let (sender, receiver) = channel();
    device.submit(request, Box::new(move |result| drop(sender.send(result))));
    receiver
}

const SIZE: u64 = 4 * BLOCK_SIZE;

fn any_request() -> impl Strategy<Value = Request> {
    let edge = prop_oneof![
        (0..=SIZE).boxed(),
        (0..=SIZE / BLOCK_SIZE).prop_map(|block| block * BLOCK_SIZE).boxed(),
        (0..=SIZE / 512).prop_map(|sector| sector * 512).boxed(),
    ];
    (edge.clone(), edge, 0..4_u8, any::<u8>(), any::<bool>()).prop_map(|(one, other, kind, fill, fua)| {
        let (offset, length) = (one.min(other), one.abs_diff(other));
        match kind {
            0 => Request::Read { offset, length: u32::try_from(length).unwrap() },
            1 => Request::Write { offset, data: vec![fill; to_usize(length)].into(), fua },
            2 => Request::Discard { offset, length },
            _ => Request::WriteZeroes { offset, length },
        }
    })
}

proptest! {
    #[test]
    fn any_alignment_means_the_same_as_on_bytes(requests in prop::collection::vec(any_request(), 1..20)) {
        let mut model: Vec<u8> = (0..SIZE).map(|at| at.to_le_bytes()[0] | 1).collect();
        let blocks = Blocks::new(model.clone(), true);
        let device = Aligned::new(blocks.clone());
        for request in requests {
            let expected = apply(&mut model, &request);
            prop_assert_eq!(submit(&device, request).try_recv(), Ok(Ok(expected.into())));
            prop_assert!(blocks.lock().bytes == model);
        }
    }

    /// Writes that are in flight together, finished in any order: no byte is lost, so each byte is what one of
    /// the writes that cover it stored, and what no write covers is as before.
    #[test]
    fn writes_in_flight_together_lose_nothing(
        writes in prop::collection::vec((0..8_u64, 1..9_u64), 2..6),
        order in prop::collection::vec(any::<prop::sample::Index>(), 64),
    ) {
        const UNIT: u64 = BLOCK_SIZE / 2;
        let blocks = Blocks::new(vec![0xee; to_usize(SIZE)], false);
        let device = Aligned::new(blocks.clone());
        let writes: Vec<_> = writes.into_iter().map(|(start, length)| start..(start + length).min(8)).collect();
        let ends: Vec<_> = (1_u8..).zip(&writes).map(|(fill, range)| {
            let data = vec![fill; to_usize((range.end - range.start) * UNIT)];
            submit(&device, Request::Write { offset: range.start * UNIT, data: data.into(), fua: false })
        }).collect();
        for index in order {
            let waiting = blocks.lock().waiting.len();
            if waiting > 0 {
                blocks.let_go(index.index(waiting));
            }
        }
        for end in ends {
            prop_assert_eq!(end.try_recv(), Ok(Ok(Bytes::new())));
        }
        for (unit, half) in (0_u64..).zip(blocks.lock().bytes.chunks(to_usize(UNIT))) {
            let mut may_be: Vec<u8> =
                (1_u8..).zip(&writes).filter(|(_, range)| range.contains(&unit)).map(|(fill, _)| fill).collect();
            if may_be.is_empty() {
                may_be.push(0xee);
            }
            prop_assert!(half.iter().all(|byte| *byte == half[0]) && may_be.contains(&half[0]));
        }
    }
}

#[test]
fn a_patch_waits_for_the_whole_write_that_it_overlaps() {
    let blocks = Blocks::new(vec![0; to_usize(SIZE)], false);
    let device = Aligned::new(blocks.clone());
    let whole = submit(&device, Request::Write { offset: 0, data: vec![1; BLOCK].into(), fua: false });
    let part = submit(&device, Request::Write { offset: 512, data: vec![2; 512].into(), fua: true });
    assert_eq!(blocks.lock().seen.len(), 1, "the patch must not read before the write has ended");
    blocks.let_go(0);
    assert_eq!(whole.try_recv(), Ok(Ok(Bytes::new())));
    blocks.let_go(0);
    blocks.let_go(0);
    assert_eq!(part.try_recv(), Ok(Ok(Bytes::new())));
    let inner = blocks.lock();
    assert_eq!(inner.bytes[..2048], [[1; 512], [2; 512], [1; 512], [1; 512]].concat());
    assert!(matches!(inner.seen[2], Request::Write { fua: true, .. }), "the patch keeps FUA");
}

#[test]
fn whole_writes_do_not_wait_for_each_other() {
    let blocks = Blocks::new(vec![0; to_usize(SIZE)], false);
    let device = Aligned::new(blocks.clone());
    for _ in 0..3 {
        drop(submit(&device, Request::Write { offset: 0, data: vec![1; BLOCK].into(), fua: false }));
    }
    assert_eq!(blocks.lock().waiting.len(), 3);
}

#[test]
fn what_reaches_beyond_the_end_is_refused() {
    let blocks = Blocks::new(vec![0; to_usize(SIZE)], true);
    let device = Aligned::new(blocks.clone());
    for request in [
        Request::Read { offset: SIZE - 1, length: 2 },
        Request::Write { offset: SIZE, data: vec![0].into(), fua: false },
        Request::Discard { offset: u64::MAX, length: 1 },
        Request::WriteZeroes { offset: 1, length: u64::MAX },
    ] {
        assert_eq!(submit(&device, request).try_recv(), Ok(Err(Errno::NOSPC)));
    }
    assert!(blocks.lock().seen.is_empty());
}

#[test]
fn errors_end_the_request_and_release_the_block() {
    let blocks = Blocks::new(vec![0; to_usize(SIZE)], true);
    let device = Aligned::new(blocks.clone());
    blocks.lock().fail = Some(Errno::ROFS);
    let part = Request::Write { offset: 1, data: vec![7].into(), fua: false };
    assert_eq!(submit(&device, part.clone()).try_recv(), Ok(Err(Errno::ROFS)));
    assert_eq!(submit(&device, Request::Read { offset: 1, length: 1 }).try_recv(), Ok(Err(Errno::ROFS)));
    blocks.lock().fail = None;
    assert_eq!(submit(&device, part).try_recv(), Ok(Ok(Bytes::new())));
    assert_eq!(blocks.lock().bytes[..3], [0, 7, 0]);
}
