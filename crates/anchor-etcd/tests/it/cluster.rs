//! A real cluster of three members on loopback, with TLS: `scripts/etcd-cluster`.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a cluster may take to do what it must do; ten times what it takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Three members, which end with it.
pub struct Cluster {
    directory: TempDir,
    port: u16,
    quota: Option<u64>,
}

impl Cluster {
    /// Starts one, and waits until it serves.
    pub fn start() -> Cluster {
        Self::start_with_quota(None)
    }

    /// The same with so many bytes of space for each member's database.
    pub fn start_with_quota(quota: Option<u64>) -> Cluster {
        // Members keep their data in memory.
        let directory = tempfile::Builder::new().prefix("etcd-").tempdir_in("/dev/shm").expect("a directory");
        let cluster = Cluster { directory, port: free_ports(), quota };
        cluster.script("new", &[]);
        cluster.wait();
        cluster
    }

    /// Waits until all members that run serve, and agree on a leader.
    pub fn wait(&self) {
        let begun = Instant::now();
        while !self.control(&["get", "ready"]).0 {
            assert!(begun.elapsed() < PATIENCE, "no cluster: {}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn tls(&self, name: &str) -> PathBuf {
        self.path().join("tls").join(name)
    }

    pub fn port(&self, member: u16) -> u16 {
        self.port + member
    }

    pub fn kill(&self, member: u16) {
        self.script("kill", &[&member.to_string()]);
    }

    /// Starts a member again, with the data that it has.
    pub fn restart(&self, member: u16) {
        self.script("start", &[&member.to_string()]);
    }

    /// A new cluster in the place of this one, with none of its data.
    pub fn begin_anew(&self) {
        for member in 0..3 {
            self.kill(member);
            // Two make a cluster that answers; the third may not have come to its data yet.
            let removed = fs::remove_dir_all(self.data(member));
            assert!(
                removed.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) || removed.is_ok(),
                "{removed:?}"
            );
        }
        self.script("new", &[]);
        self.wait();
    }

    /// A new member in the place of this one.
    pub fn replace(&self, member: u16) {
        self.script("replace", &[&member.to_string()]);
    }

    /// Stops a member as a debugger does, or lets it go on.
    pub fn freeze(&self, member: u16, frozen: bool) {
        let pid = fs::read_to_string(self.path().join(format!("m{member}.pid"))).expect("it runs");
        let signal = if frozen { "-STOP" } else { "-CONT" };
        let done = Command::new("kill").args([signal, pid.trim()]).status().expect("kill runs");
        assert!(done.success());
    }

    /// The member that leads.
    pub fn leader(&self) -> u16 {
        let begun = Instant::now();
        loop {
            let (_, said) = self.control(&["endpoint", "status"]);
            // Endpoint, id, version, size, whether it leads.
            let leads = |line: &&str| line.split(", ").nth(4) == Some("true");
            if let Some(line) = said.lines().find(leads) {
                let number = (0..3).find(|member| line.contains(&format!(":{},", self.port(*member))));
                return number.expect("one of the three");
            }
            assert!(begun.elapsed() < PATIENCE, "no leader: {said}");
        }
    }

    /// A copy of a member's data, as its host may take it.
    pub fn copy_data(&self, member: u16) -> PathBuf {
        let copy = self.path().join(format!("copy-{member}"));
        run(Command::new("cp").arg("-a").arg(self.data(member)).arg(&copy));
        copy
    }

    /// Puts a copy in the place of a member's data; it must not run.
    pub fn put_back(&self, member: u16, copy: &Path) {
        fs::remove_dir_all(self.data(member)).expect("data");
        run(Command::new("cp").arg("-a").arg(copy).arg(self.data(member)));
    }

    fn data(&self, member: u16) -> PathBuf {
        self.path().join(format!("m{member}"))
    }

    /// The anchor's address with these ports.
    pub fn address_at(&self, ports: &[u16], key: &str) -> String {
        let endpoints: Vec<String> = ports.iter().map(|port| format!("https://127.0.0.1:{port}")).collect();
        format!("etcd:{}/{key}", endpoints.join(","))
    }

    pub fn address(&self, key: &str) -> String {
        self.address_at(&[self.port(0), self.port(1), self.port(2)], key)
    }

    /// What the policy says beside the address.
    pub fn options(&self) -> Vec<(String, String)> {
        [("ca-file", "ca.pem"), ("cert-file", "client.pem"), ("key-file", "client.key")]
            .map(|(name, file)| (name.into(), self.tls(file).display().to_string()))
            .into()
    }

    /// A client's certificate, which has expired long ago, with the client's key.
    pub fn expired_certificate(&self) -> PathBuf {
        let tls = self.path().join("tls");
        let config = "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nserial=number\nnew_certs_dir=.\ncertificate=ca.pem\n\
                      private_key=ca.key\ndefault_md=sha256\npolicy=p\nunique_subject=no\n[p]\ncommonName=supplied\n";
        fs::write(tls.join("ca.cnf"), config).expect("written");
        fs::write(tls.join("index"), "").expect("written");
        fs::write(tls.join("number"), "1000").expect("written");
        let dates = ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"];
        run(Command::new("openssl")
            .current_dir(&tls)
            .args([
                "ca",
                "-batch",
                "-notext",
                "-config",
                "ca.cnf",
                "-in",
                "client.csr",
                "-out",
                "expired.pem",
            ])
            .args(["-extfile", "client.ext"])
            .args(dates));
        tls.join("expired.pem")
    }

    /// An authority that no member knows.
    pub fn other_authority(&self) -> PathBuf {
        let (certificate, key) = (self.tls("other.pem"), self.tls("other.key"));
        run(Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-days", "30", "-subj", "/CN=other", "-keyout"])
            .args([&key, Path::new("-out"), &certificate]));
        certificate
    }

    /// What `etcdctl` says, and whether it succeeded.
    pub fn control(&self, what: &[&str]) -> (bool, String) {
        let output = self.etcdctl(what).stderr(Stdio::null()).output();
        let output = output.expect("etcdctl runs: scripts/packages-test names what tests need");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// `etcdctl`, as a client of the cluster.
    pub fn etcdctl(&self, what: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        let endpoints: Vec<String> =
            (0..3).map(|member| format!("https://127.0.0.1:{}", self.port(member))).collect();
        command
            .env("ETCDCTL_API", "3")
            .args(["--command-timeout", "2s", "--endpoints", &endpoints.join(",")])
            .arg("--cacert")
            .arg(self.tls("ca.pem"))
            .arg("--cert")
            .arg(self.tls("client.pem"))
            .arg("--key")
            .arg(self.tls("client.key"))
            .args(what);
        command
    }

    fn script(&self, command: &str, arguments: &[&str]) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/etcd-cluster");
        let mut script = Command::new(script);
        if let Some(quota) = self.quota {
            script.env("ETCD_QUOTA_BACKEND_BYTES", quota.to_string());
        }
        run(script.env("CLUSTER_PORT", self.port.to_string()).arg(command).arg(self.path()).args(arguments));
    }

    fn logs(&self) -> String {
        (0..3)
            .map(|member| {
                let log = fs::read_to_string(self.path().join(format!("m{member}.log"))).unwrap_or_default();
                let tail = log.len().saturating_sub(600);
                format!("member {member}: {}\n", log.get(tail..).unwrap_or_default())
            })
            .collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in 0..3 {
            // One that is stopped would not notice its end.
            let pid = fs::read_to_string(self.path().join(format!("m{member}.pid"))).unwrap_or_default();
            if !pid.is_empty() {
                let _ = Command::new("kill").args(["-9", pid.trim()]).stderr(Stdio::null()).status();
            }
        }
    }
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The first of six ports in a row on which nothing listens. No two clusters of this program are given the same: between this look and the moment at
/// which the members listen there is time for another one to look. They are not of those that connections get on most systems.
fn free_ports() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 10_000 + u16::try_from(std::process::id() % 1000).expect("small") * 18;
    for _ in 0..100 {
        let first = base + NEXT.fetch_add(6, Ordering::Relaxed);
        if (first..first + 6).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return first;
        }
    }
    panic!("no six free ports in a row");
}
