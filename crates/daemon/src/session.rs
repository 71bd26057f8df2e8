//! A volume that this process works on itself, without a daemon.

use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use volume::{Error, Kind, Result, Volume};

use super::thread::Thread;

/// An attached volume with the threads that keep it going.
pub struct Session {
    /// The volume itself.
    pub volume: Volume,
    maintenance: Option<Thread<Result<()>>>,
    ticker: Option<(Sender<()>, thread::JoinHandle<()>)>,
}

const TICK: Duration = Duration::from_millis(100);

impl Session {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the system refuses a thread, or the store a queue.
    pub fn begin(volume: Volume) -> Result<Self> {
        let kept = volume.clone();
        let (sender, begun) = mpsc::channel();
        let work = move || {
            let job = kept.maintenance();
            let _ = sender.send(job.as_ref().err().cloned());
            job?.block()
        };
        let maintenance = Thread::start("maintenance", work)
            .map_err(|error| Error::new(Kind::Io, format!("a thread cannot be started: {error}")))?;
        // Users of the volume would wait for ever for a maintenance that never began.
        if let Ok(Some(error)) = begun.recv() {
            let _ = maintenance.end();
            return Err(error);
        }
        let ticked = volume.clone();
        let (stop, stopped) = mpsc::channel();
        let ticker = thread::spawn(move || {
            while stopped.recv_timeout(TICK) == Err(mpsc::RecvTimeoutError::Timeout) {
                ticked.tick();
            }
        });
        Ok(Self { volume, maintenance: Some(maintenance), ticker: Some((stop, ticker)) })
    }

    /// Detaches, and says whether everything went well to the end.
    pub fn end(mut self) -> Result<()> {
        self.stop()
    }

    fn stop(&mut self) -> Result<()> {
        self.volume.stop();
        let defect = || Error::new(Kind::Defect, "a thread of the volume died; report this as a defect");
        let result = self.maintenance.take().map_or(Ok(()), |thread| thread.end().map_err(|_| defect())?);
        if let Some((stop, ticker)) = self.ticker.take() {
            drop(stop);
            ticker.join().map_err(|_| defect())?;
        }
        result
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Reached after another failure, which is the one to tell.
        let _ = self.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::testing::TestVolume;

    /// Threads are counted, so no other test may have some in its process.
    #[test]
    fn a_session_that_cannot_begin_says_why_and_leaves_no_thread() {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "session::tests::begins_without_room", "--ignored"]);
        let ended = alone.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    #[ignore = "not a test of its own: the one before runs it, in a process of its own"]
    fn begins_without_room() {
        let bench = TestVolume::new();
        let volume = bench.attach();
        bench.trouble.queues.store(0, Ordering::SeqCst);
        // A user that waits for a maintenance that never began must not hang this test.
        let (sender, ended) = mpsc::channel();
        let kept = volume.clone();
        thread::spawn(move || sender.send(Session::begin(kept).map(drop)));
        let refused =
            ended.recv_timeout(Duration::from_secs(20)).expect("it does not come back").unwrap_err();
        assert!(refused.kind() == Kind::Io && refused.to_string().contains("queue"), "{refused}");
        let threads = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
            names.filter(|name| name.trim() == "maintenance").count()
        };
        assert_eq!(threads(), 0);

        // The volume is as it was: it can be begun when there is room again.
        bench.trouble.queues.store(u64::MAX, Ordering::SeqCst);
        Session::begin(volume).unwrap().end().unwrap();
    }
}
