//! A change of session, and what goes wrong in it.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::io::Errno;
use volume::format::protections::Freshness;
use volume::geometry::{SUPERBLOCK_SLOTS, SUPERBLOCK_START};
use volume::{Kind, Request};

use super::*;
use crate::Ready;
use crate::disk::Queues;
use crate::disk::tests::{ask, write};
use crate::front::Shown;
use crate::polling::{Poll, Polling};
use crate::scrub::Stage;
use crate::session::Session;
use crate::status::Report;
use crate::tamper::{OnTamper, Orders, Tamper};
use crate::testing::{TestVolume, key};

fn start(bench: &TestVolume) -> (Service, Receiver<Event>) {
    start_by(bench, Path::new("/nowhere/policy.toml"))
}

/// The same with a policy that is kept in this file.
fn start_by(bench: &TestVolume, policy_file: &Path) -> (Service, Receiver<Event>) {
    let (sender, events) = channel();
    let tamper = Tamper::new(&Orders { on: OnTamper::Continue, hook: None }, "disk", "memory").unwrap();
    let environment =
        SessionEnvironment::on(bench.environment.clone(), bench.policy.clone(), policy_file.into());
    let volume = environment.attach(key(), None).unwrap();
    let queues = Queues { count: 2, polling: Polling::new(Poll::Adaptive, 2).0 };
    (Service::start(volume, environment, queues, sender, Arc::new(tamper)).unwrap(), events)
}

fn wanted() -> Rekeying {
    Rekeying { credential: key(), keep: Vec::new(), remove_others: false }
}

fn done(service: &Service, request: export::Request) -> Result<Bytes, Errno> {
    ask(&service.disk(), request).recv().unwrap()
}

fn report(service: &Service) -> Report {
    let shown = Shown::Nbd { uri: String::new() };
    let ready = Ready {
        name: "disk".into(),
        process: 1,
        shown,
        size: 0,
        freshness: Freshness::Strict,
        warnings: Vec::new(),
    };
    service.report(&ready).unwrap()
}

fn failure(service: &Service) -> Option<String> {
    report(service).volume.failure
}

#[test]
fn a_session_goes_on_under_a_new_key() {
    let bench = TestVolume::with(Freshness::Strict);
    let (service, events) = start(&bench);
    done(&service, write(0, 1)).unwrap();
    assert!(!service.begin_rekey(&wanted()).unwrap().under_way);
    done(&service, write(1, 1)).unwrap();
    done(&service, export::Request::Flush).unwrap();
    assert_eq!(failure(&service), None);
    service.stop().unwrap();
    assert!(events.try_recv().is_err());
}

#[test]
fn a_session_that_was_fenced_begins_no_other() {
    let bench = TestVolume::with(Freshness::Strict);
    let (service, events) = start(&bench);
    done(&service, write(0, 1)).unwrap();
    done(&service, export::Request::Flush).unwrap();
    // It was idle since, and has not noticed; unless its maintenance job had not come to begin, which then says so itself, a little later.
    let other = Session::begin(bench.attach()).unwrap();
    let refused = service.begin_rekey(&wanted()).unwrap_err();
    assert_eq!(refused.code(), Failure::from(volume::Error::new(Kind::Fenced, "")).code(), "{refused}");
    assert!(matches!(events.recv_timeout(Duration::from_secs(20)), Ok(Event::Failed(_))));
    assert!(failure(&service).is_some());
    assert!(done(&service, write(0, 2)).is_err());
    assert!(done(&service, export::Request::Flush).is_err());
    // The other one has the volume still.
    let mut queue = other.volume.queue(8).unwrap();
    queue.submit(1, Request::Flush);
    let mut ended = Vec::new();
    while ended.is_empty() {
        queue.wait(None, &mut ended);
    }
    assert!(ended[0].result.is_ok(), "{:?}", ended[0].result);
    drop(queue);
    other.end().unwrap();
    assert!(service.stop().is_err(), "it has to be said that this session failed");
}

