//! What a daemon takes in memory beside what it was allowed, under requests of all sizes.

use std::fs;
use std::rc::Rc;

use crate::common::Desk;
use crate::common::machine::{has, has_ended, quietly, sh, tell_skipped, wait_for};
use crate::common::session::leave_nothing;
use serde_json::Value;

/// MiB, of `--memory`; and what there may be on top.
const ALLOWED: u64 = 16;
const BEYOND: u64 = 64;

/// What fio does: pattern, size of a request, requests in flight, jobs.
const LOADS: [(&str, &str, u32, u32); 6] = [
    ("randwrite", "4k", 64, 4),
    ("randread", "4k", 64, 4),
    ("write", "1m", 64, 1),
    ("randread", "1m", 64, 1),
    ("randrw", "132k", 64, 4),
    ("randrw", "8k", 256, 2),
];

/// Memory of a process that is no file's, MiB.
fn footprint(process: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Puts a volume to work through `front_end`, by what `target` says of it to fio. What it says of itself at the end.
fn work(front_end: &str, most: u64, target: impl Fn(&Desk, &Value) -> String) -> Value {
    let desk = Rc::new(Desk::new());
    let anchor = desk.path("anchor");
    desk.done(&format!("volume create disk.img --size 1G --key-file key --anchor file:{}", anchor.display()));
    let attach = format!("volume attach disk.img --key-file key --memory {ALLOWED}M --json {front_end}");
    let ready: Value = serde_json::from_str(&desk.done(&attach)).unwrap();
    let process = ready["process"].as_u64().unwrap();
    let target = target(&desk, &ready);
    let seen = std::panic::catch_unwind(|| {
        LOADS.map(|(pattern, size, depth, jobs)| {
            sh(&format!(
                "fio --name=load {target} --rw={pattern} --bs={size} --iodepth={depth} --numjobs={jobs} --direct=1 --size=1g \
                 --norandommap --time_based --runtime=2 --group_reporting --randrepeat=0"
            ));
            (pattern, size, footprint(process))
        })
    });
    match seen {
        Ok(seen) => {
            let status: Value = serde_json::from_str(&desk.done("volume status disk --json")).unwrap();
            desk.done("volume detach disk");
            wait_for("the daemon's end", || has_ended(u32::try_from(process).unwrap()));
            assert!(seen.iter().all(|(.., taken)| *taken <= most), "more than {most} MiB: {seen:?}");
            status
        }
        Err(panic) => {
            quietly(&format!("kill -9 {process}"));
            leave_nothing(&desk);
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn a_loop_device_takes_what_was_allowed_and_64_mib() {
    crate::skip_without_devices!();
    if !has("fio") {
        return tell_skipped("there is no fio");
    }
    let status = work("--loop", ALLOWED + BEYOND, |_, ready| {
        format!("--ioengine=libaio --filename={}", ready["loop-device"].as_str().unwrap())
    });
    assert_eq!(status["volume"]["block-cache-bytes"], 0);
}

#[test]
fn each_further_client_of_nbd_takes_4_mib_more_and_a_block_cache_what_it_is_given() {
    if !has("fio") || !sh("fio --enghelp").contains("nbd") {
        return tell_skipped("there is no fio with an engine for NBD");
    }
    let clients = u64::from(LOADS.iter().map(|(.., jobs)| *jobs).max().unwrap());
    let cache = 64;
    let most = ALLOWED + BEYOND + 4 * (clients - 1) + cache;
    let status = work(&format!("--as nbd --block-cache {cache}M"), most, |desk, _| {
        format!("--ioengine=nbd --uri='nbd+unix:///?socket={}'", desk.path("run/disk/nbd.sock").display())
    });
    let number = |name: &str| status["volume"][name].as_u64().unwrap();
    assert!(number("block-cache-hits") > 0 && number("block-cache-misses") > 0, "{status}");
    let held = number("block-cache-bytes");
    assert!((cache << 19..=cache << 20).contains(&held), "{held} bytes: it was to be full by then");
}
