//! A volume's content as a sealed stream: to a file, through a pipe, cut short, gone on with, refused.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use crate::common::machine::{content, sh};
use crate::common::{Desk, Said};
use serde_json::Value;

const EXPORT: &str = "volume export disk.img --key-file key --stream-key-file stream.key";
/// Of an own suite, level and provision, so that nothing but the content is the same.
const IMPORT: &str =
    "--to new.img --stream-key-file stream.key --key-file other --provision thin --suite aegis-128x2";
const SIZE: usize = 64 << 20;
const SIGTERM: i32 = 15;

/// What is in the volume: data with holes in between.
fn expected() -> Vec<u8> {
    let mut all = vec![0; SIZE];
    for (at, seed, length) in
        [(0, 1, 4096), (3 << 20, 2, 9 << 20), (20 << 20, 3, 12_288), (48 << 20, 4, 16 << 20)]
    {
        all[at..at + length].copy_from_slice(&content(seed, length));
    }
    all
}

/// A volume with that, and a key for streams.
fn filled() -> Desk {
    let desk = Desk::new();
    desk.write("stream.key", &[9; 40]);
    let anchor = desk.path("anchor");
    let anchor = anchor.display();
    desk.done(&format!(
        "volume create disk.img --size 64M --key-file key --provision thin --anchor file:{anchor}"
    ));
    desk.done("volume attach disk.img --key-file key");
    let device = File::options().write(true).open(desk.path("run/disk/disk")).unwrap();
    let all = expected();
    for (number, block) in
        all.chunks(1 << 20).enumerate().filter(|(_, block)| block.iter().any(|byte| *byte != 0))
    {
        let used = block.len() - block.iter().rev().take_while(|byte| **byte == 0).count();
        let used = used.next_multiple_of(4096);
        device.write_all_at(&block[..used], (number as u64) << 20).unwrap();
    }
    device.sync_all().unwrap();
    drop(device);
    desk.done("volume detach disk");
    desk
}

/// The arguments of an import, with an anchor.
fn import(desk: &Desk, from: &str) -> String {
    format!("volume import {from} {IMPORT} --anchor file:{}", desk.path("new.anchor").display())
}

fn holds_the_same(desk: &Desk) {
    desk.done("volume attach new.img --key-file other --name new");
    let found = fs::read(desk.path("run/new/disk")).unwrap();
    desk.done("volume detach new");
    assert!(found == expected(), "the new volume holds something else");
}

/// Data and map are all that a thin store has.
fn is_as_thin(desk: &Desk) {
    let taken = fs::metadata(desk.path("new.img")).unwrap().blocks() * 512;
    assert!(taken < 36 << 20, "{taken} bytes are taken");
}

fn json(said: &Said) -> Value {
    assert_eq!(said.code, 0, "{}", said.error);
    serde_json::from_str(&said.out).unwrap()
}

#[test]
fn a_volume_goes_through_a_file_into_a_new_volume() {
    crate::skip_without_devices!();
    let desk = filled();
    let before = ["disk.img", "anchor"].map(|name| desk.read(name));
    let exported = json(&desk.run(&format!("{EXPORT} --to a.stream --json")));
    assert!(["disk.img", "anchor"].map(|name| desk.read(name)) == before, "the export has changed something");
    let length = fs::metadata(desk.path("a.stream")).unwrap();
    assert_eq!((exported["bytes"].as_u64(), length.mode() & 0o777), (Some(length.len()), 0o600));
    assert!((25 << 20..26 << 20).contains(&length.len()), "{}", length.len());
    assert_eq!(exported["size"], SIZE as u64);
    let state = exported["state"].as_str().unwrap();

    let wrong = desk.run(&format!("{} --expect 7:0123456789abcdef", import(&desk, "a.stream")));
    assert_eq!(wrong.code, 5, "{}", wrong.error);
    assert!(["new.img", "new.anchor", "new.img.policy.toml"].iter().all(|name| !desk.path(name).exists()));
    let imported = json(&desk.run(&format!("{} --expect {state} --json", import(&desk, "a.stream"))));
    assert_eq!(
        (&imported["from"]["state"], &imported["from"]["volume"]),
        (&exported["state"], &exported["volume"])
    );
    assert_ne!(imported["volume"]["volume"], exported["volume"], "the new volume has an id of its own");
    assert_eq!(imported["volume"]["suite"], "aegis-128x2");
    assert_eq!(
        (imported["data-bytes"].as_u64(), imported["kept-bytes"].as_u64()),
        (Some((25 << 20) + 16_384), Some(0))
    );
    assert!(!desk.path("new.img.policy.toml.importing").exists());
    assert_eq!(
        desk.run("volume check new.img --key-file key").code,
        10,
        "the new volume has a key of its own"
    );
    holds_the_same(&desk);
    is_as_thin(&desk);
    // Beside somebody who reads it, on the same machine.
    desk.done("volume attach disk.img --key-file key --read-only");
    let beside = desk.run(&format!("{EXPORT} --to b.stream"));
    desk.done("volume detach disk");
    assert_eq!(beside.code, 0, "{}", beside.error);
    let again = desk.run(&format!("{EXPORT} --to a.stream --resume"));
    assert!(again.code == 0 && again.out.contains("were there already"), "{again:?}");
}

