//! What a daemon says about its volume.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use volume::Status;

use super::front::Shown;
use super::latency::Percentiles;
use super::polling;
use super::rekey;
use super::scrub::{self, Stage};
use super::tamper::{OnTamper, Standing};
use cli::output::{bytes, count, percent};

/// Everything that `cvmio volume status` shows.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// Name of the running volume.
    pub name: String,
    /// The daemon's process id.
    pub process: u32,
    /// Seconds since it was attached.
    pub seconds: u64,
    /// The front end, and where the device is.
    #[serde(flatten)]
    pub shown: Shown,
    /// What was warned about at the start.
    pub warnings: Vec<String>,
    /// It is being put away, or not announced yet: nobody should begin to use it.
    pub leaving: bool,
    /// Requests that ended with an error.
    pub failed_requests: u64,
    /// How often the host was caught, or another session was noticed.
    pub tamper: Standing,
    /// The check that somebody waits for.
    pub check: Option<Checking>,
    /// The last scrub.
    pub scrub: Option<scrub::Standing>,
    /// The change of key that is under way, or has ended in this session.
    pub rekey: Option<rekey::Standing>,
    /// The volume's own word.
    pub volume: Status,
    /// How queue threads wait for requests.
    pub polling: polling::Standing,
    /// Requests that went from one thread to another on their way to the volume.
    pub hand_overs: u64,
    /// Latencies over all queues.
    pub latency: Vec<Percentiles>,
    /// Latencies of each queue.
    pub queues: Vec<Vec<Percentiles>>,
}

/// How far a check has come.
#[derive(Debug, Clone, Serialize)]
pub struct Checking {
    /// Blocks that are done.
    pub blocks: u64,
    /// Of so many.
    pub of: u64,
}

impl Report {
    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let status = &self.volume;
        let up = if self.seconds < 60 {
            format!("{} s", self.seconds)
        } else {
            duration(Duration::from_secs(self.seconds))
        };
        let how = if status.read_only { " for reading only" } else { "" };
        writeln!(out, "{}: attached{how} {up} ago, process {}", self.name, self.process)?;
        if let Some(failure) = &status.failure {
            writeln!(out, "  FAILED       {failure}")?;
        }
        if let Some(unanchored) = status.unanchored.as_ref().filter(|unanchored| !unanchored.is_empty()) {
            writeln!(out, "  UNANCHORED   {}, acknowledged", unanchored.text())?;
        }
        for warning in &self.warnings {
            writeln!(out, "  warning      {warning}")?;
        }
        let mut row = |name: &str, value: String| writeln!(out, "  {name:<12} {value}");
        row("device", self.shown.to_string())?;
        row("store", format!("{} ({})", status.store, bytes(status.store_size)))?;
        if let Some(room) = room(status) {
            row("room", room)?;
        }
        if let Some(waits) = &status.waits_for_room {
            let since = duration(Duration::from_secs(waits.seconds));
            row("NO ROOM", format!("flushes wait for room since {since}: {}", waits.error))?;
        }
        if let Some(seconds) = status.store_silent_seconds {
            let since = duration(Duration::from_secs(seconds));
            row("SILENT", format!("the store's host has not answered for {since}; requests wait for it"))?;
        }
        row("anchor", status.anchor.clone().unwrap_or_else(|| "none".into()))?;
        if let Some(away) = &status.anchor_away {
            let since = duration(Duration::from_secs(away.seconds));
            let attempts = count(away.attempts);
            row("ANCHOR AWAY", format!("for {since}, {attempts} attempts: {}", away.error))?;
        }
        if let Some(notice) = crate::maintenance::certificate_notice(status.anchor_certificate_until) {
            row("CERTIFICATE", notice)?;
        }
        if !status.anchor_facts.is_empty() {
            let facts = status.anchor_facts.iter().map(|(name, value)| format!("{name} {value}"));
            row("", facts.collect::<Vec<_>>().join(", "))?;
        }
        row("protection", protection(status))?;
        let whose = if status.sealing == "staged" {
            "copied to memory that the host shares"
        } else {
            "in memory of this process"
        };
        row("sealing", format!("{}, {whose}", status.sealing))?;
        row("size", size(status))?;
        row("freshness", freshness(status))?;
        row("i/o", io(status))?;
        row(
            "journal",
            format!(
                "{} full, {} commits, {} anchor moves, {} checkpoints",
                journal_fill(status.journal_free_blocks, status.journal_blocks),
                count(status.commits),
                count(status.anchor_moves),
                count(status.checkpoints)
            ),
        )?;
        row("memory", memory(status))?;
        row("waits", waits(&self.polling))?;
        if self.failed_requests > 0 {
            let failed = count(self.failed_requests);
            let (blocks, nodes) = (count(status.corrupt_blocks), count(status.corrupt_nodes));
            row(
                "ERRORS",
                format!(
                    "{failed} requests failed, {blocks} blocks and {nodes} nodes did not verify; see the log"
                ),
            )?;
        }
        if let Some(check) = &self.check {
            row("check", format!("{} done", percent(check.blocks, check.of)))?;
        }
        if let Some(scrub) = &self.scrub {
            row("scrub", scrub_text(scrub))?;
        }
        if let Some(rekey) = &self.rekey {
            row("rekey", rekey_text(rekey))?;
        } else if status.rekeying {
            row("rekey", "begun; an attach for writing goes on with it".into())?;
        }
        if self.tamper.caught > 0 {
            let does = match self.tamper.on_tamper {
                OnTamper::Continue => "it goes on",
                OnTamper::ReadOnly => "it takes no more writes",
                OnTamper::Stop => "it answers no more requests",
            };
            row("TAMPERING", format!("caught {} times; {does}", count(self.tamper.caught)))?;
        }
        if !self.latency.is_empty() {
            writeln!(
                out,
                "  {:<12} {:>12} {:>9} {:>9} {:>9} {:>9}",
                "latency", "count", "p50", "p99", "p99.9", "max"
            )?;
        }
        for one in &self.latency {
            let [p50, p99, p999, max] =
                [one.p50, one.p99, one.p999, one.max].map(|time| duration(Duration::from_nanos(time)));
            let name = one.kind.name();
            writeln!(out, "    {name:<10} {:>12} {p50:>9} {p99:>9} {p999:>9} {max:>9}", count(one.count))?;
        }
        Ok(())
    }
}

