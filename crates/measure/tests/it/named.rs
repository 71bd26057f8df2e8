//! Only what was named is written.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};

use measure::commands::{Measure, run};

use super::{Line, Runner};
use clap::Parser;

const TINY: &str = "--size 16M --seconds 0.1 --warm-up 0 --turns 1 --no-control --only latency-randwrite";
const SIZE: u64 = 16 << 20;

impl Runner {
    /// Carries out a command whose words may have blanks.
    fn words(&self, line: &str, more: &[&str]) -> measure::error::Result<()> {
        let directory = self.directory.path().to_str().unwrap();
        let words = line.split_whitespace().chain(more.iter().copied());
        let words: Vec<String> = words.map(|word| word.replace("DIR", directory)).collect();
        run(&Line::try_parse_from(&words).unwrap().measure, words, "cvmio".into())
    }

    fn empty(&self, name: &str) {
        File::create(self.path(name)).unwrap().set_len(SIZE).unwrap();
    }

    fn is_empty(&self, name: &str) -> bool {
        fs::read(self.path(name)).unwrap().iter().all(|byte| *byte == 0)
    }
}

#[test]
fn fio_reads_nothing_but_a_name_into_a_name() {
    for (name, neighbour) in [
        ("disk;1", "disk"),
        ("disk#1", "disk"),
        ("disk ", "disk"),
        (" disk", "disk"),
        ("a:b", "a"),
        ("a\\:b", "a:b"),
        ("x$ncpus", "x2"),
        ("${HOME}", "home"),
        ("$jobname", "latency-randwrite"),
        ("--name=x", "x"),
        ("a,b", "a"),
    ] {
        let runner = Runner::new();
        runner.empty(name);
        fs::write(runner.path(neighbour), vec![7; 16 << 20]).unwrap();
        let target = format!("DIR/{name}");
        runner.words(&format!("fio {TINY} --out DIR/run.json"), &["--target", &target]).unwrap();
        assert!(!runner.is_empty(name), "{name} is measured");
        assert!(fs::read(runner.path(neighbour)).unwrap().iter().all(|byte| *byte == 7), "beside {name}");
        assert_eq!(runner.result("run.json").targets[0].name, runner.path(name).to_str().unwrap());
    }
}

#[test]
fn directories_may_have_any_name() {
    let runner = Runner::new();
    for name in ["a b", "c;d", "e:f,g", "h#$i "] {
        fs::create_dir(runner.path(name)).unwrap();
        let directory = format!("DIR/{name}");
        let line = format!("fio {TINY} --target qemu --target nbdkit --out DIR/run.json --replace");
        let ended = runner.words(&line, &["--target", &directory, "--dir", &directory]);
        let run = runner.result("run.json");
        assert!(run.values("file", "latency-randwrite").len() == 1, "{name}: {ended:?}");
        // A server that is not installed is named with its package.
        assert!(run.failures.iter().all(|one| one.message.contains("package")), "{name}: {:?}", run.failures);
        assert_eq!(fs::read_dir(runner.path(name)).unwrap().count(), 0, "{name}");
    }
}

#[test]
fn what_was_looked_at_is_what_is_overwritten() {
    // The name leads elsewhere as soon as the file was opened: here from the beginning, by a link.
    let runner = Runner::new();
    runner.empty("empty");
    symlink(runner.path("empty"), runner.path("link")).unwrap();
    runner.words(&format!("fio {TINY} --out DIR/run.json --target DIR/link"), &[]).unwrap();
    assert!(!runner.is_empty("empty"));
    let shown = &runner.result("run.json").targets[0].commands;
    assert!(shown.iter().any(|command| command.contains("--filename=/proc/")), "{shown:?}");
}

#[test]
fn data_anywhere_in_a_target_is_seen() {
    let runner = Runner::new();
    for at in [0, SIZE / 2, SIZE * 100, SIZE * 200 - 1] {
        let file = File::create(runner.path("disk")).unwrap();
        file.set_len(SIZE * 200).unwrap();
        file.write_all_at(b"!", at).unwrap();
        let said = runner.error(&format!("fio {TINY} --target DIR/disk --out DIR/run.json"));
        assert!(
            said.contains(&format!("holds data, at byte {at}")) && said.contains("--destroy-data"),
            "{said}"
        );
        let mut kept = [0];
        File::open(runner.path("disk")).unwrap().read_exact_at(&mut kept, at).unwrap();
        assert_eq!(&kept, b"!");
    }
}

