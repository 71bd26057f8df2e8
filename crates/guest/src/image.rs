//! What is in a guest.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use initramfs::Archive;

use crate::Bed;
use crate::machine::{self, Machine, Outcome, Trouble};
use crate::program;

/// A guest that is yet to be booted: two processors, 1 GiB, no network.
#[derive(Debug)]
pub struct Guest<'a> {
    bed: &'a Bed,
    programs: Vec<String>,
    modules: Vec<String>,
    files: Vec<(String, PathBuf)>,
    disks: Vec<PathBuf>,
    served: Vec<PathBuf>,
    machine_programs: Vec<String>,
    memory: Option<(PathBuf, u64)>,
    environment: Vec<(String, PathBuf)>,
    tpm: Option<PathBuf>,
    cut: Option<(String, Duration)>,
    start: Start,
    processor: String,
    limit: Duration,
}

/// What a guest does once its kernel runs.
#[derive(Debug)]
enum Start {
    /// Runs the script, as root and without anything else.
    Script,
    /// Starts the system on its first disk.
    System,
    /// What this archive does, with these words for the kernel.
    Own(PathBuf, String),
}

impl<'a> Guest<'a> {
    pub(crate) fn new(bed: &'a Bed) -> Self {
        Self {
            bed,
            programs: Vec::new(),
            modules: Vec::new(),
            files: Vec::new(),
            disks: Vec::new(),
            served: Vec::new(),
            machine_programs: Vec::new(),
            memory: None,
            environment: Vec::new(),
            tpm: None,
            cut: None,
            start: Start::Script,
            processor: machine::PROCESSOR.into(),
            limit: Duration::from_secs(120),
        }
    }

    /// Takes programs of Debian's packages along, by their paths (`usr/sbin/mke2fs`), with their libraries.
    #[must_use]
    pub fn programs(mut self, paths: &[&str]) -> Self {
        self.programs.extend(paths.iter().map(|&path| path.into()));
        self
    }

    /// Loads kernel modules, with those that they need.
    #[must_use]
    pub fn modules(mut self, names: &[&str]) -> Self {
        self.modules.extend(names.iter().map(|&name| name.into()));
        self
    }

    /// Takes the integration test `name` of this workspace along, as `/usr/bin/NAME`, with the libraries of this machine that it was made for: not
    /// together with programs of Debian's.
    ///
    /// # Panics
    /// When it does not build.
    #[must_use]
    pub fn tests(mut self, name: &str) -> Self {
        self.files.extend(self.bed.tests(name));
        self
    }

    /// Takes a program of this machine along, as `/usr/bin/NAME`. Its libraries lie in a directory of their own, so it goes together with
    /// programs of Debian's packages.
    ///
    /// # Panics
    /// When it is not installed.
    #[must_use]
    pub fn machine_program(mut self, path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().display().to_string();
        let libraries = program::libraries(path).into_iter().filter_map(|file| {
            let library = file.file_name()?.display().to_string();
            Some((format!("machine/{library}"), file))
        });
        self.files.extend(libraries);
        self.files.push((format!("machine/{name}"), path.into()));
        self.machine_programs.push(name);
        self
    }

    /// Attaches a file as a disk: the first is `/dev/vda`. What the guest writes is in the file afterwards.
    #[must_use]
    pub fn disk(mut self, file: &Path) -> Self {
        self.disks.push(file.into());
        self
    }

    /// Attaches the disk that a vhost-user-blk server serves at this socket, with two queues. The guest is then shaped like a confidential one: its
    /// memory is shared with the server, and its kernel hands to devices nothing but bounce buffers.
    #[must_use]
    pub fn served_disk(mut self, socket: &Path) -> Self {
        self.served.push(socket.into());
        self
    }

    /// Gives it `size` bytes of persistent memory, `/dev/pmem0`: a shared mapping of this file.
    #[must_use]
    pub fn persistent_memory(mut self, file: &Path, size: u64) -> Self {
        self.memory = Some((file.into(), size));
        self
    }

    /// Puts something into the environment of QEMU, on this machine.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &Path) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Gives it a TPM 2.0 (`/dev/tpm0`, `/dev/tpmrm0`): swtpm, whose control socket this is.
    #[must_use]
    pub fn tpm(mut self, control: &Path) -> Self {
        self.tpm = Some(control.into());
        self
    }

    /// Starts the [`System`](crate::System) on the first disk, which runs the script when it is up.
    #[must_use]
    pub fn system(mut self) -> Self {
        self.start = Start::System;
        self
    }

    /// Boots with this archive and these words for the kernel, instead of an image that is made for the script. The script
    /// is then the system's own, as [`System::script`](crate::System::script) has it, and not the one that [`run`](Self::run) is handed.
    #[must_use]
    pub fn initramfs(mut self, archive: &Path, words: &str) -> Self {
        self.start = Start::Own(archive.into(), words.into());
        self
    }

