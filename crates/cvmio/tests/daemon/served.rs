//! A volume on a disk of a vhost-user-blk server: real programs at both ends.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use super::limits::Clean;
use crate::common::machine::{content, has_ended, wait_for};
use crate::common::{Desk, Said};
use crate::skip_without_devices;

/// How each command names the store and what opens it.
const VOLUME: &str = "vhost-user:sock --policy policy --key-file key";
const ATTACH: &str = "--name disk --memory 64M --json";

/// A server of `disk.img` at `sock`. It is killed when it is dropped.
struct Server(Child);

impl Server {
    fn start(desk: &Desk, more: &str) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_cvmio")).with_file_name("examples").join("cvmio-host");
        let mut command = Command::new(&program);
        command.args("serve --socket sock --disk disk.img".split(' ')).args(more.split_whitespace());
        command.current_dir(desk.path("")).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; build the examples", program.display()));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn attach(desk: &Desk) -> u32 {
    let ready: serde_json::Value =
        serde_json::from_str(&desk.done(&format!("volume attach {VOLUME} {ATTACH}"))).unwrap();
    u32::try_from(ready["process"].as_u64().unwrap()).unwrap()
}

fn refused(said: &Said, code: i32, expected: &str) {
    assert!(said.code == code && said.error.contains(expected), "{code}, {expected}: {said:?}");
}

/// A desk whose volume has this content at its beginning.
fn desk_with(first: &[u8]) -> (Rc<Desk>, Clean, Server) {
    let desk = Rc::new(Desk::new());
    let clean = Clean(Rc::clone(&desk));
    File::create(desk.path("disk.img")).unwrap().set_len(64 << 20).unwrap();
    let server = Server::start(&desk, "");
    let anchor = desk.path("anchor");
    desk.done(&format!("volume create {VOLUME} --anchor file:{}", anchor.display()));
    attach(&desk);
    let disk = File::options().write(true).open(desk.path("run/disk/disk")).unwrap();
    disk.write_all_at(first, 0).unwrap();
    disk.sync_all().unwrap();
    (desk, clean, server)
}

fn begins_with(desk: &Desk, first: &[u8]) {
    assert!(fs::read(desk.path("run/disk/disk")).unwrap()[..first.len()] == *first);
}

#[test]
fn a_volume_on_a_servers_disk_lives_as_on_a_file() {
    skip_without_devices!();
    let first = content(3, 4 << 20);
    let (desk, _clean, server) = desk_with(&first);
    let other = desk.run(&format!("volume attach {VOLUME} --name other"));
    refused(&other, 2, "is the disk in use?; it is attached as disk, by process");
    let text = desk.done("volume status disk");
    assert!(text.contains("store        vhost-user:[DIR]/sock") || text.contains("/sock (64 MiB)"), "{text}");
    assert!(text.contains("copied to memory that the host shares"), "{text}");
    desk.done("volume check disk");
    desk.done("volume detach disk");
    fs::copy(desk.path("disk.img"), desk.path("old.img")).unwrap();

    attach(&desk);
    begins_with(&desk, &first);
    desk.done("volume detach disk");
    desk.done(&format!("volume key add {VOLUME} --new-key-file other"));
    desk.done(&format!("volume check {VOLUME}"));
    drop(server);

    // A disk for reading, one that has become larger, one that was put back, and one that is too small.
    let server = Server::start(&desk, "--read-only");
    refused(&desk.run(&format!("volume attach {VOLUME} {ATTACH}")), 2, "serves it for reading only");
    desk.done(&format!("volume attach {VOLUME} {ATTACH} --read-only"));
    begins_with(&desk, &first);
    desk.done("volume detach disk");
    drop(server);
    let disk = |length: u64| {
        File::options().write(true).open(desk.path("disk.img")).unwrap().set_len(length).unwrap()
    };
    disk(80 << 20);
    let server = Server::start(&desk, "");
    assert!(desk.done(&format!("volume grow {VOLUME}")).contains("grown from"));
    drop(server);
    fs::copy(desk.path("disk.img"), desk.path("new.img")).unwrap();
    disk(16 << 20);
    let server = Server::start(&desk, "");
    refused(&desk.run(&format!("volume attach {VOLUME} {ATTACH}")), 3, "it was truncated");
    drop(server);
    fs::copy(desk.path("new.img"), desk.path("disk.img")).unwrap();
    let server = Server::start(&desk, "");
    attach(&desk);
    File::options()
        .write(true)
        .open(desk.path("run/disk/disk"))
        .unwrap()
        .write_all_at(&[1; 4096], 0)
        .unwrap();
    desk.done("volume detach disk");
    drop(server);
    fs::copy(desk.path("new.img"), desk.path("disk.img")).unwrap();
    let _server = Server::start(&desk, "");
    refused(&desk.run(&format!("volume attach {VOLUME} {ATTACH}")), 5, "");
}

