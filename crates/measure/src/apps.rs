//! Measuring with applications, on a file system on each target.

mod archive;
mod compile;
mod guest;
pub mod memory;
mod postgres;
mod redis;
mod rocksdb;
mod script;
mod sqlite;
mod traced;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use report::run::{Case, Metric};
use rustix::fs::{Advice, fadvise, syncfs};

use crate::error::{Context, Error, Result};
use crate::ledger;
use crate::program::{find, of_ours, output, package};
use crate::session::{Measured, Prepared, Work};
use crate::target::{Contents, Need, Spec};
use cli::interrupt::Interrupt;

/// Applications that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum App {
    /// 2,500 inserts, a transaction each; and a mix of nine reads by key to one update
    Sqlite,
    /// redis-benchmark's SET and GET, with the append-only file on the target
    Redis,
    /// RocksDB with six mixes of reads, updates and inserts, by a small program that is compiled for it
    Rocksdb,
    /// pgbench's own transactions
    Postgres,
    /// tar with gzip of a real tree, both ways
    Tar,
    /// lz4 of the same tree in one file, both ways
    Lz4,
    /// make of a real C project (--project)
    Compile,
    /// memcpy, memset and latency of memory: says nothing of a target, and compares machines
    Memory,
}

/// Sizes of what applications do.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// Inserts, and a tenth of them in thousands of rows for reads.
    pub inserts: u32,
    /// Requests of redis-benchmark.
    pub requests: u32,
    /// Records of RocksDB.
    pub records: u32,
    /// Operations of RocksDB.
    pub operations: u32,
    /// Seconds of pgbench.
    pub seconds: u32,
    /// The tree that is packed.
    pub tree: PathBuf,
    /// The C project that is built.
    pub project: Option<PathBuf>,
    /// Bytes of memory that are copied.
    pub memory: usize,
}

/// One thing that an application is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    SqliteInsert,
    SqliteMix,
    Redis(&'static str),
    Rocksdb(&'static str),
    Postgres,
    TarCompress,
    TarExtract,
    Lz4Compress,
    Lz4Extract,
    Compile,
    Memory(memory::What),
}

impl App {
    fn tasks(self) -> &'static [(&'static str, Metric, Task)] {
        use Metric::{Bandwidth, Duration, Latency, Rate};
        match self {
            Self::Sqlite => {
                &[("sqlite-insert", Duration, Task::SqliteInsert), ("sqlite-read-mix", Rate, Task::SqliteMix)]
            }
            Self::Redis => {
                &[("redis-set", Rate, Task::Redis("set")), ("redis-get", Rate, Task::Redis("get"))]
            }
            Self::Rocksdb => &[
                ("rocksdb-read-update", Rate, Task::Rocksdb("a")),
                ("rocksdb-read-mostly", Rate, Task::Rocksdb("b")),
                ("rocksdb-read-insert", Rate, Task::Rocksdb("c")),
                ("rocksdb-read-modify-write", Rate, Task::Rocksdb("d")),
                ("rocksdb-update-insert", Rate, Task::Rocksdb("e")),
                ("rocksdb-read-only", Rate, Task::Rocksdb("f")),
            ],
            Self::Postgres => &[("postgres-pgbench", Rate, Task::Postgres)],
            Self::Tar => &[
                ("tar-gzip-compress", Duration, Task::TarCompress),
                ("tar-gzip-extract", Duration, Task::TarExtract),
            ],
            Self::Lz4 => {
                &[("lz4-compress", Duration, Task::Lz4Compress), ("lz4-extract", Duration, Task::Lz4Extract)]
            }
            Self::Compile => &[("compile", Duration, Task::Compile)],
            Self::Memory => &[
                ("memory-memcpy", Bandwidth, Task::Memory(memory::What::Copy)),
                ("memory-memset", Bandwidth, Task::Memory(memory::What::Set)),
                ("memory-latency", Latency, Task::Memory(memory::What::Latency)),
            ],
        }
    }

    /// The programs that it needs.
    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Sqlite => &["sqlite3"],
            Self::Redis => &["redis-server", "redis-benchmark"],
            Self::Rocksdb => &["cc"],
            Self::Postgres => &["initdb", "pg_ctl", "pgbench", "setpriv"],
            Self::Tar => &["tar", "gzip"],
            Self::Lz4 => &["tar", "lz4"],
            Self::Compile => &["make", "cc"],
            Self::Memory => &[],
        }
    }
}

