//! `cvmio volume top`: two looks at a volume, and what lies between them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use console::Term;
use serde::Serialize;
use serde_json::Value;

use crate::cli::top::Top;
use cli::failure::Failure;
use cli::output::{self, bytes, count, percent};
use daemon::control::Request;
use daemon::latency::{Kind, Times};
use daemon::runtime::{self, Place};
use daemon::status::{duration, journal_fill};

pub fn run(args: &Top) -> Result<(), Failure> {
    let runtime = args.runtime.directory()?;
    let look = || -> Result<BTreeMap<String, Look>, Failure> {
        let names = match &args.name {
            Some(name) => vec![name.clone()],
            None => runtime::names(&runtime),
        };
        let looks = names.into_iter().map(|name| (Look::at(&Place::new(&runtime, &name)), name));
        match &args.name {
            // Of one that was named, it is told why there is nothing to see.
            Some(_) => looks.map(|(look, name)| Ok((name, look?))).collect(),
            None => Ok(looks.filter_map(|(look, name)| Some((name, look.ok()?))).collect()),
        }
    };
    let mut before = look()?;
    let intervals = if args.once { 1 } else { args.count.unwrap_or(u64::MAX) };
    let screen = Screen::new();
    for _ in 0..intervals {
        std::thread::sleep(args.interval);
        // It was there a moment ago: somebody has put it away.
        let Ok(now) = look() else { return Ok(()) };
        let both = now.iter().filter_map(|(name, now)| Some(Interval::between(name, before.get(name)?, now)));
        let intervals: Vec<Interval> = both.collect();
        if args.json {
            intervals.iter().try_for_each(print_line)?;
        } else {
            screen.show(&intervals);
        }
        if !output::can_print() {
            break;
        }
        before = now;
    }
    Ok(())
}

fn print_line(interval: &Interval) -> Result<(), Failure> {
    let line = serde_json::to_string(interval)
        .map_err(|error| Failure::internal(format!("the result cannot be put as JSON: {error}")))?;
    output::print(&line);
    Ok(())
}

/// A volume at one moment.
struct Look {
    at: Instant,
    report: Value,
    times: Vec<Times>,
}

impl Look {
    fn at(place: &Place) -> Result<Self, Failure> {
        let report = place.ask_soon(&Request::Status)?["report"].take();
        let times = serde_json::from_value(place.ask_soon(&Request::Times)?)
            .map_err(|error| Failure::internal(format!("the daemon speaks otherwise: {error}")))?;
        Ok(Self { at: Instant::now(), report, times })
    }

    /// A number of the volume's status.
    fn number(&self, field: &str) -> u64 {
        self.report["volume"][field].as_u64().unwrap_or(0)
    }
}

/// What a volume did between two looks.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Interval {
    name: String,
    /// How long it was.
    seconds: f64,
    read_bytes_per_second: f64,
    written_bytes_per_second: f64,
    discarded_bytes_per_second: f64,
    /// Requests by kind.
    requests: Vec<Requests>,
    /// Of the look-ups in the map's cache, how many found their node; none without look-ups.
    cache_hit_ratio: Option<f64>,
    /// Of the blocks that reads looked for in the block cache, how many were there; none without one.
    block_cache_hit_ratio: Option<f64>,
    /// Written to the store for what users wrote; none without writes.
    write_amplification: Option<f64>,
    commits_per_second: f64,
    anchor_moves_per_second: f64,
    checkpoints: u64,
    /// At its end, as all that follows.
    mapped_bytes: u64,
    size_bytes: u64,
    free_bytes: u64,
    generation: u64,
    anchored_generation: Option<u64>,
    journal_size_bytes: u64,
    journal_free_bytes: u64,
    /// A change of key that is under way.
    rekey: Option<Rekeying>,
    /// Since the volume was attached, as all that follows.
    tamper_events: u64,
    corrupt_blocks: u64,
    corrupt_nodes: u64,
    failed_requests: u64,
    failure: Option<String>,
}

/// How far a change of key is.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Rekeying {
    done_bytes: u64,
    size_bytes: u64,
    /// At the rate so far; none at the very beginning.
    seconds_left: Option<u64>,
}

