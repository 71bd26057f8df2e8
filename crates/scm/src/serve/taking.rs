//! Taking pages back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::{ABSENT, ACTIVE, Server, ZAPPED};

/// Most pages of a batch, and most bytes: one message to the client, and one stretch of work without a look at the limits.
const BATCH: usize = 256;
const BATCH_BYTES: u64 = 8 << 20;

/// Processor time of the calling thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// How long a thread must rest after so much work, to use no more than so many percent of a processor.
fn rest(work: Duration, percent: u32) -> Duration {
    (work * 100 / percent.clamp(1, 100)).saturating_sub(work)
}

impl Server {
    /// Takes pages back until the server stops; then all of them.
    pub(super) fn take_back(self: Arc<Server>) {
        let pause = (self.limits.idle / 2).clamp(Duration::from_millis(1), Duration::from_millis(100));
        let mut zapped = Vec::new();
        while !self.is_stopping() {
            let before = processor_time();
            self.encrypt(&mut zapped);
            let idle = self.choose();
            let is_full = self.is_nearly_full();
            if self.zap(&idle) {
                zapped = idle;
            }
            let work = processor_time().saturating_sub(before);
            let microseconds = u64::try_from(work.as_micros()).unwrap_or(u64::MAX);
            self.engine.stats().taking_cpu_us.fetch_add(microseconds, Ordering::Relaxed);
            if is_full && !zapped.is_empty() {
                continue;
            }
            let mut left = rest(work, self.limits.cpu_percent).max(pause);
            // Not longer than it takes to see that touches wait.
            while !left.is_zero() && !self.is_stopping() {
                if self.is_nearly_full() && left > pause {
                    break;
                }
                let nap = left.min(pause);
                thread::sleep(nap);
                left -= nap;
            }
        }
        self.encrypt(&mut zapped);
    }

    /// From here on pages are taken back without waiting for them to be idle.
    fn is_nearly_full(&self) -> bool {
        self.open.load(Ordering::Acquire) * 8 >= self.limits.open_pages * 7
    }

    /// The pages that have been active for longest, as far as they are to go.
    fn choose(&self) -> Vec<u64> {
        let most = BATCH_BYTES / self.engine.geometry().page_size();
        let most = usize::try_from(most).unwrap_or(BATCH).clamp(1, BATCH);
        let mut order = self.order();
        let mut chosen = Vec::new();
        while chosen.len() < most {
            let is_full = self.is_nearly_full();
            let Some((page, since)) = order.front().copied() else { break };
            if since.elapsed() < self.limits.idle && !(is_full && chosen.len() < most.div_ceil(4)) {
                break;
            }
            order.pop_front();
            if self.used(page).load(Ordering::Acquire) == ACTIVE {
                chosen.push(page);
            }
        }
        chosen.sort_unstable();
        chosen
    }

    /// Has the client take pages out of its page tables. Whether it did; else they are as they were.
    pub(super) fn zap(&self, pages: &[u64]) -> bool {
        if pages.is_empty() {
            return true;
        }
        for page in pages {
            self.used(*page).store(ZAPPED, Ordering::Release);
        }
        let client = self.client().clone();
        // Without a client, and without its lease, nobody has page tables.
        let done = match client {
            Some(client) => client.zap(pages, self.engine.geometry().page_size()),
            None => Server::wait_for_vmm(&self.mapping, Duration::ZERO).is_ok(),
        };
        if !done {
            let now = Instant::now();
            let mut order = self.order();
            for page in pages {
                let back =
                    self.used(*page).compare_exchange(ZAPPED, ACTIVE, Ordering::AcqRel, Ordering::Relaxed);
                if back.is_ok() {
                    order.push_back((*page, now));
                }
            }
        }
        done
    }

    /// Encrypts those of the pages that were not touched since they were zapped.
    fn encrypt(&self, pages: &mut Vec<u64>) {
        if pages.is_empty() {
            return;
        }
        self.engine.stats().batches.fetch_add(1, Ordering::Relaxed);
        for page in pages.drain(..) {
            // Under the page's lock, so a touch comes either before, and makes it active, or behind, and finds it closed.
            let claim = || {
                let used = self.used(page);
                used.compare_exchange(ZAPPED, ABSENT, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            };
            match self.engine.close_page_if(page, claim) {
                Ok(true) => drop(self.open.fetch_sub(1, Ordering::AcqRel)),
                Ok(false) => {}
                Err(error) => eprintln!("error: page {page} cannot be taken back: {error}"),
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Limits;
    use super::*;
    use crate::{Engine, Geometry, Mapping, Medium};
    use seal::slot::Credential;
    use seal::{Random, SecretBytes, Suite, SystemRandom};

    pub(in crate::serve) fn server(limits: Limits) -> Arc<Server> {
        let geometry = Geometry::new(4096, 8, 2, 4096).unwrap();
        let mapping = Arc::new(Mapping::memory(geometry.file_len()).unwrap());
        let key = || Credential::KeyFile(SecretBytes::from_slice(&[5; 32]));
        let random: Arc<dyn Random> = Arc::new(SystemRandom);
        crate::create(&*mapping, &geometry, Suite::Aes256Gcm, key(), &random, &|_, _| {}).unwrap();
        let medium: Arc<dyn Medium> = Arc::clone(&mapping) as Arc<dyn Medium>;
        let (engine, _) = Engine::open(medium, &key(), random, &|_, _| {}).unwrap();
        Server::new(Arc::new(engine), mapping, limits).unwrap()
    }

    /// The thread that shows a page may be slow, and the page be chosen and zapped meanwhile: at its first touch, or at a second one.
    #[test]
    fn a_page_that_is_put_into_page_tables_meanwhile_is_not_encrypted() {
        let server = server(Limits { open_pages: 8, idle: Duration::ZERO, ..Limits::default() });
        for touch in 0..2 {
            let mut zapped = Vec::new();
            let slowly = || {
                zapped = server.choose();
                assert!(server.zap(&zapped));
            };
            server.open_and_put(3, false, slowly).unwrap();
            server.encrypt(&mut zapped);
            assert!(server.engine.is_open(3), "touch {touch}: it was encrypted under the VMM");
        }
        // What was not touched since is encrypted.
        let mut zapped = server.choose();
        assert!(zapped == [3] && server.zap(&zapped));
        server.encrypt(&mut zapped);
        assert!(!server.engine.is_open(3));
        assert_eq!(server.open.load(Ordering::Acquire), 0);
    }

    #[test]
    fn work_is_paid_for_by_rest() {
        let work = Duration::from_millis(10);
        assert_eq!(rest(work, 100), Duration::ZERO);
        assert_eq!(rest(work, 25), Duration::from_millis(30));
        assert_eq!(rest(work, 1), Duration::from_millis(990));
        assert_eq!(rest(Duration::ZERO, 1), Duration::ZERO);
    }
}
