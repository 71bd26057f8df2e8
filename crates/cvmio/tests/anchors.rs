//! Volumes that live by a real anchor outside of this machine's files.

#[path = "../../anchor-etcd/tests/it/cluster.rs"]
#[allow(dead_code, reason = "the anchor's own tests use the rest")]
mod cluster;
mod common;
#[path = "anchors/documents.rs"]
mod documents;
#[path = "anchors/lost.rs"]
mod lost;
#[path = "anchors/owner.rs"]
mod owner;
#[path = "../../anchor-etcd/tests/it/proxy.rs"]
#[allow(dead_code, reason = "the anchor's own tests use the rest")]
mod proxy;
#[path = "anchors/quota.rs"]
mod quota;
#[path = "anchors/released.rs"]
mod released;
#[path = "anchors/tpm.rs"]
mod tpm;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::Cluster;
use common::Desk;
use common::machine::{has_ended, wait_for};
use common::records::Records;
use common::session::Session;
use proxy::{Proxy, Way};
use serde_json::Value;

/// As the command line says them.
fn options(cluster: &Cluster) -> String {
    let options =
        cluster.options().into_iter().map(|(name, value)| format!("--anchor-option {name}={value}"));
    options.collect::<Vec<_>>().join(" ")
}

fn json(desk: &Desk, arguments: &str) -> Value {
    serde_json::from_str(&desk.done(arguments)).unwrap()
}

/// A volume in `disk.img` of a new desk, by an anchor in the cluster.
fn desk_on(cluster: &Cluster) -> Rc<Desk> {
    desk_at(cluster, &cluster.address("cvmio/ledger"))
}

/// The same with the anchor at this address.
fn desk_at(cluster: &Cluster, address: &str) -> Rc<Desk> {
    let desk = Rc::new(Desk::new());
    let options = options(cluster);
    desk.done(&format!("volume create disk.img --size 16M --key-file key --anchor {address} {options}"));
    desk
}

fn anchor_is_away(desk: &Desk) -> bool {
    !json(desk, "volume status disk --json")["volume"]["anchor-away"].is_null()
}

