//! The work itself, in a process of its own: it goes on when the owner's connection is gone.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::container;
use super::log::{Log, Stream};
use super::session::{job, received, tell};
use super::volume::Volumes;
use super::words::{Phase, Setup, State};
use super::{CONTENT, place};
use crate::challenge::Exchange;
use crate::error::{Context, Error, Result};
use crate::file::Job;
use crate::manifest::{End, Predicate, Resource, SigningKey, Statement};
use crate::program::output;
use crate::tree::{Source, digest_of, pack};

/// How often the container is looked at.
const PAUSE: Duration = Duration::from_millis(100);
/// Memory of the machine that stays free: below it the job is stopped, before the kernel picks a process to kill.
const RESERVE: u64 = 48 << 20;
/// The memory of the container's group and those below it, as the kernel counts it. The container's own group is gone with it.
const EVENTS: &str = "/sys/fs/cgroup/jobs/memory.events";

/// Runs the job that was set up, to its manifest. How it went is told by [`State`].
///
/// # Errors
/// If not even that can be told.
pub fn work() -> Result<()> {
    match run() {
        Ok(end) => tell(&State { end: Some(end), ..State::new(Phase::Ended) }),
        Err(error) => tell(&State { failure: Some(error.into()), ..State::new(Phase::Failed) }),
    }
}

fn run() -> Result<End> {
    let (setup, job) = job()?;
    let volumes = Volumes::bring_up(&job)?;
    let ran = Ran::of(&setup, &job);
    // Whatever became of the container, its volumes are put away; and nothing is signed before they are.
    let volumes = volumes.put_away();
    let (ran, volumes) = (ran?, volumes?);
    let end = ran.end.clone();
    let exchange = fs::read(place::exchange()).of(place::exchange())?;
    let exchange: Exchange =
        serde_json::from_slice(&exchange).map_err(|error| Error::io(error.to_string()))?;
    let predicate = Predicate {
        job: job.name.to_string(),
        job_file: Resource::new(setup.name.clone(), digest_of(setup.file.as_bytes()).of("the job file")?),
        image: ran.image,
        inputs: inputs(&job)?,
        volumes,
        log: Resource::new(
            "log",
            digest_of(fs::File::open(place::log()).of(place::log())?).of(place::log())?,
        ),
        end: ran.end,
        begun: ran.begun,
        ended: now(),
        limits: limits(&setup, &job),
        exchange,
    };
    let key = SigningKey::read(&fs::read(place::signing_key()).of(place::signing_key())?)?;
    let envelope = Statement::new(ran.outputs, predicate).sign(&key);
    let text = serde_json::to_vec(&envelope).map_err(|error| Error::io(error.to_string()))?;
    super::boot::private(&place::manifest(), &text)?;
    Ok(end)
}

/// A container that has ended.
struct Ran {
    image: Resource,
    outputs: Vec<Resource>,
    end: End,
    begun: u64,
}

impl Ran {
    fn of(setup: &Setup, job: &Job) -> Result<Self> {
        let image = image_resource(job)?;
        let config = container::prepare(job)?;
        container::configure(job, &config, setup.container)?;
        tell(&State::new(Phase::Running))?;
        let begun = now();
        let end = contain(job)?;
        Ok(Self { image, outputs: outputs(job, &end)?, end, begun })
    }
}

/// Each file of the inputs, as it arrived.
fn inputs(job: &Job) -> Result<Vec<Resource>> {
    let mut inputs = Vec::new();
    for (number, input) in job.inputs.iter().enumerate() {
        let in_container = |file: Resource| {
            let below = file.name.strip_prefix(CONTENT).unwrap_or(&file.name);
            Resource { name: format!("{}{below}", input.to), ..file }
        };
        inputs.extend(received(number)?.into_iter().map(in_container));
    }
    Ok(inputs)
}

/// What is run: an archive by the digest that was checked when it arrived, a context by that of its stream.
fn image_resource(job: &Job) -> Result<Resource> {
    match job.image.digest {
        Some(digest) => Ok(Resource::new("archive", digest)),
        None => {
            let context = place::context().join(CONTENT);
            let (to, _) =
                pack(Source::Here(&context), CONTENT, crate::tree::Digesting::new(std::io::sink()))?;
            Ok(Resource::new("context", to.finish().1))
        }
    }
}

fn limits(setup: &Setup, job: &Job) -> BTreeMap<String, serde_json::Value> {
    let mut limits = BTreeMap::from([("container-memory".to_string(), json!(setup.container))]);
    limits.extend(job.limits.time.map(|time| ("time".to_string(), json!(time))));
    limits.extend(job.limits.processes.map(|processes| ("processes".to_string(), json!(processes))));
    limits.extend(job.limits.processors.map(|processors| ("processors".to_string(), json!(processors))));
    limits
}

