//! Packages of Debian, unpacked in a directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The machine's own release may be older than a QEMU that works (7.2 crashes this kernel).
const RELEASE: &str = "trixie";
/// What is unpacked, with all that it depends on.
const PACKAGES: &[&str] = &[
    // The machine.
    "qemu-system-x86",
    "linux-image-cloud-amd64",
    "kmod",
    "xz-utils",
    // What guests work with.
    "busybox-static",
    "e2fsprogs",
    "xfsprogs",
    "sqlite3",
    "nbd-client",
];
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A directory with packages in it, whose programs run on this machine.
#[derive(Debug)]
pub(crate) struct Debian {
    root: PathBuf,
    kernel: String,
}

impl Debian {
    /// What lies in `directory`, fetched if it does not lie there yet.
    ///
    /// # Errors
    /// Why this machine cannot have it.
    pub(crate) fn get(directory: &Path) -> Result<Self, String> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err("guests are of x86-64, and this machine is not".into());
        }
        let known = directory.join("packages");
        let wanted = format!("{RELEASE} {}", PACKAGES.join(" "));
        if fs::read_to_string(&known).is_ok_and(|found| found == wanted) {
            return Self::open(directory);
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
        let packages = fetch(&fresh.join("apt"))?;
        let root = fresh.join("root");
        make(&root)?;
        packages
            .iter()
            .try_for_each(|package| run(Command::new("dpkg-deb").arg("-x").args([package, &root])))?;
        fs::remove_dir_all(fresh.join("apt")).map_err(|error| error.to_string())?;
        let debian = Self::open(&fresh)?;
        run(debian.program("usr/sbin/depmod").arg("-b").arg(debian.path("usr")).arg(&debian.kernel))?;
        let written = fs::write(fresh.join("packages"), wanted);
        written.and_then(|()| fs::rename(&fresh, directory)).map_err(|error| error.to_string())?;
        Self::open(directory)
    }

    fn open(directory: &Path) -> Result<Self, String> {
        let root = directory.join("root");
        let names =
            fs::read_dir(root.join("boot")).map_err(|error| format!("{}: {error}", root.display()))?;
        let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let kernel = names.find_map(|name| name.strip_prefix("vmlinuz-").map(String::from));
        Ok(Self { root, kernel: kernel.ok_or("the kernel's package has no kernel in it")? })
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

/// Has apt download, in a world of its own: the machine's packages, lists and sources are neither looked at nor changed. Its proxies are used.
fn fetch(directory: &Path) -> Result<Vec<PathBuf>, String> {
    for part in ["lists/partial", "archives/partial"] {
        make(&directory.join(part))?;
    }
    let here = directory.display();
    let mirror = std::env::var("DEBIAN_MIRROR").unwrap_or_else(|_| "http://deb.debian.org/debian".into());
    let source =
        format!("Types: deb\nURIs: {mirror}\nSuites: {RELEASE}\nComponents: main\nSigned-By: {KEYS}\n");
    let settings = format!(
        "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n\
         Dir::State \"{here}\";\nDir::State::lists \"{here}/lists\";\nDir::State::status \"{here}/status\";\n\
         Dir::State::extended_states \"{here}/extended\";\nDir::Cache \"{here}\";\nDir::Cache::archives \"{here}/archives\";\n\
         Dir::Etc::SourceList \"{here}/debian.sources\";\nDir::Etc::SourceParts \"/dev/null\";\n\
         Dir::Etc::Preferences \"/dev/null\";\nDir::Etc::PreferencesParts \"/dev/null\";\n\
         APT::Architecture \"amd64\";\n#clear APT::Architectures;\nAPT::Architectures \"amd64\";\n\
         APT::Install-Recommends \"false\";\nAPT::Sandbox::User \"\";\nAPT::Update::Error-Mode \"any\";\n\
         Acquire::Languages \"none\";\nAcquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\nAcquire::Retries \"2\";\n"
    );
    for (name, content) in [("status", ""), ("debian.sources", &source), ("settings", &settings)] {
        fs::write(directory.join(name), content).map_err(|error| format!("{name}: {error}"))?;
    }
    let apt = || {
        let mut command = Command::new("apt-get");
        command.arg("-qq").arg("-c").arg(directory.join("settings"));
        command
    };
    run(apt().arg("update"))?;
    run(apt().args(["install", "--yes", "--download-only"]).args(PACKAGES))?;
    let entries = fs::read_dir(directory.join("archives")).map_err(|error| error.to_string())?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(files.filter(|path| path.extension().is_some_and(|kind| kind == "deb")).collect())
}

fn make(directory: &Path) -> Result<(), String> {
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))
}

/// Runs what a machine without network, or one that is not Debian, cannot.
fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = said.lines().find(|line| line.starts_with("E:")).or_else(|| said.lines().last());
    Err(format!("{name} failed: {}", reason.unwrap_or("it does not say why")))
}

/// What a program prints that must succeed.
pub(crate) fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}