/// Where applications are run.
#[derive(Debug, Clone, Copy)]
pub struct Sites<'a> {
    /// Whether on this machine.
    pub here: bool,
    /// Whether in guests.
    pub guests: bool,
    /// Where files are made for guests.
    pub directory: &'a Path,
    /// The command line program, beside which our other programs are.
    pub cvmio: &'a Path,
}

/// Something to do, as a run has it.
struct Planned {
    app: App,
    case: Case,
    task: Task,
}

/// Applications as the work of a run.
pub struct Apps {
    tasks: Vec<Planned>,
    sizes: Sizes,
    rocksdb: Option<rocksdb::Program>,
    contents: Contents,
    /// What could not be prepared for guests.
    not_in_guests: Vec<App>,
    /// The tree as one file, if guests read it.
    data: Option<ledger::Place>,
}

impl Apps {
    /// Plans applications; also what is left out, because a program or a project is missing.
    ///
    /// # Errors
    /// When what must be compiled is not, or the tree cannot be packed for guests.
    pub fn new(
        apps: &[App],
        sizes: Sizes,
        sites: Sites<'_>,
        interrupt: &Interrupt,
    ) -> Result<(Self, Vec<String>)> {
        let mut program = None;
        let (mut tasks, mut missing) = (Vec::new(), Vec::new());
        let (mut contents, mut not_in_guests) = (Contents::default(), Vec::new());
        for app in apps {
            if let Some(program) = app.programs().iter().find(|program| find(program).is_none()) {
                missing.push(format!(
                    "{app:?}: {program} is not installed; it is in Debian's package {}",
                    package(program)
                ));
                continue;
            }
            if *app == App::Compile && sizes.project.is_none() {
                missing.push("Compile: name a C project that `make` builds with --project DIR".into());
                continue;
            }
            if *app == App::Rocksdb {
                if let Some(why) = rocksdb::missing() {
                    missing.push(why);
                    continue;
                }
                program = Some(rocksdb::Program::compile(interrupt)?);
            }
            if sites.guests && guest::is_traced(*app) {
                let found = for_guest(*app, &sizes, sites, interrupt);
                interrupt.check()?;
                match found {
                    Ok(found) => contents.add(found),
                    Err(why) => {
                        missing.push(format!("{app:?}: not in guests, because {why}"));
                        not_in_guests.push(*app);
                        if !sites.here {
                            continue;
                        }
                    }
                }
            }
            tasks.extend(app.tasks().iter().map(|(name, metric, task)| {
                let command = describe(*task, &sizes);
                let case = Case { name: (*name).into(), metric: *metric, aged: false, command };
                Planned { app: *app, case, task: *task }
            }));
        }
        let mut apps = Self { tasks, sizes, rocksdb: program, contents, not_in_guests, data: None };
        if sites.guests {
            apps.for_guests(sites, interrupt)?;
        }
        Ok((apps, missing))
    }

    /// Finds what guests need, and packs the tree for them.
    fn for_guests(&mut self, sites: Sites<'_>, interrupt: &Interrupt) -> Result<()> {
        let mut names: Vec<&str> = vec!["date"];
        let used = |app: App| self.tasks.iter().any(|planned| planned.app == app);
        for planned in &self.tasks {
            names.extend(guest::programs(planned.app));
        }
        names.sort_unstable();
        names.dedup();
        let mut contents = std::mem::take(&mut self.contents);
        contents.add(Contents::programs(&names));
        let compiled = self.rocksdb.as_ref().map(|program| (rocksdb::NAME.to_string(), program.path()));
        contents.own.extend(compiled);
        if used(App::Memory) {
            let program = of_ours(memory::PROGRAM, sites.cvmio);
            contents.own.push((memory::PROGRAM.into(), program));
        }
        if used(App::Tar) || used(App::Lz4) {
            let place = ledger::Place::new_in(sites.directory, "cvmio-bench-tree-")?;
            let packed = place.path().canonicalize().doing(place.path().display())?.join("tree.tar");
            let mut tar = command("tar");
            tar.arg("-cf").arg(&packed).arg("-C").arg(&self.sizes.tree).arg(".");
            output(&mut tar, interrupt)?;
            contents.data = Some(packed);
            self.data = Some(place);
        }
        self.contents = contents;
        Ok(())
    }

