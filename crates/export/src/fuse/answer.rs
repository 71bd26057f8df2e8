//! The duty to answer a request of the kernel's.

use std::sync::Arc;

use rustix::io::Errno;

/// Where answers go.
pub(super) trait Way: Send + Sync {
    /// Ends the request with this number: with an error, or with what stands in `body`. On any thread.
    fn send(&self, unique: u64, error: Option<Errno>, body: &[u8]);
}

/// Ends one request. Dropped, it fails with `EIO`: somebody waits.
pub(super) struct Answer {
    unique: u64,
    way: Option<Arc<dyn Way>>,
}

impl Answer {
    pub(super) fn new(unique: u64, way: Arc<dyn Way>) -> Self {
        Self { unique, way: Some(way) }
    }

    pub(super) fn give(self, body: &[u8]) {
        self.end(None, body);
    }

    pub(super) fn fail(self, errno: Errno) {
        self.end(Some(errno), &[]);
    }

    /// Nobody waits for it.
    pub(super) fn forget(mut self) {
        self.way = None;
    }

    fn end(mut self, error: Option<Errno>, body: &[u8]) {
        if let Some(way) = self.way.take() {
            way.send(self.unique, error, body);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if let Some(way) = self.way.take() {
            way.send(self.unique, Some(Errno::IO), &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    type Said = (u64, Option<Errno>, Vec<u8>);

    #[derive(Default)]
    struct Heard(Mutex<Vec<Said>>);

    impl Way for Heard {
        fn send(&self, unique: u64, error: Option<Errno>, body: &[u8]) {
            self.0.lock().unwrap().push((unique, error, body.to_vec()));
        }
    }

    #[test]
    fn each_request_is_answered_once_also_if_it_is_dropped() {
        let heard = Arc::new(Heard::default());
        let answer = |unique| Answer::new(unique, heard.clone());
        answer(1).give(b"x");
        answer(2).fail(Errno::NOSPC);
        drop(answer(3));
        answer(4).forget();
        let expected =
            [(1, None, b"x".to_vec()), (2, Some(Errno::NOSPC), vec![]), (3, Some(Errno::IO), vec![])];
        assert_eq!(*heard.0.lock().unwrap(), expected);
    }
}