#[test]
fn what_a_session_lost_the_next_one_does_not_hide() {
    let bench = TestVolume::new();
    let (service, _events) = start(&bench);
    done(&service, write(0, 1)).unwrap();
    done(&service, export::Request::Flush).unwrap();
    done(&service, write(0, 2)).unwrap();
    // The last checkpoint fails, and the next session would find everything in order.
    let slots = SUPERBLOCK_START..SUPERBLOCK_START + u64::from(SUPERBLOCK_SLOTS);
    *bench.trouble.fails.lock().unwrap() = Some(slots);
    assert!(service.begin_rekey(&wanted()).is_err());
    assert_eq!(*bench.trouble.fails.lock().unwrap(), None, "it was this that failed");
    assert_eq!(done(&service, export::Request::Flush), Err(Errno::IO));
    assert!(failure(&service).is_some());
    assert!(service.stop().is_err());
}

#[test]
fn without_a_next_session_the_volume_says_that_it_failed() {
    let bench = TestVolume::with(Freshness::Strict);
    let (service, events) = start(&bench);
    // One to see whether the key can be changed, and one to change it; none is left to attach.
    bench.trouble.queues.store(2, Ordering::SeqCst);
    let failed = service.begin_rekey(&wanted()).unwrap_err();
    assert!(matches!(events.try_recv(), Ok(Event::Failed(_))));
    assert_eq!(failure(&service), Some(failed.to_string()));
    assert_eq!(service.commit().unwrap_err().to_string(), failed.to_string());
    assert_eq!(service.begin_rekey(&wanted()).unwrap_err().to_string(), failed.to_string());
    assert_eq!(done(&service, export::Request::Flush), Err(Errno::SHUTDOWN));
    assert_eq!(service.stop().unwrap_err().to_string(), failed.to_string());
    bench.trouble.queues.store(u64::MAX, Ordering::SeqCst);
    Session::begin(bench.attach()).unwrap().end().unwrap();
}

#[test]
fn nothing_reads_a_session_that_is_about_to_end() {
    let bench = TestVolume::new();
    let (service, _events) = start(&bench);
    let changing = service.begin_change().unwrap();
    assert!(service.scrub(1).unwrap_err().to_string().contains("new key"));
    assert!(service.check().unwrap_err().to_string().contains("new key"));
    drop(changing);
    assert_eq!(service.check().unwrap().damaged_blocks, 0);
    service.stop().unwrap();
}

const SIZE: u64 = 4096;

#[test]
fn a_session_goes_on_in_a_larger_volume() {
    let bench = TestVolume::with(Freshness::Strict);
    let policy_file = tempfile::NamedTempFile::new().unwrap();
    let (service, events) = start_by(&bench, policy_file.path());
    done(&service, write(SIZE - 1, 1)).unwrap();
    let (grown, saved) = service.grow(&key(), Some(2 * SIZE)).unwrap();
    saved.unwrap();
    assert_eq!((grown.before.0, grown.now.0), (SIZE, 2 * SIZE));
    assert_eq!(service.size(), 2 * SIZE * 4096);
    assert_eq!(input::read_policy(policy_file.path()).unwrap(), grown.policy);
    done(&service, write(2 * SIZE - 1, 2)).unwrap();
    done(&service, export::Request::Flush).unwrap();
    let last = export::Request::Read { offset: (SIZE - 1) * 4096, length: 4096 };
    assert!(done(&service, last).unwrap() == vec![1; 4096]);
    // Once more, and by the policy of now; and to what it is.
    assert_eq!(service.grow(&key(), Some(3 * SIZE)).unwrap().0.growths, 2);
    let (same, _) = service.grow(&key(), Some(3 * SIZE)).unwrap();
    assert_eq!((same.before, same.growths), (same.now, 2));
    assert_eq!(failure(&service), None);
    service.stop().unwrap();
    assert!(events.try_recv().is_err());
}

