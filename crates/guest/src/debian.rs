//! Packages of Debian, unpacked in a directory.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{output, run, said};
use crate::seal::{self, Broken};

/// The machine's own release may be older than a QEMU that works (7.2 crashes this kernel).
const RELEASE: &str = "trixie";
/// What is unpacked, with all that it depends on.
const PACKAGES: &[&str] = &[
    // The machine.
    "qemu-system-x86",
    "linux-image-cloud-amd64",
    "qemu-utils",
    "kmod",
    "xz-utils",
    // What guests work with.
    "busybox-static",
    "e2fsprogs",
    "xfsprogs",
    "sqlite3",
    "nbd-client",
];
/// What a system is made of that guests boot, beside the kernel: all that a real one has, and nothing configured.
const SYSTEM: &[&str] = &[
    "base-files",
    "base-passwd",
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "diffutils",
    "dpkg",
    "e2fsprogs",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "initramfs-tools",
    "kmod",
    "libc-bin",
    "mount",
    "sed",
    "systemd",
    "systemd-sysv",
    "tar",
    "udev",
    "util-linux",
    "xfsprogs",
];
/// What nothing in a guest reads.
const LEFT_OUT: &[&str] = &[
    "usr/lib/udev/hwdb.d",
    "usr/share/bash-completion",
    "usr/share/doc",
    "usr/share/i18n",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/perl5",
    "usr/share/zoneinfo",
];
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A directory with packages in it, whose programs run on this machine.
#[derive(Debug)]
pub(crate) struct Debian {
    root: PathBuf,
    system: PathBuf,
    kernel: String,
}

impl Debian {
    /// What lies in `directory`, fetched if it does not lie there yet, or not as it was unpacked.
    ///
    /// # Errors
    /// Why this machine cannot have it.
    pub(crate) fn get(directory: &Path) -> Result<Self, String> {
        let mirror = std::env::var("DEBIAN_MIRROR").unwrap_or_else(|_| "http://deb.debian.org/debian".into());
        Self::get_from(directory, &mirror)
    }

