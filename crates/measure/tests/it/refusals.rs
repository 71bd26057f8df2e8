//! What is refused, and in which words.

use std::fs;

use super::{Bench, SMALL};

#[test]
fn data_is_not_overwritten_without_leave() {
    let bench = Bench::new();
    let path = bench.path("precious");
    let mut content = vec![0; 32 << 20];
    // In neither of the first nor the last bytes, but in the last mebibyte.
    content[(32 << 20) - 5000] = 1;
    fs::write(&path, &content).unwrap();
    let line = format!("fio {SMALL} --target DIR/precious --only latency-read --turns 1 --out DIR/run.json");
    let said = bench.error(&line);
    assert!(said.contains("holds data") && said.contains("--destroy-data"), "{said}");
    assert_eq!(fs::read(&path).unwrap(), content);
    bench.run(&format!("{line} --destroy-data DIR/precious")).unwrap();
    assert_ne!(fs::read(&path).unwrap(), content);
    let nbd = bench.error(&format!("fio {SMALL} --target nbd://localhost --turns 1 --out DIR/run.json"));
    assert!(nbd.contains("--destroy-data"), "{nbd}");
}

#[test]
fn an_empty_file_is_a_target_and_a_small_one_is_not() {
    let bench = Bench::new();
    fs::write(bench.path("small"), vec![0; 1 << 20]).unwrap();
    fs::write(bench.path("empty"), vec![0; 16 << 20]).unwrap();
    let line = |name: &str| {
        format!("fio {SMALL} --target DIR/{name} --only latency-read --turns 1 --out DIR/run.json")
    };
    let said = bench.error(&line("small"));
    assert!(said.contains("1 MiB") && said.contains("16 MiB"), "{said}");
    bench.run(&line("empty")).unwrap();
    let said = bench.error(&line("nothing"));
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn too_much_is_refused_before_it_is_taken() {
    let bench = Bench::new();
    let said = bench.error("fio --dir DIR --size 1000T --target DIR --only latency-read --out DIR/run.json");
    assert!(said.contains("free") && said.contains("--size"), "{said}");
    let said =
        bench.error("fio --dir DIR --size 1000T --target tmpfs --only latency-read --out DIR/run.json");
    assert!(said.contains("memory"), "{said}");
    assert!(bench.error("fio --dir DIR/nowhere --target tmpfs --out DIR/run.json").contains("--dir"));
    assert!(bench.error("fio --seconds 0 --target tmpfs --out DIR/run.json").contains("--seconds"));
    assert!(bench.error("fio --only nothing --target tmpfs --out DIR/run.json").contains("no job's name"));
}

#[test]
fn a_job_file_with_mistakes_is_told_before_anything_is_measured() {
    let bench = Bench::new();
    let line = "fio --dir DIR --target DIR --job-file DIR/mine.fio --out DIR/run.json";
    assert!(bench.error(line).contains("mine.fio"));
    fs::write(bench.path("mine.fio"), "[a]\nrw=sideways\n").unwrap();
    let said = bench.error(line);
    assert!(said.contains("does not accept the job `a`") && said.contains("sideways"), "{said}");
    fs::write(bench.path("mine.fio"), "[a]\ncolour=red\n").unwrap();
    assert!(bench.error(line).contains("colour"));
    assert!(!bench.path("run.json").exists());
}

#[test]
fn a_file_that_is_no_run_says_so() {
    let bench = Bench::new();
    fs::write(bench.path("x.json"), "{\"format\": \"cvmio-bench-run\", \"version\": 9}").unwrap();
    for command in ["report DIR/x.json", "compare DIR/x.json", "again DIR/x.json", "resume DIR/x.json"] {
        let said = bench.error(command);
        assert!(said.contains("version 9") && said.contains("x.json"), "{command}: {said}");
    }
    assert!(bench.error("report DIR/none.json").contains("none.json"));
}