#[test]
fn an_out_that_is_something_else_is_refused_before_anything_is_made() {
    let runner = Runner::new();
    fs::write(runner.path("thesis"), "years of work").unwrap();
    symlink(runner.path("thesis"), runner.path("link")).unwrap();
    runner.empty("disk");
    for (out, word) in [
        ("DIR/thesis", "no run file"),
        ("DIR/link", "is a link"),
        ("/dev/null", "no file"),
        ("DIR", "no file"),
    ] {
        let said = runner.error(&format!("fio {TINY} --target DIR/disk --out {out} --replace"));
        assert!(said.contains(word), "{said}");
    }
    assert!(runner.is_empty("disk"), "nothing was measured");
    let line = format!("fio {TINY} --target DIR/disk --destroy-data DIR/disk --out DIR/run.json");
    runner.run(&line).unwrap();
    let first = fs::read(runner.path("run.json")).unwrap();
    assert!(runner.error(&line).contains("--replace"));
    assert_eq!(fs::read(runner.path("run.json")).unwrap(), first);
    runner.run(&format!("{line} --replace")).unwrap();
    for out in ["DIR/thesis", "DIR/link", "DIR/run.json"] {
        let said = runner.error(&format!("report DIR/run.json --out {out}"));
        assert!(said.contains("not replaced"), "{said}");
    }
    runner.run("report DIR/run.json --plots DIR/plots").unwrap();
    runner.run("report DIR/run.json --plots DIR/plots").unwrap();
    fs::write(runner.path("plots/1-latency.svg"), "<svg>mine</svg>").unwrap();
    assert!(runner.error("report DIR/run.json --plots DIR/plots").contains("1-latency.svg"));
    assert_eq!(fs::read_to_string(runner.path("thesis")).unwrap(), "years of work");
}

#[test]
fn a_job_file_reaches_nothing_but_its_target() {
    let runner = Runner::new();
    runner.empty("disk");
    for option in
        ["exec_prerun=touch DIR/pwned", "write_lat_log=DIR/log", "opendir=DIR", "read_iolog=DIR/run.json"]
    {
        let text = format!("[a]\nrw=read\nbs=4k\n{option}\n")
            .replace("DIR", runner.directory.path().to_str().unwrap());
        fs::write(runner.path("mine.fio"), text).unwrap();
        let said =
            runner.error("fio --size 16M --target DIR/disk --job-file DIR/mine.fio --out DIR/run.json");
        assert!(said.contains("mine.fio, line 4") && said.contains("is not let through"), "{said}");
    }
    assert_eq!(fs::read_dir(runner.directory.path()).unwrap().count(), 2);
}

#[test]
fn a_run_file_that_is_repeated_destroys_nothing_by_itself() {
    let runner = Runner::new();
    let line = format!("fio {TINY} --target DIR/disk --destroy-data DIR/disk --out DIR/run.json");
    fs::write(runner.path("disk"), vec![7; 16 << 20]).unwrap();
    runner.run(&line).unwrap();
    let precious = vec![9; 16 << 20];
    fs::write(runner.path("disk"), &precious).unwrap();
    let said = runner.error("again DIR/run.json --out DIR/second.json");
    assert!(said.contains("holds data"), "{said}");
    let mut run = runner.result("run.json");
    run.state = report::run::State::Interrupted;
    run.samples.clear();
    fs::write(runner.path("cut.json"), run.to_json().unwrap()).unwrap();
    let said = runner.error("resume DIR/cut.json");
    assert!(said.contains("holds data"), "{said}");
    assert_eq!(fs::read(runner.path("disk")).unwrap(), precious);
    runner.run("again DIR/run.json --out DIR/third.json --destroy-data DIR/disk").unwrap();
    assert_ne!(fs::read(runner.path("disk")).unwrap(), precious);

    // A program that a run file brings is not run.
    let evil = runner.path("evil");
    fs::write(&evil, format!("#!/bin/sh\ntouch {}\n", runner.path("pwned").display())).unwrap();
    fs::set_permissions(&evil, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    run.command.extend(["--target".into(), "vm".into(), "--qemu".into(), evil.display().to_string()]);
    fs::write(runner.path("evil.json"), run.to_json().unwrap()).unwrap();
    for command in ["again DIR/evil.json --out DIR/x.json", "resume DIR/evil.json"] {
        let said = runner.error(command);
        assert!(said.contains("runs the program") && said.contains("--allow"), "{said}");
    }
    assert!(!runner.path("pwned").exists());
    run.command = vec!["fio".into(), "--job-file".into(), "/etc/hostname".into()];
    fs::write(runner.path("file.json"), run.to_json().unwrap()).unwrap();
    assert!(runner.error("again DIR/file.json --out DIR/x.json").contains("not in the run file"));
}

#[test]
fn a_resumed_run_is_of_one_machine_and_one_set_of_programs() {
    let runner = Runner::new();
    runner.run(&format!("fio {TINY} --dir DIR --target DIR --out DIR/run.json")).unwrap();
    let mut run = runner.result("run.json");
    run.state = report::run::State::Interrupted;
    run.machine.kernel = "2.6.18".into();
    run.programs.insert("fio".into(), "fio-3.16".into());
    run.turns = 2;
    run.command.extend(["--turns".into(), "2".into()]);
    let at = run.command.iter().position(|word| word == "--turns").unwrap();
    run.command.drain(at..at + 2);
    fs::write(runner.path("cut.json"), run.to_json().unwrap()).unwrap();
    let said = runner.error("resume DIR/cut.json");
    for word in ["kernel was 2.6.18", "fio was fio-3.16", "--mixed"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    runner.run("resume DIR/cut.json --mixed").unwrap();
    let whole = runner.result("cut.json");
    assert_eq!(whole.samples.len(), 2);
    assert!(
        whole.notes.iter().any(|note| note.contains("Gone on with") && note.contains("2.6.18")),
        "{:?}",
        whole.notes
    );
    let Measure::Resume(_) = Line::try_parse_from(["resume", "x"]).unwrap().measure else { panic!() };
}
