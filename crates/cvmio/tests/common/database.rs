//! SQLite on a volume, in a process of its own (a mapping of a file on a dead device kills who reads it).

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// A table that grows by one row with each transaction, and a counter that must always agree with it.
pub struct Database {
    path: PathBuf,
    /// Transactions that SQLite said were committed.
    acknowledged: u64,
    /// Transactions that it was told of.
    begun: u64,
}

impl Database {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_path_buf(), acknowledged: 0, begun: 0 }
    }

    /// Commits one transaction after the other until `stop` or the device's end; how many were acknowledged.
    ///
    /// What is said after `killed` counts for nothing: ext4's `fsync` succeeds when there is nothing to commit, also where that is so because
    /// somebody else's commit has just failed on the dead device (Linux 6.18, `__jbd2_journal_force_commit`).
    pub fn write(&mut self, journal: Journal, stop: &AtomicBool, killed: &AtomicBool) -> u64 {
        let mut shell = Command::new("sqlite3")
            .args(["-batch", "-bail"])
            .arg(&self.path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (mut input, output) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
        let mut lines = BufReader::new(output).lines();
        let first = self.acknowledged;
        if input.write_all(journal.pragmas().as_bytes()).is_ok() {
            while !stop.load(Ordering::Relaxed) {
                let Some(id) = self.transaction(&mut input, &mut lines) else { break };
                if killed.load(Ordering::SeqCst) {
                    break;
                }
                self.acknowledged = id;
            }
        }
        drop(input);
        shell.wait().unwrap();
        self.acknowledged - first
    }

    /// One transaction, whose commit is waited for: which it was.
    fn transaction(
        &mut self,
        input: &mut impl Write,
        lines: &mut impl Iterator<Item = std::io::Result<String>>,
    ) -> Option<u64> {
        let id = self.begun.max(self.acknowledged) + 1;
        self.begun = id;
        let text = text(id);
        let statements = format!(
            "BEGIN; INSERT INTO entry VALUES ({id}, '{text}'); UPDATE counter SET last = {id}; COMMIT; SELECT 'committed {id}';\n"
        );
        input.write_all(statements.as_bytes()).ok()?;
        let wanted = format!("committed {id}");
        // The pragmas answer as well.
        let said = lines.find(|line| line.as_ref().map_or(true, |line| *line == wanted))?.ok()?;
        assert_eq!(said, wanted);
        Some(id)
    }

    /// Whether the database is whole and has every acknowledged transaction; how many.
    pub fn check(&mut self) -> u64 {
        let ask = |query: &str| {
            let output = Command::new("sqlite3").arg("-batch").arg(&self.path).arg(query).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{query}: {error}");
            String::from_utf8(output.stdout).unwrap()
        };
        if self.begun == 0 {
            return 0;
        }
        assert_eq!(ask("PRAGMA integrity_check;").trim(), "ok");
        let rows = ask("SELECT id, text FROM entry ORDER BY id;");
        let mut last = 0;
        for row in rows.lines() {
            last += 1;
            assert_eq!(row, format!("{last}|{}", text(last)));
        }
        let range = self.acknowledged..=self.begun;
        assert!(
            range.contains(&last),
            "{last} transactions are there, of {range:?} that were acknowledged and begun"
        );
        let counter: u64 = ask("SELECT last FROM counter;").trim().parse().unwrap();
        assert_eq!(counter, last, "half a transaction is there");
        let checked = self.acknowledged;
        (self.acknowledged, self.begun) = (last, last);
        checked
    }

    /// Makes the tables.
    pub fn create(&self) {
        let schema =
            "CREATE TABLE entry (id INTEGER PRIMARY KEY, text TEXT); CREATE TABLE counter (last INTEGER);
             INSERT INTO counter VALUES (0);";
        let status = Command::new("sqlite3").arg(&self.path).arg(schema).status().unwrap();
        assert!(status.success());
    }
}

/// How SQLite makes its transactions atomic.
#[derive(Debug, Clone, Copy)]
pub enum Journal {
    WriteAhead,
    Rollback,
}

impl Journal {
    /// With a rollback journal a commit is the removal of a file, which only EXTRA makes durable.
    fn pragmas(self) -> &'static str {
        match self {
            Self::WriteAhead => {
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=50;\n"
            }
            Self::Rollback => "PRAGMA journal_mode=DELETE; PRAGMA synchronous=EXTRA;\n",
        }
    }
}

/// What transaction `id` wrote, of a length of its own.
fn text(id: u64) -> String {
    let mut random = fastrand::Rng::with_seed(id);
    (0..random.usize(1..600)).map(|_| random.alphanumeric()).collect()
}
