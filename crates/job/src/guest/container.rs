//! The container: its image unpacked by buildah, its configuration for crun.
//!
//! Source: OCI runtime specification 1.2, `config.md` and `config-linux.md`; OCI image specification 1.1, `config.md`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{CONTENT, place};
use crate::error::{Context, Error, Result};
use crate::file::{Input, Job, Output};
use crate::program;

/// The container's name.
pub const NAME: &str = "job";
/// What the container's root user may do beyond an ordinary one: what Docker's default leaves it, without raw sockets and device nodes.
const CAPABILITIES: [&str; 10] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];
/// What the container sees of its own only. Its network has no way out.
const NAMESPACES: [&str; 6] = ["pid", "ipc", "uts", "mount", "network", "cgroup"];
/// Processes and threads, where the job file does not say.
const PROCESSES: u32 = 4096;
/// One period of the scheduler, in microseconds.
const PERIOD: u64 = 100_000;
/// Names of addresses.
const HOSTS: &str = "/etc/hosts";
/// The search path, where the image has none.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What an image says about how it is run.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ImageConfig {
    env: Vec<String>,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
    working_dir: String,
    user: String,
}

fn buildah() -> Command {
    let mut command = Command::new("buildah");
    command.args(["--storage-driver", "overlay", "--root"]).arg(place::containers());
    command.args(["--runroot", "/run/containers"]);
    command
}

/// The last line that a program said.
fn said(command: &mut Command) -> Result<String> {
    let said = program::output(command)?.stdout;
    Ok(String::from_utf8_lossy(&said).trim().rsplit('\n').next().unwrap_or_default().trim().to_string())
}

/// Unpacks or builds the image, and mounts a container of it. What the image says about itself.
///
/// # Errors
/// With what buildah said.
pub fn prepare(job: &Job) -> Result<ImageConfig> {
    let image = match job.image.digest {
        Some(_) => {
            let image = said(
                buildah()
                    .args(["pull", "--quiet"])
                    .arg(format!("oci-archive:{}", place::archive().display())),
            )?;
            // Its bytes are memory.
            fs::remove_file(place::archive()).of(place::archive())?;
            image
        }
        None => {
            let context = place::context().join(CONTENT);
            let file = context.join(job.image.dockerfile.as_deref().unwrap_or("Dockerfile"));
            let mut build = buildah();
            build.args(["build", "--quiet", "--pull=never", "--isolation", "oci", "--runtime", "crun"]);
            build.args(["--network", "none", "--file"]);
            said(build.arg(file).arg(context))
                .map_err(|error| Error::usage(format!("the image cannot be built: {error}")))?
        }
    };
    said(buildah().args(["from", "--quiet", "--pull-never", "--name", NAME, &image]))?;
    let root = said(buildah().args(["mount", NAME]))?;
    fs::write(place::bundle().join("root"), root).of(place::bundle())?;
    let text = program::output(buildah().args(["inspect", "--type", "image", &image]))?.stdout;
    let value: Value = serde_json::from_slice(&text)
        .map_err(|error| Error::io(format!("buildah inspect: {error}")).because(error))?;
    let config = value.pointer("/OCIv1/config").cloned().unwrap_or_default();
    if config.is_null() {
        return Ok(ImageConfig::default());
    }
    serde_json::from_value(config).map_err(|error| {
        Error::usage(format!("the image's configuration has another form: {error}")).because(error)
    })
}

/// Where the container's file system is.
///
/// # Errors
/// If there is none yet.
pub fn root() -> Result<PathBuf> {
    fs::read_to_string(place::bundle().join("root")).of("the container's file system").map(PathBuf::from)
}

/// Where an output lies: the directory that no link leads out of, and the path in it. An input is mounted into the container, so what became of
/// it is where the guest keeps it.
///
/// # Errors
/// If there is no container yet.
pub fn output(job: &Job, output: &Output) -> Result<(PathBuf, String)> {
    let below = |input: &Input| output.from.as_str().strip_prefix(input.to.as_str()).map(String::from);
    let inputs =
        job.inputs.iter().enumerate().filter(|(_, input)| output.from.is_at_or_below(input.to.as_str()));
    match inputs.filter_map(|(number, input)| Some((number, below(input)?))).next() {
        Some((number, rest)) => Ok((place::input(number), format!("{CONTENT}{rest}"))),
        None => Ok((root()?, output.from.as_str().to_string())),
    }
}

