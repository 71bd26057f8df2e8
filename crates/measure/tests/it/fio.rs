//! Runs of fio.

use std::fs;
use std::thread;
use std::time::Duration;

use cli::interrupt::Interrupt;
use measure::error::Kind;
use measure::fio::{Fio, Scale, Set};
use measure::outfile::{OutArgs, RunFile};
use measure::session::{Plan, Planned, Session};
use measure::target::{Contents, Environment, Guests, Need, Spec};
use report::run::State;

use super::{Runner, SMALL};

#[test]
fn every_job_of_every_set_runs() {
    let runner = Runner::new();
    let sets = "--set cvm-io,in-memory,scm,rollbaccine,mlsdisk --rate 200";
    runner
        .run(&format!("fio {SMALL} --target DIR --turns 1 --no-control {sets} --out DIR/run.json"))
        .unwrap();
    let run = runner.result("run.json");
    assert_eq!((run.state, run.failures.as_slice()), (State::Complete, &[][..]));
    assert_eq!((run.cases.len(), run.samples.len()), (58, 58));
    assert!(run.samples.iter().all(|sample| sample.figures["requests"] >= 1.0));
    let open = run.samples.iter().find(|sample| sample.case == "latency-read-open-200").unwrap();
    assert!(open.figures["iops"] < 1000.0, "an open loop keeps its rate: {open:?}");
    assert!(run.programs["fio"].starts_with("fio-3"));
    assert!(run.machine.storage.contains(" on ") && run.machine.memory > 0);
    // Nothing is left but the run file.
    assert_eq!(fs::read_dir(runner.directory.path()).unwrap().count(), 1);
}

#[test]
fn the_course_of_a_turn_is_in_the_run_file_and_on_the_page() {
    let runner = Runner::new();
    let small =
        "--dir DIR --size 16M --seconds 1.7 --warm-up 0.6 --turns 1 --no-control --only iops-randread";
    runner.run(&format!("fio {small} --target DIR --out DIR/run.json")).unwrap();
    let run = runner.result("run.json");
    let sample = &run.samples[0];
    // How many there are depends on when fio comes to say how it stands, which may be late on a busy machine.
    assert!((2..=4).contains(&sample.course.len()), "{sample:?}");
    assert!(sample.course.iter().all(|point| point.0 < 10.0), "the warm-up does not count: {sample:?}");
    let most = sample.course.iter().map(|point| point.1).fold(0.0, f64::max);
    assert!(most > sample.value * 0.5, "{sample:?}");
    assert!(run.targets[0].commands.last().unwrap().contains("--status-interval=500ms"));
    // One that is told by hand is on the page, however many points this machine came to.
    let mut run = run;
    run.samples[0].course = vec![(0.5, 1000.0), (1.0, 2000.0), (1.5, 1500.0)];
    fs::write(runner.path("run.json"), run.to_json().unwrap()).unwrap();
    runner.run("report DIR/run.json --out DIR/page.html").unwrap();
    assert!(
        fs::read_to_string(runner.path("page.html")).unwrap().contains("Inside the turns: iops-randread")
    );
}

#[test]
fn targets_take_turns_and_a_control_shows_the_noise() {
    let runner = Runner::new();
    let line = format!(
        "fio {SMALL} --target DIR --target tmpfs --only latency-read --aged --turns 3 --out DIR/run.json"
    );
    runner.run(&line).unwrap();
    let run = runner.result("run.json");
    let order: Vec<(&str, u32)> =
        run.samples.iter().take(6).map(|sample| (sample.target.as_str(), sample.turn)).collect();
    let expected =
        [("file", 0), ("tmpfs", 0), ("file again", 0), ("file", 1), ("tmpfs", 1), ("file again", 1)];
    assert_eq!(order, expected);
    assert_eq!(
        run.cases.iter().map(|case| (case.name.as_str(), case.aged)).collect::<Vec<_>>(),
        [("latency-read", false), ("latency-read-aged", true)]
    );
    assert_eq!(run.samples.len(), 18);
    runner.run("report DIR/run.json --out DIR/page.html --plots DIR/plots").unwrap();
    assert!(
        fs::read_to_string(runner.path("page.html")).unwrap().contains("Noise: file measured against itself")
    );
    assert!(runner.path("plots/1-latency.svg").exists());
    runner.run("compare DIR/run.json").unwrap();
    runner.run(&format!("again DIR/run.json --out {}", runner.path("second.json").display())).unwrap();
    let second = runner.result("second.json");
    assert_eq!((&second.command, &second.cases, second.samples.len()), (&run.command, &run.cases, 18));
    runner.run("compare DIR/run.json DIR/second.json").unwrap();
    runner.run("report DIR/run.json --markdown").unwrap();
}

