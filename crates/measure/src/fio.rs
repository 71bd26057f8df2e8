//! Measuring with fio.

mod jobfile;
mod output;
mod sets;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::error::{Context, Error, Result};
use crate::ledger::Place;
use crate::program::{output as output_of, run, shown};
use crate::session::{Measured, Prepared, Work};
use crate::target::{Address, Contents, Need, Ready};
use cli::interrupt::Interrupt;
use report::run::Case;

pub(crate) use output::figures;
pub use sets::{Job, Set, Sweep, open_loop};

/// The oldest fio whose options and report this knows.
const OLDEST: (u32, u32) = (3, 16);

/// How long a target may take beyond the time of a turn before it is said to hang.
const PATIENCE: Duration = Duration::from_secs(120);
/// Most points of a turn's course, and the shortest time between two, in seconds.
const POINTS: f64 = 120.0;
const CLOSEST: f64 = 0.5;
/// A target that is slower than this, in bytes a second, when it is written once is said to hang.
const SLOWEST: u64 = 1 << 20;

/// How long and how large.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Seconds that are measured in each turn.
    pub seconds: f64,
    /// Seconds before them that are not.
    pub warm_up: f64,
    /// Bytes of the target that are used.
    pub size: u64,
}

impl Scale {
    /// Seconds between two points of a turn's course; none if the turn is too short for one.
    fn every(&self) -> Option<f64> {
        let every = (self.seconds / POINTS).max(CLOSEST);
        (self.seconds >= 2.0 * every).then_some(every)
    }
}

enum Load {
    Job(Job),
    Step(jobfile::Step),
}

/// A set of fio jobs as the work of a run.
pub struct Fio {
    loads: Vec<(Case, Load)>,
    scale: Scale,
    engine: &'static str,
    /// Bytes, as a share of the size, that ageing writes.
    aged: bool,
}

impl Fio {
    /// Plans built-in jobs and those of a user's file; `aged` adds each once more, for targets that were overwritten at random.
    ///
    /// # Errors
    /// When the file has mistakes.
    pub fn new(jobs: Vec<Job>, file: Option<(&str, &str)>, scale: Scale, aged: bool) -> Result<Self> {
        let mut fio = Self { loads: Vec::new(), scale, engine: "io_uring", aged };
        let steps = file.map_or_else(|| Ok(Vec::new()), |(name, text)| jobfile::parse(name, text))?;
        let loads = || {
            let jobs = jobs.iter().map(|job| (job.name.clone(), job.metric, Load::Job(job.clone())));
            jobs.chain(steps.iter().map(|step| (step.name.clone(), step.metric, Load::Step(step.clone()))))
        };
        let mut all: Vec<(Case, Load)> = Vec::new();
        for aged in [false, true].into_iter().filter(|again| !again || aged) {
            for (name, metric, load) in loads() {
                let name = if aged { format!("{name}-aged") } else { name };
                if all.iter().any(|(case, _)| case.name == name) {
                    return Err(Error::usage(format!("two jobs have the name `{name}`")));
                }
                let command = fio.shown(&load);
                all.push((Case { name, metric, aged, command }, load));
            }
        }
        if all.is_empty() {
            return Err(Error::usage("there is no job to run; name a --set or a --job-file"));
        }
        fio.loads = all;
        Ok(fio)
    }

    /// Finds out whether fio is there and new enough, and which engine this kernel lets it use; its version.
    ///
    /// # Errors
    /// When it is missing or too old, or a job has options that it does not know.
    pub fn probe(&mut self, interrupt: &Interrupt) -> Result<String> {
        let mut ask = Command::new("fio");
        ask.arg("--version");
        let said = output_of(&mut ask, interrupt)?;
        let version = said.trim().to_string();
        check_version(&version)?;
        let place = Place::temporary("cvmio-bench-probe-")?;
        fs::write(place.path().join("disk"), vec![0; 1 << 16]).doing("a temporary file")?;
        let mut probe = Command::new("fio");
        probe.args(["--name=probe", "--rw=read", "--bs=4k", "--size=64k", "--ioengine=io_uring"]);
        probe.current_dir(place.path()).arg("--filename=disk");
        if !run(&mut probe, interrupt)?.success {
            // Containers often forbid io_uring.
            self.engine = "libaio";
        }
        drop(place);
        for (case, load) in &self.loads {
            self.check(case, load, interrupt)?;
        }
        Ok(version)
    }

