//! `cvmio bench volume` in all its cases; `cvmio bench fio` with the real servers and clients, and what it leaves behind;
//! `cvmio bench upkeep`; `cvmio bench attach`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use crate::common::Desk;
use crate::common::machine::{has, sh, tell_skipped, wait_for};
use serde_json::Value;

/// What this machine lacks, if it lacks anything.
fn missing() -> Option<&'static str> {
    let program = ["fio", "nbdkit", "qemu-nbd", "qemu-img"].into_iter().find(|program| !has(program));
    program.or_else(|| (!sh("fio --enghelp").contains("nbd")).then_some("NBD engine in fio"))
}

/// Processes that work in a benchmark's directory below `here`, or name it, and have this word on their command line.
fn at_work(here: &str, word: &str) -> usize {
    let place = format!("{here}cvmio-bench-");
    let is_one = |process: &fs::DirEntry| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let works = fs::read_link(process.path().join("cwd"));
        let there = works.is_ok_and(|works| works.display().to_string().starts_with(&place));
        (there || line.contains(&place)) && line.contains(word)
    };
    fs::read_dir("/proc").unwrap().flatten().filter(is_one).count()
}

/// All front ends that need no driver of the kernel's own, on what a user has: the programs of Debian, and a volume by its command line.
#[test]
fn a_volume_in_each_front_end_and_its_peers_take_turns_and_nothing_is_left() {
    if let Some(missing) = missing() {
        return tell_skipped(&format!("there is no {missing}"));
    }
    let desk = Desk::new();
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let loops = fuse && fs::File::open("/dev/loop-control").is_ok();
    let mut fronts = vec!["cvmio", "cvmio:suite=aegis-128x2,level=off", "cvmio:level=off,integrity=off"];
    fronts.extend(fuse.then_some("cvmio:front=fuse"));
    fronts.extend(loops.then_some("cvmio:front=loop"));
    let peers = ["nbdkit", "nbdkit-luks", "qemu", "qemu-luks"];
    let targets: String = fronts.iter().chain(&peers).map(|target| format!(" --target {target}")).collect();
    desk.done(&format!(
        "bench fio --dir . --size 16M --turns 1 --seconds 0.2 --warm-up 0 --only latency-randwrite --out run.json{targets}"
    ));
    let run: Value = serde_json::from_slice(&fs::read(desk.path("run.json")).unwrap()).unwrap();
    assert_eq!((&run["state"], &run["failures"]), (&"complete".into(), &Value::Array(Vec::new())));
    let measured: Vec<&str> =
        run["samples"].as_array().unwrap().iter().map(|sample| sample["target"].as_str().unwrap()).collect();
    // And the control.
    assert_eq!(measured.len(), fronts.len() + peers.len() + 1, "{measured:?}");
    assert!(run["programs"]["cvmio"].as_str().unwrap().starts_with("cvmio "), "{}", run["programs"]);
    let said = desk.done("bench compare run.json");
    assert!(said.contains("qemu LUKS") && said.contains("cvmio front=fuse") == fuse, "{said}");
    let here = desk.path("").display().to_string();
    assert_eq!(at_work(&here, ""), 0, "no server is left");
    assert!(!sh(&format!("ls -a {here}")).contains("cvmio-bench-"), "its files are gone");
    assert!(!sh("cat /proc/mounts").contains(&here), "no mount is left");
}

#[test]
fn a_missing_and_an_old_fio_are_named() {
    let desk = Desk::new();
    let programs = desk.path("programs");
    fs::create_dir(&programs).unwrap();
    let said = || {
        let bench = Command::new(crate::common::programs::cvmio())
            .args(["bench", "fio", "--target=tmpfs", "--size=16M", "--out"])
            .arg(desk.path("run.json"))
            .env("PATH", &programs)
            .output()
            .unwrap();
        assert_eq!(bench.status.code(), Some(2));
        String::from_utf8_lossy(&bench.stderr).into_owned()
    };
    let missing = said();
    assert!(missing.contains("fio is not installed") && missing.contains("package fio"), "{missing}");
    fs::write(programs.join("fio"), "#!/bin/sh\necho fio-2.21\n").unwrap();
    sh(&format!("chmod +x {}", programs.join("fio").display()));
    let old = said();
    assert!(old.contains("fio-2.21 is too old") && old.contains("3.16"), "{old}");
    assert!(!desk.path("run.json").exists());
}

/// Ends with the test, also when that fails.
struct Killed(Option<Child>);

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            sh(&format!("kill -TERM {}", child.id()));
            let _ = child.wait();
        }
    }
}

