//! The page itself. Names, and what they mean, are an interface: dashboards and alarms are made of them (docs/operations.md).

use std::fmt::{Display, Write as _};

use store::BLOCK_SIZE;
use volume::Status;

use crate::latency::Times;
use crate::rekey;
use crate::scrub::{self, Stage};
use crate::sign::Sign;
use crate::status::Report;

/// What a volume and its daemon are like at one moment.
pub struct Snapshot {
    /// What `cvmio volume status` says too.
    pub report: Report,
    /// How long requests took.
    pub times: Vec<Times>,
    /// Signs of tampering.
    pub tampering: [(Sign, u64); Sign::ALL.len()],
}

/// Upper bounds of the histograms' buckets, in nanoseconds, and as the format has them: in seconds.
const BUCKETS: [(u64, &str); 14] = [
    (25_000, "0.000025"),
    (50_000, "0.00005"),
    (100_000, "0.0001"),
    (250_000, "0.00025"),
    (500_000, "0.0005"),
    (1_000_000, "0.001"),
    (2_500_000, "0.0025"),
    (5_000_000, "0.005"),
    (10_000_000, "0.01"),
    (25_000_000, "0.025"),
    (100_000_000, "0.1"),
    (500_000_000, "0.5"),
    (1_000_000_000, "1"),
    (10_000_000_000, "10"),
];

/// The page.
pub fn page(snapshot: &Snapshot) -> String {
    let mut page = Page { text: String::new(), name: escape(&snapshot.report.name) };
    daemon(&mut page, snapshot);
    volume(&mut page, &snapshot.report.volume);
    durations(&mut page, &snapshot.times);
    page.text
}

fn daemon(page: &mut Page, snapshot: &Snapshot) {
    let report = &snapshot.report;
    page.family("tamper_events_total", "counter", "Signs of tampering since the volume was attached.");
    for (tamper, times) in snapshot.tampering {
        page.sample("tamper_events_total", &[("kind", tamper.name())], times);
    }
    scrub(page, report.scrub.as_ref());
    rekey(page, report.rekey.as_ref());
    page.gauge("attached_seconds", "How long the volume has been attached.", report.seconds);
    page.counter("failed_requests_total", "Requests that ended with an error.", report.failed_requests);
}

/// The last scrub since the volume was attached, if there was one.
fn scrub(page: &mut Page, standing: Option<&scrub::Standing>) {
    let Some(scrub) = standing else { return };
    let running = u8::from(scrub.stage == Stage::Running);
    page.gauge("scrub_running", "1 while the last scrub is under way, 0 when it has ended.", running);
    page.gauge(
        "scrub_done",
        "1 when the last scrub has read everything.",
        u8::from(scrub.stage == Stage::Done),
    );
    page.gauge("scrub_bytes", "Data that the last scrub has read.", bytes(scrub.blocks));
    let damaged = "Blocks that the last scrub found to be not what was written.";
    page.gauge("scrub_damaged_blocks", damaged, scrub.damaged_blocks);
    let unreadable = "Blocks that the store could not read to it.";
    page.gauge("scrub_unreadable_blocks", unreadable, scrub.unreadable_blocks);
}

/// How far a change of key is in this session, or was; absent where there was none.
fn rekey(page: &mut Page, standing: Option<&rekey::Standing>) {
    let Some(rekey) = standing else { return };
    let done = "Data that the change of key has looked at, and that is under the new key.";
    page.gauge("rekey_done_bytes", done, bytes(rekey.blocks));
    let all = "Data that there was when this session began with it.";
    page.gauge("rekey_size_bytes", all, bytes(rekey.of));
}