    /// Whether nothing is left to do.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

/// A command of a program by its place.
fn command(program: &str) -> Command {
    Command::new(find(program).unwrap_or_else(|| program.into()))
}

fn describe(task: Task, sizes: &Sizes) -> String {
    match task {
        Task::SqliteInsert => format!("sqlite3 TARGET/db with {} inserts, a transaction each", sizes.inserts),
        Task::SqliteMix => "sqlite3 TARGET/db with nine selects by key to one update".into(),
        Task::Redis(what) => {
            format!(
                "redis-benchmark -t {what} -n {} on a server with --appendonly yes --dir TARGET",
                sizes.requests
            )
        }
        Task::Rocksdb(mix) => format!(
            "ycsb TARGET/db {mix} {} {} (crates/measure/rocksdb/ycsb.c)",
            sizes.records, sizes.operations
        ),
        Task::Postgres => format!("pgbench -T {} -c 4 on a server with -D TARGET", sizes.seconds),
        Task::TarCompress => {
            format!("tar -czf TARGET/a.tgz of a copy of {} on TARGET, sync", sizes.tree.display())
        }
        Task::TarExtract => format!("tar -xzf TARGET/a.tgz of {}, sync", sizes.tree.display()),
        Task::Lz4Compress => format!("lz4 of a tar of {} on TARGET, sync", sizes.tree.display()),
        Task::Lz4Extract => format!("lz4 -d of a tar of {} on TARGET, sync", sizes.tree.display()),
        Task::Compile => {
            let project = sizes.project.as_deref().unwrap_or(Path::new("-"));
            format!("make -j in a copy of {} on TARGET", project.display())
        }
        Task::Memory(memory::What::Latency) => {
            format!("reads at random places of {} MiB", memory::latency_bytes(sizes.memory) >> 20)
        }
        Task::Memory(what) => format!("{what:?} of {} MiB", sizes.memory >> 20),
    }
}

/// What guests need for an application: what a small run of it opens on this machine.
fn for_guest(app: App, sizes: &Sizes, sites: Sites<'_>, interrupt: &Interrupt) -> Result<Contents> {
    if find(traced::PROGRAM).is_none() {
        return Err(Error::usage(format!(
            "what it opens is found by {0}, which is not installed; it is in Debian's package {0}",
            traced::PROGRAM
        )));
    }
    let made = ledger::Place::new_in(sites.directory, "cvmio-bench-traced-")?;
    let directory = made.path().canonicalize().doing(made.path().display())?;
    let traces = traced::Traces::new()?;
    let small = Sizes { seconds: 1, ..sizes.clone() };
    let place = Place { directory: &directory, sizes: &small, interrupt, traces: Some(&traces) };
    let mut contents = Contents::default();
    if app == App::Compile {
        compile::make(&place)?;
        let room = ledger::Place::new_in(sites.directory, "cvmio-bench-packed-")?;
        let packed = room.path().join("project");
        compile::pack(&place, &packed)?;
        contents.content.push((compile::PACKED.into(), fs::read(packed).doing("the project")?.into()));
    } else {
        postgres::pgbench(&place)?;
    }
    let opened = traces.opened(&directory)?;
    contents.programs.extend(opened.programs.iter().map(|path| path.to_string_lossy().into_owned()));
    contents.files.extend(opened.files);
    Ok(contents)
}

/// Where a task runs, and for how long it may.
struct Place<'a> {
    /// A directory of its own on the target, removed afterwards.
    directory: &'a Path,
    sizes: &'a Sizes,
    interrupt: &'a Interrupt,
    /// Where it is noted what the programs open.
    traces: Option<&'a traced::Traces>,
}