#[test]
fn a_volume_goes_through_a_pipe() {
    crate::skip_without_devices!();
    let desk = filled();
    let mut export = desk.command(&format!("{EXPORT} --to -")).stdout(Stdio::piped()).spawn().unwrap();
    let from = export.stdout.take().unwrap();
    let imported = desk.command(&import(&desk, "-")).stdin(from).output().unwrap();
    assert!(export.wait().unwrap().success());
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    holds_the_same(&desk);
    is_as_thin(&desk);
    let said = desk.run(&format!("{EXPORT} --to - --json"));
    assert!(said.code == 2 && said.out.is_empty(), "{said:?}");
    let said = desk.run("volume import - --to x.img --stream-key-file - --key-file key --freshness off");
    assert!(said.code == 2 && said.error.contains("standard input"), "{said:?}");
}

/// Tells a program to end, and sees that it did.
fn terminate(mut child: Child) {
    sh(&format!("kill -TERM {}", child.id()));
    assert_eq!(child.wait().unwrap().signal(), Some(SIGTERM));
}

#[test]
fn what_was_ended_half_way_goes_on() {
    crate::skip_without_devices!();
    let desk = filled();
    desk.done(&format!("{EXPORT} --to whole.stream"));
    let mut export = desk.command(&format!("{EXPORT} --to -")).stdout(Stdio::piped()).spawn().unwrap();
    let mut part = vec![0; 7_654_321];
    let mut from = export.stdout.take().unwrap();
    from.read_exact(&mut part).unwrap();
    terminate(export);
    from.read_to_end(&mut part).unwrap();
    desk.write("a.stream", &part);
    let cut = desk.run(&import(&desk, "a.stream"));
    assert!(cut.code == 3 && cut.error.contains("in chunk 7 ("), "{cut:?}");
    let resumed = json(&desk.run(&format!("{EXPORT} --to a.stream --resume --json")));
    let (kept, bytes) = (resumed["kept-bytes"].as_u64().unwrap(), resumed["bytes"].as_u64().unwrap());
    assert!(kept > 6 << 20 && kept <= part.len() as u64 && bytes > 25 << 20, "{resumed}");
    assert_eq!(
        desk.read("a.stream")[..usize::try_from(kept).unwrap()],
        part[..usize::try_from(kept).unwrap()]
    );

    // The import, ended in the middle, is no volume yet.
    let stream = desk.read("a.stream");
    for upto in [10 << 20, 20 << 20] {
        let mut child = desk.command(&import(&desk, "-")).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.as_mut().unwrap().write_all(&stream[..upto]).unwrap();
        terminate(child);
        let refused = desk.run("volume attach new.img --key-file other --name new");
        assert!(refused.code == 11 && refused.error.contains("volume import"), "{refused:?}");
    }
    let other = desk.run(&format!("{} --freshness write", import(&desk, "a.stream")));
    assert!(other.code == 2 && other.error.contains("other options"), "{other:?}");
    let imported = json(&desk.run(&format!("{} --json", import(&desk, "a.stream"))));
    assert!(imported["kept-bytes"].as_u64() > Some(0), "{imported}");
    holds_the_same(&desk);
}

