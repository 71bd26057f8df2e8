//! The server is killed under load, again and again: nothing that was synced is lost, and no page is torn.
//!
//! `SCM_KILLS` says how often; what was acknowledged is remembered here, outside of the process that is killed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{PAGE, Place};

const PAGES: u64 = 64;
const SERVE: &str = "serve region --key-file key --mode fuse --mountpoint mnt";

/// For each page the version that was synced last, and the one that was written last.
type Versions = Mutex<Vec<(u32, u32)>>;

fn content(page: u64, version: u32) -> Vec<u8> {
    if version == 0 {
        return vec![0; PAGE];
    }
    let mut content = vec![0; PAGE];
    fastrand::Rng::with_seed(page << 32 | u64::from(version)).fill(&mut content);
    content[..4].copy_from_slice(&version.to_le_bytes());
    content
}

/// Writes runs of pages in its half and syncs them, until the server dies.
fn load(file: &File, thread: u64, versions: &Versions, ended: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(thread);
    while !ended.load(Ordering::Relaxed) {
        let count = if random.bool() { 1 } else { random.u64(2..=16) };
        let first = thread * (PAGES / 2) + random.u64(..=PAGES / 2 - count);
        let range = usize::try_from(first).unwrap()..usize::try_from(first + count).unwrap();
        let mut data = Vec::new();
        for (page, (_, written)) in (first..).zip(&mut versions.lock().unwrap()[range.clone()]) {
            *written += 1;
            data.extend(content(page, *written));
        }
        let done = file.write_all_at(&data, first * PAGE as u64).and_then(|()| file.sync_data());
        if done.is_err() {
            return;
        }
        versions.lock().unwrap()[range].iter_mut().for_each(|(synced, written)| *synced = *written);
    }
}

fn verify(file: &File, versions: &Versions, round: u32) {
    for (page, (synced, written)) in (0..).zip(versions.lock().unwrap().iter_mut()) {
        let mut found = vec![0; PAGE];
        file.read_exact_at(&mut found, page * PAGE as u64).unwrap();
        let version = u32::from_le_bytes(found[..4].try_into().unwrap());
        assert!(
            (*synced..=*written).contains(&version),
            "round {round}, page {page}: version {version}, synced {synced}, written {written}"
        );
        assert!(found == content(page, version), "round {round}, page {page} is torn");
        (*synced, *written) = (version, version);
    }
}

#[test]
fn kills_under_load_lose_nothing_that_was_synced() {
    let rounds: u32 = std::env::var("SCM_KILLS").map_or(60, |text| text.parse().expect("a number"));
    let place = Place::new();
    place.succeed(&format!("create region --size {}k --key-file key", PAGES * 4));
    let versions: Versions = Mutex::new(vec![(0, 0); usize::try_from(PAGES).unwrap()]);
    let mut random = fastrand::Rng::with_seed(rounds.into());
    let mut under_way = 0;
    for round in 0..rounds {
        let said = place.succeed("recover region --key-file key");
        under_way += u32::from(said.contains("recovered"));
        let server = place.serve(SERVE);
        let file = File::options().read(true).write(true).open(place.at("mnt/region/pmem")).unwrap();
        verify(&file, &versions, round);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (file, versions, ended) = (&file, &versions, &ended);
                scope.spawn(move || load(file, thread, versions, ended));
            }
            std::thread::sleep(Duration::from_micros(random.u64(2_000..40_000)));
            server.kill();
            ended.store(true, Ordering::Relaxed);
        });
    }
    place.succeed("recover region --key-file key");
    place.succeed("check region --key-file key");
    let written: u64 = versions.lock().unwrap().iter().map(|(_, written)| u64::from(*written)).sum();
    println!("{rounds} kills, {written} writes, {under_way} recoveries with a page under way");
    assert!(written > u64::from(rounds), "there was no load");
}
