//! Targets, and their turns.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use report::run::Metric;

use super::ScmArgs;
use super::cases::{Hot, Load};
use crate::error::{Context, Error, Result};
use crate::fio;
use crate::ledger::Place;
use crate::program::{Server, of_ours, output, run, shown};
use crate::session::Measured;
use cli::interrupt::Interrupt;

/// The baseline.
pub const MEMORY: &str = "memory";
/// Each load and store traps.
pub const NAIVE: &str = "naive way";
/// Another process lets touches go on; it sleeps in between.
pub const ASLEEP: &str = "kernel's fault";
/// The same, without sleep.
pub const AWAKE: &str = "kernel's fault, polled";
/// Read-ahead is off.
pub const WITHOUT: &str = "userfaultfd 4K without read-ahead";

/// Names, and how a target is made.
pub const TARGETS: [(&str, &str); 9] = [
    (MEMORY, "tmpfs"),
    ("fuse 4K", "cvmio-scm serve --mode fuse"),
    ("fuse 2M", "cvmio-scm serve --mode fuse, pages of 2 MiB"),
    ("userfaultfd 4K", "cvmio-scm serve --mode userfaultfd"),
    (WITHOUT, "cvmio-scm serve --mode userfaultfd --read-ahead 0"),
    ("userfaultfd 2M", "cvmio-scm serve --mode userfaultfd, pages of 2 MiB"),
    (NAIVE, "each load and store traps"),
    (ASLEEP, "userfaultfd, minor faults, nothing encrypted"),
    (AWAKE, "userfaultfd, minor faults, nothing encrypted, the handler does not sleep"),
];

/// Whether a target is a file that is served.
pub fn is_file(target: &str) -> bool {
    target.starts_with("fuse")
}

/// Whether a target is a mapping that is served.
pub fn is_mapped(target: &str) -> bool {
    target.starts_with("userfaultfd")
}

/// What all targets are made with.
pub struct Setup<'a> {
    pub program: PathBuf,
    library: PathBuf,
    directory: &'a Path,
    size: u64,
    seconds: f64,
    interrupt: &'a Interrupt,
}

impl<'a> Setup<'a> {
    /// # Errors
    /// When `cvmio-scm` or its library is not there.
    pub fn new(args: &'a ScmArgs, cvmio: &Path, interrupt: &'a Interrupt) -> Result<Self> {
        let ours = std::env::current_exe().doing("this program")?;
        let places: Vec<&Path> = [&ours, cvmio].into_iter().filter_map(Path::parent).collect();
        let program = of_ours("cvmio-scm", cvmio);
        let near = ["libcvmio_scm.so", "../lib/cvmio/libcvmio_scm.so"];
        let known = places.iter().flat_map(|place| near.map(|path| place.join(path)));
        let known = known.chain(["/usr/lib/cvmio/libcvmio_scm.so".into()]);
        let library = args.library.clone().into_iter().chain(known).find(|path| path.exists());
        let library = library.and_then(|path| path.canonicalize().ok()).ok_or_else(|| {
            Error::usage(
                "libcvmio_scm.so is not there; install the package cvmio-scm, or name it with --library",
            )
        })?;
        Ok(Self { program, library, directory: &args.dir, size: args.size, seconds: args.seconds, interrupt })
    }
}

/// A target that is at work.
pub struct Stage<'a> {
    setup: &'a Setup<'a>,
    name: String,
    commands: Vec<String>,
    /// What a turn before has left running, and whether all of its pages may be open. It ends before its place goes.
    serving: Option<(Server, bool)>,
    place: Option<Place>,
}

impl<'a> Stage<'a> {
    /// Nothing is made before the first turn.
    pub fn new(setup: &'a Setup<'a>, name: &str) -> Self {
        Self { setup, name: name.into(), commands: Vec::new(), serving: None, place: None }
    }

    /// The commands that made it.
    pub fn commands(&self) -> Vec<String> {
        self.commands.clone()
    }