#[test]
fn a_stream_is_verified_without_a_volume() {
    crate::skip_without_devices!();
    const CHECK: &str = "--check --stream-key-file stream.key";
    let desk = filled();
    let exported = json(&desk.run(&format!("{EXPORT} --to a.stream --json")));
    let state = exported["state"].as_str().unwrap();
    let files = || {
        let mut names: Vec<_> =
            fs::read_dir(desk.path("")).unwrap().map(|file| file.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = (files(), desk.read("disk.img"));
    let checked = json(&desk.run(&format!("volume import a.stream {CHECK} --expect {state} --json")));
    for same in ["volume", "state", "size", "bytes"] {
        assert_eq!(checked[same], exported[same], "{same}");
    }
    assert_eq!(
        (&checked["data-bytes"], &checked["chunks"]),
        (&((25 << 20) + 16_384).into(), &26.into()),
        "{checked}"
    );
    let said = desk.done(&format!("volume import a.stream {CHECK}"));
    assert!(said.contains("the stream is whole") && said.contains(state), "{said}");
    let piped = desk
        .command(&format!("volume import - {CHECK}"))
        .stdin(File::open(desk.path("a.stream")).unwrap())
        .output();
    assert!(piped.unwrap().status.success());

    let refused = |arguments: &str, code, why: &str| {
        let said = desk.run(&format!("volume import {arguments}"));
        assert!(
            said.code == code && said.error.contains(why) && said.out.is_empty(),
            "{arguments}: {said:?}"
        );
    };
    refused(&format!("a.stream {CHECK} --expect 7:0123456789abcdef"), 5, "is expected");
    refused("a.stream --check --stream-key-file other", 10, "does not open with this");
    refused(&format!("disk.img {CHECK}"), 2, "no stream");
    refused(&format!("nothing.stream {CHECK}"), 2, "cannot be read");
    refused(&format!("a.stream {CHECK} --to new.img"), 2, "--to");
    refused(&format!("a.stream {CHECK} --key-file key"), 2, "--key-file");
    refused("a.stream --stream-key-file stream.key", 2, "--to");
    assert!((files(), desk.read("disk.img")) == before, "a check has left something");

    let whole = desk.read("a.stream");
    let check = |bytes: &[u8], code, why: &str| {
        desk.write("b.stream", bytes);
        refused(&format!("b.stream {CHECK}"), code, why);
    };
    check(&whole[..100], 3, "ends in its header");
    check(&whole[..whole.len() - 1], 3, "was cut short: it ends in chunk 25");
    check(&whole[..whole.len() / 2], 3, "was cut short: it ends in chunk");
    check(&[&whole[..], b"x"].concat(), 4, "something follows the last chunk");
    let last = whole.len() - 1;
    for (at, why) in
        [(5000, "header was changed"), (whole.len() / 2, "does not verify"), (last, "chunk 25 of the stream")]
    {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        check(&bytes, 4, why);
    }
}

/// What an import works on.
fn made(desk: &Desk) -> [Vec<u8>; 3] {
    ["new.img", "new.anchor", "new.img.policy.toml"].map(|name| desk.read(name))
}

#[test]
fn an_import_that_had_ended_says_so_and_touches_nothing() {
    crate::skip_without_devices!();
    let desk = filled();
    desk.done(&format!("{EXPORT} --to a.stream"));
    let first = json(&desk.run(&format!("{} --json", import(&desk, "a.stream"))));
    assert_eq!(first["done-already"], false);
    let before = made(&desk);
    // As if it had been cut right behind its last step.
    let again = json(&desk.run(&format!("{} --json", import(&desk, "a.stream"))));
    assert_eq!(
        (&again["done-already"], &again["volume"], &again["kept-bytes"]),
        (&Value::Bool(true), &first["volume"], &first["data-bytes"])
    );
    let text = desk.run(&import(&desk, "a.stream"));
    assert!(text.code == 0 && text.out.contains("had ended before"), "{text:?}");
    let refused = |command: &str, code: i32, words: &[&str]| {
        let before = made(&desk);
        let said = desk.run(command);
        let said_all = words.iter().all(|word| said.error.contains(word));
        assert!(said.code == code && said_all, "cvmio {command}: {said:?}");
        assert!(made(&desk) == before, "cvmio {command}: something has changed");
    };
    let there = "there is a policy at new.img.policy.toml already";
    // Another option, another key, another stream, somebody who has it.
    refused(&format!("{} --freshness write", import(&desk, "a.stream")), 2, &[there]);
    refused(
        &import(&desk, "a.stream").replace("--key-file other", "--key-file key"),
        10,
        &["key slot", there],
    );
    let cut = desk.read("a.stream");
    desk.write("cut.stream", &cut[..cut.len() - 1]);
    refused(&import(&desk, "cut.stream"), 3, &["chunk", there]);
    assert!(made(&desk) == before);
    desk.done("volume attach new.img --key-file other --name new");
    refused(&import(&desk, "a.stream"), 2, &["attached already", there]);
    let device = File::options().write(true).open(desk.path("run/new/disk")).unwrap();
    device.write_all_at(&[1; 4096], 5 << 20).unwrap();
    device.sync_all().unwrap();
    drop(device);
    desk.done("volume detach new");
    // It has been used since.
    refused(&import(&desk, "a.stream"), 2, &["something else than the stream, in logical blocks", there]);
}

/// From the last bytes of the stream to the exit: what is left then is the end of the copy, the detach, the rename and the report.
#[test]
fn an_import_that_is_killed_at_any_time_near_its_end_is_done_by_the_next() {
    crate::skip_without_devices!();
    let desk = filled();
    desk.done(&format!("{EXPORT} --to a.stream"));
    let stream = desk.read("a.stream");
    let (mut unfinished, mut ended) = (0, 0);
    for round in 0..24 {
        let mut child = desk.command(&import(&desk, "-"));
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(&stream).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(round * 8));
        child.kill().unwrap();
        child.wait().unwrap();
        match desk.path("new.img.policy.toml").exists() {
            true => ended += 1,
            false => unfinished += 1,
        }
        let done = json(&desk.run(&format!("{} --json", import(&desk, "a.stream"))));
        assert_eq!(done["volume"]["suite"], "aegis-128x2");
        assert!(!desk.path("new.img.policy.toml.importing").exists());
        holds_the_same(&desk);
        for name in ["new.img", "new.anchor", "new.img.policy.toml"] {
            fs::remove_file(desk.path(name)).unwrap();
        }
    }
    println!("killed before the end {unfinished} times, behind it {ended} times");
    assert!(unfinished > 0, "nothing was cut");
}

#[test]
fn an_import_that_was_cut_while_it_made_the_volume_goes_on_but_not_on_a_blanked_store() {
    crate::skip_without_devices!();
    let desk = filled();
    desk.done(&format!("{EXPORT} --to a.stream"));
    let stream = desk.read("a.stream");
    desk.write("cut.stream", &stream[..stream.len() - 1]);
    let begin = || assert_eq!(desk.run(&import(&desk, "cut.stream")).code, 3);
    begin();
    let policy = desk.read("new.img.policy.toml.importing");
    // The host shows another disk.
    let length = desk.read("new.img").len();
    desk.write("new.img", &vec![0; length]);
    let said = desk.run(&import(&desk, "a.stream"));
    assert!(said.code == 5 && said.error.contains("suspect the host"), "{said:?}");
    // Everything but the note of what was begun, as if it had been cut right behind it.
    for name in ["new.img", "new.anchor"] {
        fs::remove_file(desk.path(name)).unwrap();
    }
    begin();
    assert_eq!(desk.read("new.img.policy.toml.importing"), policy);
    // The same with a store and an anchor that nobody has claimed, on which header and key slots stand.
    let mut image = desk.read("new.img");
    image[4 * 4096..8 * 4096].fill(0);
    desk.write("new.img", &image);
    fs::remove_file(desk.path("new.anchor")).unwrap();
    desk.done(&import(&desk, "a.stream"));
    assert_ne!(desk.read("new.img.policy.toml"), b"");
    holds_the_same(&desk);
}

/// One bit of a file.
fn flip(desk: &Desk, name: &str, to: &str, at: usize) {
    let mut bytes = desk.read(name);
    bytes[at] ^= 4;
    desk.write(to, &bytes);
}

#[test]
fn refusals_say_why() {
    crate::skip_without_devices!();
    let desk = filled();
    desk.write("empty", b"");
    desk.write("foreign", &[5; 20_000]);
    desk.done(&format!("{EXPORT} --to a.stream"));
    flip(&desk, "a.stream", "header.stream", 60);
    flip(&desk, "a.stream", "chunk.stream", 12 << 20);
    desk.write("long.stream", &[desk.read("a.stream"), vec![0]].concat());
    let anchor = desk.path("anchor");
    let from = |name: &str| import(&desk, name);
    for (command, code, word) in [
        (from("none"), 2, "cannot be read"),
        (from("."), 2, "directory"),
        (from("empty"), 2, "no stream"),
        (from("foreign"), 2, "no stream"),
        (from("disk.img"), 2, "no stream"),
        (from("header.stream"), 4, "header was changed"),
        (from("a.stream").replace("stream.key", "key"), 10, "stream does not open"),
        (from("a.stream").replace("new.anchor", "anchor"), 8, "belongs to a volume already"),
        (format!("{} --size 32M", from("a.stream")), 2, "smaller"),
        (from("a.stream").replace("new.img", "disk.img"), 2, "policy"),
        (format!("{} --policy p", from("a.stream").replace("new.img", "disk.img")), 2, "not blank"),
        (
            "volume import a.stream --to new.img --stream-key-file stream.key --key-file key".into(),
            2,
            "needs an anchor",
        ),
        (format!("{EXPORT} --to a.stream"), 2, "exists already"),
        (format!("{EXPORT} --to foreign --resume"), 2, "no stream"),
        (format!("{EXPORT} --to nowhere/a.stream"), 2, "cannot be written"),
        (format!("{EXPORT} --to a.stream --resume").replace("stream.key", "key"), 10, "stream does not open"),
        (format!("{EXPORT} --to b.stream").replace("--key-file key", "--key-file other"), 10, "key slot"),
    ] {
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(anchor.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path()).collect();
            names.sort();
            names
        };
        let before = (names(), desk.read("disk.img"), desk.read("a.stream"));
        let said = desk.run(&command);
        assert!(said.code == code && said.error.contains(word), "cvmio {command}: {said:?}");
        assert!(
            (names(), desk.read("disk.img"), desk.read("a.stream")) == before,
            "cvmio {command}: something has changed"
        );
    }
    for (name, word) in [("chunk.stream", "chunk 11 of"), ("long.stream", "something follows")] {
        let said = desk.run(&from(name));
        assert!(said.code == 4 && said.error.contains(word), "{said:?}");
        assert_eq!(desk.run("volume check new.img --key-file other").code, 11);
    }
    desk.done(&from("a.stream"));
    holds_the_same(&desk);

    // A volume that somebody has attached, or has not detached.
    desk.done("volume attach disk.img --key-file key");
    let said = desk.run(&format!("{EXPORT} --to b.stream"));
    assert!(said.code == 2 && said.error.contains("attached"), "{said:?}");
    fs::copy(desk.path("disk.img"), desk.path("copy.img")).unwrap();
    let copy = format!("{EXPORT} --to b.stream --policy disk.img.policy.toml")
        .replace("disk.img --key", "copy.img --key");
    let said = desk.run(&copy);
    assert!(said.code == 2 && said.error.contains("--force"), "{said:?}");
    assert!(!desk.path("b.stream").exists());
    desk.done(&format!("{copy} --force"));
    let device = File::options().write(true).open(desk.path("run/disk/disk")).unwrap();
    device.write_all_at(&[1; 4096], 8 << 20).unwrap();
    device.sync_all().unwrap();
    drop(device);
    desk.done("volume detach disk");
    // It has moved on.
    let said = desk.run(&format!("{EXPORT} --to a.stream --resume"));
    assert!(said.code == 2 && said.error.contains("begin a new one"), "{said:?}");
    desk.done(&format!("{EXPORT} --to c.stream"));
}

