//! A run: targets in turns, and the file that says what came out.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use report::run::{Case, FORMAT, Failure, Run, Sample, State, Target, VERSION};

use crate::error::{Error, Kind, Result};
use crate::machine::{self, Seen, Watch};
use crate::outfile::RunFile;
use crate::progress::Progress;
use crate::target::{Contents, Environment, Need, Ready, Spec};

/// What a turn came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// In the case's metric.
    pub value: f64,
    /// Everything else.
    pub figures: BTreeMap<String, f64>,
    /// Seconds into the turn, and the value over the time since the point before, if the program says that.
    pub course: Vec<(f64, f64)>,
}

/// A target that is ready, and what it was made with.
pub struct Prepared<'a> {
    /// The target.
    pub ready: &'a mut Ready,
    /// What it was made with.
    pub environment: &'a Environment<'a>,
}

/// What is done to each target.
pub trait Work {
    /// What it needs of its targets.
    fn need(&self) -> Need;
    /// What it needs in guests, if targets are some.
    fn contents(&self) -> Contents;
    /// In the order in which they are done; aged ones last.
    fn cases(&self) -> Vec<Case>;
    /// Whether a case can be done to a target at all; the plan's notes say why not.
    fn fits(&self, _case: usize, _target: &Spec) -> bool {
        true
    }
    /// About how long a turn takes.
    fn seconds(&self) -> f64;
    /// Brings a target into the state in which it is measured.
    ///
    /// # Errors
    /// When it cannot be.
    fn prepare(&self, target: &mut Prepared<'_>) -> Result<()>;
    /// Brings it into the state of one that has been used for long.
    ///
    /// # Errors
    /// When it cannot be.
    fn age(&self, target: &mut Prepared<'_>) -> Result<()>;
    /// One turn at a case, by its place in [`cases`](Self::cases).
    ///
    /// # Errors
    /// When it gives no figure.
    fn turn(&self, case: usize, target: &mut Prepared<'_>) -> Result<Measured>;
}

/// A target of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Its name in the report.
    pub name: String,
    /// What it is.
    pub spec: Spec,
}

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// In a few words.
    pub title: String,
    /// The research question that it is to answer.
    pub question: Option<u8>,
    /// The arguments behind `cvmio bench`.
    pub command: Vec<String>,
    /// Content of files that the command names.
    pub files: BTreeMap<String, String>,
    /// What is measured; the first is the baseline unless another is named.
    pub targets: Vec<Planned>,
    /// The baseline's name.
    pub baseline: String,
    /// Whether the baseline has a second turn, as the control.
    pub control: bool,
    /// How often each has its turn.
    pub turns: u32,
    /// Versions of the programs that take part.
    pub programs: BTreeMap<String, String>,
    /// SHA-256 of files that take part, by their paths.
    pub hashes: BTreeMap<String, String>,
    /// Whether the processor of a target is emulated.
    pub emulated: bool,
    /// What a reader must know beforehand.
    pub notes: Vec<String>,
}

/// A target during a run.
struct Entrant {
    name: String,
    ready: Option<Ready>,
    /// Whether it is measured no more.
    out: bool,
}

/// A run that has begun: its file is there.
pub struct Session<'a> {
    plan: &'a Plan,
    work: &'a dyn Work,
    environment: &'a Environment<'a>,
    run: Run,
    /// In the order of the run's targets, without the control.
    entrants: Vec<Entrant>,
    out: RunFile,
    began: Instant,
    progress: Progress,
}

impl<'a> Session<'a> {
    /// Begins a plan: its run file is written for the first time. `before` is a run that was cut short, and its turns are not taken again.
    ///
    /// # Errors
    /// When the file cannot be written, or the run before was another one.
    pub fn begin(
        plan: &'a Plan,
        work: &'a dyn Work,
        environment: &'a Environment<'a>,
        before: Option<Run>,
        out: RunFile,
    ) -> Result<Self> {
        let mut run = fresh(plan, work, environment);
        if let Some(before) = before {
            if before.cases != run.cases || names(&before) != names(&run) || before.turns != run.turns {
                return Err(Error::usage(
                    "the run file has other targets or cases than its own command gives now; measure again instead",
                ));
            }
            run = Run { failures: Vec::new(), state: State::Running, ..before };
        }
        let turns = u64::from(run.turns) * count(run.cases.len()) * count(run.targets.len());
        let entrants =
            plan.targets.iter().map(|target| Entrant { name: target.name.clone(), ready: None, out: false });
        let (entrants, began, progress) = (entrants.collect(), Instant::now(), Progress::new(turns));
        let mut session = Self { plan, work, environment, run, entrants, out, began, progress };
        session.save()?;
        Ok(session)
    }

