//! A cluster whose space is used up: it answers reads, and refuses moves until a person makes room.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::common::machine::wait_for;
use super::common::session::Session;
use super::{anchor_is_away, desk_on, json, options};

const QUOTA: u64 = 4 << 20;

/// Fills the members' databases until they refuse what is written.
fn fill(cluster: &Cluster) {
    for _ in 0..16 {
        let mut put = cluster.etcdctl(&["put", "/filler"]);
        put.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut put = put.spawn().unwrap();
        put.stdin.take().unwrap().write_all(&vec![b'x'; 1 << 20]).unwrap();
        if !put.wait().unwrap().success() {
            break;
        }
    }
    wait_for("the alarm", || cluster.control(&["alarm", "list"]).1.contains("NOSPACE"));
}

/// As `docs/freshness.md` says it.
fn make_room(cluster: &Cluster) {
    let (_, said) = cluster.control(&["get", "--write-out=fields", "/filler"]);
    let revision = said.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap().to_owned();
    assert!(cluster.control(&["compact", &revision]).0);
    assert!(cluster.control(&["put", "/filler", "x"]).0 || cluster.control(&["defrag"]).0);
    assert!(cluster.control(&["defrag"]).0);
    assert!(cluster.control(&["alarm", "disarm"]).0);
}

#[test]
fn a_cluster_without_space_is_away_and_everything_ends_in_its_time() {
    let cluster = Cluster::start_with_quota(Some(QUOTA));
    let desk = desk_on(&cluster);
    let session = Session::attach_with(&desk, "");
    let status = json(&desk, "volume status disk --json");
    let facts = status["volume"]["anchor-facts"].to_string();
    assert!(facts.contains("database"), "{status}");
    fill(&cluster);
    let file = std::fs::File::options().write(true).open(&session.file).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], 0).unwrap();
    let flush = std::thread::spawn(move || file.sync_data());
    wait_for("the anchor to be away", || anchor_is_away(&desk));
    let away = || json(&desk, "volume status disk --json")["volume"]["anchor-away"].clone();
    let first = away();
    assert!(first["error"].as_str().unwrap().contains("space"), "{first}");
    wait_for("its absence to grow", || away()["attempts"].as_u64() > first["attempts"].as_u64());

    // Neither an attach nor a creation waits for ever.
    let clone = super::common::Desk::new();
    for name in ["disk.img", "disk.img.policy.toml"] {
        clone.write(name, &desk.read(name));
    }
    let begun = Instant::now();
    let refused = clone.run("volume attach disk.img --key-file key --anchor-timeout 2s");
    assert!(refused.code == 8 && refused.error.contains("space"), "{refused:?}");
    let refused = clone.run("volume attach disk.img --key-file key");
    assert_eq!(refused.code, 8, "{refused:?}");
    let new = format!("--anchor {} {}", cluster.address("cvmio/new"), options(&cluster));
    let refused = clone.run(&format!("volume create new.img --size 16M --key-file key {new}"));
    assert!(refused.code == 8 && !clone.path("new.img").exists(), "{refused:?}");
    assert!(begun.elapsed() < Duration::from_secs(150), "{:?}", begun.elapsed());

    make_room(&cluster);
    flush.join().unwrap().unwrap();
    wait_for("the anchor to be back", || !anchor_is_away(&desk));
    session.detach();
    desk.done("anchor verify disk.img --key-file key");
}
