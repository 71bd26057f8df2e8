//! Commands that measure.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, Parser};
use report::question::Question;
use report::run::{Run, State};

use super::{AgainArgs, Measure, ResumeArgs, TargetArgs, Words, show};
use crate::apps::{App, Apps, Sites, Sizes};
use crate::error::{Context, Error, Result};
use crate::fio::{Fio, Job, Scale, Set, open_loop};
use crate::program::version;
use crate::session::{self, Plan, Work};
use crate::target::{Accel, Environment, Spec};
use cli::interrupt::Interrupt;

/// fio on each target, in turns
///
/// Each target is made, written once from beginning to end, and then measured: for each job, all targets have a turn, then all have the next.
/// The first target is measured a second time in each turn, which shows the noise.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: what a volume costs on the disk under /srv, beside LUKS
  cvmio bench fio --dir /srv --target /srv --target cvmio --target qemu-luks --out disk.json
  cvmio bench report disk.json

Example: one protection less at a time
  cvmio bench fio --dir /srv --target cvmio --one-less

Example: an empty block device
  cvmio bench fio --target /dev/vdb --size 16G --set in-memory")]
pub struct FioArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "it has its own")]
    pub targets: TargetArgs,
    /// Built-in jobs
    #[arg(long = "set", value_enum, value_delimiter = ',', default_value = "cvm-io")]
    pub sets: Vec<Set>,
    /// Run the jobs of this fio job file instead; where requests go and for how long is said here
    #[arg(long, value_name = "FILE", conflicts_with = "sets")]
    pub job_file: Option<PathBuf>,
    /// Run only jobs whose names contain one of these words
    #[arg(long, value_name = "WORD", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Seconds that are measured in each turn
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Seconds before them that are not
    #[arg(long, default_value_t = 1.0)]
    pub warm_up: f64,
    /// Run everything a second time after each target was overwritten at random, twice as much as its size
    #[arg(long)]
    pub aged: bool,
    /// Run latency jobs also as an open loop, with so many requests a second whether or not earlier ones have ended
    #[arg(long, value_name = "IOPS", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub rate: Option<u32>,
}

/// Applications on a file system on each target, in turns
///
/// An ext4 is made on each target and mounted; tmpfs is used as it is. This needs root, but for vm targets, which run the same programs in a
/// guest. What a program that is missing would have measured is left out, and its Debian package named.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: data bases on a volume, beside the bare disk
  cvmio bench apps --dir /srv --target /srv --target cvmio --apps sqlite,redis,postgres

Example: the same inside virtual machines
  cvmio bench apps --guest-kernel kernel --target vm --target vm:protect=cvmio --apps sqlite,redis")]
pub struct AppsArgs {
    #[command(flatten)]
    #[expect(missing_docs, reason = "it has its own")]
    pub targets: TargetArgs,
    /// What is run
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["sqlite", "redis", "rocksdb", "postgres", "tar", "lz4"])]
    pub apps: Vec<App>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it has its own")]
    pub sizes: SizeArgs,
    /// Seconds of pgbench
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub seconds: u32,
}

/// Sizes of what applications do, wherever they run.
#[derive(Args, Debug, Clone)]
pub struct SizeArgs {
    /// Inserts of sqlite, each a transaction; also the operations of its mix
    #[arg(long, default_value_t = 2500, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub inserts: u32,
    /// Requests of redis-benchmark
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: u32,
    /// Records of 1000 bytes that RocksDB holds
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(3..))]
    pub records: u32,
    /// Operations of each of RocksDB's mixes
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub operations: u32,
    /// The tree that tar and lz4 pack
    #[arg(long, default_value = "/usr/include", value_name = "DIR")]
    pub tree: PathBuf,
    /// A C project that `make` builds, for `compile`
    #[arg(long, value_name = "DIR")]
    pub project: Option<PathBuf>,
}