    /// Where the run file is.
    pub fn path(&self) -> &Path {
        self.out.path()
    }

    /// Takes all turns. What was measured is in the run file at any moment.
    ///
    /// # Errors
    /// When nothing can be measured at all, or the file cannot be written. A target that fails is a line in the file.
    pub fn finish(mut self) -> Result<Run> {
        let ended = self.measure();
        // Servers end and mounts go before anything else is said.
        self.entrants.clear();
        self.run.state = match &ended {
            Err(error) if error.kind() == Kind::Interrupted => State::Interrupted,
            Err(_) => State::Running,
            Ok(()) => State::Complete,
        };
        self.save()?;
        match ended {
            Err(error) if error.kind() != Kind::Interrupted => Err(error),
            _ => Ok(self.run),
        }
    }

    fn save(&mut self) -> Result<()> {
        self.out.save(&self.run)
    }

    fn measure(&mut self) -> Result<()> {
        for index in 0..self.entrants.len() {
            self.start(index)?;
        }
        if self.entrants.iter().all(|entrant| entrant.out) {
            let why: Vec<String> = self.run.failures.iter().map(|failure| failure.message.clone()).collect();
            let missing = self.run.targets.iter().filter_map(|target| target.unavailable.clone());
            let mut why: Vec<String> = why.into_iter().chain(missing).collect();
            why.dedup();
            return Err(Error::usage(format!("no target can be measured: {}", why.join("; "))));
        }
        self.progress.begin();
        let mut aged = false;
        for (index, case) in self.work.cases().iter().enumerate() {
            if case.aged && !aged {
                aged = true;
                self.age()?;
            }
            self.case(index, case)?;
        }
        Ok(())
    }

    /// Makes a target ready. That one cannot be is its own failure.
    fn start(&mut self, index: usize) -> Result<()> {
        let Some(planned) = self.plan.targets.get(index) else { return Ok(()) };
        self.progress.at(&format!("making {} ready", planned.name));
        if let Some(why) = planned.spec.unavailable(self.environment) {
            self.note(index, |target| target.unavailable = Some(why.clone()));
            self.entrants[index].out = true;
            return Ok(());
        }
        let made = planned.spec.start(self.environment).and_then(|mut ready| {
            self.work.prepare(&mut Prepared { ready: &mut ready, environment: self.environment })?;
            Ok(ready)
        });
        match made {
            Ok(ready) => {
                let commands = ready.commands.clone();
                let note = ready.note.as_ref().map(|note| format!("{}: {note}.", planned.name));
                if let Some(note) = note.filter(|note| !self.run.notes.contains(note)) {
                    self.run.notes.push(note);
                }
                let page_cache = ready.page_cache;
                self.note(index, |target| {
                    target.commands.clone_from(&commands);
                    target.page_cache = page_cache;
                });
                self.entrants[index].ready = Some(ready);
                Ok(())
            }
            Err(error) => self.fail(index, None, error),
        }
    }

    fn note(&mut self, index: usize, change: impl Fn(&mut Target)) {
        let name = &self.entrants[index].name;
        self.run.targets.iter_mut().filter(|target| target.name == *name).for_each(change);
    }

    /// Records a failure, unless it is the end of everything.
    fn fail(&mut self, index: usize, case: Option<&Case>, error: Error) -> Result<()> {
        if error.kind() == Kind::Interrupted {
            return Err(error);
        }
        let entrant = &mut self.entrants[index];
        let lost = entrant.ready.as_mut().is_none_or(|ready| ready.check().is_err());
        if case.is_none() || lost {
            entrant.out = true;
            entrant.ready = None;
        }
        let message = error.to_string();
        self.progress.say(&format!("{}: {message}", entrant.name));
        let failure =
            Failure { target: entrant.name.clone(), case: case.map(|case| case.name.clone()), message };
        self.run.failures.push(failure);
        self.save()
    }

