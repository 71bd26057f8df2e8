//! A store in front of another, whose traffic a test watches and changes.

use std::mem;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use memory::Buffer;
use store::{Completion, Error, Operation, Queue, Store};

/// What becomes of an operation.
#[derive(Debug)]
pub enum Verdict {
    /// The store underneath gets it now.
    Pass,
    /// It is held back, and [`Interceptor::held`] is asked about it at each poll.
    Hold,
    /// It ends so at the next poll, and the store underneath never hears of it.
    Fail(Error),
}

/// The rules of an [`InterceptingStore`]. Each method's default changes nothing. Queues have numbers, from 0 in the order in which they
/// were opened.
pub trait Interceptor: Send + Sync {
    /// The size that the store says it has.
    fn blocks(&self, medium: &dyn Store) -> u64 {
        medium.blocks()
    }

    /// A queue was opened.
    fn opened(&self, _queue: usize) {}

    /// An operation comes in. `medium` is the store underneath.
    fn submitted(&self, _queue: usize, _operation: &Operation, _medium: &dyn Store) -> Verdict {
        Verdict::Pass
    }

    /// At each poll, for each operation that is held, the oldest first: what now?
    fn held(&self, _queue: usize, _operation: &Operation) -> Verdict {
        Verdict::Pass
    }

    /// Whether this poll reaches the queue underneath.
    fn lets_poll(&self, _queue: usize) -> bool {
        true
    }

    /// The queue underneath was polled. If this is true, it is polled once more.
    fn polled(&self, _queue: usize) -> bool {
        false
    }
}

/// A store that does as the one underneath does, except where its [`Interceptor`] says otherwise.
pub struct InterceptingStore {
    medium: Arc<dyn Store>,
    rules: Arc<dyn Interceptor>,
    opened: AtomicUsize,
}

impl InterceptingStore {
    /// A store in front of `medium`.
    #[must_use]
    pub fn new(medium: Arc<dyn Store>, rules: &Arc<impl Interceptor + 'static>) -> Arc<Self> {
        let rules = Arc::clone(rules) as Arc<dyn Interceptor>;
        Arc::new(Self { medium, rules, opened: AtomicUsize::new(0) })
    }
}

struct InterceptingQueue {
    number: usize,
    store: Arc<dyn Store>,
    medium: Box<dyn Queue>,
    rules: Arc<dyn Interceptor>,
    held: Vec<(u64, Operation)>,
    failed: Vec<Completion>,
}

impl Store for InterceptingStore {
    fn blocks(&self) -> u64 {
        self.rules.blocks(&*self.medium)
    }

    fn name(&self) -> String {
        self.medium.name()
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, Error> {
        let medium = self.medium.queue(depth)?;
        let number = self.opened.fetch_add(1, Ordering::SeqCst);
        self.rules.opened(number);
        let (store, rules) = (Arc::clone(&self.medium), Arc::clone(&self.rules));
        Ok(Box::new(InterceptingQueue { number, store, medium, rules, held: Vec::new(), failed: Vec::new() }))
    }

    fn allocate(&self) -> Result<(), Error> {
        self.medium.allocate()
    }
}

impl InterceptingQueue {
    fn decide(&mut self, verdict: Verdict, token: u64, operation: Operation) {
        match verdict {
            Verdict::Pass => self.medium.submit(token, operation),
            Verdict::Hold => self.held.push((token, operation)),
            Verdict::Fail(error) => {
                let buffer = match operation {
                    Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => Some(buffer),
                    Operation::Flush | Operation::Discard { .. } => None,
                };
                self.failed.push(Completion { token, buffer, result: Err(error) });
            }
        }
    }

    /// Moves on what was held, and takes what has failed.
    fn look(&mut self, completions: &mut Vec<Completion>) {
        for (token, operation) in mem::take(&mut self.held) {
            let verdict = self.rules.held(self.number, &operation);
            self.decide(verdict, token, operation);
        }
        completions.append(&mut self.failed);
    }

    fn look_again(&mut self, completions: &mut Vec<Completion>) {
        if self.rules.polled(self.number) {
            self.medium.poll(completions);
        }
    }
}

impl Queue for InterceptingQueue {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        self.medium.buffer(blocks)
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        let verdict = self.rules.submitted(self.number, &operation, &*self.store);
        self.decide(verdict, token, operation);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.look(completions);
        if self.rules.lets_poll(self.number) {
            self.medium.poll(completions);
            self.look_again(completions);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        // What was held may be let go at any poll, so nobody sleeps over it.
        if !self.held.is_empty() || !self.failed.is_empty() {
            return self.poll(completions);
        }
        self.medium.wait(timeout, completions);
        self.look_again(completions);
    }

    fn waker(&self) -> Waker {
        self.medium.waker()
    }

    fn watch(&mut self, token: u64, descriptor: Arc<OwnedFd>) -> bool {
        self.medium.watch(token, descriptor)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use memory::BLOCK_SIZE;
    use store::{ErrorKind, MemoryStore};

    use super::*;

    /// Holds writes to block 1 until it is told otherwise, fails those to block 2, and notes what it sees.
    #[derive(Default)]
    struct Rules {
        seen: Mutex<Vec<String>>,
        go: AtomicUsize,
    }

    impl Rules {
        fn note(&self, what: String) {
            self.seen.lock().unwrap().push(what);
        }
    }

    impl Interceptor for Rules {
        fn blocks(&self, medium: &dyn Store) -> u64 {
            medium.blocks() / 2
        }

        fn opened(&self, queue: usize) {
            self.note(format!("open {queue}"));
        }

        fn submitted(&self, queue: usize, operation: &Operation, _medium: &dyn Store) -> Verdict {
            match operation {
                Operation::Write { block: 1, .. } => Verdict::Hold,
                Operation::Write { block: 2, .. } => {
                    Verdict::Fail(Error::new(ErrorKind::Io, "write", "test", "as it was told"))
                }
                _ => {
                    self.note(format!("pass {queue}"));
                    Verdict::Pass
                }
            }
        }

        fn held(&self, _queue: usize, _operation: &Operation) -> Verdict {
            if self.go.load(Ordering::SeqCst) == 0 { Verdict::Hold } else { Verdict::Pass }
        }
    }

    fn write(queue: &mut dyn Queue, block: u64) -> Vec<Completion> {
        let buffer = queue.buffer(1);
        queue.submit(block, Operation::Write { block, buffer });
        let mut ended = Vec::new();
        queue.wait(Some(Duration::ZERO), &mut ended);
        ended
    }

    #[test]
    fn operations_pass_are_held_or_fail_as_the_rules_say() {
        let (medium, rules) = (Arc::new(MemoryStore::new(8).unwrap()), Arc::new(Rules::default()));
        let store = InterceptingStore::new(medium, &rules);
        assert_eq!(store.blocks(), 4);
        let (mut first, mut second) = (store.queue(1).unwrap(), store.queue(1).unwrap());
        assert!(write(&mut *second, 0)[0].result.is_ok());
        let failed = write(&mut *first, 2).remove(0);
        assert!(failed.result.is_err());
        assert_eq!(failed.buffer.map(|buffer| buffer.len()), Some(BLOCK_SIZE), "the buffer comes back");
        let mut ended = write(&mut *first, 1);
        first.poll(&mut ended);
        assert!(ended.is_empty(), "held");
        rules.go.store(1, Ordering::SeqCst);
        first.poll(&mut ended);
        assert_eq!(ended.remove(0).token, 1);
        assert_eq!(*rules.seen.lock().unwrap(), ["open 0", "open 1", "pass 1"]);
    }
}
