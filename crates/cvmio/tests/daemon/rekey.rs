//! A new volume key, from the command line: at once, in the background, and what the old header is worth then.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::Desk;
use serde_json::Value;

const BLOCK: usize = 4096;

/// What block `block` of the device holds.
fn content(block: u64) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(block % 251).unwrap() + 1; BLOCK];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes
}

/// The attached volume's file.
fn device(desk: &Desk) -> File {
    let path = desk.path("run/disk/disk");
    File::options().read(true).write(true).open(path).unwrap()
}

fn attached(desk: &Desk, work: impl FnOnce(&File)) {
    desk.done("volume attach disk.img --key-file key");
    work(&device(desk));
    desk.done("volume detach disk");
}

fn fill(desk: &Desk, blocks: u64) {
    attached(desk, |device| {
        (0..blocks).for_each(|block| device.write_all_at(&content(block), block * BLOCK as u64).unwrap());
        device.sync_all().unwrap();
    });
}

fn compare(device: &File, blocks: u64) {
    let mut bytes = vec![0; BLOCK];
    for block in 0..blocks {
        device.read_exact_at(&mut bytes, block * BLOCK as u64).unwrap();
        assert!(bytes == content(block), "block {block}");
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn at_once_and_the_old_header_is_worth_nothing() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    fill(&desk, 500);
    desk.done("volume key add disk.img --key-file key --new-key-file other --label second");
    desk.done("volume header backup disk.img old.header --key-file key");
    let before = desk.read("disk.img");
    let said = desk.run("volume rekey disk.img --key-file key");
    assert_eq!(said.code, 2, "{said:?}");
    assert!(said.error.contains("1 (\"second\")"), "{}", said.error);
    assert!(desk.read("disk.img") == before, "a refused change of key wrote to the store");

    let said = desk.run("volume rekey disk.img --key-file key --remove-other-slots");
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.error.contains("key slot 1 second was removed"), "{}", said.error);
    assert!(said.out.starts_with("500 blocks sealed anew"), "{}", said.out);
    assert_eq!(desk.done("volume key list disk.img"), "slot  0  key-file  first\n");
    assert_eq!(desk.run("volume check disk.img --key-file other").code, 10);
    desk.done("volume check disk.img --key-file key");
    attached(&desk, |device| compare(device, 500));

    let said = desk.run("volume header restore disk.img old.header --key-file key");
    assert_eq!(said.code, 5, "{said:?}");
    let now = desk.read("disk.img");
    desk.write("disk.img", &[&before[..4 * BLOCK], &now[4 * BLOCK..]].concat());
    assert_eq!(desk.run("volume check disk.img --key-file key").code, 5, "the old header was put back");
    desk.write("disk.img", &before);
    assert_eq!(desk.run("volume check disk.img --key-file key").code, 5, "the old image was put back");
}

#[test]
fn in_the_background_of_an_attached_volume() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    fill(&desk, 800);
    desk.done("volume key add disk.img --key-file key --new-key-file other --label second");
    let begun = json(&desk.done("volume rekey disk.img --key-file key --keep-key-file other --begin --json"));
    assert!(begun["ended"] == false && begun["removed-slots"] == Value::Array(Vec::new()), "{begun}");
    assert_eq!(begun["slots"].as_array().unwrap().len(), 2, "{begun}");
    attached(&desk, |device| {
        compare(device, 800);
        let ended = json(&desk.done("volume rekey disk --json"));
        assert_eq!(ended["ended"], true, "{ended}");
        let status = json(&desk.done("volume status disk --json"));
        assert_eq!(status["volume"]["rekeying"], false, "{status}");
        assert_eq!(
            (&status["rekey"]["stage"], &status["rekey"]["of"]),
            (&"done".into(), &800.into()),
            "{status}"
        );
        assert!(desk.done("volume status disk").contains("the old key opens nothing"));
        assert_eq!(desk.run("volume rekey disk").code, 0, "it has ended");
        compare(device, 800);
    });
    desk.done("volume check disk.img --key-file other");
}

/// A number and its block in each place that one user writes to, over and over.
fn use_it(device: &File, first: u64, stop: &AtomicBool) -> u64 {
    const PLACES: u64 = 64;
    let (mut round, mut bytes) = (0, vec![0; BLOCK]);
    while !stop.load(Ordering::SeqCst) {
        for place in first..first + PLACES {
            device.write_all_at(&content(place + round), place * BLOCK as u64).unwrap();
        }
        if round % 4 == 0 {
            device.sync_data().unwrap();
        }
        for place in first..first + PLACES {
            device.read_exact_at(&mut bytes, place * BLOCK as u64).unwrap();
            assert!(bytes == content(place + round), "block {place} in round {round}");
        }
        round += 1;
    }
    round
}