/// Seconds since 1970, by a clock that the host sets.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn crun() -> Command {
    let mut command = Command::new("crun");
    command.args(["--root", "/run/crun", "--cgroup-manager", "cgroupfs"]);
    command
}

/// Runs the container to its end, or to the limit that it meets.
fn contain(job: &Job) -> Result<End> {
    let log = Log::create(&place::log())?;
    make_group()?;
    let mut command = crun();
    command.args(["run", "--bundle"]).arg(place::bundle()).arg(container::NAME);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| crate::program::unstarted(&command, error))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let deadline = job.limits.time.map(|time| Instant::now() + Duration::from_secs(time.0));
    std::thread::scope(|scope| {
        let out = scope.spawn(|| out.map_or(Ok(()), |out| log.take(Stream::Out, out)));
        let err = scope.spawn(|| err.map_or(Ok(()), |err| log.take(Stream::Err, err)));
        let is_full = || [&out, &err].iter().any(|reader| reader.is_finished());
        let ended = watch(&mut child, deadline, is_full);
        // Both streams end with the container, whose last lines are in the log then.
        let results = [out.join(), err.join()];
        let (status, mut stopped_by) = ended?;
        if let Some(Ok(Err(error))) = results.into_iter().find(|result| !matches!(result, Ok(Ok(())))) {
            stopped_by.get_or_insert_with(|| error.to_string());
        }
        if stopped_by.is_none() && was_killed_for_memory() {
            stopped_by = Some("its memory (limits.memory)".into());
        }
        Ok(End { exit_code: code(status), stopped_by })
    })
}

/// Makes the group of processes that the container's group lies in.
fn make_group() -> Result<()> {
    let group = Path::new(EVENTS).parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(group).of(group)?;
    for group in [group.parent().unwrap_or(group), group] {
        let control = group.join("cgroup.subtree_control");
        fs::write(&control, "+memory +pids +cpu").of(control)?;
    }
    Ok(())
}

/// The exit code as a shell has it.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Waits for the container's end, and ends it at a limit.
fn watch(
    child: &mut Child,
    deadline: Option<Instant>,
    is_log_closed: impl Fn() -> bool,
) -> Result<(ExitStatus, Option<String>)> {
    loop {
        if let Some(status) = child.try_wait().of("the container")? {
            return Ok((status, None));
        }
        let limit = if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            Some("its time (limits.time)")
        } else if free_memory().is_some_and(|free| free < RESERVE) {
            Some("the machine's memory (guest.memory)")
        } else {
            None
        };
        if let Some(limit) = limit {
            return Ok((end(child)?, Some(limit.into())));
        }
        if is_log_closed() {
            // It may have closed its streams by itself; a log that is full is another matter, and its reader says so.
            std::thread::sleep(PAUSE);
            if child.try_wait().of("the container")?.is_none() && log_is_full() {
                return Ok((end(child)?, None));
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether the log has no room for another frame.
fn log_is_full() -> bool {
    fs::metadata(place::log()).is_ok_and(|log| log.len() + (64 << 10) > super::log::MAX_LOG)
}

/// Ends the container with all its processes.
fn end(child: &mut Child) -> Result<ExitStatus> {
    let killed = output(crun().args(["kill", "--all", container::NAME, "KILL"]));
    if killed.is_err() {
        let _ = child.kill();
    }
    child.wait().of("the container")
}

/// Memory of the machine that is free or can be made free.
fn free_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

fn was_killed_for_memory() -> bool {
    let text = fs::read_to_string(EVENTS).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix("oom_kill ")).any(|count| count.trim() != "0")
}

/// The digests of what comes back. An output that is missing fails a job that went well otherwise.
fn outputs(job: &Job, end: &End) -> Result<Vec<Resource>> {
    let mut all = Vec::new();
    for wanted in &job.outputs {
        let (root, path) = container::output(job, wanted)?;
        let packed = pack(Source::Below(&root, &path), wanted.from.file_name(), std::io::sink());
        match packed {
            Ok((_, found)) => all.extend(
                found.into_iter().map(|file| Resource { name: subject_name(&wanted.to, &file.name), ..file }),
            ),
            Err(_) if wanted.optional || end.exit_code != 0 || end.stopped_by.is_some() => {}
            Err(error) => {
                return Err(Error::usage(format!(
                    "the container has ended well and left no output {}: {error}",
                    wanted.from
                )));
            }
        }
    }
    Ok(all)
}

/// A file's name in the manifest: below the directory with results, as the job file has it.
pub fn subject_name(to: &Path, file: &str) -> String {
    to.join(file).to_string_lossy().into_owned()
}
