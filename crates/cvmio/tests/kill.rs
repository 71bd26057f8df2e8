//! The daemon is killed, again and again, under work whose every acknowledged byte is remembered outside of it.
//!
//! A round kills the daemon at a random moment: while it attaches (once, twice or never), and then under load or while it detaches. What
//! is left is put away, and the next round checks everything. `KILL_ROUNDS` says how many rounds there are, `KILL_SEED` begins the
//! random numbers (which decide what is done and when; the kernel's timing they do not decide). `make kill-test` runs many.

mod common;

use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::Desk;
use common::database::{Database, Journal};
use common::fio::Part;
use common::machine::{has, quietly, sh, tell, tell_skipped};
use common::records::Records;
use common::session::{Session, clean_up, kill_attach, kill_during, leave_nothing};

/// Rounds in `make test`, as far as they fit into the time: about two seconds each on a machine that has nothing else to do.
const ROUNDS: u64 = 32;
const TIME: Duration = Duration::from_secs(110);

#[derive(Default)]
struct Tally {
    under_load: u32,
    detaching: u32,
    attaching: u32,
    attached: u32,
    records: u64,
    transactions: u64,
    written: u64,
    committed: u64,
}

/// A volume that is killed many times, and what must be on it.
struct Life {
    desk: Rc<Desk>,
    name: &'static str,
    work: Work,
    records: Records,
}

/// What is done with the device.
enum Work {
    /// Records and fio on the volume's file.
    File { synced: Part, overwritten: Part },
    /// Records and SQLite on ext4 on the loop device.
    FileSystem { database: Database },
}

impl Life {
    fn file(name: &'static str, freshness: &str, seed: u64) -> Self {
        let desk = Rc::new(Desk::new());
        create(&desk, freshness);
        let (synced, overwritten) = (Part { offset: 16, size: 8 }, Part { offset: 24, size: 8 });
        let session = Session::attach(&desk, false);
        synced.fill(&session.file, 1);
        overwritten.fill(&session.file, 2);
        session.detach();
        Self { desk, name, work: Work::File { synced, overwritten }, records: Records::new(seed, 4096) }
    }

    fn file_system(name: &'static str, freshness: &str, seed: u64) -> Self {
        let desk = Rc::new(Desk::new());
        create(&desk, freshness);
        let session = Session::attach(&desk, true);
        sh(&format!("mkfs.ext4 -q {}", session.device.as_ref().unwrap().display()));
        let at = session.mount();
        let records = Records::new(seed, 2048);
        File::create(at.join("records")).unwrap().set_len(8 << 20).unwrap();
        let database = Database::new(&at.join("database"));
        database.create();
        sh(&format!("sync -f {}", at.display()));
        session.unmount();
        session.detach();
        Self { desk, name, work: Work::FileSystem { database }, records }
    }

    fn use_loop(&self) -> bool {
        matches!(self.work, Work::FileSystem { .. })
    }

    /// Kills, comes back, checks, works, and kills again.
    fn round(&mut self, random: &mut fastrand::Rng, tally: &mut Tally) {
        for _ in 0..random.u32(0..=2) {
            // Mostly before the device is there, which takes a tenth of a second or so.
            let delay = Duration::from_secs_f64(random.f64().powi(2) / 4.0);
            if kill_attach(&self.desk, self.use_loop(), delay) {
                tally.attached += 1;
            } else {
                tally.attaching += 1;
            }
        }
        let session = Session::attach(&self.desk, self.use_loop());
        let records = self.check(&session, tally);
        if let Work::File { synced, .. } = &self.work
            && random.u8(0..4) == 0
        {
            synced.fill(&session.file, random.u32(..));
        }
        self.work_and_die(&session, &records, random, tally);
        drop(session);
        clean_up(&self.desk);
        assert!(self.desk.done("volume check disk.img --key-file key").contains("all whole"));
    }

    /// What the last kill left.
    fn last_look(&mut self, tally: &mut Tally) {
        let session = Session::attach(&self.desk, self.use_loop());
        self.check(&session, tally);
        session.unmount();
        session.detach();
    }

    /// Looks at all that was ever acknowledged, and leaves the file system mounted. Where the records are.
    fn check(&mut self, session: &Session, tally: &mut Tally) -> PathBuf {
        let records = match &mut self.work {
            Work::File { synced, overwritten } => {
                synced.check(&session.file);
                overwritten.check(&session.file);
                session.file.clone()
            }
            Work::FileSystem { database } => {
                // The journal is replayed by the first mount.
                session.mount();
                session.unmount();
                sh(&format!("fsck.ext4 -fn {}", session.device.as_ref().unwrap().display()));
                let at = session.mount();
                tally.transactions += database.check();
                at.join("records")
            }
        };
        tally.records += self.records.check(&records);
        assert!(self.desk.done("volume check disk").contains("all whole"));
        records
    }

