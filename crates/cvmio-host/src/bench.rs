//! What a request at this server takes, by how it is noticed: a driver of our own in this process, and the real server on another core.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use cli::failure::Failure;
use cli::output;
use host::{DiskSettings, Mode, Server, Settings};
use rustix::thread::CpuSet;
use serde_json::{Value, json};
use store::{Completion, Operation, Queue, RingOptions, RingStore, Store};

use crate::arguments::Bench;

/// Blocks that are read, so that all of them are in the page cache.
const BLOCKS: u64 = 4096;
const DEADLINE: Duration = Duration::from_secs(30);
const DEPTHS: [usize; 2] = [1, 32];

/// Measures all modes, and says what was found.
pub fn run(args: &Bench) -> Result<(), Failure> {
    let worthless = worthless(args);
    let directory = tempfile::tempdir_in(&args.dir)
        .map_err(|error| Failure::io(format!("{}: {error}", args.dir.display())))?;
    if let Some(core) = args.driver_core {
        let mut set = CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set)
            .map_err(|error| Failure::usage(format!("core {core} for the driver: {error}")))?;
    }
    let mut rows = Vec::new();
    for mode in [Mode::Poll, Mode::Adaptive, Mode::Interrupt] {
        rows.extend(measure(mode, args, directory.path())?);
    }
    if args.json {
        return output::print_json(&json!({ "worthless": worthless, "rows": rows }));
    }
    if let Some(reason) = &worthless {
        output::print(&format!("These figures are worthless: {reason}."));
    }
    output::print("4 KiB reads       depth   p50 us   p99 us   requests/s   CPU us/request");
    for row in &rows {
        let number = |name: &str| row[name].as_f64().unwrap_or(0.0);
        output::print(&format!(
            "{:<16} {:>6} {:>8.1} {:>8.1} {:>12.0} {:>16.1}",
            row["mode"].as_str().unwrap_or_default(),
            row["depth"],
            number("p50_us"),
            number("p99_us"),
            number("per_second"),
            number("cpu_us")
        ));
    }
    Ok(())
}

/// Why the figures say nothing.
fn worthless(args: &Bench) -> Option<String> {
    match (args.core, args.driver_core) {
        (Some(server), Some(driver)) if server != driver => {
            let load = std::fs::read_to_string("/proc/loadavg").ok()?;
            let now: f64 = load.split(' ').next()?.parse().ok()?;
            (now > 1.0).then(|| format!("this machine is busy (load {now})"))
        }
        _ => Some(
            "server and driver have no cores of their own; name two with --core and --driver-core".into(),
        ),
    }
}

fn measure(mode: Mode, args: &Bench, directory: &Path) -> Result<Vec<Value>, Failure> {
    let file = directory.join("disk");
    let disk = File::create(&file).and_then(|disk| disk.set_len(BLOCKS * 4096));
    disk.map_err(|error| Failure::io(format!("{}: {error}", file.display())))?;
    let socket = directory.join("socket");
    let disk = DiskSettings { mode, direct: false, queues: 1, ..DiskSettings::new(&socket, &file) };
    let server = Server::start(&Settings { cores: args.core.into_iter().collect(), disks: vec![disk] })?;
    let spin = match mode {
        Mode::Interrupt => Duration::ZERO,
        _ => Duration::from_micros(50),
    };
    let store = RingStore::connect(
        &socket,
        RingOptions { queues: 1, deadline: DEADLINE, spin, ..RingOptions::default() },
    )?;
    let mut queue = store.queue(32)?;
    let mut rows = Vec::new();
    for depth in DEPTHS {
        // Once for the caches.
        read(&mut *queue, mode, depth, Duration::from_millis(50))?;
        let (cpu, begun) = (processor_time(), Instant::now());
        let mut times = read(&mut *queue, mode, depth, args.time)?;
        let (cpu, passed) = (processor_time().saturating_sub(cpu), begun.elapsed());
        times.sort_unstable();
        let at = |percent: usize| {
            times.get(times.len() * percent / 100).map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        let count = f64::from(u32::try_from(times.len()).unwrap_or(u32::MAX).max(1));
        rows.push(json!({
            "mode": mode, "depth": depth, "p50_us": at(50), "p99_us": at(99),
            "per_second": count / passed.as_secs_f64(), "cpu_us": cpu.as_secs_f64() * 1e6 / count,
        }));
    }
    drop(queue);
    drop(server);
    Ok(rows)
}

/// Reads for so long, with so many in flight. How long each took.
fn read(queue: &mut dyn Queue, mode: Mode, depth: usize, time: Duration) -> Result<Vec<Duration>, Failure> {
    let mut random = fastrand::Rng::with_seed(1);
    let (begun, mut times, mut completions) = (Instant::now(), Vec::new(), Vec::<Completion>::new());
    let mut sent = vec![begun; depth];
    let mut free: Vec<(u64, _)> = (0_u64..).take(depth).map(|token| (token, queue.buffer(1))).collect();
    let mut in_flight = 0;
    loop {
        let is_over = begun.elapsed() >= time;
        while let Some((token, buffer)) = free.pop().filter(|_| !is_over) {
            if let Some(sent) = usize::try_from(token).ok().and_then(|token| sent.get_mut(token)) {
                *sent = Instant::now();
            }
            queue.submit(token, Operation::Read { block: random.u64(..BLOCKS), buffer });
            in_flight += 1;
        }
        if in_flight == 0 {
            return Ok(times);
        }
        match mode {
            Mode::Poll => queue.poll(&mut completions),
            _ => queue.wait(None, &mut completions),
        }
        for Completion { token, buffer, result } in completions.drain(..) {
            result?;
            in_flight -= 1;
            if let Some(sent) = usize::try_from(token).ok().and_then(|token| sent.get(token)) {
                times.push(sent.elapsed());
            }
            free.extend(buffer.map(|buffer| (token, buffer)));
        }
    }
}

/// What all threads of this process have taken.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