    /// Lets fio read the options of a job, without running it.
    fn check(&self, case: &Case, load: &Load, interrupt: &Interrupt) -> Result<()> {
        let address = Address::File { path: "/nonexistent".into(), direct: true };
        let site = Site { address, engine: self.engine, polls: false, every: None };
        let (mut command, _file) = self.command(load, &site)?;
        command.arg("--parse-only");
        let ended = run(&mut command, interrupt)?;
        if ended.success {
            return Ok(());
        }
        let said = format!("{}{}", ended.said, ended.complained);
        Err(Error::usage(format!("fio does not accept the job `{}`: {}", case.name, said.trim())))
    }

    /// The command as the run file has it: the one that runs, with TARGET for what [`place`](Self::place) says.
    fn shown(&self, load: &Load) -> String {
        let target = ["TARGET".to_string()];
        match load {
            Load::Job(job) => {
                // No word of it needs quotes.
                let command = self.job(job, &target);
                let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
                format!("fio {}", words.collect::<Vec<_>>().join(" ")).replacen("--TARGET", "TARGET", 1)
            }
            Load::Step(step) => {
                let options: Vec<String> = target.into_iter().chain(self.options()).collect();
                format!("fio --output-format=json FILE, where FILE has\n{}", step.file(&options))
            }
        }
    }

    /// Where requests to a target go.
    fn site(&self, ready: &mut Ready) -> Result<Site> {
        let address = ready.for_fio()?;
        Ok(match &ready.guest {
            // Its kernel is ours to choose, and has io_uring.
            // What it says goes through a slow device, so it says it once.
            Some(guest) => Site { address, engine: "io_uring", polls: guest.polls, every: None },
            None => Site { address, engine: self.engine, polls: false, every: self.scale.every() },
        })
    }

    /// The options that say where requests go, and how they get there.
    fn place(site: &Site) -> Vec<String> {
        let mut options = match &site.address {
            Address::File { path, direct } => vec![
                format!("ioengine={}", site.engine),
                format!("filename={}", path.display()),
                format!("direct={}", u8::from(*direct)),
            ],
            Address::Nbd(uri) => vec!["ioengine=nbd".into(), format!("uri={uri}")],
        };
        options.extend(site.polls.then(|| "hipri=1".into()));
        options
    }

    /// What has fio say how it stands now and then; a job file cannot have it.
    fn status(site: &Site) -> Option<String> {
        site.every.map(|every| format!("status-interval={}ms", milliseconds(every)))
    }

    /// The options that all jobs have.
    fn common(&self) -> Vec<String> {
        vec![
            format!("size={}", self.scale.size),
            "thread=1".into(),
            "group_reporting=1".into(),
            "lat_percentiles=1".into(),
            "randrepeat=0".into(),
            "norandommap=1".into(),
            "refill_buffers=1".into(),
            "allow_file_create=0".into(),
        ]
    }

    /// The same, with the time of a turn. fio takes whole numbers only.
    fn options(&self) -> Vec<String> {
        let mut options = self.common();
        options.extend([
            "time_based=1".into(),
            format!("runtime={}ms", milliseconds(self.scale.seconds)),
            format!("ramp_time={}ms", milliseconds(self.scale.warm_up)),
        ]);
        options
    }

    fn job(&self, job: &Job, place: &[String]) -> Command {
        let mut command = Command::new("fio");
        command.arg("--output-format=json").arg(format!("--name={}", job.name));
        command.args(place.iter().chain(&self.options()).map(|option| format!("--{option}")));
        command.args(&job.options);
        command
    }

