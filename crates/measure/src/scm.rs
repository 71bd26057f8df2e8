//! What page encryption of storage-class memory costs: fio on a served mapping and on a served file, beside plain memory and the paper's naive
//! way, in turns.
//!
//! The servers are the program `cvmio-scm`; fio's mapping is served by the library that it has preloaded. What no program measures (one touch,
//! and the naive way) the crate `scm-probe` does, in processes of its own.

mod aims;
mod cases;
mod stage;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use report::run::{FORMAT, Failure, Run, Sample, State, Target, VERSION};

use crate::error::{Error, Kind, Result};
use crate::machine::{self, Seen, Watch};
use crate::outfile::{OutArgs, RunFile};
use crate::program;
use crate::progress::Progress;
use cases::{Engine, Load};
use cli::interrupt::Interrupt;
use stage::{Setup, Stage};

/// fio on memory whose pages are encrypted, by each mode of `cvmio scm serve`
///
/// Plain memory is the baseline, and has a second turn as the control. A hot set inside of the bound is measured when its pages are open; one
/// outside makes pages be opened and taken back all the time. `psync` passes a mapping by, so it is measured on files only.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Example: a short look
  cvmio bench scm --size 64M --records 4 --threads 1 --seconds 0.5 --out scm.json
  cvmio bench report scm.json")]
pub struct ScmArgs {
    /// Directory for regions, on tmpfs; they are removed
    #[arg(long, default_value = "/dev/shm")]
    pub dir: PathBuf,
    /// Bytes of each region; the bound of open pages is a quarter, the hot set inside of it an eighth
    #[arg(long, default_value = "256M", value_parser = crate::size::parse)]
    pub size: u64,
    /// Records in KiB
    #[arg(long, value_delimiter = ',', default_values = ["1", "4", "16", "64"], value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub records: Vec<u64>,
    /// Threads of fio
    #[arg(long, value_delimiter = ',', default_values = ["1", "8"], value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: Vec<u32>,
    /// How fio touches memory
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["mmap", "psync"])]
    pub engines: Vec<Engine>,
    /// Run only cases whose names contain one of these words
    #[arg(long, value_name = "WORD", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Seconds that are measured in each turn; as much is not, before them
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// How often each target has its turn at each case
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub turns: u32,
    /// The library that fio has preloaded [default: libcvmio_scm.so beside cvmio-scm, or where it is installed]
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    #[command(flatten)]
    #[expect(missing_docs, reason = "it has its own")]
    pub out: OutArgs,
}

/// Measures, into a run file; the run, and where it is. `words` are the arguments behind `cvmio bench`, and `cvmio` is the program beside which
/// `cvmio-scm` is.
///
/// # Errors
/// When nothing can be measured.
pub fn run(args: &ScmArgs, words: Vec<String>, cvmio: &Path, out: RunFile) -> Result<(Run, PathBuf)> {
    if !(0.05..=86400.0).contains(&args.seconds) {
        return Err(Error::usage(format!("--seconds {}: between 0.05 and 86400 is possible", args.seconds)));
    }
    if args.size < 32 << 20 || !args.size.is_multiple_of(32 << 20) {
        return Err(Error::usage("--size is a multiple of 32M: the hot set has whole pages of 2 MiB"));
    }
    let interrupt = Interrupt::on_signals()?;
    let setup = Setup::new(args, cvmio, &interrupt)?;
    let mut loads = cases::all(args);
    if !args.only.is_empty() {
        loads.retain(|load| args.only.iter().any(|word| load.name().contains(word)));
    }
    if loads.is_empty() {
        return Err(Error::usage(format!("no case's name contains {}", args.only.join(" or "))));
    }
    let mut programs = BTreeMap::new();
    for (name, program) in [("fio", "fio".to_string()), ("cvmio-scm", setup.program.display().to_string())] {
        programs.extend(program::version(&program, &interrupt).map(|version| (name.to_string(), version)));
    }
    let mut session = Session { args, run: fresh(args, words, programs, &loads), began: Instant::now(), out };
    session.save()?;
    let ended = session.measure(&loads, &setup, &interrupt);
    session.run.state = match &ended {
        Ok(()) => State::Complete,
        Err(error) if error.kind() == Kind::Interrupted => State::Interrupted,
        Err(_) => State::Running,
    };
    session.run.notes.extend(aims::notes(&session.run));
    session.save()?;
    ended.map(|()| (session.run, session.out.path().to_path_buf()))
}