    fn age(&mut self) -> Result<()> {
        for index in 0..self.entrants.len() {
            self.progress.at(&format!("overwriting {} at random", self.entrants[index].name));
            let Some(ready) = &mut self.entrants[index].ready else { continue };
            if let Err(error) = self.work.age(&mut Prepared { ready, environment: self.environment }) {
                self.fail(index, None, error)?;
            }
        }
        Ok(())
    }

    /// All turns at one case: each target has one, then each has the next.
    fn case(&mut self, index: usize, case: &Case) -> Result<()> {
        let mut failed = vec![false; self.entrants.len()];
        for turn in 0..self.run.turns {
            for at in 0..self.run.targets.len() {
                self.progress.at(&case.name);
                let target = &self.run.targets[at];
                let name = target.name.clone();
                let own = target.control_of.clone().unwrap_or_else(|| name.clone());
                let Some(entrant) = self.entrants.iter().position(|entrant| entrant.name == own) else {
                    continue;
                };
                let fits =
                    self.plan.targets.get(entrant).is_some_and(|target| self.work.fits(index, &target.spec));
                let open = fits && !failed[entrant] && !self.entrants[entrant].out;
                if open && !self.run.has(&name, &case.name, turn) {
                    failed[entrant] = !self.turn(index, case, turn, entrant, &name)?;
                    self.progress.done();
                } else {
                    self.progress.skip();
                }
            }
        }
        Ok(())
    }

    /// One turn; whether it gave a sample.
    fn turn(&mut self, index: usize, case: &Case, turn: u32, entrant: usize, name: &str) -> Result<bool> {
        self.environment.interrupt.check()?;
        let Some(ready) = &mut self.entrants[entrant].ready else { return Ok(false) };
        let watch = Watch::begin();
        let measured = self.work.turn(index, &mut Prepared { ready, environment: self.environment });
        let Seen { meanwhile, processors } = watch.end();
        match measured {
            Ok(Measured { value, figures, course }) if value.is_finite() && value > 0.0 => {
                let mut figures: BTreeMap<String, f64> =
                    figures.into_iter().filter(|(_, value)| value.is_finite()).collect();
                figures.insert("processors".into(), processors);
                let at = self.began.elapsed().as_secs_f64();
                let (target, case) = (name.to_string(), case.name.clone());
                let course = course.into_iter().filter(|point| point.1.is_finite()).collect();
                self.run.samples.push(Sample { target, case, turn, at, value, figures, course, meanwhile });
                self.save()?;
                Ok(true)
            }
            Ok(Measured { value, .. }) => {
                let error = Error::io(format!("the figure of this turn is {value}, which is none"));
                self.fail(entrant, Some(case), error).map(|()| false)
            }
            Err(error) => self.fail(entrant, Some(case), error).map(|()| false),
        }
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn names(run: &Run) -> Vec<&String> {
    run.targets.iter().map(|target| &target.name).collect()
}

/// The run before anything is measured.
fn fresh(plan: &Plan, work: &dyn Work, environment: &Environment<'_>) -> Run {
    let target = |name: String, spec: &Spec, control_of: Option<String>| Target {
        storage: spec.storage(environment),
        page_cache: false,
        name,
        spec: spec.to_string(),
        control_of,
        commands: Vec::new(),
        unavailable: None,
    };
    let mut targets: Vec<Target> =
        plan.targets.iter().map(|planned| target(planned.name.clone(), &planned.spec, None)).collect();
    if plan.control {
        // Last, so that it is as far from the baseline's turn as any other.
        let base = plan.targets.iter().find(|planned| planned.name == plan.baseline);
        targets.extend(
            base.map(|base| target(format!("{} again", base.name), &base.spec, Some(base.name.clone()))),
        );
    }
    Run {
        format: FORMAT.into(),
        version: VERSION,
        title: plan.title.clone(),
        question: plan.question,
        started: machine::now(),
        state: State::Running,
        emulated: plan.emulated,
        command: plan.command.clone(),
        files: plan.files.clone(),
        machine: machine::describe(environment.directory),
        programs: plan.programs.clone(),
        hashes: plan.hashes.clone(),
        targets,
        cases: work.cases(),
        baseline: Some(plan.baseline.clone()),
        turns: plan.turns,
        samples: Vec::new(),
        failures: Vec::new(),
        notes: plan.notes.clone(),
    }
}
