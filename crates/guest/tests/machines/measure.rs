//! Measuring inside machines that the measuring program boots, with this machine's fio and the bed's kernel and QEMU. That it works is
//! looked at, not what the figures are.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Parser;
use cli::interrupt::Interrupt;
use guest::Bed;
use measure::commands::{Measure, run};
use measure::dump::search;
use measure::target::{Accel, Contents, Environment, Guests, Need, Vm};
use report::run::{Run, State};

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(subcommand)]
    measure: Measure,
}

/// What has no package here is missing, and the test says so.
fn missing(programs: &[&str]) -> bool {
    let found = |program: &str| {
        let find =
            Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
        find.is_ok_and(|status| status.success())
    };
    let lacks = programs.iter().find(|program| !found(program));
    if let Some(program) = lacks {
        let thread = std::thread::current();
        eprintln!("\nSKIPPED {}: there is no {program}", thread.name().unwrap_or("a test"));
    }
    lacks.is_some()
}

/// Runs commands of the measuring program with the bed's kernel and QEMU, in a directory for their disks and run files.
struct Runner<'a> {
    bed: &'a Bed,
    directory: tempfile::TempDir,
}

impl<'a> Runner<'a> {
    fn new(bed: &'a Bed) -> Self {
        Self { bed, directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Carries out a command, with DIR for the directory and GUESTS for the options that say what guests are made of.
    fn run(&self, line: &str) {
        let guests = format!(
            "--guest-kernel {} --qemu {} --accel tcg --guest-memory 768M",
            self.bed.kernel().display(),
            self.bed.qemu().display()
        );
        let line =
            line.replace("GUESTS", &guests).replace("DIR", &self.directory.path().display().to_string());
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        let parsed = Line::try_parse_from(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        run(&parsed.measure, words, self.bed.cvmio().into())
            .unwrap_or_else(|error| panic!("{line}: {error}"));
    }

    fn result(&self) -> Run {
        Run::parse(&fs::read(self.path("run.json")).unwrap()).unwrap()
    }
}

const SMALL: &str =
    "--dir DIR --size 16M --seconds 0.3 --warm-up 0 --turns 1 --no-control --out DIR/run.json GUESTS";

#[test]
fn the_disk_of_a_machine_is_measured_from_within() {
    if missing(&["fio", "busybox", "cryptsetup"]) {
        return;
    }
    let Some(bed) = guest::bed() else { return };
    let runner = Runner::new(&bed);
    let targets = "--target vm:disk=nvme,completion=poll --target vm:disk=virtio-scsi,cache=on,aio=threads,iothread=on \
                   --target vm:bounce=on,completion=poll,protect=none --target vm:protect=cvmio --target vm:protect=dm-crypt-inline \
                   --target vm:protect=dm-integrity --target vm:aio=native,cache=on --target vm:kind=snp";
    // The file goes into the machine, too.
    fs::write(runner.path("mine.fio"), "[reads]\nrw=randread\nbs=4k\n").unwrap();
    runner.run(&format!("vm {SMALL} {targets} --job-file DIR/mine.fio"));
    let run = runner.result();
    assert!(run.emulated && run.state == State::Complete && run.failures.is_empty(), "{:?}", run.failures);
    for target in &run.targets {
        let measured = run.values(&target.name, "reads").len();
        if target.spec.contains("snp") || target.spec.contains("native") {
            assert_eq!(measured, 0);
            let why = target.unavailable.as_deref().unwrap();
            assert!(why.contains("SEV-SNP") || why.contains("cache=off"), "{why}");
        } else {
            assert_eq!((measured, &target.unavailable), (1, &None), "{}", target.name);
            assert!(target.commands[1].contains("guest: Linux"), "{:?}", target.commands);
        }
    }
    runner.run("report DIR/run.json");
    let page = fs::read_to_string(runner.path("run.html")).unwrap();
    let (pictures, tables) = (page.matches("<svg").count(), page.matches("<caption").count());
    assert!(
        page.matches("emulated: for function, not for speed").count() > pictures + tables.min(2),
        "{page}"
    );
}

#[test]
fn applications_run_on_the_disk_of_a_machine() {
    if missing(&[
        "busybox",
        "sqlite3",
        "redis-server",
        "redis-benchmark",
        "lz4",
        "gzip",
        "strace",
        "make",
        "cc",
    ]) {
        return;
    }
    let Some(bed) = guest::bed() else { return };
    bed.add_bench();
    let runner = Runner::new(&bed);
    fs::create_dir_all(runner.path("tree/below")).unwrap();
    fs::write(runner.path("tree/below/file"), "what is packed\n".repeat(5000)).unwrap();
    fs::create_dir(runner.path("project")).unwrap();
    fs::write(
        runner.path("project/Makefile"),
        "LDLIBS = -lm\nall: hello\n\t./hello | grep -q hello\nhello: hello.c\n",
    )
    .unwrap();
    let source = "#include <math.h>\n#include <stdio.h>\nint main(int count, char **words) { return puts(\"hello\") < sqrt(count); }\n";
    fs::write(runner.path("project/hello.c"), source).unwrap();
    runner.run(
        "vm --dir DIR --size 160M --turns 1 --no-control --out DIR/run.json GUESTS --target vm:protect=cvmio --inserts 20 --requests 200 \
         --records 500 --operations 200 --seconds 1 --tree DIR/tree --project DIR/project --apps sqlite,redis,rocksdb,postgres,tar,lz4,compile,memory",
    );
    let run = runner.result();
    assert_eq!((run.state, run.failures.as_slice()), (State::Complete, &[][..]));
    // These two may not be installed.
    let has = |app: &str| !run.notes.iter().any(|note| note.starts_with(app));
    let more = 6 * usize::from(has("Rocksdb")) + usize::from(has("Postgres"));
    assert_eq!(run.cases.len(), 12 + more, "{:?}", run.notes);
    for case in &run.cases {
        assert_eq!(run.values("vm protect=cvmio", &case.name).len(), 1, "{}", case.name);
    }
    // Nothing but the run file, the tree and the project is left.
    assert_eq!(fs::read_dir(runner.path("")).unwrap().count(), 3);
}

#[test]
fn a_question_about_machines_is_answered_and_a_request_taken_apart() {
    if missing(&["fio", "busybox"]) {
        return;
    }
    let Some(bed) = guest::bed() else { return };
    let runner = Runner::new(&bed);
    runner.run(&format!("rq 3 -- {SMALL} --only latency-randread,latency-randwrite"));
    let run = runner.result();
    assert_eq!((run.question, run.samples.len(), run.failures.as_slice()), (Some(3), 4, &[][..]));
    assert_eq!(run.baseline.as_deref(), Some("vm completion=poll"));
    runner.run("report DIR/run.json --markdown");

    runner.run("breakdown --dir DIR --size 16M --turns 1 --no-control --requests 50 --target vm --out DIR/run.json --replace GUESTS");
    let run = runner.result();
    assert_eq!((run.samples.len(), run.failures.as_slice()), (10, &[][..]));
    for sample in &run.samples {
        let part = |name: &str| sample.figures[name];
        let sum = part("submission") + part("exit") + part("backend") + part("completion");
        assert!(part("backend") > 1000.0 && sum > part("all") / 4.0 && sum < part("all") * 4.0, "{sample:?}");
    }
}

#[test]
fn the_host_finds_in_a_plain_machines_memory_what_is_not_on_a_volumes_disk() {
    if missing(&["busybox"]) {
        return;
    }
    let Some(bed) = guest::bed() else { return };
    let directory = tempfile::tempdir().unwrap();
    let guests = Guests {
        kernel: bed.kernel(),
        qemu: bed.qemu().display().to_string(),
        accel: Some(Accel::Tcg),
        memory: 768 << 20,
        ..Guests::default()
    };
    let environment = Environment {
        need: Need::Blocks,
        directory: directory.path(),
        size: 0,
        cvmio: bed.cvmio(),
        destroy: &[],
        guests: &guests,
        contents: &Contents::default(),
        interrupt: &Interrupt::default(),
    };
    let rows = search(&Vm::default(), &environment).unwrap_or_else(|error| panic!("{error}"));
    let [file, data, key] = rows.as_slice() else { panic!("{rows:?}") };
    assert!(
        file.memory >= 1 && file.disk == 1,
        "a bare disk hides nothing, nor does a plain machine: {rows:?}"
    );
    assert!(data.memory >= 1 && data.disk == 0, "a volume protects its disk, and only that: {rows:?}");
    assert_eq!(key.disk, 0, "{rows:?}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "disks and dump are gone");
}
