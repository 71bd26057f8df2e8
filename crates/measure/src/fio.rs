//! Measuring with fio.

mod jobfile;
mod output;
mod sets;

use std::io::Write;
use std::process::Command;

use report::run::Case;
use tempfile::NamedTempFile;

use crate::error::{Context, Error, Result};
use crate::program::{output as output_of, run};
use crate::session::{Measured, Prepared, Work};
use crate::target::{Address, Contents, Need, Ready};
use cli::interrupt::Interrupt;

pub(crate) use output::figures;
pub use sets::{Job, Set, open_loop};

/// The oldest fio whose options and report this knows.
const OLDEST: (u32, u32) = (3, 16);

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
        let file = NamedTempFile::new().doing("a temporary file")?;
        file.as_file().set_len(1 << 16).doing("a temporary file")?;
        let mut probe = Command::new("fio");
        probe.args(["--name=probe", "--rw=read", "--bs=4k", "--size=64k", "--ioengine=io_uring"]);
        probe.arg(format!("--filename={}", escaped(&file.path().to_string_lossy())));
        if !run(&mut probe, interrupt)?.success {
            // Containers often forbid io_uring.
            self.engine = "libaio";
        }
        for (case, load) in &self.loads {
            self.check(case, load, interrupt)?;
        }
        Ok(version)
    }

    /// Lets fio read the options of a job, without running it.
    fn check(&self, case: &Case, load: &Load, interrupt: &Interrupt) -> Result<()> {
        let address = Address::File { path: "/nonexistent".into(), direct: true };
        let site = Site { address: &address, engine: self.engine, polls: false };
        let (mut command, _file) = self.command(load, &site, self.scale.seconds)?;
        command.arg("--parse-only");
        let ended = run(&mut command, interrupt)?;
        if ended.success {
            return Ok(());
        }
        let said = format!("{}{}", ended.said, ended.complained);
        Err(Error::usage(format!("fio does not accept the job `{}`: {}", case.name, said.trim())))
    }

    /// The command as the run file has it.
    fn shown(&self, load: &Load) -> String {
        match load {
            Load::Job(job) => {
                let time = format!(
                    "--time_based --runtime={} --ramp_time={}",
                    self.scale.seconds, self.scale.warm_up
                );
                format!("fio TARGET --name={} {} {time}", job.name, job.options.join(" "))
            }
            Load::Step(step) => format!("fio TARGET with the job file\n{}", step.file(&[])),
        }
    }

    /// Where requests to a target go.
    fn site<'r>(&self, ready: &'r Ready) -> Site<'r> {
        match &ready.guest {
            // Its kernel is ours to choose, and has io_uring.
            Some(guest) => Site { address: &ready.address, engine: "io_uring", polls: guest.polls },
            None => Site { address: &ready.address, engine: self.engine, polls: false },
        }
    }

    /// The options that say where requests go.
    fn place(&self, site: &Site<'_>) -> Vec<String> {
        let mut options = match site.address {
            Address::File { path, direct } => vec![
                format!("ioengine={}", site.engine),
                format!("filename={}", escaped(&path.to_string_lossy())),
                format!("direct={}", u8::from(*direct)),
            ],
            Address::Nbd(uri) => vec!["ioengine=nbd".into(), format!("uri={uri}")],
        };
        if site.polls {
            options.push("hipri=1".into());
        }
        options.extend([
            format!("size={}", self.scale.size),
            "thread=1".into(),
            "group_reporting=1".into(),
            "lat_percentiles=1".into(),
            "randrepeat=0".into(),
            "norandommap=1".into(),
            "refill_buffers=1".into(),
            "allow_file_create=0".into(),
        ]);
        options
    }

    /// The command for one turn, with the file that it reads, if it does.
    fn command(
        &self,
        load: &Load,
        site: &Site<'_>,
        seconds: f64,
    ) -> Result<(Command, Option<NamedTempFile>)> {
        let mut options = self.place(site);
        options.extend([
            "time_based=1".into(),
            format!("runtime={}ms", milliseconds(seconds)),
            format!("ramp_time={}ms", milliseconds(self.scale.warm_up)),
        ]);
        let mut command = Command::new("fio");
        command.arg("--output-format=json");
        match load {
            Load::Job(job) => {
                command.arg(format!("--name={}", job.name));
                command.args(options.iter().map(|option| format!("--{option}")));
                command.args(&job.options);
                Ok((command, None))
            }
            Load::Step(step) => {
                let mut file = NamedTempFile::new().doing("a temporary file")?;
                file.write_all(step.file(&options).as_bytes()).doing("a temporary file")?;
                command.arg(file.path());
                Ok((command, Some(file)))
            }
        }
    }

    /// Writes the whole target once, with requests of one size.
    fn overwrite(&self, target: &mut Prepared<'_>, how: &[&str]) -> Result<()> {
        let mut command = Command::new("fio");
        command.args(["--output-format=json", "--name=fill"]);
        // By interrupts: polling is for what is measured.
        let site = Site { polls: false, ..self.site(target.ready) };
        command.args(self.place(&site).iter().map(|option| format!("--{option}")));
        command.args(how);
        target.ready.run(&mut command, None, target.environment.interrupt)?.must_succeed(&command).map(drop)
    }
}

/// Where requests go, and how.
struct Site<'a> {
    address: &'a Address,
    engine: &'static str,
    /// Whether fio is to look for the end of requests by itself.
    polls: bool,
}

/// fio ends a file name at a colon, unless a backslash stands before it.
fn escaped(path: &str) -> String {
    path.replace(':', "\\:")
}

fn milliseconds(seconds: f64) -> u128 {
    std::time::Duration::try_from_secs_f64(seconds).map_or(0, |time| time.as_millis())
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
        self.overwrite(target, &how)
    }

    fn age(&self, target: &mut Prepared<'_>) -> Result<()> {
        if !self.aged {
            return Ok(());
        }
        // Twice the size at random: then nothing lies where it was written in order.
        let loops = ["--rw=randwrite", "--bs=4k", "--iodepth=32", "--loops=2", "--end_fsync=1"];
        self.overwrite(target, &loops)
    }

    fn turn(&self, case: usize, target: &mut Prepared<'_>) -> Result<Measured> {
        let (case, load) = self.loads.get(case).ok_or_else(|| Error::io("there is no such case"))?;
        let site = self.site(target.ready);
        let (mut command, file) = self.command(load, &site, self.scale.seconds)?;
        let file = file.as_ref().map(NamedTempFile::path);
        let ended =
            target.ready.run(&mut command, file, target.environment.interrupt)?.must_succeed(&command)?;
        let measured = output::figures(&ended.said, case.metric)?;
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