impl Place<'_> {
    /// A program, traced if that is wanted.
    fn command(&self, program: &str) -> Command {
        self.command_with(program, false)
    }

    /// The same; with `beside`, the tracer is no parent of it.
    fn command_with(&self, program: &str, beside: bool) -> Command {
        let Some(traces) = self.traces else { return command(program) };
        let words = traces.words(program, beside);
        let mut whole = Command::new(&words[0]);
        whole.args(&words[1..]).arg(command(program).get_program());
        whole
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Waits until the target has everything.
    fn sync(&self) -> Result<()> {
        let directory = File::open(self.directory).doing(self.directory.display())?;
        syncfs(&directory).doing(self.directory.display())
    }

    /// Lets the page cache forget what was written and is read next.
    fn forget(&self, path: &Path) -> Result<()> {
        self.sync()?;
        each_file(path, &mut |file| {
            let file = File::open(file).doing(file.display())?;
            fadvise(&file, 0, None, Advice::DontNeed).doing("posix_fadvise")
        })
    }

    /// Times something together with the sync that it leaves to do.
    fn timed(&self, task: impl FnOnce() -> Result<()>) -> Result<Measured> {
        let started = Instant::now();
        task()?;
        self.sync()?;
        Ok(duration(started.elapsed()))
    }
}

fn each_file(path: &Path, visit: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    let kind = fs::symlink_metadata(path).doing(path.display())?.file_type();
    if kind.is_file() {
        return visit(path);
    }
    if kind.is_dir() {
        for entry in fs::read_dir(path).doing(path.display())? {
            each_file(&entry.doing(path.display())?.path(), visit)?;
        }
    }
    Ok(())
}

fn duration(took: Duration) -> Measured {
    Measured { value: took.as_secs_f64(), figures: BTreeMap::new(), course: Vec::new() }
}

fn rate(operations: f64, took: Duration) -> Measured {
    let seconds = took.as_secs_f64();
    Measured {
        value: operations / seconds,
        figures: BTreeMap::from([("seconds".to_string(), seconds)]),
        course: Vec::new(),
    }
}

impl Work for Apps {
    fn need(&self) -> Need {
        Need::Files
    }

    fn contents(&self) -> Contents {
        self.contents.clone()
    }

    fn cases(&self) -> Vec<Case> {
        self.tasks.iter().map(|planned| planned.case.clone()).collect()
    }

    fn fits(&self, case: usize, target: &Spec) -> bool {
        let app = self.tasks.get(case).map(|planned| planned.app);
        !guest::is(target) || app.is_some_and(|app| !self.not_in_guests.contains(&app))
    }

    fn seconds(&self) -> f64 {
        f64::from(self.sizes.seconds)
    }

    fn prepare(&self, target: &mut Prepared<'_>) -> Result<()> {
        target.ready.directory(target.environment).map(drop)
    }

    fn age(&self, _target: &mut Prepared<'_>) -> Result<()> {
        Ok(())
    }

    fn turn(&self, case: usize, target: &mut Prepared<'_>) -> Result<Measured> {
        let planned = self.tasks.get(case).ok_or_else(|| Error::io("there is no such case"))?;
        let task = planned.task;
        if target.ready.guest.is_some() {
            return guest::turn(task, &self.sizes, target);
        }
        let root = target.ready.directory(target.environment)?;
        let made = tempfile::TempDir::with_prefix_in("app-", &root).doing(root.display())?;
        let place = Place {
            directory: made.path(),
            sizes: &self.sizes,
            interrupt: target.environment.interrupt,
            traces: None,
        };
        let measured = match task {
            Task::SqliteInsert => sqlite::insert(&place),
            Task::SqliteMix => sqlite::mix(&place),
            Task::Redis(what) => redis::benchmark(&place, what),
            Task::Rocksdb(mix) => {
                let program = self.rocksdb.as_ref();
                program.ok_or_else(|| Error::io("RocksDB's program was not compiled"))?.mix(&place, mix)
            }
            Task::Postgres => postgres::pgbench(&place),
            Task::TarCompress => archive::tar_compress(&place),
            Task::TarExtract => archive::tar_extract(&place),
            Task::Lz4Compress => archive::lz4_compress(&place),
            Task::Lz4Extract => archive::lz4_extract(&place),
            Task::Compile => compile::make(&place),
            Task::Memory(what) => memory::measure(what, self.sizes.memory),
        }?;
        made.close().doing(root.display())?;
        Ok(measured)
    }
}
