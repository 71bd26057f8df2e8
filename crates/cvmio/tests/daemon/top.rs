//! `volume top` on a volume that works.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::rc::Rc;

use crate::common::Desk;
use crate::common::machine::content;
use crate::common::session::Session;
use serde_json::Value;

#[test]
fn top_shows_what_happens_in_its_intervals() {
    crate::skip_without_devices!();
    let desk = Rc::new(Desk::new());
    desk.create("");
    let unknown = desk.run("volume top disk --once");
    assert_eq!(unknown.code, 2, "{}", unknown.error);
    assert!(unknown.error.contains("no volume is attached as disk"), "{}", unknown.error);
    assert_eq!(desk.done("volume top --once --interval 1ms"), "no volume is attached\n");

    let session = Session::attach(&desk, false);
    let file = File::options().write(true).open(&session.file).unwrap();
    let mut top = desk.command("volume top disk --json --interval 100ms");
    let mut top = top.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut lines: Vec<Value> = Vec::new();
    let sum = |lines: &[Value], value: fn(&Value) -> f64| -> f64 {
        lines.iter().map(|line| value(line) * line["seconds"].as_f64().unwrap()).sum()
    };
    let written = |line: &Value| line["written-bytes-per-second"].as_f64().unwrap();
    let commits = |line: &Value| line["commits-per-second"].as_f64().unwrap();
    let has_write = |line: &Value| {
        let requests = line["requests"].as_array().unwrap();
        let write = requests.iter().find(|one| one["kind"] == "write").unwrap();
        write["p50-nanoseconds"]
            .as_u64()
            .is_some_and(|p50| p50 > 0 && p50 <= write["p99-nanoseconds"].as_u64().unwrap())
    };
    // A piece in each interval, or in some: how long the disk takes for one, nobody knows.
    let mut pieces: u32 = 0;
    while sum(&lines, written) < f64::from(4 << 16) || sum(&lines, commits) < 1.0 {
        assert!(pieces < 100, "{lines:#?}");
        lines.push(serde_json::from_str(&said.next().unwrap().unwrap()).unwrap());
        file.write_all_at(&content(pieces.into(), 1 << 16), u64::from(pieces % 16) << 16).unwrap();
        file.sync_all().unwrap();
        pieces += 1;
    }
    assert!(sum(&lines, written) <= f64::from(pieces << 16), "{lines:#?}");
    assert!(lines.iter().any(has_write), "{lines:#?}");
    top.kill().unwrap();
    top.wait().unwrap();
    let four = desk.done("volume top disk --json --interval 10ms --count 4");
    assert_eq!(four.lines().count(), 4, "{four}");

    // What was done before counts for nothing, but stays in the sums.
    let text = desk.done("volume top --once --interval 50ms");
    assert!(
        text.starts_with("disk: ") && text.contains("0.0 commits/s") && !text.contains("ERRORS"),
        "{text}"
    );

    // Whoever watches is told no lie when the volume goes.
    let mut top = desk.command("volume top disk --interval 50ms");
    let mut top = top.stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    drop(file);
    session.detach();
    assert!(top.wait().unwrap().success());
}