/// A number that the metrics' socket tells.
fn metric(desk: &Desk, name: &str) -> u64 {
    let mut socket = UnixStream::connect(desk.path("metrics.sock")).unwrap();
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    socket.read_to_string(&mut page).unwrap();
    let line = page.lines().find(|line| line.starts_with(&format!("cvmio_{name}{{")));
    let line = line.unwrap_or_else(|| panic!("no {name}: {page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Whether the daemon's log has this. Where systemd starts a daemon, the same lines go to the journal.
fn logged(desk: &Desk, text: &str) -> bool {
    fs::read_to_string(desk.path("run/disk/log")).is_ok_and(|log| log.contains(text))
}

#[test]
fn a_wrong_prefix_is_named_and_harms_nothing() {
    let cluster = Cluster::start();
    let desk = desk_on(&cluster);
    let other = Desk::new();
    let (address, options) = (cluster.address("cvmio/other"), options(&cluster));
    other.done(&format!("volume create disk.img --size 16M --key-file key --anchor {address} {options}"));
    let policy = String::from_utf8(desk.read("disk.img.policy.toml")).unwrap();
    let attach_at = |prefix: &str| {
        desk.write("disk.img.policy.toml", policy.replace("/cvmio/ledger", prefix).as_bytes());
        desk.run("volume attach disk.img --key-file key")
    };
    for (prefix, why) in
        [("/cvmio/legder", "was never claimed"), ("/cvmio/other", "belongs to another volume")]
    {
        let refused = attach_at(prefix);
        assert_eq!(refused.code, 8, "{prefix}: {refused:?}");
        assert!(refused.error.contains(why) && refused.error.contains(prefix), "{prefix}: {}", refused.error);
    }
    // A key that holds no stamp at all.
    assert!(cluster.control(&["put", "/cvmio/text", "hello"]).0);
    let refused = attach_at("/cvmio/text");
    assert_eq!(refused.code, 8, "{refused:?}");
    assert!(refused.error.contains("holds something that is no stamp"), "{}", refused.error);
    desk.write("disk.img.policy.toml", policy.as_bytes());
    Session::attach_with(&desk, "").detach();
}

/// Gives another key the value that this one has, as anyone with the client's key can.
fn copy_key(cluster: &Cluster, from: &str, to: &str) {
    let mut value = cluster.etcdctl(&["get", "--print-value-only", from]).output().unwrap().stdout;
    assert_eq!(value.pop(), Some(b'\n'), "{from} holds nothing");
    let file = cluster.path().join("value");
    fs::write(&file, value).unwrap();
    let put = cluster.etcdctl(&["put", to]).stdin(File::open(&file).unwrap()).output().unwrap();
    assert!(put.status.success(), "{put:?}");
}

/// A clone of the guest goes on from an old disk, with an old copy of the anchor; the guest is given the clone's disk.
fn refuses_a_forked_image(desk: &Rc<Desk>) {
    // Far away from the records; without a write both histories would be the same up to the stamp.
    let session = Session::attach_with(desk, "");
    let file = File::options().write(true).open(&session.file).unwrap();
    file.write_all_at(&[8; 4096], 12 << 20).unwrap();
    file.sync_data().unwrap();
    drop(file);
    session.detach();
    fs::rename(desk.path("disk.img"), desk.path("new.img")).unwrap();
    let clone = Rc::new(Desk::new());
    fs::copy(desk.path("old.img"), clone.path("disk.img")).unwrap();
    let policy = String::from_utf8(desk.read("disk.img.policy.toml")).unwrap();
    clone.write("disk.img.policy.toml", policy.replace("/cvmio/ledger", "/cvmio/fork").as_bytes());
    let forking = Session::attach_with(&clone, "");
    let file = File::options().write(true).open(&forking.file).unwrap();
    for block in 0..64 {
        file.write_all_at(&[9; 4096], block * 4096).unwrap();
        file.sync_data().unwrap();
    }
    drop(file);
    forking.detach();
    fs::copy(clone.path("disk.img"), desk.path("disk.img")).unwrap();
    let refused = desk.run("volume attach disk.img --key-file key");
    assert_eq!(refused.code, 6, "{}", refused.error);
    fs::rename(desk.path("new.img"), desk.path("disk.img")).unwrap();
}

#[test]
fn acknowledged_flushes_survive_a_cluster_that_loses_its_members() {
    let cluster = Cluster::start();
    // A network in between that loses and delays.
    let network = [0, 1, 2].map(|member| Proxy::to(cluster.port(member)));
    let address = cluster.address_at(&network.each_ref().map(|proxy| proxy.port), "cvmio/ledger");
    let desk = desk_at(&cluster, &address);
    let mut records = Records::new(1, 256);
    Session::attach_with(&desk, "").detach();
    fs::copy(desk.path("disk.img"), desk.path("old.img")).unwrap();
    copy_key(&cluster, "/cvmio/ledger", "/cvmio/fork");
    let backup = cluster.copy_data(0);
    refuses_a_forked_image(&desk);

    let session = Session::attach_with(&desk, "");
    let stop = AtomicBool::new(false);
    let (trouble, file, network) = (&cluster, &session.file, &network);
    let acknowledged = std::thread::scope(|scope| {
        let stop = &stop;
        let trouble = scope.spawn(move || {
            let rest = || std::thread::sleep(Duration::from_millis(300));
            let everywhere = |way| network.iter().for_each(|proxy| proxy.set(way));
            rest();
            everywhere(Way::LoseAnswers);
            rest();
            everywhere(Way::Delay(Duration::from_millis(100)));
            rest();
            everywhere(Way::Pass);
            rest();
            // A member comes back as it was long ago: the others know better.
            trouble.kill(0);
            trouble.put_back(0, &backup);
            trouble.restart(0);
            trouble.wait();
            rest();
            trouble.kill(0);
            rest();
            trouble.replace(0);
            trouble.wait();
            let leader = trouble.leader();
            trouble.freeze(leader, true);
            std::thread::sleep(Duration::from_secs(2));
            trouble.freeze(leader, false);
            trouble.wait();
            // No quorum: flushes wait, reads go on.
            trouble.kill(1);
            trouble.kill(2);
            std::thread::sleep(Duration::from_secs(2));
            File::open(file).unwrap().read_exact_at(&mut [0; 4096], 8 << 20).unwrap();
            trouble.restart(1);
            trouble.wait();
            trouble.replace(2);
            trouble.wait();
            rest();
            stop.store(true, Ordering::Relaxed);
        });
        let acknowledged = records.write(file, 4, false, 7, stop);
        trouble.join().unwrap();
        acknowledged
    });
    assert!(acknowledged > 0, "nothing was acknowledged");
    let status = json(&desk, "volume status disk --json");
    assert_eq!(status["failed-requests"], 0, "{status}");
    assert_eq!(status["volume"]["failure"], Value::Null, "{status}");

    // The machine crashes; the host puts an old disk back.
    session.kill();
    fs::rename(desk.path("disk.img"), desk.path("new.img")).unwrap();
    fs::copy(desk.path("old.img"), desk.path("disk.img")).unwrap();
    let refused = desk.run("volume attach disk.img --key-file key");
    assert_eq!(refused.code, 5, "{}", refused.error);
    fs::rename(desk.path("new.img"), desk.path("disk.img")).unwrap();
    let session = Session::attach_with(&desk, "");
    assert!(records.check(&session.file) > 0);
    session.detach();
}

#[test]
fn a_session_waits_for_its_anchor_and_says_so_or_ends_when_it_is_told() {
    let cluster = Cluster::start();
    let desk = desk_on(&cluster);
    let session = Session::attach_with(&desk, "--metrics unix:metrics.sock");
    assert_eq!(metric(&desk, "anchor_away"), 0);
    cluster.kill(0);
    cluster.kill(1);
    let file = File::options().write(true).open(&session.file).unwrap();
    file.write_all_at(&[7; 4096], 0).unwrap();
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| file.sync_data());
        wait_for("the status says that the anchor is away", || anchor_is_away(&desk));
        let status = desk.done("volume status disk");
        assert!(status.contains("ANCHOR AWAY"), "{status}");
        assert!(!flush.is_finished());
        assert_eq!(metric(&desk, "anchor_away"), 1);
        wait_for("the journal says so", || logged(&desk, "the anchor is away, and what needs it waits"));
        cluster.restart(0);
        flush.join().unwrap().unwrap();
    });
    wait_for("the anchor is back", || !anchor_is_away(&desk));
    wait_for("the journal says so", || logged(&desk, "the anchor is back"));
    assert_eq!(metric(&desk, "anchor_away"), 0);
    drop(file);

    // A detach waits for the anchor, too, and ends when it is back.
    cluster.wait();
    cluster.kill(0);
    let mut detach = desk.command("volume detach disk").stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(detach.try_wait().unwrap(), None, "detached without its anchor");
    cluster.restart(0);
    assert!(detach.wait().unwrap().success());
    wait_for("the daemon's end", || has_ended(session.process));
    drop(session);
    cluster.wait();
    cluster.restart(1);
    cluster.wait();

    let session = Session::attach_with(&desk, "--anchor-timeout 500ms");
    let file = File::options().write(true).open(&session.file).unwrap();
    cluster.kill(0);
    cluster.kill(2);
    file.write_all_at(&[8; 4096], 0).unwrap();
    assert!(file.sync_data().is_err(), "it has waited for long enough");
    let status = json(&desk, "volume status disk --json");
    let failure = status["volume"]["failure"].as_str().expect("it failed").to_owned();
    assert!(failure.contains("it has been away for"), "{failure}");
    drop(file);
    session.kill();
    common::session::clean_up(&desk);
    let refused = desk.run("volume attach disk.img --key-file key");
    assert_eq!(refused.code, 8, "{}", refused.error);
    cluster.restart(0);
    cluster.restart(2);
    cluster.wait();
    // Nothing acknowledged is missing; what was not may be there.
    let session = Session::attach_with(&desk, "");
    let mut block = [0; 4096];
    File::open(&session.file).unwrap().read_exact_at(&mut block, 0).unwrap();
    assert!(block == [7; 4096] || block == [8; 4096]);
    session.detach();
}