#[test]
fn an_interrupt_puts_everything_away_at_once() {
    if let Some(missing) = missing() {
        return tell_skipped(&format!("there is no {missing}"));
    }
    let desk = Desk::new();
    let here = desk.path("").display().to_string();
    let bench = Command::new(crate::common::programs::cvmio())
        .args([
            "bench",
            "fio",
            "--target=nbdkit",
            "--target=cvmio",
            "--target=qemu-luks",
            "--only=latency-read",
        ])
        .args([
            "--size=16M",
            "--seconds=600",
            "--out",
            &desk.path("run.json").display().to_string(),
            "--dir",
            &here,
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut bench = Killed(Some(bench));
    // It says when it has made its targets, however long that takes.
    let mut progress = BufReader::new(bench.0.as_mut().unwrap().stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("latency-read (") {
        line.clear();
        assert!(progress.read_line(&mut line).unwrap() > 0, "it ended before its first turn");
    }
    wait_for("the first turn", || at_work(&here, "--time_based") > 0);
    let at = |word| at_work(&here, word);
    assert_eq!((at("attach"), at("nbdkit"), at("qemu-nbd")), (1, 1, 1), "they run");
    let child = bench.0.as_mut().unwrap();
    sh(&format!("kill -INT {}", child.id()));
    wait_for("its end", || child.try_wait().unwrap().is_some());
    let output = bench.0.take().unwrap().wait_with_output().unwrap();
    // What was measured is there: it is no mistake of the command.
    assert_eq!(output.status.code(), Some(130));
    let mut rest = String::new();
    progress.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("interrupted"), "{rest}");
    let run: Value = serde_json::from_slice(&fs::read(desk.path("run.json")).unwrap()).unwrap();
    assert_eq!(run["state"], "interrupted");
    assert_eq!(at_work(&here, ""), 0, "no server is left");
    assert!(!sh(&format!("ls -a {here}")).contains("cvmio-bench-"), "its files are gone");
}

#[test]
fn the_long_jobs_are_measured_alone_and_beside_users() {
    let desk = Desk::new();
    let command = "bench upkeep --dir . --size 64 --turns 2 --seconds 0.1 --json";
    let said = desk.done(command);
    let rows: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let subjects: Vec<_> =
        rows.iter().map(|row| (row["job"].as_str(), row["case"].as_str(), row["beside"].as_str())).collect();
    let beside = |case, job| (None, Some(case), Some(job));
    let expected = [
        (Some("scrub"), None, None),
        (Some("rekey"), None, None),
        beside("randread-4k-q1", "scrub"),
        beside("randread-4k-q1", "rekey"),
        beside("randwrite-4k-q1", "scrub"),
        beside("randwrite-4k-q1", "rekey"),
    ];
    assert_eq!(subjects, expected);
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
        assert!(number("ratio-low") <= number("ratio") && number("ratio") <= number("ratio-high"), "{row}");
        if row["case"].is_null() {
            assert!(number("limit") > 0.0 && number("speed") > 0.0, "{row}");
        } else {
            assert!(number("alone-p50") <= number("alone-p99"), "{row}");
            assert!(number("beside-p50") <= number("beside-p99") && number("job-speed") > 0.0, "{row}");
        }
    }
    let here = desk.path("").display().to_string();
    assert!(!sh(&format!("ls -a {here}")).contains("cvmio-bench-"), "its files are gone");
}

#[test]
fn an_attach_is_measured_after_a_detach_and_after_a_kill() {
    let desk = Desk::new();
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let ways: &[&str] = if fuse { &["nbd", "fuse"] } else { &["nbd"] };
    let said = desk.done("bench attach --dir . --size 256 --written 1 --turns 3 --json");
    let rows: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let subjects: Vec<_> =
        rows.iter().map(|row| (row["front-end"].as_str().unwrap(), row["after"].as_str().unwrap())).collect();
    let expected: Vec<_> =
        ways.iter().flat_map(|way| ["detach", "crash"].map(|after| (*way, after))).collect();
    assert_eq!(subjects, expected);
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
        assert!((row["unit"] == "ms" && row["turns"] == 3) && number("min") > 1.0, "{row}");
        let ranks = ["min", "median", "p95", "max"].map(number);
        assert!(ranks.is_sorted(), "{row}");
        // Blocks at random, of which some are the same.
        let changes = if row["after"] == "crash" { 200.0..=256.0 } else { 0.0..=0.0 };
        assert!(changes.contains(&number("changes")), "{row}");
    }
    let here = desk.path("").display().to_string();
    assert!(!sh(&format!("ls -a {here}")).contains("cvmio-bench-"), "its files are gone");
    assert_eq!(at_work(&here, ""), 0, "no daemon is left");
    assert!(!sh("cat /proc/mounts").contains(&here), "no mount is left");
    let text = desk.done("bench attach --dir . --size 16 --written 1 --turns 1 --as nbd");
    assert!(text.contains("nbd       crash") && !text.contains("fuse"), "{text}");
    assert_eq!(desk.run("bench attach --dir . --size 16 --written 17").code, 2);
    assert_eq!(desk.run("bench attach --dir nowhere").code, 2);
}