struct Session<'a> {
    args: &'a ScmArgs,
    run: Run,
    began: Instant,
    out: RunFile,
}

impl Session<'_> {
    fn save(&mut self) -> Result<()> {
        self.out.save(&self.run)
    }

    /// All turns: at each case each target has one, then each has the next.
    fn measure(&mut self, loads: &[Load], setup: &Setup<'_>, interrupt: &Interrupt) -> Result<()> {
        let targets = self.run.targets.clone();
        let turns = loads.len() * targets.len() * self.args.turns as usize;
        let mut progress = Progress::new(turns as u64);
        progress.begin();
        let mut stages: BTreeMap<String, Stage<'_>> = BTreeMap::new();
        for load in loads {
            for turn in 0..self.args.turns {
                for target in &targets {
                    interrupt.check()?;
                    progress.at(&load.name());
                    progress.done();
                    let own = target.control_of.as_ref().unwrap_or(&target.name).clone();
                    if !load.is_for(&own) || self.has_failed(&own, load) {
                        continue;
                    }
                    let stage = stages.entry(own.clone()).or_insert_with(|| Stage::new(setup, &own));
                    let watch = Watch::begin();
                    match stage.turn(load) {
                        Ok(measured) => {
                            let at = self.began.elapsed().as_secs_f64();
                            let Seen { meanwhile, processors } = watch.end();
                            let mut figures = measured.figures;
                            figures.insert("processors".into(), processors);
                            self.run.samples.push(Sample {
                                target: target.name.clone(),
                                case: load.name(),
                                turn,
                                at,
                                value: measured.value,
                                figures,
                                course: measured.course,
                                meanwhile,
                            });
                        }
                        Err(error) if error.kind() == Kind::Interrupted => return Err(error),
                        Err(error) => {
                            progress.say(&format!("{own}: {error}"));
                            let message = error.to_string();
                            self.run.failures.push(Failure {
                                target: own.clone(),
                                case: Some(load.name()),
                                message,
                            });
                            // Another server for the next case.
                            stages.remove(&own);
                        }
                    }
                    let commands = stages.get(&own).map(Stage::commands).unwrap_or_default();
                    let target = self.run.targets.iter_mut().find(|target| target.name == own);
                    if let Some(target) = target.filter(|target| target.commands.is_empty()) {
                        target.commands = commands;
                    }
                    self.save()?;
                }
            }
        }
        Ok(())
    }

    fn has_failed(&self, target: &str, load: &Load) -> bool {
        let name = load.name();
        self.run
            .failures
            .iter()
            .any(|failure| failure.target == target && failure.case.as_ref() == Some(&name))
    }
}

/// The run before anything is measured.
fn fresh(args: &ScmArgs, command: Vec<String>, programs: BTreeMap<String, String>, loads: &[Load]) -> Run {
    let target = |name: &str, spec: &str, control_of: Option<&str>| Target {
        name: name.into(),
        spec: spec.into(),
        control_of: control_of.map(String::from),
        commands: Vec::new(),
        unavailable: None,
        storage: Some(machine::mount_of(&args.dir)),
        page_cache: false,
    };
    let mut targets: Vec<Target> =
        stage::TARGETS.iter().map(|(name, spec)| target(name, spec, None)).collect();
    targets.push(target("memory again", stage::TARGETS[0].1, Some(stage::MEMORY)));
    targets.retain(|target| {
        let own = target.control_of.as_ref().unwrap_or(&target.name);
        loads.iter().any(|load| load.is_for(own))
    });
    let bound = args.size / 4;
    Run {
        format: FORMAT.into(),
        version: VERSION,
        title: "scm: page encryption of storage-class memory".into(),
        question: None,
        started: machine::now(),
        state: State::Running,
        emulated: false,
        command,
        files: BTreeMap::new(),
        machine: machine::describe(&args.dir),
        programs,
        hashes: BTreeMap::new(),
        targets,
        cases: loads.iter().map(|load| load.case(args)).collect(),
        baseline: Some(stage::MEMORY.into()),
        turns: args.turns,
        samples: Vec::new(),
        failures: Vec::new(),
        notes: vec![
            format!("Regions have {} MiB, of which {} MiB may be open.", args.size >> 20, bound >> 20),
            "Requests by system calls (psync) go past a mapping, so they are measured on files only; in a guest they end at its mapping.".into(),
            "The naive way is measured by a loop of our own with loads and stores of eight bytes: each traps, and its page of 4 KiB is \
             decrypted before and encrypted behind it."
                .into(),
        ],
    }
}