#[test]
fn a_users_job_file_runs_and_is_kept() {
    let runner = Runner::new();
    fs::write(
        runner.path("mine.fio"),
        "[global]\nbs=4k\n[a]\nrw=randread\n[b]\nrw=randwrite\n[big]\nstonewall\nrw=read\nbs=64k\n",
    )
    .unwrap();
    runner
        .run(&format!("fio {SMALL} --target DIR --turns 1 --job-file DIR/mine.fio --out DIR/run.json"))
        .unwrap();
    let run = runner.result("run.json");
    assert_eq!(run.cases.iter().map(|case| case.name.as_str()).collect::<Vec<_>>(), ["a", "big"]);
    let both = run.samples.iter().find(|sample| sample.case == "a").unwrap();
    assert!(both.figures.contains_key("read-p99") && both.figures.contains_key("write-p99"), "{both:?}");
    // The file may be gone: the run has it.
    fs::remove_file(runner.path("mine.fio")).unwrap();
    runner.run("again DIR/run.json --out DIR/second.json").unwrap();
    assert_eq!(runner.result("second.json").files, run.files);
}

#[test]
fn a_target_that_fails_does_not_cost_the_others() {
    let runner = Runner::new();
    let dead = "nbd+unix:///?socket=DIR/nothing";
    let line = format!(
        "fio {SMALL} --target DIR --target {dead} --destroy-data {dead} --only latency-read --turns 2 --out DIR/run.json"
    );
    let said = runner.error(&line);
    assert!(said.contains("1 of 2 targets failed") && said.contains("nbd"), "{said}");
    let run = runner.result("run.json");
    assert_eq!(run.samples.len(), 4);
    assert_eq!(
        (run.failures.len(), run.failures[0].target.as_str(), &run.failures[0].case),
        (1, "nbd", &None)
    );
    assert!(run.failures[0].message.contains("fio"), "{:?}", run.failures);
}

#[test]
fn peers_behind_nbd_are_measured_or_named_with_their_package() {
    let runner = Runner::new();
    let peers = "--target nbdkit --target nbdkit-luks --target qemu --target qemu-luks --target dm-crypt --target dm-integrity";
    let line =
        format!("fio {SMALL} {peers} --only latency-randwrite --turns 1 --no-control --out DIR/run.json");
    let ended = runner.run(&line);
    let run = runner.result("run.json");
    assert_eq!(ended.is_ok(), run.failures.is_empty());
    for target in &run.targets {
        let measured = run.samples.iter().any(|sample| sample.target == target.name);
        let missing = run
            .failures
            .iter()
            .any(|failure| failure.target == target.name && failure.message.contains("package"));
        assert!(measured || missing || target.unavailable.is_some(), "{}: {:?}", target.name, run.failures);
    }
    assert!(run.notes.iter().any(|note| note.contains("page cache")), "{:?}", run.notes);
}