/// Stops a process, and returns when each of its threads stands.
fn stop(process: u32) {
    common::machine::sh(&format!("kill -STOP {process}"));
    let stands = |task: std::io::Result<fs::DirEntry>| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        // Its third field, behind the name in parentheses (proc_pid_stat(5)).
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    };
    wait_for("the process to stand", || fs::read_dir(format!("/proc/{process}/task")).unwrap().all(stands));
}

#[test]
fn a_second_guest_fences_the_first_and_a_volume_moves_to_another_anchor() {
    let cluster = Cluster::start();
    let desk = desk_on(&cluster);
    let session = Session::attach_with(&desk, "");
    let file = File::options().write(true).open(&session.file).unwrap();
    file.write_all_at(&[7; 4096], 0).unwrap();
    file.sync_data().unwrap();
    // Another machine, which the host gives a copy of the disk. The first session makes a commit or a checkpoint of its own now and then, and
    // must not do so between the copy and the other's claim: the copy would be stale.
    let other = Rc::new(Desk::new());
    stop(session.process);
    for name in ["disk.img", "disk.img.policy.toml"] {
        fs::copy(desk.path(name), other.path(name)).unwrap();
    }
    let successor = Session::attach_with(&other, "");
    common::machine::sh(&format!("kill -CONT {}", session.process));
    file.write_all_at(&[8; 4096], 4096).unwrap();
    assert!(file.sync_data().is_err(), "the first session is fenced");
    let status = desk.run("volume commit disk");
    assert_eq!(status.code, 7, "{}", status.error);
    // It says which blocks it had acknowledged, and no anchor vouches for: in the error, the status and the journal.
    let unanchored = "never anchored: 1 blocks: 1;";
    assert!(status.error.contains(unanchored), "{}", status.error);
    let status = json(&desk, "volume status disk --json");
    assert_eq!(status["volume"]["unanchored"]["stretches"], serde_json::json!([[1, 1]]), "{status}");
    assert!(desk.done("volume status disk").contains("UNANCHORED   1 blocks: 1, acknowledged"));
    assert!(logged(&desk, unanchored));
    drop(file);
    session.kill();
    common::session::clean_up(&desk);
    let mut block = [0; 4096];
    File::open(&successor.file).unwrap().read_exact_at(&mut block, 0).unwrap();
    assert_eq!(block, [7; 4096]);
    successor.detach();

    let address = cluster.address("cvmio/ledger");
    let (policy, options) = ("--policy disk.img.policy.toml", options(&cluster));
    let shown = json(&other, &format!("anchor show {policy} --json"));
    assert_eq!((&shown["stamp"]["state"], &shown["stamp"]["claims"]), (&"released".into(), &2.into()));
    assert!(shown["facts"]["cluster"].is_string(), "{shown}");
    other.done(&format!("anchor verify disk.img {policy} --key-file key"));
    let free = cluster.address("cvmio/free");
    let made = other.run(&format!("anchor init {free} {options}"));
    assert!(made.code == 0 && made.error.contains("docs/freshness.md"), "{made:?}");
    let taken = other.run(&format!("anchor init {address} {options}"));
    assert!(taken.error.contains("belongs to a volume already"), "{}", taken.error);

    // To a file, and back to another name in the cluster.
    let file = format!("file:{}", other.path("anchor").display());
    other.done(&format!("anchor migrate disk.img {policy} --key-file key --to {file}"));
    let text = String::from_utf8(other.read("disk.img.policy.toml")).unwrap();
    assert!(text.contains(&file) && !text.contains("anchor-options"), "{text}");
    let old = json(&other, &format!("anchor show {address} {options} --json"));
    assert_eq!(old["stamp"]["state"], "moved");
    // Whoever has the old policy attaches nothing any more.
    fs::copy(other.path("disk.img"), desk.path("disk.img")).unwrap();
    assert_ne!(desk.run("volume attach disk.img --key-file key").code, 0);
    Session::attach_with(&other, "").detach();
    other.done(&format!("anchor migrate disk.img {policy} --key-file key --to {free} {options}"));
    let session = Session::attach_with(&other, "");
    File::open(&session.file).unwrap().read_exact_at(&mut block, 0).unwrap();
    assert_eq!(block, [7; 4096]);
    session.detach();
    other.done(&format!("anchor verify disk.img {policy} --key-file key"));
}
