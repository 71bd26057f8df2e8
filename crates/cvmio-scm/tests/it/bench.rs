//! `cvmio bench scm` on tiny sizes: each target has its turns. What the figures are is not looked at.

use std::process::Command;

use crate::preload::library;
use crate::support::Place;

#[test]
fn every_target_has_its_turns() {
    let place = Place::new();
    let programs = library().parent().unwrap();
    let run = |only: &str, words: &str| {
        let mut command = Command::new(programs.join("cvmio-bench"));
        command.args(["bench", "scm", "--size", "32M", "--turns", "1", "--out", "run.json", "--only", only]);
        command.args(words.split(' ')).arg("--dir").arg(place.at("")).current_dir(place.at(""));
        let output = command.output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), said)
    };
    let (code, said) = run("nothing", "--seconds 0.1");
    assert!(code == Some(2) && said.contains("no case's name contains nothing"), "{said}");
    let only = "fault-random,64k-mmap-first,randwrite-4k-mmap-inside,read-4k-psync-outside-t1";
    let (code, said) = run(only, "--seconds 0.3 --records 4 --threads 1,8");
    assert_eq!(code, Some(0), "{said}");
    let run: serde_json::Value =
        serde_json::from_slice(&std::fs::read(place.at("run.json")).unwrap()).unwrap();
    let failures = run["failures"].as_array().unwrap();
    assert!(failures.is_empty() && run["state"] == "complete", "{failures:?}");
    let turns = |target: &str| {
        let samples = run["samples"].as_array().unwrap().iter();
        samples.filter(|sample| sample["target"] == target && sample["value"].as_f64() > Some(0.0)).count()
    };
    for (target, expected) in [
        ("memory", 5),
        ("memory again", 5),
        ("fuse 4K", 5),
        ("fuse 2M", 5),
        ("userfaultfd 4K", 4),
        ("userfaultfd 4K without read-ahead", 4),
        ("userfaultfd 2M", 4),
        ("naive way", 1),
        ("kernel's fault", 1),
        ("kernel's fault, polled", 1),
    ] {
        assert_eq!(turns(target), expected, "{target}: {said}");
    }
    assert!(said.contains("from fault to resume") && said.contains("once open within"), "{said}");
    // The key, the mount point and the run file: nothing of the targets is left.
    assert_eq!(std::fs::read_dir(place.at("")).unwrap().count(), 3);
}