#[test]
fn what_was_measured_before_an_interrupt_is_kept_and_gone_on_from() {
    let runner = Runner::new();
    let (interrupt, directory) = (Interrupt::default(), runner.directory.path());
    let mut jobs = Set::CvmIo.jobs();
    jobs.truncate(1);
    let scale = Scale { seconds: 0.2, warm_up: 0.0, size: 16 << 20 };
    let mut work = Fio::new(jobs, None, scale, false).unwrap();
    work.probe(&interrupt).unwrap();
    let planned = |name: &str| Planned { name: name.into(), spec: Spec::Path(directory.into()) };
    let plan = Plan {
        title: "x".into(),
        question: None,
        command: Vec::new(),
        files: Default::default(),
        targets: vec![planned("a"), planned("b")],
        baseline: "a".into(),
        control: false,
        turns: 8,
        programs: Default::default(),
        hashes: Default::default(),
        emulated: false,
        notes: Vec::new(),
    };
    let out = || {
        let args = OutArgs { out: Some(runner.path("run.json")), replace: true };
        RunFile::new(&args, "fio").unwrap()
    };
    let environment = Environment {
        need: Need::Blocks,
        directory,
        size: scale.size,
        cvmio: "cvmio".as_ref(),
        destroy: &[],
        guests: &Guests::default(),
        contents: &Contents::default(),
        interrupt: &interrupt,
    };
    let cut = thread::scope(|scope| {
        let run = scope
            .spawn(|| Session::begin(&plan, &work, &environment, None, out()).unwrap().finish().unwrap());
        while !runner.path("run.json").exists() || runner.result("run.json").samples.len() < 3 {
            thread::sleep(Duration::from_millis(20));
        }
        interrupt.set();
        run.join().unwrap()
    });
    assert_eq!(cut.state, State::Interrupted);
    assert!((3..16).contains(&cut.samples.len()), "{}", cut.samples.len());
    assert_eq!(runner.result("run.json"), cut, "the file has it");
    assert_eq!(fs::read_dir(directory).unwrap().count(), 1, "everything else was put away");

    let fresh = Interrupt::default();
    let environment = Environment { interrupt: &fresh, ..environment };
    let whole =
        Session::begin(&plan, &work, &environment, Some(cut.clone()), out()).unwrap().finish().unwrap();
    assert_eq!((whole.state, whole.samples.len()), (State::Complete, 16));
    assert_eq!(whole.samples[..cut.samples.len()], cut.samples, "nothing is measured twice");
    let other = Plan { turns: 3, ..plan };
    let refused = Session::begin(&other, &work, &environment, Some(cut), out());
    assert!(refused.is_err_and(|error| error.kind() == Kind::Usage));
}

#[test]
fn a_dry_run_says_everything_and_makes_nothing() {
    let runner = Runner::new();
    fs::write(runner.path("disk"), vec![7; 16 << 20]).unwrap();
    runner
        .run(&format!("fio {SMALL} --dry-run --target DIR --target DIR/disk --target cvmio --out DIR/run.json --sweep iodepth=1,2"))
        .unwrap();
    assert_eq!(fs::read_dir(runner.directory.path()).unwrap().count(), 1);
    assert!(fs::read(runner.path("disk")).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn a_sweep_is_a_line_and_runs_are_exported() {
    let runner = Runner::new();
    let line = format!(
        "fio {SMALL} --target DIR --target tmpfs --only latency-read --sweep iodepth=1,2,4 --turns 2 --no-control"
    );
    runner.run(&format!("{line} --out DIR/run.json")).unwrap();
    let run = runner.result("run.json");
    assert_eq!(
        run.cases.iter().map(|case| case.option("iodepth").unwrap()).collect::<Vec<_>>(),
        ["1", "2", "4"]
    );
    assert!(run.samples.iter().all(|sample| sample.figures["processors"] > 0.0));
    assert!(run.hashes.keys().any(|path| path.ends_with("/fio")), "{:?}", run.hashes);
    assert!(run.machine.details.contains_key("flags") && run.machine.details.contains_key("kernel-build"));
    fs::write(runner.path("bad.json"), "{}").unwrap();
    let said =
        runner.error("report DIR/bad.json DIR/run.json DIR/run.json --out DIR/page.html --plots DIR/plots");
    assert!(said.contains("1 of 3 run files were left out") && said.contains("bad.json"), "{said}");
    let page = fs::read_to_string(runner.path("page.html")).unwrap();
    assert!(
        page.contains("Latency over depth")
            && page.contains("Latency of all runs")
            && page.contains("Course of the run")
    );
    assert!(runner.path("plots/1-latency-over-depth-latency-read-iodepth.svg").exists());
    assert!(runner.path("plots/all-latency-of-all-runs.svg").exists());
    runner.run("report DIR/run.json --csv").unwrap();
    runner.run("report DIR/run.json --latex").unwrap();
}