#[test]
fn what_a_change_of_key_came_to_is_known_in_a_larger_volume() {
    let bench = TestVolume::with(Freshness::Strict);
    let policy_file = tempfile::NamedTempFile::new().unwrap();
    let (service, _events) = start_by(&bench, policy_file.path());
    done(&service, write(0, 1)).unwrap();
    done(&service, export::Request::Flush).unwrap();
    let change_key = || {
        service.begin_rekey(&wanted()).unwrap();
        let begun = Instant::now();
        while service.volume().unwrap().is_rekeying() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", report(&service).rekey);
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    change_key();
    service.grow(&key(), Some(2 * SIZE)).unwrap().1.unwrap();
    assert_eq!(report(&service).rekey.unwrap().stage, Stage::Done);
    // What is known of one change does not keep the next from its end.
    change_key();
    service.stop().unwrap();
}

#[test]
fn a_growth_that_is_refused_ends_no_session() {
    let bench = TestVolume::with(Freshness::Strict);
    let directory = tempfile::tempdir().unwrap();
    let (service, _events) = start_by(&bench, &directory.path().join("policy.toml"));
    done(&service, write(0, 1)).unwrap();
    let claims = || service.volume().unwrap().status().claims;
    let before = claims();
    let other = Credential::KeyFile(seal::SecretBytes::from_slice(&[8; 64]));
    assert_eq!(service.grow(&other, Some(2 * SIZE)).unwrap_err().code(), 10);
    assert!(service.grow(&key(), Some(SIZE / 2)).unwrap_err().to_string().contains("does not shrink"));
    assert!(service.grow(&key(), Some(1 << 40)).unwrap_err().is_usage());
    assert_eq!((claims(), service.size()), (before, SIZE * 4096));
    service.stop().unwrap();

    // A policy that could not follow is found before anything is done.
    let nowhere = TestVolume::with(Freshness::Strict);
    let (lost, _events) = start(&nowhere);
    let refused = lost.grow(&key(), Some(2 * SIZE)).unwrap_err();
    assert!(refused.is_usage() && refused.to_string().contains("nothing was changed"), "{refused}");
    assert_eq!(lost.size(), SIZE * 4096);
    lost.stop().unwrap();

    let bench = TestVolume::with(Freshness::Transaction);
    let (service, _events) = start_by(&bench, &directory.path().join("other.toml"));
    let refused = service.grow(&key(), Some(2 * SIZE)).unwrap_err();
    assert!(refused.is_usage() && refused.to_string().contains("transaction"), "{refused}");
    service.stop().unwrap();
}

#[test]
fn a_policy_that_cannot_be_saved_is_lived_by_all_the_same() {
    let bench = TestVolume::with(Freshness::Strict);
    let directory = tempfile::tempdir().unwrap();
    // A directory in its place passes what is tried before, and fails at the last step.
    let policy_file = directory.path().join("policy.toml");
    std::fs::create_dir(&policy_file).unwrap();
    let (service, events) = start_by(&bench, &policy_file);
    let (grown, saved) = service.grow(&key(), Some(2 * SIZE)).unwrap();
    let failed = saved.unwrap_err();
    assert!(failed.is_io() && failed.to_string().contains("grow it again"), "{failed}");
    assert_eq!(service.size(), 2 * SIZE * 4096, "the header in force says so");
    done(&service, write(2 * SIZE - 1, 2)).unwrap();
    assert_eq!(failure(&service), None);
    // As it says: grown again, the file is written, and nothing else happens.
    let claims = service.volume().unwrap().status().claims;
    assert!(service.grow(&key(), Some(2 * SIZE)).unwrap().1.is_err(), "it has forgotten the file");
    std::fs::remove_dir(&policy_file).unwrap();
    service.grow(&key(), Some(2 * SIZE)).unwrap().1.unwrap();
    assert_eq!(input::read_policy(&policy_file).unwrap(), grown.policy);
    assert_eq!(service.volume().unwrap().status().claims, claims);
    service.stop().unwrap();
    assert!(events.try_recv().is_err());
}