    /// One turn.
    ///
    /// # Errors
    /// When a program is missing or fails.
    pub fn turn(&mut self, load: &Load) -> Result<Measured> {
        match (self.name.as_str(), load) {
            (NAIVE, Load::Fio { kind, record, .. }) => self.naive(kind, *record),
            (ASLEEP, Load::Faults { in_order }) => self.faults(*in_order, Some("asleep")),
            (AWAKE, Load::Faults { in_order }) => self.faults(*in_order, Some("awake")),
            (_, Load::Faults { in_order }) => {
                self.serve(true, true)?;
                self.faults(*in_order, None)
            }
            (_, Load::Fio { hot, .. }) => {
                let first = *hot == Hot::First;
                if is_file(&self.name) || is_mapped(&self.name) {
                    self.serve(first, first)?;
                }
                self.fio(load)
            }
        }
    }

    fn at(&mut self, name: &str) -> Result<PathBuf> {
        if self.place.is_none() {
            self.place = Some(Place::new_in(self.setup.directory, "cvmio-bench-scm-")?);
        }
        let place = self.place.as_ref().ok_or_else(|| Error::io("there is no directory"))?;
        Ok(place.path().join(name))
    }

    fn page(&self) -> u64 {
        if self.name.ends_with("2M") { 2 << 20 } else { 4096 }
    }

    /// Makes the region, once, and has it served; `fresh` by a server that has no page open, `wide` by one that may open all.
    fn serve(&mut self, fresh: bool, wide: bool) -> Result<()> {
        if !fresh && self.serving.as_ref().is_some_and(|(_, served)| *served == wide) {
            return Ok(());
        }
        self.serving = None;
        let (region, key, socket) = (self.at("region")?, self.at("key")?, self.at("socket")?);
        if !region.exists() {
            fs::write(&key, [7; 64]).doing("a key")?;
            fs::create_dir(self.at("mnt")?).doing("a directory to mount on")?;
            let mut create = Command::new(&self.setup.program);
            create.arg("create").arg(&region).arg("--key-file").arg(&key);
            create.args(["--size", &self.setup.size.to_string(), "--page-size", &self.page().to_string()]);
            self.commands.push(shown(&create));
            output(&mut create, self.setup.interrupt)?;
        }
        let mut serve = Command::new(&self.setup.program);
        serve.arg("serve").arg(&region).arg("--key-file").arg(&key).arg("--socket").arg(&socket);
        if is_file(&self.name) {
            serve.args(["--mode", "fuse", "--mountpoint"]).arg(self.at("mnt")?);
        } else {
            // A server wants room for six pages.
            let limit = if wide { self.setup.size * 2 } else { (self.setup.size / 4).max(6 * self.page()) };
            serve.args(["--mode", "userfaultfd", "--idle-ms", "600000", "--open-limit", &limit.to_string()]);
            // No device writes into it.
            serve.args(["--io-ms", "0"]);
            if self.name == WITHOUT {
                serve.args(["--read-ahead", "0"]);
            }
        }
        if self.commands.len() < 2 {
            self.commands.push(shown(&serve));
        }
        let _ = fs::remove_file(&socket);
        let mut server = Server::start(&mut serve)?;
        let file = self.at("mnt/region/pmem")?;
        let is_file = is_file(&self.name);
        server.wait_until(self.setup.interrupt, || {
            socket.exists() && (!is_file || file.exists()) && UnixStream::connect(&socket).is_ok()
        })?;
        self.serving = Some((server, wide));
        Ok(())
    }

    /// Lets a program have its mapping served, if this target is one.
    fn preloaded(&self, command: &mut Command) {
        if is_mapped(&self.name) {
            command.env("LD_PRELOAD", &self.setup.library);
        }
    }

    /// What a program opens. That of a mapping that is served exists where the library is preloaded only.
    fn file(&mut self) -> Result<PathBuf> {
        let name = match &self.name {
            name if is_file(name) => "mnt/region/pmem",
            name if is_mapped(name) => "socket/pmem",
            _ => "region",
        };
        self.at(name)
    }

