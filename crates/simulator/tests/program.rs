//! The program as people use it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// As with `| head`, or a pager that is left early.
#[test]
fn a_trace_that_nobody_reads_to_its_end_is_no_defect() {
    let mut replay = Command::new(env!("CARGO_BIN_EXE_simulator"))
        .args(["replay", "--seed", "7"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut trace = BufReader::new(replay.stdout.take().expect("piped"));
    let mut first = String::new();
    trace.read_line(&mut first).expect("a line");
    assert!(!first.is_empty());
    drop(trace);
    let ended = replay.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}