#[test]
fn a_damaged_volume_is_named_and_exported_to_no_end() {
    crate::skip_without_devices!();
    let desk = filled();
    // One block of data: the store is thin, so most of what is not zero is data. The first that the check names will do.
    let image = desk.read("disk.img");
    let data = content(4, 16 << 20);
    assert!(
        !image.windows(64).step_by(4096).any(|part| part == &data[..64]),
        "data is on the store in the clear"
    );
    let used: Vec<usize> = (0..image.len() / 4096)
        .filter(|at| image[at * 4096..][..4096].iter().any(|byte| *byte != 0))
        .collect();
    // Some of it is of an older state, which nothing reaches any more.
    let damage = |at: &usize| {
        let mut damaged = image.clone();
        damaged[at * 4096 + 9] ^= 1;
        desk.write("disk.img", &damaged);
        let check = desk.run("volume check disk.img --key-file key --json");
        (check.code != 0).then_some(check)
    };
    let check = used[used.len() / 2..].iter().find_map(damage).expect("a block that the volume reaches");
    assert_eq!(check.code, 4, "{}", check.error);
    let report: Value = serde_json::from_str(&check.out).unwrap();
    let block = report["damaged"][0]["block"].as_u64().unwrap();
    let said = desk.run(&format!("{EXPORT} --to a.stream"));
    assert!(said.code == 4 && said.error.contains(&format!("logical blocks {block} are not")), "{said:?}");
    assert_eq!(desk.run(&import(&desk, "a.stream")).code, 3, "a stream without an end was imported");
    // Mended, it goes on.
    desk.write("disk.img", &image);
    desk.done(&format!("{EXPORT} --to a.stream --resume"));
    desk.done(&import(&desk, "a.stream"));
    holds_the_same(&desk);
}

#[test]
fn a_stream_with_a_passphrase_opens_with_it() {
    crate::skip_without_devices!();
    let desk = filled();
    desk.write("word", b"open sesame\n");
    let export = EXPORT.replace("--stream-key-file stream.key", "--stream-passphrase-file word");
    desk.done(&format!("{export} --to a.stream"));
    let said = desk.run(&import(&desk, "a.stream"));
    assert_eq!(said.code, 10, "{}", said.error);
    desk.done(
        &import(&desk, "a.stream").replace("--stream-key-file stream.key", "--stream-passphrase-file word"),
    );
    holds_the_same(&desk);
}