/// What the command line does not say by itself.
pub struct Order {
    words: Vec<String>,
    cvmio: PathBuf,
    /// Content of the files that the words name, if it is not to be read from them.
    files: Option<BTreeMap<String, String>>,
    before: Option<Run>,
    out: Option<PathBuf>,
    /// What is left out, and why.
    missing: Vec<String>,
    question: Option<u8>,
    /// The run's title, if it is not the work's.
    title: Option<String>,
}

impl Order {
    /// A command as it was typed.
    pub fn new(words: Vec<String>, cvmio: PathBuf) -> Self {
        Self {
            words,
            cvmio,
            files: None,
            before: None,
            out: None,
            missing: Vec::new(),
            question: None,
            title: None,
        }
    }

    /// The same, for a research question.
    pub fn asking(self, question: u8) -> Self {
        Self { question: Some(question), ..self }
    }

    /// The same, with another title.
    pub fn titled(self, title: &str) -> Self {
        Self { title: Some(title.into()), ..self }
    }
}

/// Measures with fio.
///
/// # Errors
/// When nothing can be measured.
pub fn fio(args: &FioArgs, order: Order) -> Result<()> {
    let interrupt = Interrupt::on_signals()?;
    let mut files = BTreeMap::new();
    if let Some(path) = &args.job_file {
        let name = path.to_string_lossy().into_owned();
        let kept = order.files.as_ref().and_then(|files| files.get(&name).cloned());
        let text = kept.map_or_else(|| read_text(path), Ok)?;
        files.insert(name, text);
    }
    for (what, seconds, least) in [("seconds", args.seconds, 0.1), ("warm-up", args.warm_up, 0.0)] {
        if !(least..=86400.0).contains(&seconds) {
            return Err(Error::usage(format!("--{what} {seconds}: between {least} and 86400 is possible")));
        }
    }
    let scale = Scale { seconds: args.seconds, warm_up: args.warm_up, size: args.targets.size };
    let file = files.iter().next().map(|(name, text)| (name.as_str(), text.as_str()));
    let mut work = Fio::new(jobs(args)?, file, scale, args.aged)?;
    let mut programs = BTreeMap::new();
    programs.insert("fio".to_string(), work.probe(&interrupt)?);
    let title = format!("fio: {}", title(args));
    carry_out(&args.targets, order, title, programs, files, &work, &interrupt)
}

/// Measures page encryption of storage-class memory.
///
/// # Errors
/// When nothing can be measured, or a run is to be gone on with.
pub fn scm(args: &crate::scm::ScmArgs, order: Order) -> Result<()> {
    if order.before.is_some() {
        return Err(Error::usage(
            "a run of `bench scm` is not gone on with; cvmio bench again runs it once more",
        ));
    }
    let out = order.out.or_else(|| args.out.clone()).unwrap_or_else(|| default_out("scm"));
    let args = crate::scm::ScmArgs { out: Some(out.clone()), ..args.clone() };
    let run = crate::scm::run(&args, order.words, &order.cvmio)?;
    cli::output::print(&show::summary(&run));
    tell_end(&run, &out)
}

/// Memory that is copied: more than caches hold.
const MEMORY: usize = 256 << 20;

