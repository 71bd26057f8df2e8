//! What the daemon tells its operator: to the journal when systemd started it, and in a line on standard error.
//!
//! Signs of tampering have a message id of their own in the journal (`journalctl MESSAGE_ID=...`), which never changes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use log::{Level, Record};
use systemd_journal_logger::{JournalLog, connected_to_journal};

use crate::sign::Sign;
use cli::failure::Failure;
use cli::output;

/// Whose events these are, and where they go.
struct Channel {
    name: String,
    volume: String,
    journal: Option<JournalLog>,
    on_stderr: bool,
}

static CHANNEL: OnceLock<Channel> = OnceLock::new();
static SEEN: [AtomicU64; Sign::ALL.len()] = [const { AtomicU64::new(0) }; Sign::ALL.len()];

impl Channel {
    fn new(name: &str, volume: [u8; 16]) -> Self {
        // Set for what systemd started, and inherited by a daemon whose standard error is a file of ours.
        let under_systemd = std::env::var_os("JOURNAL_STREAM").is_some();
        let journal = under_systemd.then(JournalLog::empty).and_then(Result::ok);
        let journal = journal.map(|journal| journal.with_syslog_identifier("cvmio".into()));
        let on_stderr = journal.is_none() || !connected_to_journal();
        Self { name: name.into(), volume: hex::encode(volume), journal, on_stderr }
    }
}

/// Names the volume whose daemon this process is.
pub fn begin(name: &str, volume: [u8; 16]) {
    // A process serves one volume.
    let _ = CHANNEL.set(Channel::new(name, volume));
}

/// Tells the journal of a sign of tampering before there is a daemon; standard error hears of it as of every failure.
pub fn refused(name: &str, volume: [u8; 16], failure: &Failure) {
    if let Some(tamper) = Sign::of(failure.kind()) {
        let channel = Channel { on_stderr: false, ..Channel::new(name, volume) };
        channel.send(Level::Error, &format!("the volume cannot be used: {failure}"), Some(tamper), &[]);
    }
}

/// Tells of something that is no sign of tampering.
pub fn tell(message: &str) {
    send(Level::Warn, message, None, &[]);
}

/// Tells of what ended the session, or kept it from beginning.
pub fn failed(what: &str, failure: &Failure) {
    let tamper = Sign::of(failure.kind());
    tamper.iter().for_each(|tamper| note(*tamper, 1));
    send(Level::Error, &format!("{what}: {failure}"), tamper, &[]);
}

/// Tells of a request that failed.
pub fn request_failed(what: &str, error: &volume::Error) {
    send(Level::Error, &format!("{what} failed: {error}"), Sign::of(error.kind()), error.blocks());
}

/// Tells of damage that a check found.
pub fn damage_found(blocks: u64, first: Option<u64>) {
    note(Sign::Corrupt, blocks);
    let message = format!("a check found {blocks} blocks that are not what was written there");
    send(Level::Error, &message, Some(Sign::Corrupt), first.as_slice());
}

/// Tells of blocks that a check could not read. That is no sign of tampering: disks wear out.
pub fn unreadable_found(blocks: u64, first: Option<u64>) {
    let message = format!("a check found {blocks} blocks that the disk cannot read; replace it");
    send(Level::Error, &message, None, first.as_slice());
}

/// Counts signs of tampering, told of or not.
pub fn note(tamper: Sign, times: u64) {
    SEEN[tamper as usize].fetch_add(times, Ordering::Relaxed);
}

/// How often there was a sign of each kind since this process began.
pub fn seen() -> [(Sign, u64); Sign::ALL.len()] {
    Sign::ALL.map(|tamper| (tamper, SEEN[tamper as usize].load(Ordering::Relaxed)))
}

fn send(level: Level, message: &str, tamper: Option<Sign>, blocks: &[u64]) {
    match CHANNEL.get() {
        Some(channel) => channel.send(level, message, tamper, blocks),
        None => output::warning(message),
    }
}

impl Channel {
    fn send(&self, level: Level, message: &str, tamper: Option<Sign>, blocks: &[u64]) {
        let mut fields = vec![("CVMIO_NAME", self.name.clone()), ("CVMIO_VOLUME", self.volume.clone())];
        if let Some(tamper) = tamper {
            fields.push(("MESSAGE_ID", tamper.message_id().into()));
            fields.push(("CVMIO_KIND", tamper.name().into()));
        }
        fields.extend(blocks.iter().map(|block| ("CVMIO_BLOCK", block.to_string())));
        if let Some(journal) = &self.journal {
            let mut record = Record::builder();
            record.level(level).target("cvmio").key_values(&fields);
            // Nobody is left to tell that the journal does not listen.
            let _ = journal.journal_send(&record.args(format_args!("{message}")).build());
        }
        if self.on_stderr {
            output::warning(&line(message, tamper, &fields));
        }
    }
}

/// For people and for grep; the fields only where somebody has to act on them.
fn line(message: &str, tamper: Option<Sign>, fields: &[(&str, String)]) -> String {
    if tamper.is_none() {
        return message.into();
    }
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("{message} [{}]", fields.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signs_of_tampering_carry_their_fields_in_the_line() {
        let fields = [("CVMIO_NAME", "ledger".to_string()), ("CVMIO_BLOCK", "5".into())];
        assert_eq!(line("a", None, &fields), "a");
        assert_eq!(line("a", Some(Sign::Corrupt), &fields), "a [CVMIO_NAME=ledger CVMIO_BLOCK=5]");
    }
}