/// With so much left a file system that refuses a write has another reason than its size.
const MUCH: u64 = 64 << 20;

/// What a thin volume takes where its store lies, and what is left there.
fn room(status: &Status) -> Option<String> {
    let (taken, left) = (status.store_taken?, status.store_left?);
    let given_back = match (&status.discard_refused, status.discard.as_str()) {
        (Some(why), _) => format!("; free space is not given back: {why}"),
        (None, "on") => format!("; {} given back", bytes(status.store_discarded_blocks * 4096)),
        (None, _) => String::new(),
    };
    let refused = match status.waits_for_room.is_some() && left > MUCH {
        true => ", which it does not give: a quota, or a reserve of the file system",
        false => "",
    };
    (status.provision == "thin")
        .then(|| format!("{} taken, {} left{refused}{given_back}", bytes(taken), bytes(left)))
}

/// How near the next checkpoint is, at the latest.
pub fn journal_fill(free: u64, all: u64) -> String {
    percent(all.saturating_sub(free), all)
}

fn scrub_text(scrub: &scrub::Standing) -> String {
    let stage = match (scrub.stage, &scrub.failure) {
        (Stage::Running, _) => {
            format!(
                "{} done, at most {} a second",
                percent(scrub.blocks.min(scrub.of), scrub.of),
                bytes(scrub.rate)
            )
        }
        (Stage::Done, _) => "done".into(),
        (Stage::Stopped, _) => format!("stopped at {}", percent(scrub.blocks.min(scrub.of), scrub.of)),
        (Stage::Failed, why) => format!("FAILED: {}", why.as_deref().unwrap_or("see the log")),
    };
    let bad = |blocks: u64, what: &str, list: &[(u64, u64)]| match blocks {
        0 => String::new(),
        blocks => {
            let first: Vec<String> =
                list.iter().take(5).map(|(block, blocks)| format!("{blocks} from {block} on")).collect();
            format!(", {} {what}: {}", count(blocks), first.join(", "))
        }
    };
    let damaged = match scrub.damaged_blocks {
        0 => ", none damaged".into(),
        blocks => bad(blocks, "DAMAGED", &scrub.damaged),
    };
    let unreadable = bad(scrub.unreadable_blocks, "UNREADABLE", &scrub.unreadable);
    format!("{stage}; {} blocks{damaged}{unreadable}", count(scrub.blocks))
}

fn rekey_text(rekey: &rekey::Standing) -> String {
    let (far, rate) = (percent(rekey.blocks, rekey.of), bytes(rekey.rate));
    match (rekey.stage, &rekey.failure) {
        (Stage::Running, _) if rekey.blocks >= rekey.of => {
            "everything is sealed anew; looking once more".into()
        }
        (Stage::Running, _) => {
            let left = rekey.seconds_left.map(|seconds| duration(Duration::from_secs(seconds)));
            let left = left.map_or(String::new(), |left| format!(", {left} left"));
            format!("{far} sealed anew, {rate} a second{left}")
        }
        (Stage::Done, _) => "done; the old key opens nothing that the volume refers to".into(),
        (Stage::Stopped, _) => format!("stopped at {far}"),
        (Stage::Failed, why) => format!("FAILED: {}", why.as_deref().unwrap_or("see the log")),
    }
}

