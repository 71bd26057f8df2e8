//! Several that want the same at the same moment: one has it, and the others are told so.

use std::process::{Child, Stdio};

use crate::common::Desk;
use crate::common::machine::{has_ended, wait_for};
use crate::common::session::leave_nothing;
use serde_json::Value;

const AT_ONCE: usize = 6;

/// Takes away what is still there, whatever the test did.
struct Clean(Desk);

impl Drop for Clean {
    fn drop(&mut self) {
        leave_nothing(&self.0);
    }
}

/// A desk with a volume on it.
fn created() -> Clean {
    let clean = Clean(Desk::new());
    clean.0.create("");
    clean
}

fn begin(desk: &Desk, arguments: &str) -> Child {
    let mut command = desk.command(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Exit codes and errors, and what the only one who succeeded said.
fn outcome(all: Vec<Child>) -> (Vec<(i32, String)>, Vec<Value>) {
    let (mut refused, mut ready) = (Vec::new(), Vec::new());
    for child in all {
        let said = child.wait_with_output().unwrap();
        match said.status.success() {
            true => ready.push(serde_json::from_slice(&said.stdout).unwrap()),
            false => refused
                .push((said.status.code().unwrap_or(-1), String::from_utf8_lossy(&said.stderr).into_owned())),
        }
    }
    (refused, ready)
}

/// What the only one said who succeeded. All others were refused with `why`.
fn only_one(all: Vec<Child>, why: &str) -> Value {
    let (refused, mut ready) = outcome(all);
    assert_eq!(ready.len(), 1, "{refused:?}");
    check_refused(&refused, why);
    ready.remove(0)
}

fn check_refused(refused: &[(i32, String)], why: &str) {
    for (code, error) in refused {
        assert!(*code == 2 && error.contains(why), "{code}, {error}");
    }
}

fn process(ready: &Value) -> u32 {
    u32::try_from(ready["process"].as_u64().unwrap()).unwrap()
}

#[test]
fn one_of_many_has_the_name_and_the_others_touch_nothing_of_it() {
    crate::skip_without_devices!();
    let clean = created();
    let desk = &clean.0;
    for round in 0..5 {
        let all = (0..AT_ONCE).map(|_| begin(desk, "volume attach disk.img --key-file key --json"));
        let ready = only_one(all.collect(), "attached as disk already");
        // What the others did has taken nothing from it.
        let process = process(&ready);
        let status: Value = serde_json::from_str(&desk.done("volume status disk --json")).unwrap();
        assert_eq!(status["process"], process);
        assert_eq!(
            std::fs::read(desk.path("run/disk/disk")).unwrap().len() as u64,
            ready["size"].as_u64().unwrap()
        );
        desk.done("volume detach disk");
        wait_for("the daemon's end", || has_ended(process));
        assert!(!desk.path("run/disk").exists(), "round {round}: something is left");
    }
}

#[test]
fn one_of_many_has_the_store_and_the_others_leave_nothing() {
    crate::skip_without_devices!();
    let clean = created();
    let desk = &clean.0;
    for _ in 0..3 {
        let all = (0..AT_ONCE).map(|number| {
            begin(desk, &format!("volume attach disk.img --key-file key --json --name n{number}"))
        });
        let ready = only_one(all.collect(), "attached already");
        let name = ready["name"].as_str().unwrap();
        desk.done(&format!("volume detach {name}"));
        wait_for("the daemon's end", || has_ended(process(&ready)));
        let left = || std::fs::read_dir(desk.path("run")).unwrap().count();
        wait_for("those who were refused to be gone", || left() == 0);
    }
}

/// The one who detaches takes his directory away while the next one comes.
#[test]
fn an_attach_during_a_detach_has_the_volume_or_says_why_not() {
    crate::skip_without_devices!();
    let clean = created();
    let desk = &clean.0;
    desk.done("volume attach disk.img --key-file key --json");
    for round in 0..8 {
        let detaching = begin(desk, "volume detach disk --json");
        std::thread::sleep(std::time::Duration::from_millis(round * 5));
        let all = (0..3).map(|_| begin(desk, "volume attach disk.img --key-file key --json"));
        let (refused, ready) = outcome(all.collect());
        let detached = detaching.wait_with_output().unwrap();
        assert!(detached.status.success(), "round {round}: {}", String::from_utf8_lossy(&detached.stderr));
        assert!(ready.len() <= 1, "round {round}");
        check_refused(&refused, "already");
        match ready.first() {
            Some(ready) => {
                assert!(desk.done("volume status disk --json").contains(&process(ready).to_string()))
            }
            None => drop(desk.done("volume attach disk.img --key-file key --json")),
        }
    }
    desk.done("volume detach disk");
}
