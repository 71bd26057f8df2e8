//! Building an image: the same packages, program and date make the same bytes.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cli::interrupt::Interrupt;

use super::initial::{initramfs, parts};
use super::{DESCRIPTION, Image, Part, VERSION};
use crate::error::{Context, Error, Result};
use crate::program::{finished, output, unstarted};
use crate::tree::digest_of;

/// What is in the root file system beside Debian's minimum.
const PACKAGES: [&str; 12] = [
    "apt",
    "buildah",
    "busybox-static",
    "crun",
    "cryptsetup-bin",
    "dropbear-bin",
    // For the file systems of volumes.
    "e2fsprogs",
    "iproute2",
    "kmod",
    "mount",
    // buildah looks for it even where there is no network.
    "netavark",
    "xz-utils",
];
/// The Debian release.
const RELEASE: &str = "trixie";
/// How hard the root disk is compressed. The packer's own level takes many times as long, for an image that is smaller by some 13 %.
const LEVEL: &str = "level=3";
/// Names in the image's directory.
const KERNEL: &str = "vmlinuz";
const INITRAMFS: &str = "initramfs";
const ROOT: &str = "root.img";
/// The lock file.
const LOCK: &str = "packages.lock";
/// The lock file's first word, and the date that all files get.
const DATE: &str = "date";

/// How an image is built.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory that is made.
    pub out: PathBuf,
    /// A lock file of an earlier build: the same packages and the same date, or none.
    pub lock: Option<PathBuf>,
    /// Where Debian is fetched from, in place of the machine's own sources.
    pub mirror: Option<String>,
    /// `cvmio-job`, which is the guest's first program.
    pub program: PathBuf,
    /// `cvmio-attest`, for guests whose chip vouches for them.
    pub attest: Option<PathBuf>,
    /// `cvmio`, for guests that attach volumes.
    pub cvmio: Option<PathBuf>,
    /// The date of all files without a lock, in seconds since 1970.
    pub date: u64,
}

/// The packages of a build, as its lock file lists them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lock {
    date: u64,
    /// `NAME:ARCHITECTURE=VERSION SHA256`, and the kernel's as `NAME SHA256`.
    lines: Vec<String>,
}

impl Lock {
    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let date = lines.next().and_then(|line| line.strip_prefix(DATE)?.trim().parse().ok());
        let date =
            date.ok_or_else(|| Error::usage(format!("the lock file's first line is not `{DATE} SECONDS`")))?;
        let lines: Vec<String> = lines.map(String::from).collect();
        let is_line = |line: &str| line.split_once(' ').is_some_and(|(_, digest)| digest.len() == 64);
        match lines.iter().find(|line| !is_line(line)) {
            Some(line) => {
                Err(Error::usage(format!("the lock file's line {line:?} is not PACKAGE and SHA-256")))
            }
            None => Ok(Self { date, lines }),
        }
    }

    fn text(&self) -> String {
        let lines: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
        format!(
            "# Packages of a guest's image, each with the SHA-256 of its file.\n{DATE} {}\n{lines}",
            self.date
        )
    }

    /// What was installed, beside what was locked.
    fn check(&self, wanted: &Self) -> Result<()> {
        let missing: Vec<&str> =
            wanted.lines.iter().filter(|line| !self.lines.contains(line)).map(String::as_str).collect();
        let more: Vec<&str> =
            self.lines.iter().filter(|line| !wanted.lines.contains(line)).map(String::as_str).collect();
        if missing.is_empty() && more.is_empty() {
            return Ok(());
        }
        Err(Error::refused(format!(
            "the packages are not those of the lock file; locked: {}; found: {}. The mirror has moved on: name one that keeps old packages \
             (--mirror), or build without the lock and check the new one",
            missing.join(", "),
            more.join(", ")
        )))
    }
}

/// Builds an image into a new directory.
///
/// # Errors
/// If the directory is there, a program that this needs is not, packages cannot be had or are not those of the lock, or the user asks for the
/// end. Nothing is left then.
pub fn build(options: &Options, interrupt: &Interrupt) -> Result<Image> {
    let wanted = match &options.lock {
        Some(path) => Some(Lock::parse(&fs::read_to_string(path).of(path)?)?),
        None => None,
    };
    let date = wanted.as_ref().map_or(options.date, |lock| lock.date);
    fs::create_dir(&options.out).map_err(|error| {
        Error::usage(format!("{}: {error}; an image is made in a new directory", options.out.display()))
            .because(error)
    })?;
    let built = fill(options, wanted.as_ref(), date, interrupt);
    if built.is_err() {
        let _ = fs::remove_dir_all(&options.out);
    }
    built
}

fn fill(options: &Options, wanted: Option<&Lock>, date: u64, interrupt: &Interrupt) -> Result<Image> {
    let work = tempfile::tempdir_in(&options.out).of(&options.out)?;
    let (tree, boot) = root_tree(options, work.path(), date, interrupt)?;
    let parts = parts(File::open(&boot).of(&boot)?)?;
    let part = |name: &str| parts.get(name).ok_or_else(|| Error::io(format!("the build has left no {name}")));
    let packages = String::from_utf8_lossy(part("packages")?).into_owned();
    let lock = Lock { date, lines: packages.lines().map(String::from).collect() };
    if let Some(wanted) = wanted {
        lock.check(wanted)?;
    }
    write(&options.out.join(KERNEL), part("vmlinuz")?)?;
    write(&options.out.join(INITRAMFS), &initramfs(&parts)?)?;
    write(&options.out.join(LOCK), lock.text().as_bytes())?;
    let (root_hash, hash_offset) = root_disk(&tree, &options.out.join(ROOT), interrupt)?;
    let image = Image {
        version: VERSION,
        kernel: Part::of(&options.out, KERNEL)?,
        initramfs: Part::of(&options.out, INITRAMFS)?,
        root: Part::of(&options.out, ROOT)?,
        root_hash,
        hash_offset,
    };
    let text = serde_json::to_string_pretty(&image).map_err(|error| Error::io(error.to_string()))?;
    write(&options.out.join(DESCRIPTION), text.as_bytes())?;
    Ok(image)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).of(path)
}