/// Every field has its place: when one is added to the status, this no longer compiles.
fn volume(page: &mut Page, status: &Status) {
    let Status {
        volume,
        suite,
        confidentiality,
        integrity,
        freshness,
        provision,
        read_only,
        sealing,
        size,
        store_size,
        store_taken,
        store_left,
        discard: _,
        discard_refused,
        store_discarded_blocks,
        store,
        anchor,
        anchor_away,
        anchor_facts: _,
        anchor_certificate_until,
        anchor_space,
        generation,
        anchored_generation,
        claims,
        mapped_blocks,
        free_blocks,
        pinned_blocks,
        foreign_units,
        taken_units,
        overlay_changes,
        journal_blocks,
        journal_free_blocks,
        cache_bytes,
        cache_hits,
        cache_misses,
        cache_evictions,
        block_cache_bytes,
        block_cache_hits,
        block_cache_misses,
        space_bytes,
        read_blocks,
        written_blocks,
        discarded_blocks,
        flushes,
        metadata_blocks,
        nodes_read,
        write_amplification,
        commits,
        anchor_moves,
        checkpoints,
        corrupt_blocks,
        corrupt_nodes,
        waits_for_space,
        waits_for_checkpoint,
        waits_for_store,
        waits_for_room,
        store_silent_seconds,
        rekeying,
        resealed_blocks,
        failure,
        unanchored,
    } = status;
    page.family("info", "gauge", "What the volume is; always 1.");
    let info = [
        ("volume", volume.as_str()),
        ("suite", suite),
        ("confidentiality", on(*confidentiality)),
        ("integrity", on(*integrity)),
        ("freshness", freshness),
        ("provision", provision),
        ("read_only", on(*read_only)),
        ("sealing", sealing),
        ("store", store),
        ("anchor", anchor.as_deref().unwrap_or_default()),
        ("version", env!("CARGO_PKG_VERSION")),
    ];
    page.sample("info", &info, 1);
    page.gauge(
        "failed",
        "1 when the session has stopped writing, 0 while it works.",
        u8::from(failure.is_some()),
    );
    let blocks = unanchored.as_ref().map_or(0, |unanchored| unanchored.blocks);
    let what = "Blocks that were acknowledged and never anchored, of a session that has stopped writing.";
    page.gauge("unanchored_blocks", what, blocks);

    page.gauge("size_bytes", "Size that the volume shows.", size);
    page.gauge("store_size_bytes", "Size of the store that the volume occupies.", store_size);
    if let Some(taken) = store_taken {
        page.gauge("store_taken_bytes", "What the store takes where it lies.", taken);
    }
    if let Some(left) = store_left {
        page.gauge("store_left_bytes", "What is left where the store lies.", left);
    }
    page.counter(
        "store_discarded_bytes_total",
        "Free space that the store was told to forget.",
        bytes(*store_discarded_blocks),
    );
    page.gauge(
        "store_discard_refused",
        "1 when the store does not take free space back, although it should.",
        u8::from(discard_refused.is_some()),
    );
    page.gauge("mapped_bytes", "Data on the volume as of the last checkpoint.", bytes(*mapped_blocks));
    page.gauge("free_bytes", "Space that new data could take.", bytes(*free_blocks));
    page.gauge("pinned_bytes", "Space that is freed but cannot be used again yet.", bytes(*pinned_blocks));
    page.gauge("foreign_units", "Units left alone because the session before may be alive.", foreign_units);
    page.gauge("taken_units", "Units that are not left alone any more.", taken_units);

    page.gauge("generation", "Number of the last journal record.", generation);
    if let Some(anchored) = anchored_generation {
        page.gauge("anchored_generation", "Number of the last journal record that is anchored.", anchored);
    }
    if anchor.is_some() {
        let away = anchor_away.as_ref();
        page.gauge("anchor_away", "1 while the anchor does not answer.", u8::from(away.is_some()));
        let since = "For how long it has not answered.";
        page.gauge("anchor_away_seconds", since, away.map_or(0, |away| away.seconds));
        if let Some(until) = anchor_certificate_until {
            let what = "When the first of the certificates ends that the anchor is reached with, in seconds since 1970.";
            page.gauge("anchor_certificate_expiry_timestamp_seconds", what, until);
        }
        if let Some(space) = anchor_space {
            let what =
                "What the anchor takes where it is kept; each move adds to it until that is compacted.";
            page.gauge("anchor_space_bytes", what, *space);
        }
    }
    page.counter("claims_total", "How often the volume was ever claimed.", claims);
    page.counter("commits_total", "Commits since the volume was attached.", commits);
    page.counter("anchor_moves_total", "Times the anchor was moved.", anchor_moves);
    page.counter("checkpoints_total", "Checkpoints.", checkpoints);
    page.gauge("journal_size_bytes", "The journal's ring.", bytes(*journal_blocks));
    page.gauge(
        "journal_free_bytes",
        "What it has left for records before a checkpoint must make room.",
        bytes(*journal_free_blocks),
    );
    page.gauge("overlay_changes", "Changes since the last checkpoint.", overlay_changes);

    page.counter("read_bytes_total", "Data read by users.", bytes(*read_blocks));
    page.counter("written_bytes_total", "Data written by users.", bytes(*written_blocks));
    page.counter("discarded_bytes_total", "Data discarded by users.", bytes(*discarded_blocks));
    page.counter("flushes_total", "Flushes asked for.", flushes);
    page.counter(
        "metadata_written_bytes_total",
        "Written for journal, nodes and superblocks.",
        bytes(*metadata_blocks),
    );
    page.counter("nodes_read_total", "Nodes read from the store.", nodes_read);
    if let Some(ratio) = write_amplification {
        page.gauge("write_amplification_ratio", "Written to the store for what users wrote.", ratio);
    }
    page.gauge("cache_bytes", "Nodes in the cache.", cache_bytes);
    page.counter("cache_hits_total", "Look-ups that found their node in the cache.", cache_hits);
    page.counter("cache_misses_total", "Look-ups that did not.", cache_misses);
    page.counter("cache_evictions_total", "Nodes that left the cache for others.", cache_evictions);
    page.gauge("block_cache_bytes", "Data blocks in their cache.", block_cache_bytes);
    page.counter("block_cache_hits_total", "Blocks that a read found there.", block_cache_hits);
    page.counter("block_cache_misses_total", "Blocks that it did not.", block_cache_misses);
    page.gauge("space_memory_bytes", "Memory for what is known about free space.", space_bytes);

    page.gauge(
        "rekeying",
        "1 while a change of key is under way, and the old key is still needed.",
        u8::from(*rekeying),
    );
    page.counter("resealed_bytes_total", "Data sealed anew for it.", bytes(*resealed_blocks));

    page.counter("corrupt_blocks_total", "Data blocks that did not verify.", corrupt_blocks);
    page.counter(
        "corrupt_nodes_total",
        "Nodes of map, bitmap and salt table that did not verify.",
        corrupt_nodes,
    );
    page.counter("waits_for_space_total", "Times a writer had to wait for space.", waits_for_space);
    page.counter(
        "waits_for_checkpoint_total",
        "Times a writer had to wait for a checkpoint.",
        waits_for_checkpoint,
    );
    page.counter(
        "waits_for_store_total",
        "Times something waited because the store had no room.",
        waits_for_store,
    );
    page.gauge(
        "waits_for_room_seconds",
        "Since when flushes wait because the store has no room; 0 when none does.",
        waits_for_room.as_ref().map_or(0, |waits| waits.seconds.max(1)),
    );
    page.gauge(
        "store_silent_seconds",
        "For how long the store's host has not answered a request; 0 when it answers.",
        store_silent_seconds.unwrap_or(0),
    );
}