/// Writes what crun reads.
///
/// # Errors
/// If the image names a user that it does not have, or nothing to run.
pub fn configure(job: &Job, image: &ImageConfig, memory: u64) -> Result<()> {
    let root = root()?;
    let user = User::of(job, image, &root)?;
    hand_over(job, &user)?;
    super::volume::hand_over(job, user.uid, user.gid)?;
    let config = config(job, image, &root, &user, memory)?;
    let path = place::bundle().join("config.json");
    File::create(&path).and_then(|mut file| file.write_all(config.to_string().as_bytes())).of(path)
}

/// Whoever the container runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
struct User {
    uid: u32,
    gid: u32,
    home: String,
}

impl User {
    /// The job file's, else the image's; names and homes are those of the image's own `/etc/passwd`.
    fn of(job: &Job, image: &ImageConfig, root: &Path) -> Result<Self> {
        let asked = job.run.user.as_deref().unwrap_or(&image.user);
        let asked = if asked.is_empty() { "0" } else { asked };
        let text = read_in(root, "/etc/passwd").unwrap_or_default();
        let lines = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let known: Vec<_> = lines.filter(|fields| fields.len() >= 6).collect();
        let (uid, gid) = if asked.split(':').all(|part| part.parse::<u32>().is_ok()) {
            numbers(asked)
        } else {
            let name = asked.split(':').next().unwrap_or(asked);
            let found = known.iter().find(|fields| fields[0] == name);
            found.and_then(|fields| Some((fields[2].parse().ok()?, fields[3].parse().ok()?))).ok_or_else(|| {
                Error::usage(format!(
                    "the image runs as the user {asked:?}, whom its /etc/passwd does not have; set run.user in numbers"
                ))
            })?
        };
        let home =
            known.iter().find(|fields| fields[2].parse() == Ok(uid)).map(|fields| fields[5].to_string());
        let home = home.filter(|home| home.starts_with('/'));
        Ok(Self { uid, gid, home: home.unwrap_or_else(|| if uid == 0 { "/root" } else { "/" }.into()) })
    }
}

/// Gives the user what is for it alone, and what it may change.
fn hand_over(job: &Job, user: &User) -> Result<()> {
    let inputs = job.inputs.iter().enumerate().filter(|(_, input)| input.writable);
    let inputs = inputs.map(|(number, _)| place::input(number).join(CONTENT));
    let mut waiting: Vec<PathBuf> = inputs.chain((0..job.secrets.len()).map(place::secret)).collect();
    while let Some(path) = waiting.pop() {
        lchown(&path, Some(user.uid), Some(user.gid)).of(&path)?;
        // No link is followed: what it leads to stands elsewhere.
        if fs::symlink_metadata(&path).of(&path)?.is_dir() {
            for entry in fs::read_dir(&path).of(&path)? {
                waiting.push(entry.of(&path)?.path());
            }
        }
    }
    Ok(())
}

/// User and group of `UID` or `UID:GID`.
fn numbers(user: &str) -> (u32, u32) {
    let mut parts = user.split(':').map(|part| part.parse().unwrap_or(0));
    let uid = parts.next().unwrap_or(0);
    (uid, parts.next().unwrap_or(uid))
}

/// A small file of the image's: no link leads out of it.
fn read_in(root: &Path, path: &str) -> std::io::Result<String> {
    let root = File::open(root)?;
    let file: File = openat2(
        &root,
        path,
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
    )?
    .into();
    let mut text = String::new();
    file.take(1 << 20).read_to_string(&mut text)?;
    Ok(text)
}

fn bind(source: &Path, to: &str, writable: bool) -> Value {
    let mode = if writable { "rw" } else { "ro" };
    json!({ "destination": to, "source": source, "type": "bind", "options": ["bind", mode, "nosuid", "nodev"] })
}

