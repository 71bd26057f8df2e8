//! What the guest does with its disk: a source tree, and a database that commits durably.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::guest::{Guest, io_failure};
use cli::failure::Failure;
use cli::interrupt::Interrupt;

/// In every row of the database and in every line of the guest's file; nothing else on earth has it.
pub const MARKER: &str = "only-the-guest-may-read-this-4f1d9be2";

const TREE_FILES: usize = 2500;
const TREE_BYTES: u64 = 24 << 20;
const FILE_BYTES: u64 = 256 << 10;
/// The file that the host will have its eye on.
pub const SECRET_FILE: &str = "secret.txt";
const SECRET_BYTES: usize = 8 << 20;
const SNIPPET: usize = 32;
const SNIPPETS: usize = 12;

/// Files on the machine that are worth unpacking.
pub struct Source {
    pub root: PathBuf,
    files: Vec<PathBuf>,
    pub bytes: u64,
}

impl Source {
    /// The sources that this program was built from, if they are here; else headers or documents of the system.
    pub fn find() -> Result<Self, Failure> {
        let cargo = std::env::var_os("CARGO_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
        let candidates = cargo
            .map(|cargo| cargo.join("registry/src"))
            .into_iter()
            .chain(["/usr/include", "/usr/share/doc", "/etc"].map(PathBuf::from));
        for root in candidates {
            let mut source = Self { root: root.clone(), files: Vec::new(), bytes: 0 };
            source.collect(&root);
            if source.files.len() >= 20 {
                return Ok(source);
            }
        }
        Err(Failure::usage("there are no files on this machine to fill a disk with"))
    }

    fn collect(&mut self, directory: &Path) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort_unstable();
        for path in paths {
            if self.files.len() >= TREE_FILES || self.bytes >= TREE_BYTES {
                return;
            }
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() {
                self.collect(&path);
            } else if metadata.is_file() && metadata.len() <= FILE_BYTES && File::open(&path).is_ok() {
                self.bytes += metadata.len();
                self.files.extend(path.strip_prefix(&self.root).map(Path::to_path_buf));
            }
        }
    }

    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// Packs the files outside of the volume, and unpacks them on it.
    pub fn unpack(&self, guest: &Guest) -> Result<(), Failure> {
        let (list, archive, target) =
            (guest.path("guest/list"), guest.path("guest/source.tar"), guest.mountpoint().join("source"));
        let names: Vec<u8> =
            self.files.iter().flat_map(|file| [file.as_os_str().as_bytes(), b"\0"].concat()).collect();
        fs::write(&list, names).map_err(|error| io_failure(&list, &error))?;
        fs::create_dir(&target).map_err(|error| io_failure(&target, &error))?;
        let pack: [&OsStr; 7] = [
            "-C".as_ref(),
            self.root.as_ref(),
            "-cf".as_ref(),
            archive.as_ref(),
            "--null".as_ref(),
            "-T".as_ref(),
            list.as_ref(),
        ];
        guest.tool("tar", &pack)?;
        guest.tool(
            "tar",
            &["-C".as_ref(), target.as_ref(), "--no-same-owner".as_ref(), "-xf".as_ref(), archive.as_ref()],
        )
    }

    /// Pieces of text out of these files, for who wants to look for them on the disk.
    pub fn snippets(&self) -> Vec<Vec<u8>> {
        let step = (self.files.len() / SNIPPETS).max(1);
        let mut snippets: Vec<Vec<u8>> = Vec::new();
        for file in self.files.iter().step_by(step) {
            let Ok(content) = fs::read(self.root.join(file)) else { continue };
            let start = &content[..content.len().min(store::BLOCK_SIZE)];
            // The end of the first block: the beginnings of source files are all alike.
            if let Some(snippet) = start.len().checked_sub(SNIPPET).map(|at| start[at..].to_vec())
                && snippet.iter().any(|byte| *byte != snippet[0])
            {
                snippets.push(snippet);
            }
        }
        snippets
    }
}

fn database_failure(error: rusqlite::Error) -> Failure {
    Failure::io(format!("SQLite on the volume: {error}"))
}