/// How fast a change of key is, nobody knows beforehand.
#[test]
fn a_change_of_key_that_is_done_before_the_time_ends_the_turn_of_the_load() {
    let desk = Desk::new();
    let said =
        desk.done("bench upkeep --dir . --size 16 --turns 1 --seconds 2 --cases randread-4k-q1 --json");
    let row: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!((row["case"].as_str(), row["beside"].as_str()), (Some("randread-4k-q1"), Some("rekey")));
    let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
    assert!(number("beside-p50") > 0.0 && number("beside-p50") <= number("beside-p99"), "{row}");
    assert!(number("job-speed") > 0.0, "{row}");
}

/// The names are promised to whoever reads them with a program.
#[test]
fn a_volume_beside_its_store_gives_a_row_for_each_case() {
    let desk = Desk::new();
    let cases = [
        "seqread-128k-q128",
        "seqwrite-128k-q128",
        "randread-4k-q32",
        "randwrite-4k-q32",
        "randrw-4k-q32",
        "randread-4k-q1",
        "randwrite-4k-q1",
        "write-fsync-4k-q1",
    ];
    let options = [("file", 50, "--dir . --threads 2 --fsync-every 4"), ("memory", 80, "--fill 80 --aged")];
    for (medium, fill, more) in options {
        let said = desk.done(&format!(
            "bench volume --medium {medium} {more} --size 32 --turns 2 --seconds 0.05 --json"
        ));
        let rows: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let found: Vec<_> = rows.iter().map(|row| row["case"].as_str().unwrap()).collect();
        assert_eq!(found, cases);
        for row in &rows {
            assert!(row["medium"] == medium && row["fill"] == fill, "{row}");
            let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
            let sequential = row["case"].as_str().unwrap().starts_with("seq");
            let by_time = row["case"].as_str().unwrap().ends_with("q1");
            let unit = row["unit"].as_str().unwrap();
            assert_eq!(unit, if sequential { "MiB/s" } else { unit }, "{row}");
            assert!(by_time || ["MiB/s", "iops"].contains(&unit), "{row}");
            assert!(number("raw") > 0.0 && number("protected") > 0.0, "{row}");
            assert!(
                number("ratio-low") <= number("ratio") && number("ratio") <= number("ratio-high"),
                "{row}"
            );
        }
    }
    assert!(
        !sh(&format!("ls -a {}", desk.path("").display())).contains("cvmio-bench-"),
        "its files are gone"
    );
}

/// While it makes its files, while it fills them, and while it measures.
#[test]
fn an_interrupt_ends_a_measurement_of_a_volume_and_leaves_nothing() {
    for (signal, medium, wait) in [("INT", "file", 100), ("TERM", "file", 1500), ("INT", "memory", 700)] {
        let desk = Desk::new();
        let words =
            format!("bench volume --medium {medium} --dir . --size 64 --seconds 600 --cases randread-4k-q1");
        let log = fs::File::create(desk.path("log")).unwrap();
        let mut command = desk.command(&words);
        let mut bench = Killed(Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap()));
        let child = bench.0.as_mut().unwrap();
        let made = || sh(&format!("ls -a {}", desk.path("").display())).contains("cvmio-bench-");
        // Only then has it something to put away, and takes signals: the second bit is SIGINT's.
        let takes_signals = || {
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
            u64::from_str_radix(caught, 16).unwrap_or(0) & 2 != 0
        };
        wait_for("its directory", || takes_signals() && (medium == "memory" || made()));
        std::thread::sleep(std::time::Duration::from_millis(wait));
        sh(&format!("kill -{signal} {}", child.id()));
        wait_for("its end", || child.try_wait().unwrap().is_some());
        let said = String::from_utf8_lossy(&desk.read("log")).into_owned();
        assert_eq!(child.try_wait().unwrap().unwrap().code(), Some(130), "{medium}: {said}");
        assert!(said.contains("interrupted; everything was put away"), "{medium}: {said}");
        assert!(!made(), "{medium}: its files are gone");
        bench.0.take();
    }
}

#[test]
fn a_level_with_an_anchor_is_measured_beside_one_without() {
    let desk = Desk::new();
    let anchor = desk.path("anchor").display().to_string();
    let command = format!(
        "bench volume --medium memory --size 16 --turns 2 --seconds 0.2 --threads 4 --cases write-fsync-4k-q1 --anchor file:{anchor} --json"
    );
    let row: Value = serde_json::from_str(&desk.done(&command)).unwrap();
    assert_eq!(row["rival"], "off", "{row}");
    let moves = |key: &str| row["moves"][key].as_u64().unwrap_or_else(|| panic!("{key} in {row}"));
    assert!(moves("moves") > 0 && moves("flushes") >= moves("moves"), "{row}");
    assert!(row["moves"]["times"]["p50"].as_f64().is_some_and(|time| time > 0.0), "{row}");
    // A volume lives by it now.
    let taken = desk.run(&command);
    assert!(taken.code != 0 && taken.error.contains("belongs to a volume already"), "{taken:?}");
    let off = desk.run(&format!("{command} --freshness off"));
    assert!(off.code == 2 && off.error.contains("--freshness off"), "{off:?}");
}