    /// The command for one turn, with the file that it reads, if it does.
    fn command(&self, load: &Load, site: &Site) -> Result<(Command, Option<JobFile>)> {
        let mut place = Self::place(site);
        match load {
            Load::Job(job) => {
                place.extend(Self::status(site));
                Ok((self.job(job, &place), None))
            }
            Load::Step(step) => {
                let options: Vec<String> = place.into_iter().chain(self.options()).collect();
                let place = Place::temporary("cvmio-bench-job-")?;
                let file = JobFile { path: place.path().join("job"), _place: place };
                fs::write(&file.path, step.file(&options)).doing(file.path.display())?;
                let mut command = Command::new("fio");
                command.arg("--output-format=json");
                command.args(Self::status(site).map(|option| format!("--{option}"))).arg(&file.path);
                Ok((command, Some(file)))
            }
        }
    }

    /// Writes the whole target so many times, with requests of one size.
    fn overwrite(&self, target: &mut Prepared<'_>, how: &[&str], times: u64) -> Result<()> {
        let mut command = Command::new("fio");
        command.args(["--output-format=json", "--name=fill"]);
        // By interrupts: polling is for what is measured.
        let site = Site { polls: false, every: None, ..self.site(target.ready)? };
        let options = Self::place(&site).into_iter().chain(self.common());
        command.args(options.map(|option| format!("--{option}")));
        command.args(how);
        let time = PATIENCE + Duration::from_secs(times.saturating_mul(self.scale.size / SLOWEST));
        let interrupt = target.environment.interrupt;
        target.ready.run_within(&mut command, None, Some(time), interrupt)?.must_succeed(&command)?;
        target.ready.commands.push(shown(&command));
        Ok(())
    }
}

/// Where requests go, and how.
struct Site {
    address: Address,
    engine: &'static str,
    /// Whether fio is to look for the end of requests by itself.
    polls: bool,
    /// Seconds between two points of a turn's course.
    every: Option<f64>,
}

/// A job file, removed when this is dropped.
struct JobFile {
    path: PathBuf,
    _place: Place,
}

fn milliseconds(seconds: f64) -> u128 {
    Duration::try_from_secs_f64(seconds).map_or(0, |time| time.as_millis())
}

fn check_version(said: &str) -> Result<()> {
    let numbers = said.strip_prefix("fio-").unwrap_or_default();
    let mut numbers = numbers.split(['.', '-']).map(|number| number.parse::<u32>());
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else {
        return Err(Error::usage(format!(
            "fio calls itself `{said}`, which is no version of the Flexible I/O Tester"
        )));
    };
    if (major, minor) < OLDEST {
        return Err(Error::usage(format!(
            "{said} is too old; fio {}.{} or later is needed",
            OLDEST.0, OLDEST.1
        )));
    }
    Ok(())
}

impl Work for Fio {
    fn need(&self) -> Need {
        Need::Blocks
    }

    fn contents(&self) -> Contents {
        Contents::programs(&["fio"])
    }

    fn cases(&self) -> Vec<Case> {
        self.loads.iter().map(|(case, _)| case.clone()).collect()
    }

    fn seconds(&self) -> f64 {
        self.scale.seconds + self.scale.warm_up + 0.3
    }

    fn prepare(&self, target: &mut Prepared<'_>) -> Result<()> {
        // What was never written reads from nowhere, and a first write of it costs more than a second one.
        let how = ["--rw=write", "--bs=128k", "--iodepth=16", "--end_fsync=1"];
        self.overwrite(target, &how, 1)?;
        // What the cases' commands have as TARGET.
        let site = self.site(target.ready)?;
        let options = Self::place(&site).into_iter().chain(Self::status(&site));
        let options: Vec<String> = options.map(|option| format!("--{option}")).collect();
        let address = match &target.ready.address {
            Address::File { path, .. } => format!(", the open file {}", path.display()),
            Address::Nbd(_) => String::new(),
        };
        target.ready.commands.push(format!("TARGET is {}{address}", options.join(" ")));
        Ok(())
    }

    fn age(&self, target: &mut Prepared<'_>) -> Result<()> {
        if !self.aged {
            return Ok(());
        }
        // Twice the size at random: then nothing lies where it was written in order.
        let loops = ["--rw=randwrite", "--bs=4k", "--iodepth=32", "--loops=2", "--end_fsync=1"];
        self.overwrite(target, &loops, 2)
    }

