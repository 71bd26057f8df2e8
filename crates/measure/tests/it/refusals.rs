//! What is refused, and in which words.

use std::fs;

use super::{Runner, SMALL};

#[test]
fn data_is_not_overwritten_without_leave() {
    let runner = Runner::new();
    let path = runner.path("precious");
    let mut content = vec![0; 32 << 20];
    // In neither of the first nor the last bytes, but in the last mebibyte.
    content[(32 << 20) - 5000] = 1;
    fs::write(&path, &content).unwrap();
    let line = format!("fio {SMALL} --target DIR/precious --only latency-read --turns 1 --out DIR/run.json");
    let said = runner.error(&line);
    assert!(said.contains("holds data") && said.contains("--destroy-data"), "{said}");
    assert_eq!(fs::read(&path).unwrap(), content);
    runner.run(&format!("{line} --destroy-data DIR/precious")).unwrap();
    assert_ne!(fs::read(&path).unwrap(), content);
    let nbd = runner.error(&format!("fio {SMALL} --target nbd://localhost --turns 1 --out DIR/nbd.json"));
    assert!(nbd.contains("--destroy-data"), "{nbd}");
}

#[test]
fn an_empty_file_is_a_target_and_a_small_one_is_not() {
    let runner = Runner::new();
    fs::write(runner.path("small"), vec![0; 1 << 20]).unwrap();
    fs::write(runner.path("empty"), vec![0; 16 << 20]).unwrap();
    let line = |name: &str| {
        format!("fio {SMALL} --target DIR/{name} --only latency-read --turns 1 --out DIR/run.json")
    };
    let said = runner.error(&line("small"));
    assert!(said.contains("1 MiB") && said.contains("16 MiB"), "{said}");
    runner.run(&line("empty")).unwrap();
    let said = runner.error(&format!("{} --replace", line("nothing")));
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn too_much_is_refused_before_it_is_taken() {
    let runner = Runner::new();
    let said = runner.error("fio --dir DIR --size 1000T --target DIR --only latency-read --out DIR/run.json");
    assert!(said.contains("free") && said.contains("--size"), "{said}");
    let said =
        runner.error("fio --dir DIR --size 1000T --target tmpfs --only latency-read --out DIR/run.json");
    assert!(said.contains("memory"), "{said}");
    assert!(runner.error("fio --dir DIR/nowhere --target tmpfs --out DIR/run.json").contains("--dir"));
    assert!(runner.error("fio --seconds 0 --target tmpfs --out DIR/run.json").contains("--seconds"));
    assert!(runner.error("fio --only nothing --target tmpfs --out DIR/run.json").contains("no job's name"));
}

#[test]
fn a_job_file_with_mistakes_is_told_before_anything_is_measured() {
    let runner = Runner::new();
    let line = "fio --dir DIR --target DIR --job-file DIR/mine.fio --out DIR/run.json";
    assert!(runner.error(line).contains("mine.fio"));
    fs::write(runner.path("mine.fio"), "[a]\nrw=sideways\n").unwrap();
    let said = runner.error(line);
    assert!(said.contains("does not accept the job `a`") && said.contains("sideways"), "{said}");
    fs::write(runner.path("mine.fio"), "[a]\ncolour=red\n").unwrap();
    assert!(runner.error(line).contains("colour"));
    assert!(!runner.path("run.json").exists());
}

#[test]
fn a_file_that_is_no_run_says_so() {
    let runner = Runner::new();
    fs::write(runner.path("x.json"), "{\"format\": \"cvmio-bench-run\", \"version\": 9}").unwrap();
    for command in ["report DIR/x.json", "compare DIR/x.json", "again DIR/x.json", "resume DIR/x.json"] {
        let said = runner.error(command);
        assert!(said.contains("version 9") && said.contains("x.json"), "{command}: {said}");
    }
    assert!(runner.error("report DIR/none.json").contains("none.json"));
}
