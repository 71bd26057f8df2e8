//! Jobs from launch to result, in guests that `cvmio run` boots from an image that it has built. No chip vouches for them here.

mod volume;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use guest::Bed;

/// What the owner wants nobody to see.
const SECRET: &str = "a planted secret: 5f1d7c0b";
/// Exit codes of `cvmio` itself.
const IO: i32 = 3;
const POLICY: i32 = 11;

/// An owner with a job file, in a directory of its own.
struct Owner<'a> {
    bed: &'a Bed,
    program: PathBuf,
    image: PathBuf,
    directory: tempfile::TempDir,
}

/// Programs that images and channels are made with.
fn missing() -> bool {
    let lacks = ["mmdebstrap", "tar2sqfs", "veritysetup", "ssh", "busybox"].into_iter().find(|program| {
        let mut find = Command::new("sh");
        !find
            .args(["-c", &format!("command -v {program}")])
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    });
    if let Some(program) = lacks {
        let thread = std::thread::current();
        eprintln!("\nSKIPPED {}: there is no {program}", thread.name().unwrap_or("a test"));
    }
    lacks.is_some()
}

/// The image of all tests, beside the program that makes it. It is there until the next run makes another.
fn image(program: &Path) -> PathBuf {
    static IMAGE: OnceLock<PathBuf> = OnceLock::new();
    let path = IMAGE.get_or_init(|| {
        let path = program.with_file_name("job.image");
        let _ = fs::remove_dir_all(&path);
        let mut build = Command::new(program);
        build.args(["image", "build", "--date", "1700000000", "--out"]).arg(&path);
        let built = build.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        path
    });
    path.clone()
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl<'a> Owner<'a> {
    fn new(bed: &'a Bed, command: &str) -> Self {
        let program = bed.job();
        let image = image(&program);
        let owner = Self { bed, program, image, directory: tempfile::tempdir().unwrap() };
        fs::create_dir_all(owner.path("tree/below")).unwrap();
        fs::write(owner.path("tree/below/file"), "the owner's data").unwrap();
        fs::write(owner.path("secret"), SECRET).unwrap();
        let job = format!(
            "name = \"work\"\n[image]\narchive = \"tools.tar\"\ndigest = \"DIGEST\"\n[run]\nuser = \"1000\"\ncommand = [\"sh\", \"-c\", {command:?}]\n\
             [[inputs]]\nfrom = \"tree\"\nto = \"/in\"\nwritable = true\n[[secrets]]\nfrom = \"secret\"\nto = \"/run/secret\"\n\
             [[outputs]]\nfrom = \"/tmp/out\"\nto = \"results\"\n[[outputs]]\nfrom = \"/in\"\nto = \"changed\"\n[limits]\ntime = \"2m\"\n[guest]\nmemory = \"1200M\"\n"
        );
        fs::write(owner.path("work.toml"), job).unwrap();
        owner.pack(None);
        owner
    }

    /// Makes the image's archive, with more files in it or without, and pins it.
    fn pack(&self, more: Option<&Path>) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/machines/oci-archive.sh");
        let busybox = succeed(Command::new("sh").args(["-c", "command -v busybox"]));
        succeed(Command::new("sh").arg(script).arg(busybox.trim()).arg(self.path("tools.tar")).args(more));
        let digest = succeed(Command::new("sha256sum").arg(self.path("tools.tar")));
        let job = fs::read_to_string(self.path("work.toml")).unwrap();
        let (before, after) = job.split_once("digest = \"").unwrap();
        let (_, after) = after.split_once('"').unwrap();
        let job = format!("{before}digest = \"sha256:{}\"{after}", &digest[..64]);
        fs::write(self.path("work.toml"), job).unwrap();
    }

    /// Adds a section to the job file.
    fn add(&self, section: &str) {
        let job = fs::read_to_string(self.path("work.toml")).unwrap();
        fs::write(self.path("work.toml"), job + section).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn state(&self) -> PathBuf {
        self.path("state/cvmio/jobs/work")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(self.directory.path()).env("XDG_STATE_HOME", self.path("state"));
        command
    }

    fn cvmio(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// QEMU, which goes on when the program that started it is gone: the bed's ends with it.
    fn qemu(&self) -> PathBuf {
        let script = fs::read_to_string(self.bed.qemu()).unwrap();
        let (path, alone) = (self.path("qemu"), script.replace("'setpriv' '--pdeathsig' 'KILL' ", ""));
        assert_ne!(alone, script);
        fs::write(&path, alone).unwrap();
        succeed(Command::new("chmod").arg("+x").arg(&path));
        path
    }

    fn run(&self, more: &[&str]) -> Output {
        let (image, qemu) = (self.image.display().to_string(), self.qemu().display().to_string());
        let words = ["run", "work.toml", "--image", &image, "--qemu", &qemu, "--allow-simulated"];
        self.cvmio(&[&words, more].concat())
    }

    /// Writes the policy that guests of the image pass.
    fn policy(&self) -> String {
        let policy = self.cvmio(&["image", "policy", &self.image.display().to_string(), "work.toml"]);
        assert!(policy.status.success(), "{}", said(&policy));
        fs::write(self.path("owner.toml"), &policy.stdout).unwrap();
        String::from_utf8(policy.stdout).unwrap()
    }

    fn verify(&self, more: &[&str]) -> Output {
        self.cvmio(&[&["run", "--verify", "work.manifest.json", "--policy", "owner.toml"], more].concat())
    }
}

/// Nothing of a test that failed goes on.
impl Drop for Owner<'_> {
    fn drop(&mut self) {
        if self.state().exists() {
            let _ = self.cvmio(&["job", "stop", "work"]);
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether a file of a directory holds the secret; its name.
fn holds_secret(directory: &Path) -> Option<PathBuf> {
    let found = Command::new("grep").args(["-rlaF", SECRET]).arg(directory).output().unwrap();
    let names = String::from_utf8(found.stdout).unwrap();
    names.lines().next().map(PathBuf::from)
}

#[test]
fn a_guest_that_is_not_the_owner_s_gets_nothing() {
    let Some(bed) = guest::bed() else { return };
    if missing() {
        return;
    }
    let mut owner = Owner::new(&bed, "true");
    // One byte of the root disk.
    let copy = owner.path("image");
    succeed(Command::new("cp").arg("-r").arg(&owner.image).arg(&copy));
    let disk = copy.join("root.img");
    let mut bytes = fs::read(&disk).unwrap();
    bytes[100] ^= 1;
    fs::write(&disk, bytes).unwrap();
    owner.image = copy;
    let refused = owner.run(&[]);
    assert_eq!(refused.status.code(), Some(IO), "{}", said(&refused));
    assert!(
        said(&refused).contains("ended before it showed evidence") && !said(&refused).contains("sending"),
        "{}",
        said(&refused)
    );
    // A byte of what is measured is noticed before anything is booted.
    fs::write(owner.image.join("vmlinuz"), "another kernel").unwrap();
    let refused = owner.run(&[]);
    assert!(
        refused.status.code() == Some(POLICY) && said(&refused).contains("vmlinuz is not what"),
        "{}",
        said(&refused)
    );
    assert!(!owner.state().exists());
}
