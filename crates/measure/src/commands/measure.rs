//! Commands that measure.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, Parser};
use report::question::Question;
use report::run::{Run, State};

use super::consent::{self, Asked, Consent};
use super::{AgainArgs, Measure, ResumeArgs, TargetArgs, Words, show};
use crate::apps::{App, Apps, Sites, Sizes};
use crate::error::{Context, Error, Result};
use crate::fio::{Fio, Job, Scale, Set, Sweep, open_loop};
use crate::outfile::RunFile;
use crate::program::{find, run, version};
use crate::session::{Plan, Planned, Session, Work};
use crate::target::{Accel, Environment, Guests, Spec};
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
    /// Take the thesis' times: turns of 600 s, after 60 s that are not counted
    #[arg(long, conflicts_with_all = ["seconds", "warm_up"])]
    pub thesis: bool,
    /// Run each job with all values of one of its numbers, as in iodepth=1,4,16,64, numjobs=1,2,4 or bs=4k,64k
    #[arg(long, value_name = "NUMBER=VALUE,...", conflicts_with = "job_file")]
    pub sweep: Vec<Sweep>,
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
    /// The run file, if it is not where the words say.
    out: Option<RunFile>,
    /// What the user says of words that come from a run file.
    consent: Option<Consent>,
    /// Whether parts of one run may come from different machines.
    mixed: bool,
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
            consent: None,
            mixed: false,
            missing: Vec::new(),
            question: None,
            title: None,
        }
    }

    /// Whether the words may be followed: what a run file says of programs of its own is asked anew.
    ///
    /// # Errors
    /// When something was not said again.
    pub fn check(&self, asked: &[Asked]) -> Result<()> {
        self.consent.as_ref().map_or(Ok(()), |consent| consent.check(asked))
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
    order.check(&consent::of_targets(&args.targets))?;
    let interrupt = Interrupt::on_signals()?;
    let mut files = BTreeMap::new();
    if let Some(path) = &args.job_file {
        let name = path.to_string_lossy().into_owned();
        let text = match &order.files {
            Some(kept) => kept.get(&name).cloned().ok_or_else(|| {
                Error::usage(format!(
                    "the run file's command names {name}, and its content is not in the run file"
                ))
            })?,
            None => read_text(path)?,
        };
        files.insert(name, text);
    }
    for (what, seconds, least) in [("seconds", args.seconds, 0.1), ("warm-up", args.warm_up, 0.0)] {
        if !(least..=86400.0).contains(&seconds) {
            return Err(Error::usage(format!("--{what} {seconds}: between {least} and 86400 is possible")));
        }
    }
    let (seconds, warm_up) = if args.thesis { (600.0, 60.0) } else { (args.seconds, args.warm_up) };
    let scale = Scale { seconds, warm_up, size: args.targets.size };
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
    order.check(&consent::of_library(args))?;
    let out = order.out.map_or_else(|| RunFile::new(&args.out, "scm"), Ok)?;
    let (run, out) = crate::scm::run(args, order.words, &order.cvmio, out)?;
    show::print(&show::summary(&run));
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
    order.check(&consent::of_apps(args))?;
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
    for sweep in &args.sweep {
        jobs = jobs.iter().flat_map(|job| sweep.of(job)).collect();
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
    order.check(&consent::of_targets(args))?;
    let need = work.need();
    let (targets, baseline) = args.plan()?;
    programs.extend(versions(&targets, &order.cvmio, args, interrupt));
    let title = order.title.unwrap_or(title);
    let out = order.out.map_or_else(|| RunFile::new(&args.out, kind(&title)), Ok)?;
    let control = !args.no_control;
    let (command, mut notes) = (order.words, order.missing);
    let guests = targets.iter().any(|target| matches!(target.spec, Spec::Vm(_)));
    let emulated = guests && args.guests.accel() == Accel::Tcg;
    if emulated {
        notes.push("The guests' processors are emulated, since this machine has no KVM or --accel says so: their figures show that it works, not how fast it is.".into());
    }
    let hashes = hashes(&order.cvmio, guests.then_some(&args.guests), interrupt);
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
        hashes,
        emulated,
        notes,
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
        destroy: order.consent.as_ref().map_or(&args.destroy_data, |consent| &consent.destroy),
        guests: &args.guests,
        contents: &work.contents(),
        interrupt,
    };
    if args.dry_run {
        show::print(&dry(&plan, work, &environment, out.path()));
        return Ok(());
    }
    let before = order.before.map(|before| go_on(before, &plan, &environment, order.mixed)).transpose()?;
    let session = Session::begin(&plan, work, &environment, before, out)?;
    let out = session.path().to_path_buf();
    tell_duration(&plan, work, &out);
    let run = session.finish()?;
    show::print(&show::summary(&run));
    tell_end(&run, &out)
}

/// Versions of the programs that targets are made with.
fn versions(
    targets: &[Planned],
    cvmio: &Path,
    args: &TargetArgs,
    interrupt: &Interrupt,
) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    let mut add = |name: &str, program: &str| {
        versions.extend(version(program, interrupt).map(|version| (name.to_string(), version)));
    };
    for program in ["nbdkit", "qemu-nbd"] {
        let used = |target: &Planned| target.spec.to_string().starts_with(program.trim_end_matches("-nbd"));
        if targets.iter().any(used) {
            add(program, program);
        }
    }
    add("cvmio", &cvmio.to_string_lossy());
    if targets.iter().any(|target| matches!(target.spec, Spec::Vm(_))) {
        add("qemu", &args.guests.qemu);
    }
    versions
}