/// Measures with applications.
///
/// # Errors
/// When nothing can be measured.
pub fn apps(args: &AppsArgs, order: Order) -> Result<()> {
    let interrupt = Interrupt::on_signals()?;
    for directory in std::iter::once(&args.sizes.tree).chain(&args.sizes.project) {
        if !directory.is_dir() {
            return Err(Error::usage(format!("{} is no directory", directory.display())));
        }
    }
    let (planned, _) = args.targets.plan()?;
    let [here, guests] = [false, true]
        .map(|in_guest| planned.iter().any(|target| matches!(target.spec, Spec::Vm(_)) == in_guest));
    // As much everywhere: two buffers, beside the guest's own files.
    let in_guests = usize::try_from(args.targets.guests.memory / 8).unwrap_or(MEMORY);
    let sizes = Sizes {
        inserts: args.sizes.inserts,
        requests: args.sizes.requests,
        records: args.sizes.records,
        operations: args.sizes.operations,
        seconds: args.seconds,
        tree: args.sizes.tree.clone(),
        project: args.sizes.project.clone(),
        memory: if guests { in_guests.min(MEMORY) } else { MEMORY },
    };
    let sites = Sites { here, guests, directory: &args.targets.dir, cvmio: &order.cvmio };
    let (work, missing) = Apps::new(&args.apps, sizes, sites, &interrupt)?;
    if work.is_empty() {
        return Err(Error::usage(format!("nothing can be run: {}", missing.join("; "))));
    }
    let names: Vec<String> = args.apps.iter().map(|app| format!("{app:?}").to_lowercase()).collect();
    let mut programs = BTreeMap::new();
    for program in ["sqlite3", "redis-server", "pgbench", "tar", "gzip", "lz4", "cc"] {
        programs.extend(version(program, &interrupt).map(|version| (program.to_string(), version)));
    }
    let title = format!("apps: {}", names.join(", "));
    let order = Order { missing, ..order };
    carry_out(&args.targets, order, title, programs, BTreeMap::new(), &work, &interrupt)
}

fn title(args: &FioArgs) -> String {
    match &args.job_file {
        Some(path) => path.display().to_string(),
        None => args.sets.iter().map(|set| set.name()).collect::<Vec<_>>().join(", "),
    }
}

fn jobs(args: &FioArgs) -> Result<Vec<Job>> {
    if args.job_file.is_some() {
        return Ok(Vec::new());
    }
    let mut jobs: Vec<Job> = args.sets.iter().flat_map(|set| set.jobs()).collect();
    if !args.only.is_empty() {
        jobs.retain(|job| args.only.iter().any(|word| job.name.contains(word)));
        if jobs.is_empty() {
            return Err(Error::usage(format!("no job's name contains {}", args.only.join(" or "))));
        }
    }
    if let Some(rate) = args.rate {
        let open: Vec<Job> = jobs.iter().filter_map(|job| open_loop(job, rate)).collect();
        jobs.extend(open);
    }
    Ok(jobs)
}

/// Measures what a plan says, and tells what came out.
///
/// # Errors
/// When nothing can be measured.
pub fn carry_out(
    args: &TargetArgs,
    order: Order,
    title: String,
    mut programs: BTreeMap<String, String>,
    files: BTreeMap<String, String>,
    work: &dyn Work,
    interrupt: &Interrupt,
) -> Result<()> {
    let need = work.need();
    let (targets, baseline) = args.plan()?;
    for program in ["nbdkit", "qemu-nbd"] {
        let used = targets
            .iter()
            .any(|target| target.spec.to_string().starts_with(program.trim_end_matches("-nbd")));
        if let Some(version) = used.then(|| version(program, interrupt)).flatten() {
            programs.insert(program.into(), version);
        }
    }
    if let Some(version) = version(&order.cvmio.to_string_lossy(), interrupt) {
        programs.insert("cvmio".into(), version);
    }
    let title = order.title.unwrap_or(title);
    let out = order.out.or_else(|| args.out.clone()).unwrap_or_else(|| default_out(&title));
    let control = !args.no_control;
    let (command, mut notes) = (order.words, order.missing);
    let guests = targets.iter().any(|target| matches!(target.spec, Spec::Vm(_)));
    if let Some(version) = guests.then(|| version(&args.guests.qemu, interrupt)).flatten() {
        programs.insert("qemu".into(), version);
    }
    let emulated = guests && args.guests.accel() == Accel::Tcg;
    if emulated {
        notes.push("The guests' processors are emulated, since this machine has no KVM or --accel says so: their figures show that it works, not how fast it is.".into());
    }
    let turns = args.turns;
    let question = order.question;
    let title = question.and_then(Question::of).map_or(title, Question::title);
    let plan = Plan {
        title,
        question,
        command,
        files,
        targets,
        baseline,
        control,
        turns,
        programs,
        emulated,
        notes,
        out: out.clone(),
    };
    let directory = args.dir.canonicalize().map_err(|error| {
        Error::usage(format!("{}: choose another directory with --dir", args.dir.display())).because(error)
    })?;
    let cvmio = &order.cvmio;
    let environment = Environment {
        need,
        directory: &directory,
        size: args.size,
        cvmio,
        destroy: &args.destroy_data,
        guests: &args.guests,
        contents: &work.contents(),
        interrupt,
    };
    tell_duration(&plan, work);
    let run = session::run(&plan, work, &environment, order.before)?;
    cli::output::print(&show::summary(&run));
    tell_end(&run, &out)
}

