//! A guest's queue on the hostile disk.

use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use super::disk::Disk;
use super::lock;
use memory::Buffer;
use store::{Completion, Operation, Queue};

/// Operations wait here until the next poll, as they do on a real queue: what was not polled is not sent.
pub(super) struct HostileQueue {
    disk: Arc<Mutex<Disk>>,
    id: u64,
    held: Vec<(u64, Operation)>,
}

impl HostileQueue {
    pub(super) fn new(disk: Arc<Mutex<Disk>>, id: u64) -> Self {
        Self { disk, id, held: Vec::new() }
    }
}

impl Queue for HostileQueue {
    /// Always of the global allocator: a simulation has thousands of queues, and no use for pools.
    fn buffer(&mut self, blocks: usize) -> Buffer {
        let private = Buffer::private_zeroed(blocks);
        if lock(&self.disk).shared_buffers { private.into_shared() } else { private }
    }

    fn submit(&mut self, token: u64, operation: Operation) {
        self.held.push((token, operation));
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        lock(&self.disk).exchange(self.id, &mut self.held, completions);
    }

    /// Polls: there is nobody to wait for but the caller.
    fn wait(&mut self, _timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        self.poll(completions);
    }

    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }
}

impl Drop for HostileQueue {
    /// What is in flight goes on, and nobody hears how it ends.
    fn drop(&mut self) {
        lock(&self.disk).close_queue(self.id);
    }
}