    /// Gives it another processor, as QEMU names it: `Nehalem` is x86-64-v2 and no more.
    #[must_use]
    pub fn processor(mut self, name: &str) -> Self {
        self.processor = name.into();
        self
    }

    /// How long the guest may live, from power on to power off. Two minutes, unless something else is said.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Boots, runs `script` as root in `sh`, and powers off.
    ///
    /// # Errors
    /// When the script's end is not known: the guest crashed, or was not done in time.
    ///
    /// # Panics
    /// When there is no such program or module, or QEMU does not run.
    pub fn run(mut self, script: &str) -> Result<Outcome, Trouble> {
        if !(self.disks.is_empty() && self.served.is_empty()) {
            self.modules.push("virtio_blk".into());
        }
        if self.memory.is_some() {
            self.modules.extend(["virtio_pmem", "nd_pmem"].map(String::from));
        }
        let (image, words) = match &self.start {
            Start::Script => (self.pack(include_bytes!("init.sh"), script), ""),
            Start::System => {
                self.modules.push("ext4".into());
                (self.pack(include_bytes!("start.sh"), script), "")
            }
            Start::Own(archive, words) => (read(archive), words.as_str()),
        };
        let Bed { debian, running, .. } = self.bed;
        let (disks, served, limit) = (&self.disks, &self.served, self.limit);
        let (memory, environment) = (self.memory.as_ref(), &self.environment);
        let (processor, tpm) = (&self.processor, self.tpm.as_deref());
        let cut = self.cut.as_ref().map(|(text, delay)| (text.as_str(), *delay));
        let directory = running;
        let machine = Machine {
            debian,
            directory,
            image,
            words,
            disks,
            served,
            memory,
            environment,
            tpm,
            cut,
            processor,
            limit,
        };
        machine::run(&machine)
    }

    /// Boots, runs a script that does not end by itself, and cuts the power so long after it has printed this text. What it had printed.
    ///
    /// # Panics
    /// When it ends before that, or does not print the text in time.
    #[must_use]
    pub fn power_cut(mut self, script: &str, text: &str, delay: Duration) -> String {
        self.cut = Some((text.into(), delay));
        match self.run(&format!("set -eu\n{script}")) {
            Err(trouble) if trouble.reason == machine::CUT => trouble.output,
            Ok(outcome) => panic!("the power was to be cut, and {outcome}"),
            Err(trouble) => panic!("{trouble}"),
        }
    }

    /// As [`run`](Self::run), for a script that must succeed; each of its commands must, unless it asks how they ended. What it printed.
    ///
    /// # Panics
    /// When it does not, with all that is known.
    #[must_use]
    pub fn succeed(self, script: &str) -> String {
        match self.run(&format!("set -eu\n{script}")) {
            Ok(Outcome { code: 0, output, .. }) => output,
            Ok(outcome) => panic!("{outcome}"),
            Err(trouble) => panic!("{trouble}"),
        }
    }

    fn pack(&self, init: &[u8], script: &str) -> Vec<u8> {
        let debian = &self.bed.debian;
        let mut archive = Archive::default();
        for directory in ["dev", "proc", "sys", "run", "tmp", "root", "mnt", "modules", "bin", "etc"] {
            archive.directory(directory);
        }
        archive.link("lib64", "usr/lib64");
        archive.link("etc/mtab", "/proc/self/mounts");
        archive.file("init", init);
        archive.file("script", script.as_bytes());
        archive.file("bin/busybox", &read(&debian.path("usr/bin/busybox")));
        archive.file("usr/bin/cvmio", &read(&self.bed.cvmio));
        for (path, file) in &self.files {
            archive.file(path, &read(file));
        }
        for name in &self.machine_programs {
            let start = format!(
                "#!/bin/busybox sh\nexec /machine/ld-linux-x86-64.so.2 --library-path /machine /machine/{name} \"$@\"\n"
            );
            archive.file(&format!("usr/bin/{name}"), start.as_bytes());
        }
        for program in &self.programs {
            archive.file(program, &read(&debian.path(program)));
            for (path, file) in debian.libraries(program) {
                archive.file(&path, &read(&file));
            }
        }
        // They are loaded in the order of their names.
        let mut modules: Vec<PathBuf> = Vec::new();
        for module in self.modules.iter().flat_map(|name| debian.module(name)) {
            if !modules.contains(&module) {
                modules.push(module);
            }
        }
        for (number, module) in modules.iter().enumerate() {
            let name = module.file_stem().unwrap_or_default().display();
            archive.file(&format!("modules/{number:03}-{name}"), &self.unpack(module));
        }
        archive.finish().unwrap_or_else(|error| panic!("{error}"))
    }

    /// A module as busybox can load it.
    fn unpack(&self, module: &Path) -> Vec<u8> {
        let mut command = self.bed.debian.program("usr/bin/xz");
        let output = command.arg("-dc").arg(module).output();
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", module.display()));
        assert!(output.status.success(), "{} cannot be unpacked", module.display());
        output.stdout
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