#[test]
fn an_attached_volume_gets_a_new_key_beside_its_users() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    fill(&desk, 2000);
    desk.done("volume key add disk.img --key-file key --new-key-file other --label second");
    desk.write("wrong", &[9; 64]);
    let before = desk.read("disk.img");
    desk.done("volume attach disk.img --key-file key --queues 2");
    let (device, stop) = (device(&desk), AtomicBool::new(false));
    let session = |desk: &Desk| json(&desk.done("volume status disk --json"))["volume"]["claims"].clone();
    let rounds: Vec<u64> = std::thread::scope(|scope| {
        let users: Vec<_> = [3000, 3100]
            .map(|first| {
                scope.spawn({
                    let (device, stop) = (&device, &stop);
                    move || use_it(device, first, stop)
                })
            })
            .into();
        // However a claim below fails, the users end.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let claims = session(&desk);
            let refused = |options: &str, code, why: &str| {
                let said = desk.run(&format!("volume rekey disk {options}"));
                assert!(said.code == code && said.error.contains(why), "{options}: {said:?}");
                assert_eq!(session(&desk), claims, "the session ended for nothing");
            };
            refused("--key-file wrong", 10, "");
            refused("--key-file key", 2, "1 (\"second\")");
            refused("--key-file key --force", 2, "--force is for a volume that is not attached");
            let changed = json(&desk.done("volume rekey disk --key-file key --keep-key-file other --json"));
            assert!(changed["ended"] == true && changed["slots"].as_array().unwrap().len() == 2, "{changed}");
            assert_ne!(session(&desk), claims, "this takes a session of its own");
            assert_eq!(desk.run("volume rekey disk").code, 0, "it has ended");
            // Once more, in the same daemon.
            let said = desk.run("volume rekey disk --key-file other --remove-other-slots --begin");
            assert!(said.code == 0 && said.error.contains("key slot 0 first was removed"), "{said:?}");
            desk.done("volume rekey disk");
        }));
        stop.store(true, Ordering::SeqCst);
        let rounds = users.into_iter().map(|user| user.join().unwrap()).collect();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        rounds
    });
    assert!(rounds.iter().all(|rounds| *rounds > 1), "{rounds:?}");
    compare(&device, 2000);
    drop(device);
    desk.done("volume detach disk");
    desk.done("volume check disk.img --key-file other");
    assert_eq!(desk.run("volume check disk.img --key-file key").code, 10);
    desk.write("disk.img", &before);
    assert_eq!(desk.run("volume check disk.img --key-file other").code, 5, "the old image was put back");
}

/// What the daemon says to whoever asks it, sooner than a command could.
fn ask(desk: &Desk) -> Value {
    let mut stream = UnixStream::connect(desk.path("run/disk/control")).unwrap();
    stream.write_all(b"{\"command\":\"status\"}\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    json(&answer)["ok"]["report"]["rekey"].take()
}

/// A metric of the change of key, in blocks.
fn metric(desk: &Desk, name: &str) -> u64 {
    let mut stream = UnixStream::connect(desk.path("metrics.sock")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let sample = format!("cvmio_rekey_{name}{{name=\"disk\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&sample)).unwrap_or_else(|| panic!("{page}"));
    value.parse::<u64>().unwrap() / BLOCK as u64
}

/// From the beginning to the end, beside users, who make it slow enough to be watched.
#[test]
fn who_watches_sees_how_far_it_is() {
    crate::skip_without_devices!();
    const BLOCKS: u64 = 12_000;
    let desk = Desk::new();
    let anchor = desk.path("anchor");
    desk.done(&format!(
        "volume create disk.img --size 64M --key-file key --anchor file:{}",
        anchor.display()
    ));
    fill(&desk, BLOCKS);
    desk.done("volume attach disk.img --key-file key --metrics unix:metrics.sock");
    assert!(ask(&desk).is_null(), "nothing is under way");
    let (device, stop) = (device(&desk), AtomicBool::new(false));
    let (mut seen, mut shown) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        let user = scope.spawn(|| use_it(&device, BLOCKS - 64, &stop));
        // However a claim below fails, the user ends.
        let watched = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            desk.done("volume rekey disk --key-file key --begin");
            loop {
                let standing = ask(&desk);
                let number = |key: &str| standing[key].as_u64().unwrap();
                assert_eq!(number("of"), BLOCKS, "{standing}");
                if standing["stage"] == "done" {
                    break;
                }
                assert_eq!(standing["stage"], "running", "{standing}");
                seen.push(number("blocks"));
                let (done, then) = (metric(&desk, "done_bytes"), ask(&desk)["blocks"].as_u64().unwrap());
                assert!(
                    number("blocks") <= done && done <= then,
                    "{done} is not between {standing} and {then}"
                );
                assert_eq!(metric(&desk, "size_bytes"), BLOCKS);
                if shown == 0 && number("blocks") > 0 {
                    let line = json(&desk.done("volume top disk --once --interval 1ms --json"));
                    let text = desk.done("volume status disk");
                    let (done, of) = (&line["rekey"]["done-bytes"], &line["rekey"]["size-bytes"]);
                    shown += u64::from(text.contains(" % sealed anew"));
                    assert!(of == BLOCKS * BLOCK as u64 && done.as_u64() > Some(0), "{line}");
                }
            }
        }));
        stop.store(true, Ordering::SeqCst);
        user.join().unwrap();
        watched.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(seen.is_sorted(), "it went back: {seen:?}");
    let between = seen.iter().filter(|blocks| (1..BLOCKS).contains(blocks)).count();
    assert!(seen[0] < BLOCKS / 2 && between >= 5 && seen.last() > Some(&(BLOCKS / 2)), "{seen:?}");
    assert_eq!(shown, 1);
    let ended = ask(&desk);
    assert_eq!(
        (&ended["blocks"], &ended["seconds-left"], &ended["rate"]),
        (&BLOCKS.into(), &Value::Null, &0.into())
    );
    assert_eq!((metric(&desk, "done_bytes"), metric(&desk, "size_bytes")), (BLOCKS, BLOCKS));
    // But for what users have overwritten, which is under the new key for that.
    let resealed = ended["resealed-blocks"].as_u64().unwrap();
    assert!((BLOCKS - 64..=BLOCKS).contains(&resealed), "{ended}");
    drop(device);
    desk.done("volume detach disk");
}