fn mounts(job: &Job) -> Vec<Value> {
    let of = |to: &str, kind: &str, options: &[&str]| json!({ "destination": to, "type": kind, "source": kind, "options": options });
    let mut all = vec![
        of("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        of("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        of("/dev/pts", "devpts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
        of("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
        of("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        of("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
    ];
    // The guest's own: `localhost` has a meaning there, too.
    all.push(bind(&place::hosts(), HOSTS, false));
    for (number, input) in job.inputs.iter().enumerate() {
        all.push(bind(&place::input(number).join(CONTENT), input.to.as_str(), input.writable));
    }
    for (number, volume) in job.volumes.iter().enumerate() {
        all.push(bind(&place::mounted(number), volume.to.as_str(), true));
    }
    for (number, secret) in job.secrets.iter().enumerate() {
        all.push(bind(&place::secret(number), secret.to.as_str(), false));
    }
    all
}

fn config(job: &Job, image: &ImageConfig, root: &Path, user: &User, memory: u64) -> Result<Value> {
    let words = job.run.command.clone().unwrap_or_else(|| [&image.entrypoint[..], &image.cmd[..]].concat());
    if words.is_empty() {
        return Err(Error::usage("the image has no command, and the job file names none; set run.command"));
    }
    let mut environment = image.env.clone();
    if !environment.iter().any(|variable| variable.starts_with("PATH=")) {
        environment.push(PATH.into());
    }
    if !environment.iter().any(|variable| variable.starts_with("HOME=")) {
        environment.push(format!("HOME={}", user.home));
    }
    // A later one of the same name counts.
    environment
        .retain(|variable| !job.run.environment.contains_key(variable.split('=').next().unwrap_or_default()));
    environment.extend(job.run.environment.iter().map(|(name, value)| format!("{name}={value}")));
    let directory = job.run.directory.as_ref().map(|path| path.as_str().to_string());
    let directory =
        directory.or_else(|| Some(image.working_dir.clone()).filter(|path| path.starts_with('/')));
    let capabilities = json!(CAPABILITIES);
    let mut resources = json!({
        "memory": { "limit": memory, "swap": memory },
        "pids": { "limit": job.limits.processes.unwrap_or(PROCESSES) },
        "devices": [{ "allow": false, "access": "rwm" }],
    });
    if let Some(processors) = job.limits.processors {
        resources["cpu"] = json!({ "period": PERIOD, "quota": PERIOD * u64::from(processors.0) / 100 });
    }
    Ok(json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": user.uid, "gid": user.gid },
            "args": words,
            "env": environment,
            "cwd": directory.unwrap_or_else(|| "/".into()),
            "noNewPrivileges": true,
            "capabilities": { "bounding": capabilities, "effective": capabilities, "permitted": capabilities },
            "rlimits": [{ "type": "RLIMIT_CORE", "hard": 0, "soft": 0 }, { "type": "RLIMIT_NOFILE", "hard": 65536, "soft": 65536 }],
        },
        "root": { "path": root, "readonly": false },
        "hostname": NAME,
        "mounts": mounts(job),
        "linux": {
            "cgroupsPath": format!("/jobs/{NAME}"),
            "namespaces": NAMESPACES.map(|kind| json!({ "type": kind })),
            "resources": resources,
            "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/asound", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(more: &str) -> Job {
        Job::parse(format!("name = \"a\"\n[image]\ncontext = \"c\"\n{more}").as_bytes(), "a").unwrap()
    }

    fn image() -> ImageConfig {
        serde_json::from_str(r#"{"Env": ["A=1", "B=2"], "Entrypoint": ["/e"], "Cmd": ["c"], "WorkingDir": "/w", "User": "app"}"#).unwrap()
    }

    fn made(job: &Job) -> Value {
        let user = User { uid: 7, gid: 8, home: "/h".into() };
        config(job, &image(), Path::new("/root-of-it"), &user, 1 << 30).unwrap()
    }

    #[test]
    fn the_job_file_counts_more_than_the_image() {
        let plain = made(&job(""));
        assert_eq!(plain["process"]["args"], json!(["/e", "c"]));
        assert_eq!((&plain["process"]["cwd"], &plain["process"]["user"]["uid"]), (&json!("/w"), &json!(7)));
        let other = made(&job(
            "[run]\ncommand = [\"x\"]\ndirectory = \"/d\"\nenvironment = { A = \"9\" }\n[limits]\nprocessors = 1.5\nprocesses = 3\n",
        ));
        assert_eq!(other["process"]["args"], json!(["x"]));
        assert_eq!(other["process"]["cwd"], json!("/d"));
        assert_eq!(other["process"]["env"], json!(["B=2", PATH, "HOME=/h", "A=9"]));
        assert_eq!(other["linux"]["resources"]["cpu"]["quota"], json!(150_000));
        assert_eq!(other["linux"]["resources"]["pids"]["limit"], json!(3));
    }

    #[test]
    fn a_container_has_no_network_no_devices_and_no_more_rights_than_it_needs() {
        let made =
            made(&job("[[inputs]]\nfrom = \"i\"\nto = \"/i\"\n[[secrets]]\nfrom = \"s\"\nto = \"/s\"\n"));
        let kinds: Vec<_> =
            made["linux"]["namespaces"].as_array().unwrap().iter().map(|one| one["type"].clone()).collect();
        for kind in ["network", "pid", "mount", "ipc", "uts", "cgroup"] {
            assert!(kinds.contains(&json!(kind)), "{kind}");
        }
        assert_eq!(made["process"]["noNewPrivileges"], json!(true));
        assert_eq!(made["linux"]["resources"]["devices"][0]["allow"], json!(false));
        let capabilities = made["process"]["capabilities"]["bounding"].to_string();
        for absent in ["SYS_ADMIN", "NET_RAW", "MKNOD", "SYS_PTRACE", "SYS_MODULE"] {
            assert!(!capabilities.contains(absent), "{absent}");
        }
        for place in ["/i", "/s"] {
            let mounts = made["mounts"].as_array().unwrap();
            let mount = mounts.iter().find(|mount| mount["destination"] == place).unwrap();
            assert!(mount["options"].as_array().unwrap().contains(&json!("ro")), "{mount}");
        }
    }

    /// V4 of the module `volume`.
    #[test]
    fn a_container_has_a_volume_s_file_system_and_nothing_that_opens_it() {
        let made =
            made(&job("[[volumes]]\nto = \"/data\"\ndisk = \"d\"\npolicy = \"p\"\nkey-file = \"k\"\n"));
        let mounts = made["mounts"].as_array().unwrap();
        let of = |to: &str| mounts.iter().find(|mount| mount["destination"] == to).unwrap();
        assert_eq!(of("/data")["source"], json!(place::mounted(0)));
        assert_eq!(of("/data")["options"], json!(["bind", "rw", "nosuid", "nodev"]));
        assert_eq!(of(HOSTS)["source"], json!(place::hosts()), "the guest's own names its ways to anchors");
        for (what, path) in [("what opens it", place::volume(0)), ("its daemon", place::daemons())] {
            let is_shown = |mount: &Value| {
                let source = mount["source"].as_str().unwrap_or_default();
                source.starts_with('/') && (path.starts_with(source) || Path::new(source).starts_with(&path))
            };
            assert!(!mounts.iter().any(is_shown), "{what}: {mounts:?}");
        }
    }

    #[test]
    fn what_became_of_an_input_is_looked_for_where_it_is_kept() {
        let job = job(
            "[[inputs]]\nfrom = \"i\"\nto = \"/data/in\"\n[[outputs]]\nfrom = \"/data/in/x\"\nto = \"o\"\n[[outputs]]\nfrom = \"/data/in\"\nto = \"p\"\n",
        );
        let found: Vec<_> = job.outputs.iter().map(|one| output(&job, one).unwrap()).collect();
        assert_eq!(
            found,
            [(place::input(0), "content/x".to_string()), (place::input(0), "content".to_string())]
        );
    }

    #[test]
    fn an_image_s_user_is_looked_up_in_the_image() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/passwd"), "root:x:0:0::/r:/s\napp:x:12:34::/a:/s\n").unwrap();
        let of =
            |asked: &str| User::of(&job(""), &ImageConfig { user: asked.into(), ..image() }, root.path());
        let user = |uid, gid, home: &str| User { uid, gid, home: home.into() };
        assert_eq!(of("app").unwrap(), user(12, 34, "/a"));
        assert_eq!(of("12").unwrap(), user(12, 12, "/a"));
        assert_eq!(of("5:6").unwrap(), user(5, 6, "/"));
        assert_eq!(of("").unwrap(), user(0, 0, "/r"));
        assert!(of("nobody-here").unwrap_err().to_string().contains("run.user"));
        let asked = job("[run]\nuser = \"9:8\"\n");
        assert_eq!(User::of(&asked, &image(), root.path()).unwrap(), user(9, 8, "/"));
    }

    #[test]
    fn nothing_to_run_is_said() {
        let refused = config(
            &job(""),
            &ImageConfig::default(),
            Path::new("/"),
            &User { uid: 0, gid: 0, home: "/".into() },
            1,
        )
        .unwrap_err()
        .to_string();
        assert!(refused.contains("run.command"), "{refused}");
    }
}