    fn get_from(directory: &Path, mirror: &str) -> Result<Self, String> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err("guests are of x86-64, and this machine is not".into());
        }
        let wanted = format!("{RELEASE} {} / {}", PACKAGES.join(" "), SYSTEM.join(" "));
        match seal::check(directory, &wanted) {
            Ok(()) => return Self::open(directory),
            Err(Broken::Other) => {}
            // A developer who waits for packages that are there already should know why.
            Err(Broken::Damaged(path)) => {
                let _ = writeln!(
                    std::io::stderr(),
                    "{}: {path} is damaged; fetching all anew",
                    directory.display()
                );
            }
        }
        if !Path::new(KEYS).exists() {
            return Err(format!("Debian's keys are not there ({KEYS}; package debian-archive-keyring)"));
        }
        let fresh = directory.with_extension("new");
        for path in [&fresh, &directory.to_path_buf()] {
            match fs::remove_dir_all(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(format!("{}: {error}", path.display()));
                }
                _ => {}
            }
        }
        let apt = Apt::new(&fresh.join("apt"), mirror)?;
        let root = fresh.join("root");
        unpack(&apt.download("machine", PACKAGES)?, &root)?;
        let debian = Self::open(&fresh)?;
        run(debian.program("usr/sbin/depmod").arg("-b").arg(debian.path("usr")).arg(&debian.kernel))?;
        let packages = apt.download("system", SYSTEM)?;
        unpack(&packages, &debian.system)?;
        debian.configure(&packages)?;
        fs::remove_dir_all(fresh.join("apt")).map_err(|error| error.to_string())?;
        seal::close(&fresh, &wanted)?;
        fs::rename(&fresh, directory).map_err(|error| error.to_string())?;
        Self::open(directory)
    }

    fn open(directory: &Path) -> Result<Self, String> {
        let root = directory.join("root");
        let names =
            fs::read_dir(root.join("boot")).map_err(|error| format!("{}: {error}", root.display()))?;
        let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let kernel = names.find_map(|name| name.strip_prefix("vmlinuz-").map(String::from));
        let system = directory.join("system");
        Ok(Self { root, system, kernel: kernel.ok_or("the kernel's package has no kernel in it")? })
    }

    /// What the packages' own scripts would do, as far as it matters: users, an identity, what dpkg knows; and the kernel's modules.
    fn configure(&self, packages: &[PathBuf]) -> Result<(), String> {
        for path in LEFT_OUT {
            let _ = fs::remove_dir_all(self.system.join(path));
        }
        let at = |path: &str| self.system.join(path);
        for directory in
            ["etc", "var/lib/dpkg/updates", "var/lib/dpkg/info", "dev", "proc", "run", "sys", "tmp"]
        {
            make(&at(directory))?;
        }
        let write = |path: &str, content: &str| {
            fs::write(at(path), content).map_err(|error| format!("{}: {error}", at(path).display()))
        };
        let mut known = String::new();
        for package in packages {
            let fields = said(Command::new("dpkg-deb").arg("-f").arg(package))?;
            let field =
                |name: &str| fields.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            let suffix = if field("Multi-Arch: ") == "same" { ":amd64" } else { "" };
            let list = said(Command::new("dpkg-deb").arg("-c").arg(package))?;
            // `MODE OWNER SIZE DATE TIME ./PATH`, and behind it where a link leads.
            let paths = list.lines().filter_map(|line| line.split_once(" ./")?.1.split(" -> ").next());
            let paths: String = paths.map(|path| format!("/{}\n", path.trim_end_matches('/'))).collect();
            let name = format!("{}{suffix}", field("Package: "));
            write(&format!("var/lib/dpkg/info/{name}.list"), &paths.replacen("/\n", "/.\n", 1))?;
            known += &format!("{}\nStatus: install ok installed\n\n", fields.trim_end());
        }
        write("var/lib/dpkg/status", &known)?;
        write("etc/machine-id", "6f1c9a5d3b7e4a2f8c0d1e2f3a4b5c6d\n")?;
        write("etc/hostname", "guest\n")?;
        // Nothing to bring up to date at boot.
        write("etc/.updated", "")?;
        write("var/.updated", "")?;
        for file in ["passwd", "group"] {
            let copied =
                fs::copy(at(&format!("usr/share/base-passwd/{file}.master")), at(&format!("etc/{file}")));
            copied.map_err(|error| format!("{file}: {error}"))?;
        }
        run(Command::new("cp").arg("-al").arg(self.path("usr/lib/modules")).arg(at("usr/lib")))
    }

    /// The packages of a system, unpacked. It is shared: who changes something does so in a copy.
    pub(crate) fn system(&self) -> &Path {
        &self.system
    }

    /// The kernel's version.
    pub(crate) fn version(&self) -> &str {
        &self.kernel
    }

    /// A file of a package.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.path(&format!("boot/vmlinuz-{}", self.kernel))
    }

    /// A program of a package, with the libraries that it was made for. It dies with the thread that starts it.
    pub(crate) fn program(&self, path: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(self.path("usr/lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(self.path(LIBRARIES)).arg(self.path(path));
        command
    }

    /// The libraries of a program, as (path in a guest, file).
    pub(crate) fn libraries(&self, path: &str) -> Vec<(String, PathBuf)> {
        let mut command = Command::new(self.path("usr/lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(self.path(LIBRARIES)).arg("--list").arg(self.path(path));
        let list = output(&mut command);
        let files = list.lines().filter_map(|line| Some(line.split_once(" => ")?.1.split_once(" (")?.0));
        let place = |file: &str| match Path::new(file).file_name() {
            Some(name) if file.contains("/ld-linux-") => format!("usr/lib64/{}", name.display()),
            name => format!("{LIBRARIES}/{}", name.unwrap_or_default().display()),
        };
        files.map(|file| (place(file), PathBuf::from(file))).collect()
    }

    /// A kernel module and all that it needs, in the order in which they are loaded; nothing if it is part of the kernel.
    pub(crate) fn module(&self, name: &str) -> Vec<PathBuf> {
        // The machine's own modprobe.d would hide some.
        let mut command = self.program("usr/sbin/modprobe");
        command.args(["-C", "/dev/null", "-S", &self.kernel, "-d"]).arg(self.path("usr"));
        let list = output(command.args(["--show-depends", name]));
        let files = list.lines().filter_map(|line| line.strip_prefix("insmod "));
        files.map(|file| PathBuf::from(file.trim())).collect()
    }
}

/// apt in a world of its own: the machine's packages, lists and sources are neither looked at nor changed. Its proxies are used.
struct Apt(PathBuf);

impl Apt {
    fn new(directory: &Path, mirror: &str) -> Result<Self, String> {
        make(&directory.join("lists/partial"))?;
        let here = directory.display();
        let source =
            format!("Types: deb\nURIs: {mirror}\nSuites: {RELEASE}\nComponents: main\nSigned-By: {KEYS}\n");
        let settings = format!(
            "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n\
             Dir::State \"{here}\";\nDir::State::lists \"{here}/lists\";\nDir::State::status \"{here}/status\";\n\
             Dir::State::extended_states \"{here}/extended\";\nDir::Cache \"{here}\";\n\
             Dir::Etc::SourceList \"{here}/debian.sources\";\nDir::Etc::SourceParts \"/dev/null\";\n\
             Dir::Etc::Preferences \"/dev/null\";\nDir::Etc::PreferencesParts \"/dev/null\";\n\
             APT::Architecture \"amd64\";\n#clear APT::Architectures;\nAPT::Architectures \"amd64\";\n\
             APT::Install-Recommends \"false\";\nAPT::Sandbox::User \"\";\nAPT::Update::Error-Mode \"any\";\n\
             Acquire::Languages \"none\";\nAcquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\nAcquire::Retries \"2\";\n"
        );
        for (name, content) in [("status", ""), ("debian.sources", &source), ("settings", &settings)] {
            fs::write(directory.join(name), content).map_err(|error| format!("{name}: {error}"))?;
        }
        let apt = Self(directory.into());
        run(apt.get().arg("update"))?;
        Ok(apt)
    }

    /// Packages with all that they depend on, in a directory of this name.
    fn download(&self, name: &str, packages: &[&str]) -> Result<Vec<PathBuf>, String> {
        let archives = self.0.join(name);
        make(&archives.join("partial"))?;
        let mut command = self.get();
        command.arg("-o").arg(format!("Dir::Cache::archives={}", archives.display()));
        run(command.args(["install", "--yes", "--download-only"]).args(packages))?;
        let entries = fs::read_dir(archives).map_err(|error| error.to_string())?;
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        Ok(files.filter(|path| path.extension().is_some_and(|kind| kind == "deb")).collect())
    }

    fn get(&self) -> Command {
        let mut command = Command::new("apt-get");
        command.arg("-qq").arg("-c").arg(self.0.join("settings"));
        command
    }
}

fn unpack(packages: &[PathBuf], root: &Path) -> Result<(), String> {
    make(root)?;
    packages.iter().try_for_each(|package| run(Command::new("dpkg-deb").arg("-x").arg(package).arg(root)))
}

fn make(directory: &Path) -> Result<(), String> {
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where nothing can be fetched from.
    const NOWHERE: &str = "file:/nonexistent";

    /// A tree as `get` leaves it, as far as it looks at one.
    fn tree(at: &Path) {
        for (path, content) in [("root/boot/vmlinuz-6.1", "kernel"), ("system/usr/bin/sh", "shell")] {
            make(at.join(path).parent().unwrap()).unwrap();
            fs::write(at.join(path), content).unwrap();
        }
        let wanted = format!("{RELEASE} {} / {}", PACKAGES.join(" "), SYSTEM.join(" "));
        seal::close(at, &wanted).unwrap();
    }

    #[test]
    fn a_tree_that_is_there_is_used_and_a_damaged_one_never() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().join("debian");
        tree(&at);
        assert_eq!(Debian::get_from(&at, NOWHERE).unwrap().version(), "6.1");
        fs::write(at.join("system/usr/bin/sh"), "shelf").unwrap();
        let reason = Debian::get_from(&at, NOWHERE).unwrap_err();
        assert!(reason.contains("apt-get") || reason.contains("keys"), "{reason}");
        assert!(!at.exists() || !Path::new(KEYS).exists());
        // Nor is what was cut short while it was made.
        tree(&at.with_extension("new"));
        assert!(Debian::get_from(&at, NOWHERE).is_err());
    }
}