    fn turn(&self, case: usize, target: &mut Prepared<'_>) -> Result<Measured> {
        let (case, load) = self.loads.get(case).ok_or_else(|| Error::io("there is no such case"))?;
        let site = self.site(target.ready)?;
        let (mut command, file) = self.command(load, &site)?;
        let file = file.as_ref().map(|file| file.path.as_path());
        let time = Duration::try_from_secs_f64(self.scale.seconds + self.scale.warm_up).unwrap_or_default();
        let interrupt = target.environment.interrupt;
        let ended = target.ready.run_within(&mut command, file, Some(time + PATIENCE), interrupt)?;
        let ended = ended.must_succeed(&command)?;
        let mut measured = output::figures(&ended.said, case.metric)?;
        if let Some(every) = site.every {
            measured.course = output::course(&ended.said, case.metric, every, self.scale.warm_up)?;
        }
        check_rate(load, &measured, self.scale.seconds)?;
        Ok(measured)
    }
}

/// A target that cannot take requests at the rate of an open loop has no latency at that rate.
fn check_rate(load: &Load, measured: &Measured, seconds: f64) -> Result<()> {
    let Load::Job(job) = load else { return Ok(()) };
    let rate = job.options.iter().find_map(|option| option.strip_prefix("--rate_iops="));
    let Some(rate) = rate.and_then(|rate| rate.parse::<f64>().ok()) else { return Ok(()) };
    let reached = measured.figures.get("iops").copied().unwrap_or(0.0);
    let expected = rate * seconds;
    // Requests begin at random moments, so their number spreads by its root.
    if reached * seconds < expected * 0.9 - 3.0 * expected.sqrt() {
        return Err(Error::io(format!(
            "it takes only {reached:.0} requests a second of {rate:.0}; choose a lower --rate"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_fio_is_refused() {
        for good in ["fio-3.16", "fio-3.33", "fio-4.0", "fio-3.40-12-g1234"] {
            check_version(good).unwrap();
        }
        for (bad, word) in
            [("fio-3.1", "too old"), ("fio-2.21", "too old"), ("fio", "no version"), ("", "no version")]
        {
            let error = check_version(bad).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    /// What stands in a run file can be typed: it is what ran.
    #[test]
    fn the_command_that_is_shown_is_the_one_that_runs() {
        let scale = Scale { seconds: 0.5, warm_up: 0.25, size: 1 << 20 };
        let fio = Fio::new(Set::CvmIo.jobs(), Some(("x", "[own]\nrw=read\nbs=4k\n")), scale, false).unwrap();
        let address = Address::File { path: "/proc/1/fd/9".into(), direct: true };
        let site = Site { address, engine: "io_uring", polls: false, every: None };
        let target = "--ioengine=io_uring --filename=/proc/1/fd/9 --direct=1";
        for (case, load) in &fio.loads {
            let (command, file) = fio.command(load, &site).unwrap();
            let shown = match file {
                None => case.command.replace("TARGET", target),
                Some(file) => {
                    let text = fs::read_to_string(&file.path).unwrap();
                    let own = case.command.replace("TARGET", &target.replace("--", "").replace(' ', "\n"));
                    assert!(own.ends_with(&text), "{own}");
                    continue;
                }
            };
            let ran: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            assert_eq!(shown, format!("fio {}", ran.join(" ")));
            assert!(shown.contains("--runtime=500ms --ramp_time=250ms") && shown.contains("--norandommap=1"));
        }
    }

    #[test]
    fn aged_cases_are_cases_of_their_own() {
        let scale = Scale { seconds: 1.0, warm_up: 0.0, size: 1 << 20 };
        let fio = Fio::new(Set::CvmIo.jobs(), None, scale, true).unwrap();
        let cases = fio.cases();
        assert_eq!(cases.len(), 20);
        assert!(cases[10].aged && cases[10].name == "bandwidth-read-aged");
        let twice = Fio::new(Set::CvmIo.jobs(), Some(("x", "[latency-read]\nrw=read\n")), scale, false);
        assert!(twice.is_err());
        assert!(Fio::new(Vec::new(), None, scale, false).is_err());
    }
}