#[test]
fn a_daemon_that_is_killed_between_two_sessions_loses_nothing() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    fill(&desk, 500);
    let mut begun = 0;
    for (round, milliseconds) in (0..).zip([20, 40, 60, 80, 110, 150, 200, 300]) {
        desk.done("volume attach disk.img --key-file key");
        let flushed = 500 + round;
        let user = device(&desk);
        user.write_all_at(&content(flushed), flushed * BLOCK as u64).unwrap();
        user.sync_all().unwrap();
        drop(user);
        let status = json(&desk.done("volume status disk --json"));
        let daemon = i32::try_from(status["process"].as_i64().unwrap()).unwrap();
        let mut child = desk.command("volume rekey disk --key-file key").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        let daemon = rustix::process::Pid::from_raw(daemon).unwrap();
        rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
        child.wait().unwrap();
        desk.run("volume detach disk");
        desk.done("volume attach disk.img --key-file key");
        begun += u64::from(json(&desk.done("volume status disk --json"))["volume"]["rekeying"] == true);
        compare(&device(&desk), flushed + 1);
        desk.done("volume detach disk");
    }
    eprintln!("{begun} of 8 had begun, and not ended");
    let said = desk.run("volume rekey disk.img --key-file key");
    assert_eq!(said.code, 0, "{said:?}");
    desk.done("volume check disk.img --key-file key");
}

#[test]
fn interrupted_it_is_gone_on_from_by_the_same_command() {
    crate::skip_without_devices!();
    let desk = Desk::new();
    desk.create("");
    fill(&desk, 3000);
    // At whatever moment it is, nothing is lost, and in the end it comes to its end.
    for milliseconds in [5, 20, 60, 120] {
        let mut child = desk.command("volume rekey disk.img --key-file key").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        let process = rustix::process::Pid::from_child(&child);
        // Twice by a signal that it hears, twice by one that it does not.
        let signal =
            if milliseconds < 50 { rustix::process::Signal::TERM } else { rustix::process::Signal::KILL };
        let _ = rustix::process::kill_process(process, signal);
        let begun = Instant::now();
        child.wait().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not hear");
        attached(&desk, |device| compare(device, 3000));
    }
    let said = desk.run("volume rekey disk.img --key-file key --force");
    assert_eq!(said.code, 0, "{said:?}");
    desk.done("volume check disk.img --key-file key");
    attached(&desk, |device| compare(device, 3000));
}

#[test]
fn at_level_transaction_it_is_refused_and_says_why() {
    let desk = Desk::new();
    desk.create("--freshness transaction");
    let said = desk.run("volume rekey disk.img --key-file key");
    assert!(said.code == 2 && said.error.contains("level transaction cannot be re-keyed"), "{said:?}");
}