fn protection(status: &Status) -> String {
    let on = |protected| if protected { "on" } else { "OFF" };
    format!(
        "{}, confidentiality {}, integrity {}, freshness {}",
        status.suite,
        on(status.confidentiality),
        on(status.integrity),
        status.freshness
    )
}

fn size(status: &Status) -> String {
    let block = store::BLOCK_SIZE as u64;
    let blocks = status.size / block;
    let pinned = if status.pinned_blocks > 0 {
        format!(", {} waiting to be free", bytes(status.pinned_blocks * block))
    } else {
        String::new()
    };
    format!(
        "{} ({}), {} full as of the last checkpoint; {} free{pinned}",
        bytes(status.size),
        status.provision,
        percent(status.mapped_blocks, blocks),
        bytes(status.free_blocks * block)
    )
}

fn freshness(status: &Status) -> String {
    match status.anchored_generation {
        Some(anchored) if anchored == status.generation => {
            format!("generation {}, anchored; claimed {} times", count(anchored), count(status.claims))
        }
        Some(anchored) => format!(
            "generation {}, anchored up to {}; claimed {} times",
            count(status.generation),
            count(anchored),
            count(status.claims)
        ),
        None => format!("generation {}, not anchored", count(status.generation)),
    }
}

fn io(status: &Status) -> String {
    let block = store::BLOCK_SIZE as u64;
    let amplification =
        status.write_amplification.map_or(String::new(), |ratio| format!(" (x{ratio:.2} on the store)"));
    format!(
        "{} read, {} written{amplification}, {} discarded, {} flushes",
        bytes(status.read_blocks * block),
        bytes(status.written_blocks * block),
        bytes(status.discarded_blocks * block),
        count(status.flushes)
    )
}

fn waits(polling: &polling::Standing) -> String {
    let time = |nanos| duration(Duration::from_nanos(nanos));
    let mode = polling.mode.name();
    if polling.mode == polling::Poll::Off {
        return format!("asleep (--poll {mode})");
    }
    format!(
        "looked {} and slept {} ({} found looking, {} after sleep; --poll {mode})",
        time(polling.spun),
        time(polling.slept),
        count(polling.found),
        count(polling.sleeps)
    )
}

fn memory(status: &Status) -> String {
    let cache = |what: &str, held: u64, hits: u64, misses: u64| match hits + misses {
        0 => format!("{} of {what}, ", bytes(held)),
        looked_up => format!("{} of {what} ({} hits), ", bytes(held), percent(hits, looked_up)),
    };
    let map = cache("map cache", status.cache_bytes, status.cache_hits, status.cache_misses);
    let Status { block_cache_bytes: held, block_cache_hits: hits, block_cache_misses: misses, .. } = *status;
    let blocks = if held > 0 { cache("block cache", held, hits, misses) } else { String::new() };
    format!(
        "{map}{blocks}{} changes since the checkpoint, {} for free space",
        count(status.overlay_changes),
        bytes(status.space_bytes)
    )
}