fn durations(page: &mut Page, times: &[Times]) {
    page.family("request_duration_seconds", "histogram", "Time from a request to its end.");
    for one in times {
        let kind = ("kind", one.kind.name());
        for (bound, le) in BUCKETS {
            let within = one.counts.iter().filter(|(time, _)| *time <= bound).map(|(_, count)| count);
            page.sample("request_duration_seconds_bucket", &[kind, ("le", le)], within.sum::<u64>());
        }
        page.sample("request_duration_seconds_bucket", &[kind, ("le", "+Inf")], one.count());
        let nanoseconds: u128 =
            one.counts.iter().map(|(time, count)| u128::from(*time) * u128::from(*count)).sum();
        #[expect(clippy::cast_precision_loss, reason = "the times are within a hundredth")]
        page.sample("request_duration_seconds_sum", &[kind], nanoseconds as f64 / 1e9);
        page.sample("request_duration_seconds_count", &[kind], one.count());
    }
}

fn bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(BLOCK_SIZE as u64)
}

fn on(protected: bool) -> &'static str {
    if protected { "on" } else { "off" }
}

/// A label's value.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A page in the making. Every sample has the volume's name; writing to a string cannot fail.
struct Page {
    text: String,
    name: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.text, "# HELP cvmio_{name} {help}\n# TYPE cvmio_{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "cvmio_{name}{{name=\"{}\"", self.name);
        for (label, text) in labels {
            let _ = write!(self.text, ",{label}=\"{}\"", escape(text));
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Kind;

    #[test]
    fn buckets_are_cumulative_and_their_bounds_are_what_they_say() {
        for (bound, text) in BUCKETS {
            assert_eq!(
                (text.parse::<f64>().unwrap() * 1e9).round(),
                f64::from(u32::try_from(bound / 1000).unwrap()) * 1e3
            );
        }
        let mut page = Page { text: String::new(), name: "v".into() };
        let counts = vec![(30_000, 2), (90_000, 3), (20_000_000_000, 1)];
        durations(&mut page, &[Times { kind: Kind::Read, counts }]);
        for line in [
            "cvmio_request_duration_seconds_bucket{name=\"v\",kind=\"read\",le=\"0.000025\"} 0",
            "cvmio_request_duration_seconds_bucket{name=\"v\",kind=\"read\",le=\"0.0001\"} 5",
            "cvmio_request_duration_seconds_bucket{name=\"v\",kind=\"read\",le=\"10\"} 5",
            "cvmio_request_duration_seconds_bucket{name=\"v\",kind=\"read\",le=\"+Inf\"} 6",
            "cvmio_request_duration_seconds_sum{name=\"v\",kind=\"read\"} 20.00033",
        ] {
            assert!(page.text.lines().any(|found| found == line), "{line}\n{}", page.text);
        }
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
    }
}