    fn work_and_die(
        &mut self,
        session: &Session,
        records: &Path,
        random: &mut fastrand::Rng,
        tally: &mut Tally,
    ) {
        let (stop, killed) = (AtomicBool::new(false), AtomicBool::new(false));
        let (seed, fio_seed) = (random.u64(..), random.u32(..));
        let direct = random.bool() && !self.use_loop();
        let journal = if random.bool() { Journal::WriteAhead } else { Journal::Rollback };
        let delay = Duration::from_micros(random.u64(5_000..500_000));
        let detach = random.u8(0..6) == 0;
        let (work, own) = (&mut self.work, &mut self.records);
        let (written, committed) = std::thread::scope(|scope| {
            let records = scope.spawn(|| own.write(records, 2, direct, seed, &stop));
            let (mut fio, database) = match work {
                Work::File { overwritten, .. } => {
                    (Some(overwritten.overwrite(&session.file, fio_seed)), None)
                }
                Work::FileSystem { database } => {
                    (None, Some(scope.spawn(|| database.write(journal, &stop, &killed))))
                }
            };
            std::thread::sleep(delay);
            if detach {
                stop.store(true, Ordering::Relaxed);
                fio.iter_mut().for_each(|fio| fio.kill().unwrap());
            } else {
                killed.store(true, Ordering::SeqCst);
                session.kill();
            }
            let _ = fio.map(|mut fio| fio.wait().unwrap());
            (records.join().unwrap(), database.map_or(0, |database| database.join().unwrap()))
        });
        tally.written += written;
        tally.committed += committed;
        if detach {
            session.unmount();
            let delay = Duration::from_micros(random.u64(0..60_000));
            kill_during(&self.desk, "volume detach disk", session.process, delay);
            tally.detaching += 1;
        } else {
            tally.under_load += 1;
        }
    }
}

impl Life {
    /// Does `work`; if it finds something wrong, keeps the volume for whoever looks for the reason.
    fn watched(&mut self, what: &str, work: impl FnOnce(&mut Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(self))) {
            tell(&format!("kill: {what} ({}) found something", self.name));
            self.keep();
            resume_unwind(panic);
        }
    }

    fn keep(&self) {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kill-{}", self.name));
        let _ = fs::create_dir_all(&kept);
        for file in ["disk.img", "disk.img.policy.toml", "anchor", "key", "run/disk/log"] {
            quietly(&format!("cp --sparse=always {} {}", self.desk.path(file).display(), kept.display()));
        }
        tell(&format!("the volume as it is now was copied to {}", kept.display()));
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        leave_nothing(&self.desk);
    }
}

/// Small, so that checkpoints and full rings of the journal come soon.
fn create(desk: &Desk, freshness: &str) {
    desk.done(&format!(
        "volume create disk.img --size 32M --anchor file:{} --key-file key --freshness {freshness}",
        desk.path("anchor").display()
    ));
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[test]
fn a_daemon_that_is_killed_at_any_moment_loses_nothing_that_was_acknowledged() {
    crate::skip_without_devices!();
    if let Some(program) = ["fio", "sqlite3"].into_iter().find(|program| !has(program)) {
        return tell_skipped(&format!("{program} is not installed"));
    }
    let (most, time) = number("KILL_ROUNDS").map_or((ROUNDS, TIME), |rounds| (rounds, Duration::MAX));
    let seed = number("KILL_SEED").unwrap_or_else(|| fastrand::u64(..));
    tell(&format!("kill: {most} rounds, KILL_SEED={seed}"));
    let begun = Instant::now();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut lives = [
        Life::file("strict-file", "strict", seed),
        Life::file_system("strict-ext4", "strict", seed),
        Life::file("interval-file", "interval", seed),
        Life::file_system("interval-ext4", "interval", seed),
    ];
    let mut tally = Tally::default();
    let mut rounds = 0;
    while rounds < most && begun.elapsed() < time {
        let life = &mut lives[usize::try_from(rounds).unwrap() % 4];
        life.watched(&format!("round {rounds}"), |life| life.round(&mut random, &mut tally));
        rounds += 1;
    }
    for life in &mut lives {
        life.watched("the last look", |life| life.last_look(&mut tally));
    }
    let Tally { under_load, detaching, attaching, attached, records, transactions, written, committed } =
        tally;
    tell(&format!(
        "kill: {rounds} rounds in {} s; killed {under_load} times under load, {attaching} attaching, {attached} just attached, \
         {detaching} detaching;\nkill: {written} records and {committed} transactions acknowledged; all there, in {records} and \
         {transactions} looks at one",
        begun.elapsed().as_secs()
    ));
    assert!(written > 0 && committed > 0, "nothing was written");
}
