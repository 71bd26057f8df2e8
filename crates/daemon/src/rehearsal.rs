//! What a session will need of the system, had once before it claims the volume: a limit of the shell must not be found out behind that.

use std::fs::File;
use std::sync::mpsc::channel;

use store::Store;

use crate::failure::Failure;

/// Threads beside those of the queues: maintenance, ticker, pulse, control socket and one that answers, FUSE, and some in reserve.
const THREADS: usize = 12;
/// Queues of the store beside those of the queue threads: of the attach, the maintenance job, a check or a change of the key slots.
const QUEUES: usize = 3;
/// Descriptors beside those of the queues: of those who ask, of the device, and of a helper program's pipes.
const DESCRIPTORS: usize = 24;
/// Operations in flight of each queue here. The kernel's memory for more is small beside that of the ring itself.
const DEPTH: u32 = 64;

/// Has as many threads, queues of the store and descriptors at once as a session with `queues` queue threads, and lets them go again.
///
/// # Errors
/// When the system refuses one; nothing was changed then.
pub fn rehearse(store: &dyn Store, queues: u8) -> Result<(), Failure> {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::testing::TestVolume;

    #[test]
    fn a_store_with_too_few_queues_is_refused_before_anything_is_claimed() {
        let bench = TestVolume::new();
        let store = bench.environment.store.as_ref();
        rehearse(store, 2).unwrap();
        bench.trouble.queues.store(4, Ordering::SeqCst);
        let failure = rehearse(store, 2).unwrap_err();
        assert!(failure.is_usage() && failure.to_string().contains("ulimit"), "{failure}");
    }
}