/// Debian's minimum, the packages and our programs, as one tar archive; and what is booted, as another.
fn root_tree(options: &Options, work: &Path, date: u64, interrupt: &Interrupt) -> Result<(PathBuf, PathBuf)> {
    let (tree, boot) = (work.join("root.tar"), work.join("boot.tar"));
    let script = |name: &str, text: &str| -> Result<PathBuf> {
        let path = work.join(name);
        write(&path, text.as_bytes())?;
        fs::set_permissions(&path, Permissions::from_mode(0o755)).of(&path)?;
        Ok(path)
    };
    let prepare = script("prepare", include_str!("prepare.sh"))?;
    let finish = script("finish", include_str!("finish.sh"))?;
    let start = script("boot", include_str!("boot.sh"))?;
    let put = |file: &Path, to: &str| format!("--customize-hook=upload {} {to}", quoted(file));
    let mut command = Command::new("mmdebstrap");
    command.env("SOURCE_DATE_EPOCH", date.to_string()).env("LC_ALL", "C");
    command.args(["--variant=minbase", "--format=tar", "--quiet"]);
    command.arg(format!("--include={}", PACKAGES.join(",")));
    command.arg(format!("--customize-hook={}", quoted(&prepare)));
    command.arg(format!("--customize-hook=tar-out /cvmio-boot {}", quoted(&boot)));
    command.arg(format!("--customize-hook={}", quoted(&finish)));
    command.arg("--customize-hook=mkdir -p \"$1/usr/lib/cvmio\"");
    command.arg(put(&start, "/usr/lib/cvmio/boot")).arg(put(&options.program, "/usr/bin/cvmio-job"));
    let mut ours = vec!["usr/lib/cvmio/boot", "usr/bin/cvmio-job"];
    for (program, place) in [(&options.attest, "usr/bin/cvmio-attest"), (&options.cvmio, "usr/bin/cvmio")] {
        if let Some(program) = program {
            command.arg(put(program, &format!("/{place}")));
            ours.push(place);
        }
    }
    let modes: Vec<String> = ours.iter().map(|path| format!("\"$1/{path}\"")).collect();
    command
        .arg(format!("--customize-hook=chmod 755 {0}; chown 0:0 {0}; touch -d @{date} {0}", modes.join(" ")));
    command.arg(RELEASE).arg(&tree);
    command.args(options.mirror.as_deref());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| unstarted(&command, error))?;
    finished(&command, child, interrupt)?;
    Ok((tree, boot))
}

/// A path in a hook, which a shell reads.
fn quoted(path: &Path) -> String {
    shlex::try_quote(&path.to_string_lossy())
        .map_or_else(|_| path.display().to_string(), |text| text.into_owned())
}

/// Packs the tree as squashfs and puts its hash tree behind it. The root hash, and where the tree begins.
fn root_disk(tree: &Path, to: &Path, interrupt: &Interrupt) -> Result<(String, u64)> {
    let mut pack = Command::new("tar2sqfs");
    pack.args(["--quiet", "--compressor", "zstd", "--comp-extra", LEVEL, "--num-jobs", "1"]).arg(to);
    pack.stdin(File::open(tree).of(tree)?).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = pack.spawn().map_err(|error| unstarted(&pack, error))?;
    finished(&pack, child, interrupt)?;
    let offset = fs::metadata(to).of(to)?.len();
    // Salt and UUID decide nothing; they are made from what is hashed, so that the same tree has the same root.
    let salt = File::open(to).and_then(digest_of).of(to)?.digits();
    let uuid =
        format!("{}-{}-{}-{}-{}", &salt[..8], &salt[8..12], &salt[12..16], &salt[16..20], &salt[20..32]);
    let mut format = Command::new("veritysetup");
    format
        .args(["format", "--salt", &salt, "--uuid", &uuid, "--hash-offset", &offset.to_string()])
        .arg(to)
        .arg(to);
    let said = output(&mut format)?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let hash =
        said.lines().find_map(|line| line.strip_prefix("Root hash:")).map(|hash| hash.trim().to_string());
    Ok((hash.ok_or_else(|| Error::io("veritysetup named no root hash"))?, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_comes_back_and_what_differs_is_named() {
        let digest = "0".repeat(64);
        let lock = Lock { date: 7, lines: vec![format!("a:amd64=1 {digest}"), format!("linux {digest}")] };
        assert_eq!(Lock::parse(&lock.text()).unwrap(), lock);
        assert!(lock.check(&lock).is_ok());
        let other =
            Lock { lines: vec![format!("a:amd64=2 {digest}"), format!("linux {digest}")], ..lock.clone() };
        let refused = other.check(&lock).unwrap_err().to_string();
        assert!(refused.contains("locked: a:amd64=1") && refused.contains("found: a:amd64=2"), "{refused}");
        for bad in ["", "date x", "a 1", "date 1\na"] {
            assert!(Lock::parse(bad).is_err(), "{bad}");
        }
    }
}
