//! Applications on tiny sizes. They mount, so they need root.

use std::fs;

use report::run::State;

use super::Runner;

/// Whether loop devices can be mounted here.
fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && std::path::Path::new("/dev/loop-control").exists();
    if !can {
        eprintln!("skipped: mounting needs root and loop devices");
    }
    can
}

#[test]
fn every_application_runs_or_is_named_with_its_package() {
    if !can_mount() {
        return;
    }
    let runner = Runner::new();
    let project = runner.path("project");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("x.c"), "int main(void) { return 0; }\n").unwrap();
    fs::write(project.join("Makefile"), "x: x.c\n\tcc -o x x.c\n").unwrap();
    let line = "apps --dir DIR --size 160M --target DIR --target tmpfs --turns 1 --no-control --out DIR/run.json \
                --apps sqlite,redis,rocksdb,postgres,tar,lz4,compile,memory --inserts 20 --requests 200 --records 500 --operations 200 --seconds 1 \
                --tree DIR/project --project DIR/project";
    runner.run(line).unwrap();
    let run = runner.result("run.json");
    assert_eq!((run.state, run.failures.as_slice()), (State::Complete, &[][..]));
    for (word, cases) in [
        ("sqlite", &["sqlite-insert", "sqlite-read-mix"][..]),
        ("redis", &["redis-set", "redis-get"]),
        (
            "rocksdb",
            &[
                "rocksdb-read-update",
                "rocksdb-read-mostly",
                "rocksdb-read-insert",
                "rocksdb-read-modify-write",
                "rocksdb-update-insert",
                "rocksdb-read-only",
            ],
        ),
        ("postgres", &["postgres-pgbench"]),
        ("tar", &["tar-gzip-compress", "tar-gzip-extract"]),
        ("lz4", &["lz4-compress", "lz4-extract"]),
        ("cc", &["compile"]),
        ("memory", &["memory-memcpy", "memory-memset", "memory-latency"]),
    ] {
        let missing =
            run.notes.iter().any(|note| note.to_lowercase().contains(word) && note.contains("package"));
        for case in cases {
            assert!(
                missing || run.values("file", case).len() == 1 && run.values("tmpfs", case).len() == 1,
                "{case}"
            );
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let ours = runner.directory.path().to_str().unwrap();
    assert!(!mounts.contains(ours), "{mounts}");
    runner.run("report DIR/run.json").unwrap();
}

#[test]
fn an_application_that_fails_ends_its_row_with_its_output() {
    if !can_mount() {
        return;
    }
    let runner = Runner::new();
    fs::create_dir(runner.path("project")).unwrap();
    fs::write(runner.path("project/Makefile"), "x:\n\techo this is why >&2; false\n").unwrap();
    runner
        .run(
            "apps --dir DIR --size 64M --target tmpfs --turns 2 --no-control --out DIR/run.json --apps compile,tar --tree DIR/project \
             --project DIR/project",
        )
        .unwrap_err();
    let run = runner.result("run.json");
    assert_eq!((run.failures.len(), run.failures[0].case.as_deref()), (1, Some("compile")));
    assert!(run.failures[0].message.contains("this is why"), "{:?}", run.failures);
    assert_eq!(run.values("tmpfs", "tar-gzip-compress").len(), 2);
    assert!(runner.error("apps --target tmpfs --tree DIR/nowhere").contains("no directory"));
    assert!(runner.error("apps --target tmpfs --apps compile --out DIR/x.json").contains("--project"));
}