/// Opens the database that survives a crash at any moment: write-ahead log, and a sync for each commit.
pub fn open(directory: &Path) -> Result<Connection, Failure> {
    let open = || {
        let connection = Connection::open(directory.join("ledger.db"))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
             CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, source INTEGER, target INTEGER, amount INTEGER, note TEXT);",
        )?;
        for account in 0..ACCOUNTS {
            connection.execute("INSERT OR IGNORE INTO account VALUES (?1, 0)", [account])?;
        }
        Ok(connection)
    };
    open().map_err(database_failure)
}

const ACCOUNTS: u32 = 100;

/// Moves money about, `count` times, each in a transaction of its own.
pub fn transact(connection: &mut Connection, count: u32, interrupt: &Interrupt) -> Result<(), Failure> {
    let mut random = fastrand::Rng::with_seed(u64::from(count));
    for number in 0..count {
        interrupt.check()?;
        let (source, target, amount) = (random.u32(..ACCOUNTS), random.u32(..ACCOUNTS), random.u32(1..1000));
        let mut move_money = || {
            let transaction = connection.transaction()?;
            transaction
                .execute("UPDATE account SET balance = balance - ?2 WHERE id = ?1", [source, amount])?;
            transaction
                .execute("UPDATE account SET balance = balance + ?2 WHERE id = ?1", [target, amount])?;
            transaction.execute(
                "INSERT INTO entry (source, target, amount, note) VALUES (?1, ?2, ?3, ?4)",
                (source, target, amount, format!("{MARKER} transfer {number}")),
            )?;
            transaction.commit()
        };
        move_money().map_err(database_failure)?;
    }
    Ok(())
}

/// Whether the database is whole, and has `entries` entries that add up.
pub fn audit(connection: &Connection, entries: u32) -> Result<(), Failure> {
    let ask =
        |query: &str| connection.query_row(query, [], |row| row.get::<_, i64>(0)).map_err(database_failure);
    let whole: String =
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).map_err(database_failure)?;
    let (found, sum) = (ask("SELECT count(*) FROM entry")?, ask("SELECT sum(balance) FROM account")?);
    if whole != "ok" || found != i64::from(entries) || sum != 0 {
        return Err(Failure::internal(format!(
            "the database is not what it was: integrity check `{whole}`, {found} entries of {entries}, sum {sum}"
        )));
    }
    Ok(())
}

/// Writes the guest's secret file in place, over an earlier version of it.
pub fn write_secret(directory: &Path, version: u32) -> Result<(), Failure> {
    let path = directory.join(SECRET_FILE);
    let mut content = Vec::with_capacity(SECRET_BYTES + 128);
    let mut random = fastrand::Rng::with_seed(u64::from(version));
    while content.len() < SECRET_BYTES {
        let _ = writeln!(content, "{MARKER} version {version} line {:016x}", random.u64(..));
    }
    content.truncate(SECRET_BYTES);
    let write = || {
        let file = File::options().create(true).write(true).truncate(false).open(&path)?;
        file.write_all_at(&content, 0)?;
        file.sync_all()?;
        File::open(directory)?.sync_all()
    };
    write().map_err(|error| io_failure(&path, &error))
}

/// What became of the files.
#[derive(Default)]
pub struct Reading {
    /// SHA-256 of each file that could be read.
    pub hashes: BTreeMap<PathBuf, [u8; 32]>,
    /// Files of which something could not be read, and the error.
    pub failed: Vec<(PathBuf, String)>,
}

/// Reads every byte of every file.
pub fn read_all(root: &Path, interrupt: &Interrupt) -> Result<Reading, Failure> {
    let mut reading = Reading::default();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(directory) = waiting.pop() {
        let entries = match fs::read_dir(&directory).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(entries) => entries,
            Err(error) => {
                reading.failed.push((directory, error.to_string()));
                continue;
            }
        };
        for entry in entries {
            interrupt.check()?;
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => waiting.push(path),
                Ok(kind) if kind.is_file() => match content(&path) {
                    Ok(content) => drop(reading.hashes.insert(name, seal::sha256(&[&content]))),
                    Err(error) => reading.failed.push((name, error.to_string())),
                },
                Ok(_) => {}
                Err(error) => reading.failed.push((name, error.to_string())),
            }
        }
    }
    Ok(reading)
}

fn content(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.read_to_end(&mut content)?;
    Ok(content)
}