/// SHA-256 of the files that figures depend on: fio, cvmio, and what guests are made of.
fn hashes(cvmio: &Path, guests: Option<&Guests>, interrupt: &Interrupt) -> BTreeMap<String, String> {
    let cvmio = cvmio.to_string_lossy();
    let mut files: Vec<PathBuf> = ["fio", cvmio.as_ref()].into_iter().filter_map(find).collect();
    files.extend(guests.map(Guests::files).unwrap_or_default());
    let mut sum = Command::new("sha256sum");
    sum.arg("--zero").arg("--").args(&files);
    // Where a file cannot be read, or there is no such program, there is no hash.
    let said = run(&mut sum, interrupt).map(|ended| ended.said).unwrap_or_default();
    let lines = said.split('\0').filter_map(|line| line.split_once("  "));
    lines.map(|(hash, path)| (path.to_string(), hash.to_string())).collect()
}

/// What would be done.
fn dry(plan: &Plan, work: &dyn Work, environment: &Environment<'_>, out: &Path) -> String {
    let mut text = format!("{}\n\nTargets:\n", plan.title);
    for Planned { name, spec } in &plan.targets {
        let storage = spec.storage(environment).map(|storage| format!(", on {storage}")).unwrap_or_default();
        let role = if *name == plan.baseline { ", the baseline" } else { "" };
        text += &format!("  {name} ({spec}{storage}){role}\n");
        if let Some(why) = spec.unavailable(environment) {
            text += &format!("    not measurable here, because {why}\n");
        }
        if spec.overwrites() {
            text += "    it would be overwritten; what it holds is looked at when it is measured\n";
        }
    }
    text += "\nCases:\n";
    for case in work.cases() {
        text += &format!("  {}\n    {}\n", case.name, case.command.replace('\n', "\n    "));
    }
    for note in &plan.notes {
        text += &format!("\nTo know: {note}\n");
    }
    let control = if plan.control { ", the baseline twice" } else { "" };
    text + &format!(
        "\nEach target has {} turns at each case{control}: about {:.1} minutes, and the time to make the targets. The run file would be {}.\n",
        plan.turns,
        minutes(plan, work),
        out.display()
    )
}

/// About how long all turns take.
fn minutes(plan: &Plan, work: &dyn Work) -> f64 {
    let turns =
        u32::try_from(work.cases().len() * (plan.targets.len() + usize::from(plan.control))).unwrap_or(0);
    work.seconds() * f64::from(turns) * f64::from(plan.turns) / 60.0
}

fn tell_duration(plan: &Plan, work: &dyn Work, out: &Path) {
    let _ = writeln!(
        std::io::stderr(),
        "The turns take about {:.1} minutes; {} has what was measured so far.",
        minutes(plan, work),
        out.display()
    );
}

fn tell_end(run: &Run, out: &Path) -> Result<()> {
    let out = out.display();
    match run.state {
        State::Complete if run.samples.is_empty() => {
            Err(Error::io(format!("nothing was measured; {out} says why, as does what was printed above")))
        }
        State::Complete => {
            show::print(&format!("{out} has all of it; cvmio bench report {out} makes a page."));
            let failed: BTreeSet<&str> = run.failures.iter().map(|failure| failure.target.as_str()).collect();
            match failed.len() {
                0 => Ok(()),
                count => Err(Error::io(format!(
                    "{count} of {} targets failed, at all or at some of their cases: {}",
                    run.targets.iter().filter(|target| target.control_of.is_none()).count(),
                    failed.into_iter().collect::<Vec<_>>().join(", ")
                ))),
            }
        }
        _ => {
            cli::output::print(&format!("{out} has what was measured; cvmio bench resume {out} goes on."));
            Err(cli::interrupt::Interrupted.into())
        }
    }
}

/// The word that a run file's name has if it was given none.
fn kind(title: &str) -> &str {
    let kind = title.split(':').next().unwrap_or_default();
    if kind.chars().all(|letter| letter.is_ascii_alphanumeric()) { kind } else { "run" }
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
    let out = Some(RunFile::new(&args.out, kind(&run.title))?);
    let consent = Some(Consent::of(&args.consent, &args.run));
    repeat(&args.run, Order { out, consent, files: Some(run.files), ..Order::new(run.command, cvmio) })
}

/// Measures what a run file lacks.
///
/// # Errors
/// When it is no run file, or nothing can be measured.
pub fn resume(args: &ResumeArgs, cvmio: PathBuf) -> Result<()> {
    let (out, run) = RunFile::existing(&args.run)?;
    if run.state == State::Complete {
        return Err(Error::usage(format!(
            "{} is complete; cvmio bench again runs it once more",
            args.run.display()
        )));
    }
    let (words, files) = (run.command.clone(), Some(run.files.clone()));
    let consent = Some(Consent::of(&args.consent, &args.run));
    let order = Order::new(words, cvmio);
    repeat(&args.run, Order { files, before: Some(run), out: Some(out), consent, mixed: args.mixed, ..order })
}

/// A run that was cut short as the beginning of this one: what differs between the two is refused, or noted.
fn go_on(mut before: Run, plan: &Plan, environment: &Environment<'_>, mixed: bool) -> Result<Run> {
    let machine = crate::machine::describe(environment.directory);
    let differences = before.differences(&machine, &plan.programs);
    if !differences.is_empty() && !mixed {
        return Err(Error::usage(format!(
            "the run began elsewhere or otherwise: {}; its figures and new ones would be mixed. cvmio bench again measures anew; say --mixed to go on all the same",
            differences.join("; ")
        )));
    }
    let taken = before.samples.len();
    let mut note = format!(
        "Gone on with on {} after {taken} turns, with targets that were made anew",
        crate::machine::now()
    );
    if !differences.is_empty() {
        note += &format!(
            ". What was measured before that and behind it is of different kinds: {}",
            differences.join("; ")
        );
    }
    before.notes.push(note + ".");
    Ok(before)
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
