//! What is in a guest: programs of this machine, with their libraries, and modules of the guest's kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use initramfs::Archive;

use super::kernel::{Kernel, content};
use crate::error::{Context, Error, Result};
use crate::program::{find, missing, output, package};
use cli::interrupt::Interrupt;

/// What a measurement needs in guests.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// Programs of this machine, by their names: each has the path in the guest that it has here, and its libraries.
    pub programs: Vec<String>,
    /// Programs of ours: names under /usr/bin, and the files here.
    pub own: Vec<(String, PathBuf)>,
    /// Other files of this machine, which have the same paths there.
    pub files: Vec<PathBuf>,
    /// Files that are made for it: paths there, and what is in them.
    pub content: Vec<(PathBuf, Arc<[u8]>)>,
    /// A file that the guest sees as a disk that cannot be written, with this serial number: [`Contents::SERIAL`].
    pub data: Option<PathBuf>,
}

impl Contents {
    /// The serial number of the disk with the measurement's data.
    pub const SERIAL: &'static str = "data";

    /// Nothing but programs of this machine.
    pub fn programs(names: &[&str]) -> Self {
        Self { programs: names.iter().map(|&name| name.into()).collect(), ..Self::default() }
    }

    /// This and that.
    pub fn add(&mut self, other: Self) {
        self.programs.extend(other.programs);
        self.own.extend(other.own);
        self.files.extend(other.files);
        self.content.extend(other.content);
        self.data = other.data.or(self.data.take());
    }
}

/// An initramfs that is being made.
pub struct Image<'a> {
    archive: Archive,
    kernel: &'a Kernel,
    modules: Vec<PathBuf>,
    /// Names and parameters of modules, in the order in which they are loaded.
    order: String,
    interrupt: &'a Interrupt,
}

impl<'a> Image<'a> {
    /// One with busybox and what the host's program talks to.
    ///
    /// # Errors
    /// When busybox is not installed.
    pub fn new(kernel: &'a Kernel, interrupt: &'a Interrupt) -> Result<Self> {
        let (modules, order) = (Vec::new(), String::new());
        let mut image = Self { archive: Archive::default(), kernel, modules, order, interrupt };
        for directory in ["dev", "proc", "sys", "run", "tmp", "root", "mnt", "bin", "etc", "var/lock"] {
            image.archive.directory(directory);
        }
        image.archive.link("etc/mtab", "/proc/self/mounts");
        image.archive.file("init", include_bytes!("init.sh"));
        let busybox = installed("busybox")?;
        image.archive.file("bin/busybox", &fs::read(&busybox).doing(busybox.display())?);
        image.libraries(&busybox)?;
        // Pipes to the host, where they are no part of the kernel.
        image.modules(&["virtio_pci", "virtio_console"], "")?;
        Ok(image)
    }

    /// Adds a program of this machine at the place that it has here.
    ///
    /// # Errors
    /// When it is not installed, or a library of its is missing.
    pub fn program(&mut self, program: &str) -> Result<()> {
        let path = installed(program)?;
        self.copy(&path, &path)?;
        self.libraries(&path)
    }

    /// Adds the programs that a measurement needs.
    ///
    /// # Errors
    /// When one is not installed.
    pub fn contents(&mut self, contents: &Contents) -> Result<()> {
        contents.programs.iter().try_for_each(|program| self.program(program))?;
        contents.files.iter().try_for_each(|path| self.copy(path, path))?;
        for (path, bytes) in &contents.content {
            self.archive.file(path.to_string_lossy().trim_start_matches('/'), bytes);
        }
        contents.own.iter().try_for_each(|(name, path)| self.own(name, path))
    }

    /// Adds a file of this machine at the place that it has here, if it is there.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn file_if_any(&mut self, path: &Path) -> Result<()> {
        if path.is_file() { self.copy(path, path) } else { Ok(()) }
    }

    /// Adds a program of ours as /usr/bin/NAME, without what only a debugger needs.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn own(&mut self, name: &str, path: &Path) -> Result<()> {
        let path = if path.components().count() > 1 { path.to_path_buf() } else { installed(name)? };
        let small = tempfile::NamedTempFile::new().doing("a temporary file")?;
        let mut strip = Command::new("strip");
        strip.arg("-o").arg(small.path()).arg(&path);
        let from = if output(&mut strip, self.interrupt).is_ok() { small.path() } else { path.as_path() };
        self.copy(from, &Path::new("/usr/bin").join(name))?;
        self.libraries(&path)
    }

    fn copy(&mut self, from: &Path, to: &Path) -> Result<()> {
        let place = to.to_string_lossy();
        let place = place.trim_start_matches('/');
        if !self.archive.has(place) {
            self.archive.file(place, &fs::read(from).doing(from.display())?);
        }
        Ok(())
    }

    fn libraries(&mut self, program: &Path) -> Result<()> {
        let mut list = Command::new("ldd");
        let said = list.arg(program).output().map_err(|error| missing(&list, error))?;
        // `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader. What is linked statically has none, and ldd then fails.
        for line in String::from_utf8_lossy(&said.stdout).lines() {
            if line.contains("not found") {
                return Err(Error::usage(format!("{}: library {}", program.display(), line.trim())));
            }
            let Some((file, _)) = line.split_once(" (") else { continue };
            let file = file.rsplit_once(" => ").map_or(file, |(_, file)| file).trim();
            if file.starts_with('/') {
                self.copy(Path::new(file), Path::new(file))?;
            }
        }
        Ok(())
    }

    /// Loads modules at boot, with those that they need.
    ///
    /// # Errors
    /// When the kernel does not have one.
    pub fn modules(&mut self, names: &[&str], parameters: &str) -> Result<()> {
        for name in names {
            let files = self.kernel.module(name).ok_or_else(|| {
                Error::usage(format!("the guest's kernel {} has no module {name}", self.kernel.version))
            })?;
            let last = files.len();
            for (place, file) in files.into_iter().enumerate() {
                self.module(file, if place + 1 == last { parameters } else { "" })?;
            }
        }
        Ok(())
    }

    /// The same, for those that only some kernels have as modules.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn modules_if_any(&mut self, names: &[&str]) -> Result<()> {
        let kernel = self.kernel;
        names
            .iter()
            .filter(|name| kernel.module(name).is_some())
            .try_for_each(|name| self.modules(&[name], ""))
    }

    fn module(&mut self, file: PathBuf, parameters: &str) -> Result<()> {
        if self.modules.contains(&file) {
            return Ok(());
        }
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let name = name.split(".ko").next().unwrap_or_default().to_string();
        self.archive.file(&format!("modules/{name}"), &content(&file, self.interrupt)?);
        self.order += &format!("{name} {parameters}\n");
        self.modules.push(file);
        Ok(())
    }

    /// Writes it.
    ///
    /// # Errors
    /// When there is no space.
    pub fn write(mut self, to: &Path) -> Result<()> {
        self.archive.file("modules/order", self.order.as_bytes());
        let bytes = self.archive.finish().doing("the guest's initramfs")?;
        fs::write(to, bytes).doing(to.display())
    }
}

fn installed(program: &str) -> Result<PathBuf> {
    find(program).ok_or_else(|| {
        Error::usage(format!("{program} is not installed; it is in Debian's package {}", package(program)))
    })
}
