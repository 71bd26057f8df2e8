//! `volume top` on a volume that works.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::rc::Rc;

use common::Desk;
use common::machine::content;
use common::session::Session;
use serde_json::Value;

#[test]
fn top_shows_what_happens_in_its_intervals() {
    skip_without_devices!();
    let desk = Rc::new(Desk::new());
    desk.create("");
    let unknown = desk.run("volume top disk --once");
    assert_eq!(unknown.code, 2, "{}", unknown.error);
    assert!(unknown.error.contains("no volume is attached as disk"), "{}", unknown.error);
    assert_eq!(desk.done("volume top --once --interval 1ms"), "no volume is attached\n");

    let session = Session::attach(&desk, false);
    let file = File::options().write(true).open(&session.file).unwrap();
    let mut top = desk.command("volume top disk --json --interval 300ms --count 4");
    let top = top.stdout(Stdio::piped()).spawn().unwrap();
    // Written in pieces, so that some fall into its intervals.
    for round in 0..10 {
        file.write_all_at(&content(round, 1 << 16), round << 16).unwrap();
        file.sync_all().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let said = top.wait_with_output().unwrap();
    assert!(said.status.success());
    let lines: Vec<Value> = String::from_utf8(said.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 4, "{lines:#?}");
    let sum = |value: fn(&Value) -> f64| -> f64 {
        lines.iter().map(|line| value(line) * line["seconds"].as_f64().unwrap()).sum()
    };
    let written = sum(|line| line["written-bytes-per-second"].as_f64().unwrap());
    assert!((f64::from(1 << 16)..=f64::from(10 << 16)).contains(&written), "{written}");
    assert!(sum(|line| line["commits-per-second"].as_f64().unwrap()) >= 1.0, "{lines:#?}");
    let has_write = |line: &Value| {
        let requests = line["requests"].as_array().unwrap();
        let write = requests.iter().find(|one| one["kind"] == "write").unwrap();
        write["p50-nanoseconds"]
            .as_u64()
            .is_some_and(|p50| p50 > 0 && p50 <= write["p99-nanoseconds"].as_u64().unwrap())
    };
    assert!(lines.iter().any(has_write), "{lines:#?}");

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
