//! The guest's side: the commands of `cvmio`, a file system on the volume, and the promise to leave nothing behind.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use seal::Random;
use tempfile::TempDir;

use cli::failure::Failure;
use cli::find;
use cli::interrupt::Interrupt;

const NAME: &str = "demo";
/// How often, and after what pause, something that is still busy is tried again.
const PATIENCE: u32 = 50;
const GLANCE: Duration = Duration::from_millis(100);

/// An attached volume, as the kernel shows it.
struct Attached {
    file: PathBuf,
    device: PathBuf,
    process: Option<u64>,
}

/// How an attach ended.
pub enum Attach {
    Done,
    /// With this exit code, and these words.
    Refused(i32, String),
}

/// The guest: what is in its `guest` directory, the host does not see; what is in `host`, the host owns.
pub struct Guest {
    /// Until everything is put away.
    directory: Option<TempDir>,
    root: PathBuf,
    /// The program `cvmio`.
    program: PathBuf,
    pub interrupt: Interrupt,
    attached: Option<Attached>,
    mounted: bool,
}

impl Guest {
    pub fn new(parent: &Path, interrupt: Interrupt) -> Result<Self, Failure> {
        let program = find::cvmio()?;
        let directory = TempDir::with_prefix_in("cvmio-demo-", parent).map_err(|error| {
            Failure::usage(format!("{}: {error}; choose another with --dir", parent.display()))
        })?;
        let root = directory.path().to_path_buf();
        let guest =
            Self { directory: Some(directory), root, program, interrupt, attached: None, mounted: false };
        for path in [guest.path("host"), guest.path("guest"), guest.mountpoint()] {
            fs::create_dir_all(&path).map_err(|error| io_failure(&path, &error))?;
        }
        Ok(guest)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.path("guest/mnt")
    }

    /// The file of the attached volume.
    pub fn file(&self) -> Result<&Path, Failure> {
        self.attached
            .as_ref()
            .map(|attached| attached.file.as_path())
            .ok_or_else(|| Failure::internal("nothing is attached"))
    }

    /// Runs `cvmio`.
    fn cvmio(&self, arguments: &[&OsStr]) -> Result<Output, Failure> {
        self.interrupt.check()?;
        self.run(&self.program, arguments)
    }

    /// Runs a program in a process group of its own: the terminal's interrupt is for us, who then put everything away.
    fn run(&self, program: impl AsRef<Path>, arguments: &[&OsStr]) -> Result<Output, Failure> {
        let program = program.as_ref();
        Command::new(program)
            .args(arguments)
            .env("CVMIO_RUNTIME_DIR", self.path("guest/run"))
            .process_group(0)
            .output()
            .map_err(|error| {
                Failure::usage(format!(
                    "{} cannot be run: {error}; install it (scripts/packages has the list)",
                    program.display()
                ))
            })
    }

    /// Runs a program that must succeed.
    pub fn tool(&self, program: &str, arguments: &[&OsStr]) -> Result<(), Failure> {
        self.interrupt.check()?;
        self.must(program, arguments)
    }

    fn must(&self, program: &str, arguments: &[&OsStr]) -> Result<(), Failure> {
        succeeded(program, &self.run(program, arguments)?).map(drop)
    }

    /// Runs one of its commands that must succeed; its output.
    pub fn command(&self, arguments: &[&OsStr]) -> Result<String, Failure> {
        succeeded("cvmio", &self.cvmio(arguments)?)
    }

    /// Attaches the image under a policy, with a key file, as a block device.
    pub fn attach(&mut self, image: &Path, policy: &Path, key: &Path) -> Result<Attach, Failure> {
        let arguments: [&OsStr; 12] = [
            "volume".as_ref(),
            "attach".as_ref(),
            image.as_ref(),
            "--policy".as_ref(),
            policy.as_ref(),
            "--key-file".as_ref(),
            key.as_ref(),
            "--name".as_ref(),
            NAME.as_ref(),
            "--loop".as_ref(),
            "--json".as_ref(),
            "--memory=64M".as_ref(),
        ];
        let output = self.cvmio(&arguments)?;
        if !output.status.success() {
            return Ok(Attach::Refused(output.status.code().unwrap_or(-1), words(&output)));
        }
        let ready: serde_json::Value = serde_json::from_slice(&output.stdout)
            .map_err(|error| Failure::internal(format!("`attach --json` did not print JSON: {error}")))?;
        let place = |key: &str| ready.get(key).and_then(serde_json::Value::as_str).map(PathBuf::from);
        let process = ready.get("process").and_then(serde_json::Value::as_u64);
        let (Some(file), Some(device)) = (place("device"), place("loop-device")) else {
            self.attached = Some(Attached { file: PathBuf::new(), device: PathBuf::new(), process });
            return Err(Failure::internal("`attach --json` did not say where the device is"));
        };
        self.attached = Some(Attached { file, device, process });
        Ok(Attach::Done)
    }

