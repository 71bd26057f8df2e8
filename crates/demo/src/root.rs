//! What an anchor stands on, started for the demonstration: an etcd cluster, a TPM, the owner's service.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anchor_tpm::tpm::Tpm;
use anchor_tpm::transport::Place;
use cli::failure::Failure;
use cli::find;
use tempfile::TempDir;

use super::guest::{Guest, io_failure};

/// What the demonstration's volume has for an anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Kind {
    /// A file of the guest's
    #[default]
    File,
    /// A cluster of three members (etcd, etcdctl, openssl)
    Etcd,
    /// An emulated TPM, in the place of one that the host cannot copy (swtpm)
    Tpm,
    /// The owner's service, with an anchor of its own (cvmio-owner)
    Owner,
}

/// How to make the cluster: the script that the documents show.
const CLUSTER: &str = include_str!("../../../scripts/etcd-cluster");
/// How long something may take to start.
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(50);
/// The volume's name with its anchor.
const NAME: &str = "ledger";

/// It runs for as long as this lives.
pub struct Root {
    pub kind: Kind,
    directory: TempDir,
    /// The process of the TPM, or of the service.
    child: Option<Child>,
    /// Address and options of the volume's anchor, as on the command line.
    pub arguments: Vec<OsString>,
    port: u16,
}