#[test]
fn a_server_that_is_killed_ends_the_session_and_the_next_one_has_what_was_flushed() {
    skip_without_devices!();
    let first = content(5, 4 << 20);
    let (desk, _clean, mut server) = desk_with(&first);
    desk.done("volume detach disk");
    for (round, mode) in [(0, ""), (1, "--mode poll"), (2, "--mode interrupt")] {
        let process = attach(&desk);
        begins_with(&desk, &first);
        let mut writer = Command::new("dd");
        writer.args([
            "if=/dev/urandom",
            "bs=64k",
            "count=4096",
            "seek=128",
            "conv=notrunc,fsync",
            "status=none",
        ]);
        writer.arg(format!("of={}", desk.path("run/disk/disk").display())).stderr(Stdio::null());
        let mut writer = writer.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(50 * round + 20));
        drop(server);
        assert!(!writer.wait().unwrap().success(), "its writes cannot all have been flushed");
        let failure = || {
            let status: serde_json::Value =
                serde_json::from_str(&desk.done("volume status disk --json")).unwrap();
            status["volume"]["failure"].as_str().unwrap_or_default().to_owned()
        };
        wait_for("the end of the session", || failure().contains("the server is gone"));
        refused(&desk.run("volume detach disk"), 3, "the server is gone");
        assert!(has_ended(process));
        refused(&desk.run(&format!("volume attach {VOLUME} {ATTACH}")), 3, "does a server listen there?");
        server = Server::start(&desk, mode);
    }
    attach(&desk);
    begins_with(&desk, &first);
    desk.done("volume detach disk");
    desk.done(&format!("volume check {VOLUME}"));
}

#[test]
fn an_address_that_is_no_store_is_a_clear_error() {
    let desk = Desk::new();
    desk.write("file", b"no socket");
    for (arguments, code, expected) in [
        ("volume attach vhost-user:none --policy p --key-file key", 2, "vhost-user:none cannot be opened"),
        ("volume attach vhost-user:file --key-file key", 2, "name the file with --policy"),
        (
            "volume create vhost-user:file --policy p --freshness off --key-file key",
            3,
            "does a server listen there?",
        ),
        (
            "volume create vhost-user:none --policy p --freshness off --key-file key",
            2,
            "does a server listen there?",
        ),
        ("volume create vhost-user: --policy p --freshness off --key-file key", 2, "names no socket"),
        (
            "volume create ivshmem:0000:00:05.0 --policy p --freshness off --key-file key",
            2,
            "not supported yet",
        ),
        ("volume check ivshmem:0000:00:05.0 --policy p --key-file key", 2, "not supported yet"),
        (
            "volume create vhost-user:file --policy file --force --freshness off --key-file key",
            2,
            "these are two things",
        ),
        (
            "volume create vhost-user:file --policy p --buffered --freshness off --key-file key",
            2,
            "its server decides",
        ),
    ] {
        refused(&desk.run(arguments), code, expected);
    }
    assert!(!desk.path("p").exists());
}