    /// Attaches what must be all right.
    pub fn attach_good(&mut self, image: &Path, policy: &Path, key: &Path) -> Result<(), Failure> {
        match self.attach(image, policy, key)? {
            Attach::Done => Ok(()),
            Attach::Refused(code, words) => Err(Failure::internal(format!(
                "a volume that nobody touched was refused (exit code {code}): {words}"
            ))),
        }
    }

    pub fn format(&self) -> Result<(), Failure> {
        self.tool("mkfs.ext4", &["-q".as_ref(), "-L".as_ref(), "ledger".as_ref(), self.device()?.as_ref()])
    }

    pub fn mount(&mut self, read_only: bool) -> Result<(), Failure> {
        let options = if read_only { "ro,noload" } else { "rw" };
        let (device, mountpoint) = (self.device()?.to_path_buf(), self.mountpoint());
        self.tool(
            "mount",
            &[
                "-t".as_ref(),
                "ext4".as_ref(),
                "-o".as_ref(),
                options.as_ref(),
                device.as_ref(),
                mountpoint.as_ref(),
            ],
        )?;
        self.mounted = true;
        Ok(())
    }

    fn device(&self) -> Result<&Path, Failure> {
        self.attached
            .as_ref()
            .map(|attached| attached.device.as_path())
            .ok_or_else(|| Failure::internal("nothing is attached"))
    }

    pub fn unmount(&mut self) -> Result<(), Failure> {
        if self.mounted {
            self.must("umount", &[self.mountpoint().as_ref()])?;
            self.mounted = false;
        }
        Ok(())
    }

    /// Makes everything that was written durable, and has the anchor vouch for it.
    pub fn commit(&self) -> Result<(), Failure> {
        self.command(&["volume".as_ref(), "commit".as_ref(), NAME.as_ref()]).map(drop)
    }

    /// Unmounts and detaches.
    pub fn detach(&mut self) -> Result<(), Failure> {
        self.unmount()?;
        if self.attached.is_some() {
            let output = self.run(&self.program, &["volume".as_ref(), "detach".as_ref(), NAME.as_ref()])?;
            succeeded("cvmio volume detach", &output)?;
            self.attached = None;
        }
        Ok(())
    }

    /// What the daemon counted: blocks that did not verify.
    pub fn corrupt_blocks(&self) -> u64 {
        let status = self.command(&["volume".as_ref(), "status".as_ref(), NAME.as_ref(), "--json".as_ref()]);
        let report: Option<serde_json::Value> = status.ok().and_then(|text| serde_json::from_str(&text).ok());
        report.and_then(|report| report.pointer("/volume/corrupt-blocks")?.as_u64()).unwrap_or(0)
    }

    /// Puts everything away, by force where it must be.
    ///
    /// # Errors
    /// When something is left, and what.
    pub fn put_away(&mut self) -> Result<(), Failure> {
        for attempt in 0..PATIENCE {
            if self.unmount().is_ok() {
                break;
            }
            if attempt == PATIENCE / 2 {
                self.mounted &= self
                    .run("umount", &["-l".as_ref(), self.mountpoint().as_ref()])
                    .map_or(true, |output| !output.status.success());
            }
            thread::sleep(GLANCE);
        }
        if let Err(failure) = self.detach() {
            // There is nothing to end it by, if it did not say who it is.
            let Some(process) = self.attached.take().and_then(|attached| attached.process) else {
                return Err(failure);
            };
            let name = process.to_string();
            let _ = self.run("kill", &["-TERM".as_ref(), name.as_ref()]);
            for _ in 0..2 * PATIENCE {
                if !Path::new("/proc").join(&name).exists() {
                    break;
                }
                thread::sleep(GLANCE);
            }
            if Path::new("/proc").join(&name).exists() {
                return Err(Failure::io(format!(
                    "the daemon {name} does not end; end it, and remove {}",
                    self.root.display()
                )));
            }
        }
        if self.mounted {
            return Err(Failure::io(format!(
                "{} cannot be unmounted; unmount it, and remove {}",
                self.mountpoint().display(),
                self.root.display()
            )));
        }
        match self.directory.take().map(TempDir::close) {
            Some(Err(error)) => Err(io_failure(&self.root, &error).with("remove it")),
            _ => Ok(()),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Who asked for it has heard what is left; on the way out of a panic there is nobody to tell.
        let _ = self.put_away();
    }
}

fn succeeded(program: &str, output: &Output) -> Result<String, Failure> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Failure::io(format!("{program} failed ({}): {}", output.status, words(output))))
}

/// What a program said when it failed, on one line.
fn words(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines = text.lines().map(|line| line.trim_start_matches("cvmio: error: ").trim());
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Makes a key file that only its owner can read.
pub fn make_key(path: &Path) -> Result<(), Failure> {
    let mut key = [0; 64];
    seal::SystemRandom.fill(&mut key);
    let make = || {
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(path)?.write_all(&key)
    };
    make().map_err(|error| io_failure(path, &error))
}

pub fn io_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::io(format!("{}: {error}", path.display()))
}