    fn fio(&mut self, load: &Load) -> Result<Measured> {
        let (root, file) = (self.at("")?, self.file()?);
        if !is_mapped(&self.name) && !file.exists() {
            let mut zeros = File::open("/dev/zero").doing("/dev/zero")?.take(self.setup.size);
            let mut plain = File::create(&file).doing(file.display())?;
            std::io::copy(&mut zeros, &mut plain).doing(file.display())?;
        }
        let mut command = Command::new("fio");
        // From where it is: fio would read something else into some names of directories.
        let name = file.strip_prefix(&root).unwrap_or(&file).display();
        command.current_dir(&root).arg("--output-format=json").arg(format!("--filename={name}"));
        command.args(load.options(self.setup.size, self.setup.seconds));
        self.preloaded(&mut command);
        let said = output(&mut command, self.setup.interrupt)?;
        fio::figures(&said, Metric::Bandwidth)
    }

    /// Runs a probe; the numbers that it printed.
    fn probe(&self, words: &[String]) -> Result<BTreeMap<String, f64>> {
        let program = std::env::current_exe().doing("this program")?;
        let mut command = Command::new(program);
        command.args(["bench", "scm-probe"]).args(words);
        self.preloaded(&mut command);
        let said = run(&mut command, self.setup.interrupt)?.must_succeed(&command)?.said;
        serde_json::from_str(&said).doing("what a probe printed")
    }

    fn naive(&self, kind: &str, record: u64) -> Result<Measured> {
        let (size, seconds) = (self.setup.size / 8, self.setup.seconds);
        let words = format!("naive --length {size} --record {record} --kind {kind} --seconds {seconds}");
        let words: Vec<String> = words.split(' ').map(String::from).collect();
        let figures = self.probe(&words)?;
        let of = |name: &str| figures.get(name).copied().unwrap_or(0.0);
        Ok(Measured { value: of("bytes") / of("seconds"), figures, course: Vec::new() })
    }

    fn faults(&mut self, in_order: bool, bare: Option<&str>) -> Result<Measured> {
        let file = self.file()?;
        if !is_mapped(&self.name) && !file.exists() {
            File::create(&file).doing(file.display())?;
        }
        let numbers = [("--length", self.setup.size), ("--page", self.page())];
        let mut words = vec!["faults".to_string(), "--file".into(), file.display().to_string()];
        words.extend(numbers.iter().flat_map(|(name, number)| [(*name).into(), number.to_string()]));
        words.extend(in_order.then(|| "--in-order".into()));
        words.extend(bare.iter().flat_map(|how| ["--bare".into(), (*how).into()]));
        let mut figures = self.probe(&words)?;
        // In order most touches are no faults, so there the mean tells more.
        let value = figures.get(if in_order { "mean" } else { "p50" }).copied().unwrap_or(0.0);
        if bare.is_none() {
            figures.extend(self.steps()?);
        }
        Ok(Measured { value, figures, course: Vec::new() })
    }

    /// What the server says of the steps.
    fn steps(&mut self) -> Result<BTreeMap<String, f64>> {
        let socket = self.at("socket")?;
        let mut status = Command::new(&self.setup.program);
        status.args(["status", "--json", "--socket"]).arg(socket);
        let said = output(&mut status, self.setup.interrupt)?;
        let status: serde_json::Value = serde_json::from_str(&said).doing("a server's status")?;
        let mut figures = BTreeMap::new();
        for name in ["faults", "ahead", "fault_p50_ns", "fault_p99_ns"] {
            figures.extend(status[name].as_f64().map(|value| (name.replace('_', "-"), value)));
        }
        for step in status["fault_steps"].as_array().into_iter().flatten() {
            let name = step["name"].as_str().unwrap_or_default();
            figures.extend(step["p50_ns"].as_f64().map(|value| (format!("step {name}"), value)));
        }
        Ok(figures)
    }
}
