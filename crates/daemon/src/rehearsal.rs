//! What a session will need of the system, had once before it claims the volume: a limit of the shell must not be found out behind that.

use std::fs::File;
use std::sync::mpsc::channel;

use rustix::process::{Resource, getrlimit};
use store::Store;

use cli::failure::Failure;

/// Threads beside those of the queues: maintenance, ticker, pulse, control socket and one that answers, FUSE, and some in reserve.
const THREADS: usize = 12;
/// Queues of the store beside those of the queue threads: of the attach, the maintenance job, a check or a change of the key slots.
const QUEUES: usize = 3;
/// Descriptors beside those of the queues: of those who ask, of the device, and of a helper program's pipes.
const DESCRIPTORS: usize = 24;
/// Operations in flight of each queue here. The kernel's memory for more is small beside that of the ring itself.
const DEPTH: u32 = 64;

/// Address space of a thread's stack, as Rust's library asks for it.
const STACK: u64 = 2 << 20;
/// Address space that glibc takes for the heap of a thread, and how many such heaps it has for each processor.
const HEAP: u64 = 64 << 20;
const HEAPS: u64 = 8;
/// Memory beside that for changes, map and blocks: `docs/operations.md`, "Memory".
const BESIDE: u64 = 96 << 20;
const BESIDE_EACH_QUEUE: u64 = 5 << 20;

/// Has as many threads, queues of the store and descriptors at once as a session with `queues` queue threads, and lets them go again. The
/// address space is computed: what threads take of it depends on their order, so having had it once would prove nothing.
///
/// # Errors
/// When the system refuses one, or allows less (`ulimit -v`, `ulimit -d`) than a session with so much `memory`, in bytes, may come to need;
/// nothing was changed then.
pub fn rehearse(store: &dyn Store, queues: u8, memory: u64) -> Result<(), Failure> {
    let (address_space, data) = held();
    check_address_space(getrlimit(Resource::As).current, address_space, queues, memory)?;
    check_data(getrlimit(Resource::Data).current, data, queues, memory)?;
    let refused = |what: &str, error: &dyn std::fmt::Display| {
        Failure::usage(format!(
            "the system refuses this process {what}: {error}. Nothing was changed; look at its limits (`ulimit -a`)"
        ))
    };
    let mut rings = Vec::new();
    for _ in 0..usize::from(queues) + QUEUES {
        rings.push(store.queue(DEPTH).map_err(|error| refused("a queue of the store", &error))?);
    }
    let mut spare = Vec::new();
    for _ in 0..DESCRIPTORS {
        spare.push(File::open("/proc/self/stat").map_err(|error| refused("a file", &error))?);
    }
    let mut threads = Vec::new();
    // They wait until all are there.
    let mut waiting = Vec::new();
    let mut failed = None;
    for _ in 0..usize::from(queues) + THREADS {
        let (sender, receiver) = channel::<()>();
        match std::thread::Builder::new().name("rehearsal".into()).spawn(move || receiver.recv().is_ok()) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                failed = Some(refused("a thread", &error));
                break;
            }
        }
        waiting.push(sender);
    }
    drop(waiting);
    threads.into_iter().for_each(|thread| drop(thread.join()));
    failed.map_or(Ok(()), Err)
}

/// Bytes of address space that this process has already, and of those the ones that are its own to write (proc(5), `statm`).
fn held() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let bytes = |field: usize| {
        let pages = text.split_whitespace().nth(field).and_then(|pages| pages.parse::<u64>().ok());
        pages.unwrap_or_default() * rustix::param::page_size() as u64
    };
    (bytes(0), bytes(5))
}

fn threads(queues: u8) -> u64 {
    u64::from(queues) + THREADS as u64
}

/// What a session may come to write to, beside what the process has already.
fn written(queues: u8, memory: u64) -> u64 {
    let beside = BESIDE + u64::from(queues) * BESIDE_EACH_QUEUE;
    memory.saturating_add(threads(queues) * STACK + beside)
}

fn check_address_space(limit: Option<u64>, held: u64, queues: u8, memory: u64) -> Result<(), Failure> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    // While a heap is being made there is another one beside it, until it is aligned.
    let heaps = threads(queues).min(HEAPS * processors) + 1;
    let wanted = held.saturating_add(written(queues, memory)).saturating_add(heaps * HEAP);
    compare(limit, wanted, "address space (`ulimit -v`)")
}

/// Heaps are written to as far as they are used, and that is in the sum already.
fn check_data(limit: Option<u64>, held: u64, queues: u8, memory: u64) -> Result<(), Failure> {
    compare(limit, held.saturating_add(written(queues, memory)), "memory to write to (`ulimit -d`)")
}

fn compare(limit: Option<u64>, wanted: u64, what: &str) -> Result<(), Failure> {
    let Some(limit) = limit.filter(|limit| *limit < wanted) else { return Ok(()) };
    let (limit, wanted) = (cli::output::bytes(limit), cli::output::bytes(wanted));
    Err(Failure::usage(format!(
        "this process may have {limit} of {what}, and a session may come to need {wanted}. Nothing was changed; raise the limit, or give \
         the volume less memory"
    )))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::testing::TestVolume;

    #[test]
    fn a_store_with_too_few_queues_is_refused_before_anything_is_claimed() {
        let bench = TestVolume::new();
        let store = bench.environment.store.as_ref();
        rehearse(store, 2, 1 << 20).unwrap();
        bench.trouble.queues.store(4, Ordering::SeqCst);
        let failure = rehearse(store, 2, 1 << 20).unwrap_err();
        assert!(failure.is_usage() && failure.to_string().contains("ulimit"), "{failure}");
    }

    #[test]
    fn address_space_that_may_not_be_enough_is_refused() {
        let check = |limit, memory| check_address_space(limit, 0, 2, memory);
        check(None, 1 << 40).unwrap();
        check(Some(4 << 30), 1 << 30).unwrap();
        let failure = check(Some(1 << 30), 1 << 30).unwrap_err();
        assert!(failure.is_usage() && failure.to_string().contains("ulimit -v"), "{failure}");
        check(Some(u64::MAX), u64::MAX).unwrap();
        // Heaps are reserved, and not written to.
        check_data(Some(256 << 20), 16 << 20, 2, 64 << 20).unwrap();
        assert!(check_address_space(Some(256 << 20), 16 << 20, 2, 64 << 20).is_err());
        let failure = check_data(Some(128 << 20), 16 << 20, 2, 64 << 20).unwrap_err();
        assert!(failure.is_usage() && failure.to_string().contains("ulimit -d"), "{failure}");
        let (address_space, data) = held();
        assert!(data > 0 && data < address_space, "{data} of {address_space}");
    }
}