/// A time in its own unit, with three digits.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match time.as_nanos() {
        0..1000 => format!("{} ns", time.as_nanos()),
        1000..1_000_000 => format!("{:.1} us", time.as_secs_f64() * 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        _ if seconds < 60 => format!("{:.1} s", time.as_secs_f64()),
        _ if seconds < 3600 => format!("{} min", seconds / 60),
        _ if seconds < 48 * 3600 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} days", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::latency::Kind;
    use super::*;
    use crate::session::Session;
    use crate::testing::TestVolume;
    use serde_json::json;
    use volume::format::protections::Freshness;

    /// A volume's word, with a number of its own in each field that is shown.
    fn status() -> Status {
        let bench = TestVolume::with(Freshness::Strict);
        let session = Session::begin(bench.attach()).unwrap();
        let status = session.volume.status();
        session.end().unwrap();
        let (size, block) = (status.size, 4096);
        Status {
            anchor: Some("file:/anchor".into()),
            generation: 1234,
            anchored_generation: Some(1200),
            claims: 7,
            mapped_blocks: size / block / 4,
            free_blocks: 256,
            pinned_blocks: 512,
            overlay_changes: 77,
            journal_blocks: 400,
            journal_free_blocks: 300,
            cache_bytes: 3 << 20,
            cache_hits: 3,
            cache_misses: 1,
            block_cache_bytes: 7 << 20,
            block_cache_hits: 1,
            block_cache_misses: 3,
            space_bytes: 5 << 10,
            provision: "thin".into(),
            store_taken: Some(9 << 20),
            store_left: Some(11 << 20),
            discard: "on".into(),
            store_discarded_blocks: 512,
            read_blocks: 10,
            written_blocks: 20,
            discarded_blocks: 30,
            flushes: 41,
            write_amplification: Some(1.25),
            commits: 51,
            anchor_moves: 52,
            checkpoints: 53,
            ..status
        }
    }

    fn report() -> Report {
        let times = Percentiles { kind: Kind::Write, count: 61, p50: 1000, p99: 2000, p999: 3000, max: 4000 };
        Report {
            name: "ledger".into(),
            process: 99,
            seconds: 5,
            shown: Shown::Fuse { device: PathBuf::from("/ledger"), loop_device: None },
            warnings: vec!["beware".into()],
            leaving: false,
            failed_requests: 0,
            tamper: Standing { on_tamper: OnTamper::Continue, caught: 0 },
            check: None,
            scrub: None,
            rekey: None,
            volume: status(),
            polling: polling::Standing {
                mode: polling::Poll::Adaptive,
                spun: 2_000_000,
                slept: 3_000_000,
                found: 71,
                missed: 72,
                sleeps: 73,
            },
            hand_overs: 81,
            latency: vec![times],
            queues: Vec::new(),
        }
    }

    #[test]
    fn people_are_shown_all_that_matters() {
        let text = report().text();
        for row in [
            "ledger: attached 5 s ago, process 99",
            "  warning      beware",
            "  store        memory",
            "  room         9 MiB taken, 11 MiB left; 2 MiB given back",
            "  anchor       file:/anchor",
            "  protection   aes-256-gcm, confidentiality on, integrity on, freshness strict",
            "  sealing      private, in memory of this process",
            "25.0 % full as of the last checkpoint; 1 MiB free, 2 MiB waiting to be free",
            "  freshness    generation 1,234, anchored up to 1,200; claimed 7 times",
            "  i/o          40 KiB read, 80 KiB written (x1.25 on the store), 120 KiB discarded, 41 flushes",
            "  journal      25.0 % full, 51 commits, 52 anchor moves, 53 checkpoints",
            "  memory       3 MiB of map cache (75.0 % hits), 7 MiB of block cache (25.0 % hits), 77 changes since the checkpoint, 5 KiB for free space",
            "  waits        looked 2.0 ms and slept 3.0 ms (71 found looking, 73 after sleep; --poll adaptive)",
            "    write                61    1.0 us    2.0 us    3.0 us    4.0 us",
        ] {
            assert!(text.contains(row), "no `{row}` in\n{text}");
        }
    }

    #[test]
    fn programs_are_told_the_same() {
        let told = serde_json::to_value(report()).unwrap();
        for (pointer, value) in [
            ("/name", json!("ledger")),
            ("/process", json!(99)),
            ("/front-end", json!("fuse")),
            ("/device", json!("/ledger")),
            ("/warnings/0", json!("beware")),
            ("/polling/mode", json!("adaptive")),
            ("/polling/found", json!(71)),
            ("/hand-overs", json!(81)),
            ("/volume/suite", json!("aes-256-gcm")),
            ("/volume/confidentiality", json!(true)),
            ("/volume/integrity", json!(true)),
            ("/volume/freshness", json!("strict")),
            ("/volume/sealing", json!("private")),
            ("/volume/anchor", json!("file:/anchor")),
            ("/volume/generation", json!(1234)),
            ("/volume/anchored-generation", json!(1200)),
            ("/volume/claims", json!(7)),
            ("/volume/cache-bytes", json!(3 << 20)),
            ("/volume/cache-hits", json!(3)),
            ("/volume/block-cache-hits", json!(1)),
            ("/volume/overlay-changes", json!(77)),
            ("/volume/journal-blocks", json!(400)),
            ("/volume/journal-free-blocks", json!(300)),
            ("/volume/free-blocks", json!(256)),
            ("/volume/pinned-blocks", json!(512)),
            ("/volume/store-taken", json!(9 << 20)),
            ("/volume/store-left", json!(11 << 20)),
            ("/volume/store-discarded-blocks", json!(512)),
            ("/volume/read-blocks", json!(10)),
            ("/volume/written-blocks", json!(20)),
            ("/volume/flushes", json!(41)),
            ("/volume/write-amplification", json!(1.25)),
            ("/volume/commits", json!(51)),
            ("/volume/anchor-moves", json!(52)),
            ("/volume/checkpoints", json!(53)),
            ("/latency/0/kind", json!("write")),
            ("/latency/0/p999", json!(3000)),
        ] {
            assert_eq!(told.pointer(pointer), Some(&value), "{pointer} of {told}");
        }
    }

    #[test]
    fn times_are_shown_in_their_unit() {
        for (nanoseconds, text) in [
            (0, "0 ns"),
            (1500, "1.5 us"),
            (2_000_000, "2.0 ms"),
            (1_500_000_000, "1.5 s"),
            (60_000_000_000, "1 min"),
            (3_661_000_000_000, "1 h 1 min"),
            (200_000_000_000_000, "2 days"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanoseconds)), text);
        }
    }
}
