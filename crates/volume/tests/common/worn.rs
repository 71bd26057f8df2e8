//! A store that cannot read some of its blocks.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use memory::Buffer;
use store::{Completion, Error, ErrorKind, Operation, Queue, Store};

use super::Bench;

pub type Unreadable = Arc<Mutex<BTreeSet<u64>>>;

struct Worn {
    medium: Arc<dyn Store>,
    unreadable: Unreadable,
}

struct WornQueue {
    medium: Box<dyn Queue>,
    unreadable: Unreadable,
    failed: Vec<Completion>,
}

/// Puts such a store in the place of the bench's. What is written to a block can be read again.
pub fn wear(bench: &mut Bench) -> Unreadable {
    let unreadable = Unreadable::default();
    let medium = Arc::clone(&bench.environment.store);
    bench.environment.store = Arc::new(Worn { medium, unreadable: Arc::clone(&unreadable) });
    unreadable
}

impl Store for Worn {
    fn blocks(&self) -> u64 {
        self.medium.blocks()
    }

    fn name(&self) -> String {
        self.medium.name()
    }

    fn queue(&self, depth: u32) -> Result<Box<dyn Queue>, Error> {
        let (medium, unreadable) = (self.medium.queue(depth)?, Arc::clone(&self.unreadable));
        Ok(Box::new(WornQueue { medium, unreadable, failed: Vec::new() }))
    }
}

impl Queue for WornQueue {
    fn buffer(&mut self, blocks: usize) -> Buffer {
        self.medium.buffer(blocks)
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        let mut unreadable = self.unreadable.lock().expect("not poisoned");
        match operation {
            Operation::Read { block, ref buffer }
                if unreadable.range(block..block + buffer.blocks() as u64).next().is_some() =>
            {
                let result = Err(Error::new(ErrorKind::Io, "read", "worn", "the sectors cannot be read"));
                self.failed.push(Completion { token, buffer: None, result });
            }
            Operation::Write { block, ref buffer } => {
                unreadable.retain(|bad| !(block..block + buffer.blocks() as u64).contains(bad));
                self.medium.submit(token, operation);
            }
            other => self.medium.submit(token, other),
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.failed);
        self.medium.poll(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        if self.failed.is_empty() { self.medium.wait(timeout, completions) } else { self.poll(completions) }
    }

    fn waker(&self) -> Waker {
        self.medium.waker()
    }
}
