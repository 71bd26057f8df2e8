//! Taking pages back.
//!
//! A page that was taken out of the page tables may still be the target of a request that a device or the kernel has under way: a direct read of
//! a disk into it holds the page itself, not its mapping. Nothing tells a process of that. So what was taken out is encrypted only when it has
//! been out for [`Limits::hold`](super::Limits::hold), also where touches wait for room: a request that began before takes no longer than that,
//! or the operator was wrong.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::{ABSENT, ACTIVE, Server, ZAPPED};
use crate::Error;

/// Most pages of a batch, and most bytes: one message to the client, and one stretch of work without a look at the limits.
const BATCH: usize = 256;
const BATCH_BYTES: u64 = 8 << 20;

/// Pages that were taken out of the page tables together.
pub(super) struct Batch {
    pages: Vec<u64>,
    since: Instant,
}

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
    /// Takes pages back until the server stops.
    pub(super) fn take_back(self: Arc<Server>) {
        let mut out: VecDeque<Batch> = VecDeque::new();
        while !self.is_stopping() {
            let before = processor_time();
            let encrypted = self.encrypt_due(&mut out);
            let chosen = self.choose(out.iter().map(|batch| batch.pages.len()).sum());
            let is_full = self.is_nearly_full();
            let is_zapped = self.zap(&chosen) && !chosen.is_empty();
            if is_zapped {
                out.push_back(Batch { pages: chosen, since: Instant::now() });
            }
            let work = processor_time().saturating_sub(before);
            let microseconds = u64::try_from(work.as_micros()).unwrap_or(u64::MAX);
            self.engine.stats().taking_cpu_us.fetch_add(microseconds, Ordering::Relaxed);
            if !is_full || !(is_zapped || encrypted) {
                self.nap(work, out.front());
            }
        }
    }

    /// Rests, as the bound of processor time wants it; not longer than until touches wait for room that there is something to do about.
    fn nap(&self, work: Duration, next: Option<&Batch>) {
        let pause = (self.limits.idle / 2).clamp(Duration::from_millis(1), Duration::from_millis(100));
        let until = Instant::now() + rest(work, self.limits.cpu_percent).max(pause);
        let mut is_wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_stopping() {
            let left = until.saturating_duration_since(Instant::now());
            let due = next.map_or(pause, |batch| self.limits.hold.saturating_sub(batch.since.elapsed()));
            if left.is_zero() || self.is_nearly_full() && (*is_wanted || due.is_zero()) {
                break;
            }
            let limit =
                if self.is_nearly_full() { left.min(due.max(Duration::from_micros(100))) } else { left };
            is_wanted = self.called.wait_timeout(is_wanted, limit).unwrap_or_else(PoisonError::into_inner).0;
        }
        *is_wanted = false;
    }

    /// Has pages taken back at once, if there is little room.
    pub(super) fn call_for_room(&self) {
        if self.is_nearly_full() {
            let mut is_wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            if !*is_wanted {
                *is_wanted = true;
                self.called.notify_all();
            }
        }
    }

    /// Waits while as many pages are open as may be, at most so long. A VMM that does not give pages back must not stop the others of its threads
    /// for ever.
    pub(super) fn wait_for_room(&self, patience: Duration) {
        let is_full = || self.open.load(Ordering::Acquire) >= self.limits.open_pages;
        if !is_full() {
            return;
        }
        let begun = Instant::now();
        let mut none = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        while is_full() && begun.elapsed() < patience && !self.is_stopping() {
            self.call_for_room();
            none = self.freed.wait_timeout(none, super::TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// From here on pages are taken back without waiting for them to be idle.
    fn is_nearly_full(&self) -> bool {
        self.open.load(Ordering::Acquire) * 8 >= self.limits.open_pages * 7
    }

    /// The pages that have been active for longest, as far as they are to go; `out` were chosen before and are not encrypted yet. Where room is short
    /// that is as many as bring the open ones down to three quarters of the limit: more would only be touched again.
    fn choose(&self, out: usize) -> Vec<u64> {
        let most = BATCH_BYTES / self.engine.geometry().page_size();
        let most = usize::try_from(most).unwrap_or(BATCH).clamp(1, BATCH);
        let open = self.open.load(Ordering::Acquire);
        let short = open.saturating_sub(self.limits.open_pages * 3 / 4).saturating_sub(out as u64);
        let short = if self.is_nearly_full() { usize::try_from(short).unwrap_or(most) } else { 0 };
        let mut order = self.order();
        let mut chosen = Vec::new();
        while chosen.len() < most {
            let Some((page, since)) = order.front().copied() else { break };
            if since.elapsed() < self.limits.idle && chosen.len() >= short {
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

    /// Encrypts batches that have been out for long enough. Whether there was one.
    fn encrypt_due(&self, out: &mut VecDeque<Batch>) -> bool {
        let mut is_any = false;
        while out.front().is_some_and(|batch| batch.since.elapsed() >= self.limits.hold) {
            let batch = out.pop_front();
            self.encrypt(&batch.map(|batch| batch.pages).unwrap_or_default());
            is_any = true;
        }
        is_any
    }

    /// Encrypts those of the pages that were not touched since they were zapped.
    pub(super) fn encrypt(&self, pages: &[u64]) {
        self.engine.stats().batches.fetch_add(1, Ordering::Relaxed);
        for page in pages {
            // Under the page's lock, so a touch comes either before, and makes it active, or behind, and finds it closed.
            let claim = || {
                let used = self.used(*page);
                used.compare_exchange(ZAPPED, ABSENT, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            };
            match self.close(*page, claim) {
                Ok(true) => {
                    self.open.fetch_sub(1, Ordering::AcqRel);
                    drop(self.room.lock().unwrap_or_else(PoisonError::into_inner));
                    self.freed.notify_all();
                }
                Ok(false) => {}
                Err(error) => eprintln!("error: page {page} cannot be taken back: {error}"),
            }
        }
        if let Err(error) = self.engine.vouch_again() {
            eprintln!("error: {error}");
        }
    }

    /// Encrypts a page that nobody has in page tables. What the file lacks of it is lost, and must not become zeros that nobody wrote.
    pub(super) fn close(&self, page: u64, allowed: impl FnOnce() -> bool) -> Result<bool, Error> {
        let geometry = self.engine.geometry();
        let is_whole = || self.mapping.is_whole(geometry.page_at(page), geometry.page_size());
        self.engine.close_page_if(page, allowed, is_whole)
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
                zapped = server.choose(0);
                assert!(server.zap(&zapped));
            };
            server.open_and_put(3, false, false, slowly).unwrap();
            server.encrypt(&zapped);
            assert!(server.engine.is_open(3), "touch {touch}: it was encrypted under the VMM");
        }
        // What was not touched since is encrypted.
        let zapped = server.choose(0);
        assert!(zapped == [3] && server.zap(&zapped));
        server.encrypt(&zapped);
        assert!(!server.engine.is_open(3));
        assert_eq!(server.open.load(Ordering::Acquire), 0);
    }

    /// The bound of processor time has it rest for minutes; a touch that waits for room has it go on.
    #[test]
    fn touches_that_wait_for_room_end_the_rest() {
        let limits = Limits { cpu_percent: 1, idle: Duration::from_secs(600), ..Limits::default() };
        let server = server(limits);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let resting = scope.spawn(|| server.nap(Duration::from_secs(10), None));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!resting.is_finished());
            (0..crate::serve::LEAST_OPEN)
                .for_each(|page| server.open_and_put(page, false, false, || ()).unwrap());
            resting.join().unwrap();
        });
        assert!(begun.elapsed() < Duration::from_secs(600), "it rested to the end");
    }

    /// Pages that were out of the page tables for less than their time stay open, whatever waits.
    #[test]
    fn what_was_just_taken_out_is_not_encrypted() {
        let limits = Limits { hold: Duration::from_secs(3600), idle: Duration::ZERO, ..Limits::default() };
        let server = server(limits);
        (0..crate::serve::LEAST_OPEN)
            .for_each(|page| server.open_and_put(page, false, false, || ()).unwrap());
        let pages = server.choose(0);
        assert!(!pages.is_empty() && server.zap(&pages));
        let mut out = VecDeque::from([Batch { pages, since: Instant::now() }]);
        assert!(!server.encrypt_due(&mut out) && server.engine.is_open(0));
        if let Some(long_ago) = Instant::now().checked_sub(2 * server.limits.hold) {
            out[0].since = long_ago;
            assert!(server.encrypt_due(&mut out) && !server.engine.is_open(0));
        }
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
