//! What a run leaves when it is killed, which the next one clears.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Runner;

/// The directory that a child of a test works in.
const CHILD: &str = "MEASURE_TEST_CHILD";

/// Not a test of its own: what the other one starts as a process that can be killed.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let directory = Path::new(&directory);
    let line = fs::read_to_string(directory.join("line")).unwrap();
    // It is not to clean up what the parent looks at.
    let runner = std::mem::ManuallyDrop::new(Runner { directory: tempfile::tempdir_in(directory).unwrap() });
    let line = line.replace("DIR", directory.to_str().unwrap());
    println!("{:?}", runner.run(&line));
}

fn start(runner: &Runner, line: &str) -> Child {
    fs::write(runner.path("line"), line).unwrap();
    fs::create_dir_all(runner.path("work")).unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child", "--nocapture"])
        .env(CHILD, runner.directory.path())
        .env("CVMIO_BENCH_STATE_DIR", runner.path("state"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Programs that have something to do with a directory.
fn programs(of: &str) -> Vec<String> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let at = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        (line.contains(of) || at.starts_with(of)).then_some(line)
    });
    lines.collect()
}

fn mounts() -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().map(String::from).collect()
}

#[test]
fn what_a_killed_run_leaves_is_cleared_by_the_next_one() {
    let runner = Runner::new();
    let root = rustix::process::geteuid().is_root();
    let work = runner.path("work");
    let before = mounts();
    let apps = root && Path::new("/dev/loop-control").exists();
    // An application's file system stands on a loop device, on a file or a server.
    let line = if apps {
        "apps --dir DIR/work --size 64M --target DIR/work --target tmpfs --target qemu --apps redis,sqlite --inserts 10000000 --requests 1000000000 \
         --turns 1 --no-control --out DIR/run.json"
    } else {
        "fio --dir DIR/work --size 16M --seconds 60 --warm-up 0 --target qemu --target DIR/work --only latency-read --turns 1 --no-control --out DIR/run.json"
    };
    let mut child = start(&runner, line);
    let began = Instant::now();
    // Until the first turn runs.
    let state = runner.path("state");
    let is_at_work = || {
        runner.path("run.json").exists() && !programs(work.to_str().unwrap()).is_empty() && {
            let text = fs::read_to_string(runner.path("run.json")).unwrap_or_default();
            text.contains("mkfs.ext4") || !apps
        }
    };
    while !is_at_work() && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(50));
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
    }
    std::thread::sleep(Duration::from_millis(500));
    let devices = recorded_devices(&state);
    assert!(!apps || devices.len() > 1, "one on a file and one on a server: {devices:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "it is recorded");
    assert!(fs::read_dir(&work).unwrap().count() > 0);
    if apps {
        assert!(mounts().len() > before.len());
    }

    let small = "fio --dir DIR/work --size 16M --seconds 0.1 --warm-up 0 --target DIR/work --only latency-read --turns 1 --no-control --out DIR/second.json";
    let output = start(&runner, small).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cleared what a run that was killed has left"), "{said}");
    assert!(!said.contains("has left /"), "{said}");
    assert!(runner.path("second.json").exists(), "{said}");
    assert_eq!(programs(work.to_str().unwrap()), [""; 0]);
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0, "{said}");
    assert_eq!(fs::read_dir(&state).unwrap().count(), 0);
    let left: Vec<String> = mounts()
        .into_iter()
        .filter(|mount| mount.contains("cvmio-bench") && !before.contains(mount))
        .collect();
    // Other tests of this program mount as well, and are at work.
    let own: Vec<&String> = left.iter().filter(|mount| mount.contains(work.to_str().unwrap())).collect();
    assert!(own.is_empty(), "{own:?}");
    // Of a file whose file system is gone the kernel knows the last part of its path.
    for (device, behind) in devices {
        let now = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        let is_same = now == behind || (now.rfind('/') == Some(0) && behind.ends_with(&now));
        assert!(!is_same, "{} is still attached to {behind}", device.display());
    }
}

/// The loop devices that a run has recorded, each with the file that is behind it.
fn recorded_devices(state: &Path) -> Vec<(PathBuf, String)> {
    let ledger: String = fs::read_dir(state)
        .unwrap()
        .flatten()
        .map(|entry| fs::read_to_string(entry.path()).unwrap())
        .collect();
    let blocks = fs::read_dir("/sys/block").unwrap().flatten().map(|entry| entry.path());
    let behind = |device: &PathBuf| fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
    let all = blocks.map(|device| (device.clone(), behind(&device)));
    all.filter(|(_, file)| !file.is_empty() && ledger.contains(&format!("\"{}\"", file.trim_end()))).collect()
}