fn tell_duration(plan: &Plan, work: &dyn Work) {
    let turns =
        u32::try_from(work.cases().len() * (plan.targets.len() + usize::from(plan.control))).unwrap_or(0);
    let minutes = work.seconds() * f64::from(turns) * f64::from(plan.turns) / 60.0;
    let _ = writeln!(
        std::io::stderr(),
        "The turns take about {minutes:.1} minutes; {} has what was measured so far.",
        plan.out.display()
    );
}

fn tell_end(run: &Run, out: &Path) -> Result<()> {
    let out = out.display();
    match run.state {
        State::Complete if run.samples.is_empty() => {
            Err(Error::io(format!("nothing was measured; {out} says why, as does what was printed above")))
        }
        State::Complete => {
            cli::output::print(&format!("{out} has all of it; cvmio bench report {out} makes a page."));
            Ok(())
        }
        _ => {
            cli::output::print(&format!("{out} has what was measured; cvmio bench resume {out} goes on."));
            Err(cli::interrupt::Interrupted.into())
        }
    }
}

fn default_out(title: &str) -> PathBuf {
    let kind = title.split(':').next().unwrap_or("run");
    let time: String = crate::machine::now().chars().filter(char::is_ascii_alphanumeric).collect();
    PathBuf::from(format!("cvmio-bench-{kind}-{time}.json"))
}

fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| Error::usage(format!("{}", path.display())).because(error))
}

/// Measures anew what a run file says.
///
/// # Errors
/// When it is no run file, or nothing can be measured.
pub fn again(args: &AgainArgs, cvmio: PathBuf) -> Result<()> {
    let run = show::read_run(&args.run)?;
    let out = Some(args.out.clone().unwrap_or_else(|| default_out(&run.title)));
    repeat(&args.run, Order { out, files: Some(run.files), ..Order::new(run.command, cvmio) })
}

/// Measures what a run file lacks.
///
/// # Errors
/// When it is no run file, or nothing can be measured.
pub fn resume(args: &ResumeArgs, cvmio: PathBuf) -> Result<()> {
    let run = show::read_run(&args.run)?;
    if run.state == State::Complete {
        return Err(Error::usage(format!(
            "{} is complete; cvmio bench again runs it once more",
            args.run.display()
        )));
    }
    let (words, files) = (run.command.clone(), Some(run.files.clone()));
    repeat(
        &args.run,
        Order { files, before: Some(run), out: Some(args.run.clone()), ..Order::new(words, cvmio) },
    )
}

fn repeat(path: &Path, order: Order) -> Result<()> {
    let words = Words::try_parse_from(&order.words).doing(format!("{}: its command", path.display()))?;
    match words.measure {
        Measure::Fio(args) => fio(&args, order),
        Measure::Apps(args) => apps(&args, order),
        Measure::Rq(args) => super::rq::rq(&args, order),
        Measure::Vm(args) => super::vm::vm(&args, order),
        Measure::Breakdown(args) => super::breakdown::breakdown(&args, order),
        Measure::Scm(args) => scm(&args, order),
        _ => Err(Error::usage(format!("{}: its command measures nothing", path.display()))),
    }
}
