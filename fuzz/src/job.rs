//! Bytes of a job: its file, its image, and what owner and guest tell each other.

use std::path::Path;

use job::challenge::{Exchange, Question};
use job::file::Job;
use job::guest::{Frame, State, Word};
use job::manifest::Statement;
use job::volume::{Grant, Plan, Stamp};

/// Any bytes as a job file: refused, or the same job when it is written and read again.
pub fn job_file(bytes: &[u8]) {
    if let Ok(job) = Job::parse(bytes, "name") {
        let text = serde_json::to_vec(&job).expect("a job can be written");
        // Our own form is the longer one.
        if text.len() <= job::file::MAX_JOB {
            assert_eq!(Job::parse(&text, "name").expect("it was written by us"), job);
        }
    }
}

/// Any bytes as an image's archive: refused, or counted.
pub fn job_archive(bytes: &[u8]) {
    let _ = job::archive::inspect(bytes);
}

/// Any bytes as each thing that crosses between owner and guest, or that a file beside them holds.
pub fn job_message(bytes: &[u8]) {
    if let Ok(grant) = Grant::parse(bytes) {
        assert!(!grant.names().iter().any(|name| name.contains(|one: char| one.is_control() || one == ' ')));
        for file in grant.files(Path::new("/d")).into_iter().flatten() {
            assert!(!file.name.contains('/') && !file.name.starts_with('.'), "{}", file.name);
        }
    }
    if let Ok(question) = serde_json::from_slice::<Question>(bytes)
        && question.check().is_ok()
    {
        assert!(!question.owner_key.contains('\n'));
    }
    if let Ok(exchange) = serde_json::from_slice::<Exchange>(bytes) {
        let _ = (exchange.check(), exchange.evidence(), exchange.signing_key());
    }
    if let Ok(frame) = serde_json::from_slice::<Frame>(bytes) {
        let _ = frame.bytes();
    }
    let _ = (serde_json::from_slice::<State>(bytes), Statement::open(bytes), Stamp::shown(bytes));
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(word) = Word::parse(text) {
        assert_eq!(Word::parse(&word.to_string()).expect("it was written by us"), word);
    }
    if let Ok(plan) = Plan::of(text, 0) {
        assert!(plan.routes.iter().all(|route| route.to != 0 && !route.host.starts_with('-')));
    }
}