impl Rekeying {
    /// From a status; none where it has ended, or there is none.
    fn of(standing: &Value) -> Option<Self> {
        let bytes =
            |field: &str| standing[field].as_u64().unwrap_or(0).saturating_mul(store::BLOCK_SIZE as u64);
        (standing["stage"] == "running").then(|| Self {
            done_bytes: bytes("blocks"),
            size_bytes: bytes("of"),
            seconds_left: standing["seconds-left"].as_u64(),
        })
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Requests {
    kind: Kind,
    per_second: f64,
    p50_nanoseconds: Option<u64>,
    p99_nanoseconds: Option<u64>,
}

#[expect(clippy::cast_precision_loss, reason = "rates are for people, and for the first digits")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Interval {
    fn between(name: &str, before: &Look, now: &Look) -> Self {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-6);
        let grown = |field| now.number(field).saturating_sub(before.number(field));
        let rate = |grown: u64| ratio(grown, 1).unwrap_or(0.0) / seconds;
        let block = store::BLOCK_SIZE as u64;
        let blocks = |field| rate(grown(field).saturating_mul(block));
        let (hits, misses) = (grown("cache-hits"), grown("cache-misses"));
        let (held, not_held) = (grown("block-cache-hits"), grown("block-cache-misses"));
        let (written, metadata) = (grown("written-blocks"), grown("metadata-blocks"));
        let requests = before.times.iter().zip(&now.times).map(|(before, now)| {
            let new = now.since(before);
            let quantile =
                |part| new.quantile(part, 100).and_then(|time| u64::try_from(time.as_nanos()).ok());
            Requests {
                kind: new.kind,
                per_second: rate(new.count()),
                p50_nanoseconds: quantile(50),
                p99_nanoseconds: quantile(99),
            }
        });
        Self {
            name: name.into(),
            seconds,
            read_bytes_per_second: blocks("read-blocks"),
            written_bytes_per_second: blocks("written-blocks"),
            discarded_bytes_per_second: blocks("discarded-blocks"),
            requests: requests.collect(),
            cache_hit_ratio: ratio(hits, hits.saturating_add(misses)),
            block_cache_hit_ratio: ratio(held, held.saturating_add(not_held)),
            write_amplification: ratio(written.saturating_add(metadata), written),
            commits_per_second: rate(grown("commits")),
            anchor_moves_per_second: rate(grown("anchor-moves")),
            checkpoints: grown("checkpoints"),
            mapped_bytes: now.number("mapped-blocks").saturating_mul(block),
            size_bytes: now.number("size"),
            free_bytes: now.number("free-blocks").saturating_mul(block),
            generation: now.number("generation"),
            anchored_generation: now.report["volume"]["anchored-generation"].as_u64(),
            journal_size_bytes: now.number("journal-blocks").saturating_mul(block),
            journal_free_bytes: now.number("journal-free-blocks").saturating_mul(block),
            rekey: Rekeying::of(&now.report["rekey"]),
            tamper_events: now.report["tamper"]["caught"].as_u64().unwrap_or(0),
            corrupt_blocks: now.number("corrupt-blocks"),
            corrupt_nodes: now.number("corrupt-nodes"),
            failed_requests: now.report["failed-requests"].as_u64().unwrap_or(0),
            failure: now.report["volume"]["failure"].as_str().map(String::from),
        }
    }

    /// For people.
    fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let anchored = match self.anchored_generation {
            Some(anchored) if anchored == self.generation => "anchored".into(),
            Some(anchored) => format!("anchored up to {}", count(anchored)),
            None => "not anchored".into(),
        };
        writeln!(
            out,
            "{}: {} full, {} free; generation {}, {anchored}",
            self.name,
            percent(self.mapped_bytes, self.size_bytes),
            bytes(self.free_bytes),
            count(self.generation)
        )?;
        writeln!(out, "  {:<10} {:>12} {:>14} {:>9} {:>9}", "", "requests/s", "bytes/s", "p50", "p99")?;
        for one in &self.requests {
            let throughput = match one.kind {
                Kind::Read => per_second(self.read_bytes_per_second),
                Kind::Write => per_second(self.written_bytes_per_second),
                Kind::Discard => per_second(self.discarded_bytes_per_second),
                Kind::Flush | Kind::Allocation | Kind::Commit => String::new(),
            };
            let [p50, p99] = [one.p50_nanoseconds, one.p99_nanoseconds]
                .map(|time| time.map_or("-".into(), |time| duration(Duration::from_nanos(time))));
            let name = one.kind.name();
            writeln!(out, "  {name:<10} {:>12.1} {throughput:>14} {p50:>9} {p99:>9}", one.per_second)?;
        }
        let share = |ratio: f64| format!("{:.1} %", ratio * 100.0);
        let hits = self.cache_hit_ratio.map_or("-".into(), share);
        let held =
            self.block_cache_hit_ratio.map_or(String::new(), |ratio| format!(" (blocks {})", share(ratio)));
        let written = self.write_amplification.map_or("-".into(), |ratio| format!("x{ratio:.2}"));
        writeln!(
            out,
            "  cache hits {hits}{held}, writes {written} on the store, {:.1} commits/s, {:.1} anchor moves/s, {} checkpoints, journal {} full",
            self.commits_per_second,
            self.anchor_moves_per_second,
            self.checkpoints,
            journal_fill(self.journal_free_bytes, self.journal_size_bytes)
        )?;
        if let Some(Rekeying { done_bytes, size_bytes, seconds_left }) = self.rekey {
            let left = seconds_left.map_or(String::new(), |seconds| {
                format!(", {} left", duration(Duration::from_secs(seconds)))
            });
            writeln!(out, "  change of key: {} sealed anew{left}", percent(done_bytes, size_bytes))?;
        }
        if self.tamper_events > 0 {
            writeln!(out, "  TAMPERING: caught {} times; see the log", count(self.tamper_events))?;
        }
        if self.corrupt_blocks + self.corrupt_nodes + self.failed_requests > 0 {
            writeln!(
                out,
                "  ERRORS: {} blocks and {} nodes did not verify, {} requests failed",
                count(self.corrupt_blocks),
                count(self.corrupt_nodes),
                count(self.failed_requests)
            )?;
        }
        self.failure.iter().try_for_each(|failure| writeln!(out, "  FAILED: {failure}"))
    }
}