impl Root {
    /// Starts it. Its files are below `parent`, or in memory.
    pub fn start(kind: Kind, parent: &Path, guest: &Guest) -> Result<Self, Failure> {
        let parent = if kind == Kind::Etcd { Path::new("/dev/shm") } else { parent };
        let directory = TempDir::with_prefix_in("cvmio-demo-", parent).map_err(|error| {
            Failure::usage(format!("{}: {error}; choose another with --dir", parent.display()))
        })?;
        let mut root = Self { kind, directory, child: None, arguments: Vec::new(), port: 0 };
        match kind {
            Kind::File => {}
            Kind::Etcd => root.start_cluster(guest)?,
            Kind::Tpm => root.start_tpm(guest)?,
            Kind::Owner => root.start_owner(guest)?,
        }
        Ok(root)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn anchor(&mut self, address: &str, options: &[(&str, PathBuf)]) {
        self.arguments = vec!["--anchor".into(), address.into()];
        for (name, path) in options {
            self.arguments.extend(["--anchor-option".into(), format!("{name}={}", path.display()).into()]);
        }
    }

    fn start_cluster(&mut self, guest: &Guest) -> Result<(), Failure> {
        for (program, package) in
            [("etcd", "etcd-server"), ("etcdctl", "etcd-client"), ("openssl", "openssl")]
        {
            find::find(program).ok_or_else(|| {
                Failure::usage(format!("{program} is not installed; install the package {package}"))
            })?;
        }
        let script = self.path("etcd-cluster");
        fs::write(&script, CLUSTER).map_err(|error| io_failure(&script, &error))?;
        self.port = free_ports()?;
        self.cluster(&["new"])?;
        let tls = |name: &str| self.path("cluster/tls").join(name);
        let files =
            [("ca-file", tls("ca.pem")), ("cert-file", tls("client.pem")), ("key-file", tls("client.key"))];
        let endpoints = [0, 1, 2].map(|member| format!("https://127.0.0.1:{}", self.port + member));
        self.anchor(&format!("etcd:{}/{NAME}", endpoints.join(",")), &files);
        self.wait_for_cluster(guest)
    }

    /// Waits until a majority agrees on a leader.
    pub fn wait_for_cluster(&self, guest: &Guest) -> Result<(), Failure> {
        let mut show: Vec<&OsStr> = vec!["anchor".as_ref(), "show".as_ref()];
        // Without `--anchor`: the address stands alone.
        show.extend(self.arguments.iter().skip(1).map(OsString::as_os_str));
        let begun = Instant::now();
        loop {
            guest.interrupt.check()?;
            match guest.command(&show) {
                Ok(_) => return Ok(()),
                Err(failure) if begun.elapsed() > PATIENCE => return Err(failure),
                Err(_) => thread::sleep(GLANCE),
            }
        }
    }

    /// Runs the cluster's script; the directory is its second word.
    fn cluster(&self, words: &[&str]) -> Result<(), Failure> {
        let mut command = Command::new("sh");
        command.arg(self.path("etcd-cluster")).arg(words[0]).arg(self.path("cluster")).args(&words[1..]);
        command.env("CLUSTER_PORT", self.port.to_string());
        must(&mut command)
    }

    /// The data of one of the cluster's members.
    pub fn member(&self) -> PathBuf {
        self.path("cluster/m0")
    }

    pub fn stop_member(&self) -> Result<(), Failure> {
        self.cluster(&["kill", "0"])
    }

    pub fn start_member(&self) -> Result<(), Failure> {
        self.cluster(&["start", "0"])
    }

    /// What the host holds beside the disk: the companion file of the anchor in the TPM.
    pub fn companion(guest: &Guest) -> PathBuf {
        guest.path("host/companion")
    }

    fn start_tpm(&mut self, guest: &Guest) -> Result<(), Failure> {
        let (state, socket) = (self.path("tpm"), self.path("tpm/socket"));
        fs::create_dir(&state).map_err(|error| io_failure(&state, &error))?;
        let mut command = Command::new("swtpm");
        command.args(["socket", "--tpm2", "--flags", "not-need-init"]);
        command.arg("--tpmstate").arg(format!("dir={}", state.display()));
        command.arg("--server").arg(format!("type=unixio,path={}", socket.display()));
        command.arg("--ctrl").arg(format!("type=unixio,path={}", self.path("tpm/control").display()));
        self.child = Some(spawn(&mut command, "swtpm", Stdio::null())?);
        let begun = Instant::now();
        let key = loop {
            guest.interrupt.check()?;
            match Tpm::new(Place::Path(socket.clone()), None).endorsement_key() {
                Ok(key) => break key,
                Err(error) if begun.elapsed() > PATIENCE => {
                    return Err(Failure::io(format!("swtpm does not answer: {error}")));
                }
                Err(_) => thread::sleep(GLANCE),
            }
        };
        self.anchor(
            &format!("tpm:{},0x01800100", socket.display()),
            &[("companion", Self::companion(guest)), ("secret-file", guest.path("guest/tpm-secret"))],
        );
        let key = format!("endorsement-key={}", hex::encode(key));
        self.arguments.extend(["--anchor-option".into(), key.into()]);
        Ok(())
    }

    /// The state directory of the owner's service.
    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    fn start_owner(&mut self, guest: &Guest) -> Result<(), Failure> {
        let client = guest.path("guest/client");
        must(self.owner(&["init"])?.args(["--host", "127.0.0.1"]))?;
        must(self.owner(&["volume", "add"])?.arg(NAME).arg("--new-client").arg(&client))?;
        self.serve()?;
        let file = |name: &str| client.join(name);
        let files = [
            ("ca-file", file("ca.pem")),
            ("cert-file", file("client.pem")),
            ("key-file", file("client.key")),
        ];
        self.anchor(&format!("owner:127.0.0.1:{}/{NAME}", self.port), &files);
        Ok(())
    }

    /// A command of the service's program, on its state and with its own anchor.
    fn owner(&self, words: &[&str]) -> Result<Command, Failure> {
        let program = find::find("cvmio-owner")
            .ok_or_else(|| Failure::usage("cvmio-owner is not installed; install the package cvmio-owner"))?;
        let mut command = Command::new(program);
        command.args(words).arg("--state").arg(self.state());
        command.arg("--anchor").arg(format!("file:{}", self.path("own-anchor").display()));
        Ok(command)
    }

    /// Starts the service, under the port that it had before.
    ///
    /// # Errors
    /// When it ends before it listens, with what it said.
    pub fn serve(&mut self) -> Result<(), Failure> {
        let log = self.path("owner.log");
        let file = fs::File::create(&log).map_err(|error| io_failure(&log, &error))?;
        let mut command = self.owner(&["serve"])?;
        command.arg("--listen").arg(format!("127.0.0.1:{}", self.port)).stderr(file);
        let mut child = spawn(&mut command, "cvmio-owner", Stdio::piped())?;
        let mut line = String::new();
        let said = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
        self.child = Some(child);
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        match (said, port) {
            (Some(Ok(_)), Some(port)) => self.port = port,
            _ => {
                let status = self.child.take().map(|mut child| child.wait());
                let code = status.and_then(Result::ok).and_then(|status| status.code()).unwrap_or(-1);
                let said = fs::read_to_string(&log).unwrap_or_default();
                let said = said.trim().trim_start_matches("cvmio-owner: ");
                return Err(Failure::io(format!("exit code {code}: {said}")));
            }
        }
        Ok(())
    }

    /// Ends the service, or the TPM, as a power cut does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        self.kill();
        if self.kind == Kind::Etcd && self.path("cluster").exists() {
            // What cannot be ended has ended before.
            let _ = self.cluster(&["stop"]);
        }
    }
}

fn cannot(program: &str, error: &std::io::Error) -> Failure {
    Failure::usage(format!(
        "{program} cannot be run: {error}; install it (scripts/packages-test has the list)"
    ))
}

/// Starts a program in a process group of its own: the terminal's interrupt is for this program, which then ends it.
fn spawn(command: &mut Command, name: &str, out: Stdio) -> Result<Child, Failure> {
    command.stdin(Stdio::null()).stdout(out).process_group(0);
    if name == "swtpm" {
        command.stderr(Stdio::null());
    }
    command.spawn().map_err(|error| cannot(name, &error))
}

fn must(command: &mut Command) -> Result<(), Failure> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).process_group(0).output();
    let output = output.map_err(|error| cannot(&name, &error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::io(format!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// The first of six ports in a row on which nothing listens.
fn free_ports() -> Result<u16, Failure> {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port));
    for _ in 0..100 {
        let first = free(0).and_then(|probe| probe.local_addr()).map_or(0, |address| address.port());
        if (1024..u16::MAX - 6).contains(&first) && (first..first + 6).all(|port| free(port).is_ok()) {
            return Ok(first);
        }
    }
    Err(Failure::io("there are no six free ports in a row on the loopback device"))
}