fn per_second(rate: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate is not negative, and bytes are whole"
    )]
    bytes(rate as u64)
}

/// Where the last interval stands, to be written over; on what is no terminal, one stands below the other.
struct Screen {
    term: Term,
    lines: std::cell::Cell<usize>,
}

impl Screen {
    fn new() -> Self {
        Self { term: Term::stdout(), lines: std::cell::Cell::new(0) }
    }

    fn show(&self, intervals: &[Interval]) {
        let mut text: String = intervals.iter().map(Interval::text).collect();
        if text.is_empty() {
            let _ = writeln!(text, "no volume is attached");
        }
        // That nobody looks is no failure.
        if self.term.is_term() {
            let _ = self.term.clear_last_lines(self.lines.get());
        }
        self.lines.set(text.lines().count());
        output::print(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look(at: Instant, fields: Value, counts: Vec<(u64, u64)>) -> Look {
        let times = vec![Times { kind: Kind::Read, counts }];
        Look {
            at,
            report: json!({ "volume": fields, "failed-requests": 3, "tamper": { "caught": 2 },
                "rekey": { "stage": "running", "blocks": 30, "of": 40, "seconds-left": 90 } }),
            times,
        }
    }

    #[test]
    fn an_interval_is_what_lies_between_two_looks() {
        let begun = Instant::now();
        let before = json!({ "read-blocks": 100, "written-blocks": 10, "metadata-blocks": 10, "cache-hits": 5, "cache-misses": 5,
            "size": 1 << 20, "generation": 7 });
        let now = json!({ "read-blocks": 300, "written-blocks": 20, "metadata-blocks": 15, "cache-hits": 14, "cache-misses": 6,
            "block-cache-hits": 3, "block-cache-misses": 1,
            "size": 1 << 20, "generation": 9, "anchored-generation": 8, "mapped-blocks": 128,
            "journal-blocks": 8, "journal-free-blocks": 6 });
        let before = look(begun, before, vec![(1000, 5)]);
        let now = look(begun + Duration::from_secs(2), now, vec![(1000, 5), (5000, 20)]);
        let interval = Interval::between("v", &before, &now);
        assert_eq!(
            (interval.read_bytes_per_second, interval.written_bytes_per_second),
            (409_600.0, 20_480.0)
        );
        assert_eq!((interval.cache_hit_ratio, interval.write_amplification), (Some(0.9), Some(1.5)));
        assert_eq!(
            (interval.requests[0].per_second, interval.requests[0].p50_nanoseconds),
            (10.0, Some(5000))
        );
        let text = interval.text();
        for part in [
            "v: 50.0 % full",
            "generation 9, anchored up to 8",
            "5.0 us",
            "90.0 % (blocks 75.0 %)",
            "x1.50",
            "journal 25.0 % full",
            "change of key: 75.0 % sealed anew, 1 min left",
            "TAMPERING: caught 2 times",
            "3 requests failed",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let ended = json!({ "stage": "done", "blocks": 40, "of": 40, "seconds-left": null });
        assert!(Rekeying::of(&ended).is_none() && Rekeying::of(&Value::Null).is_none());
        let idle = Interval::between("v", &now, &now);
        assert_eq!(
            (idle.cache_hit_ratio, idle.block_cache_hit_ratio, idle.requests[0].p99_nanoseconds),
            (None, None, None)
        );
    }
}
