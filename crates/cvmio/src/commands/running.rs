//! Commands to a volume that is attached: `detach`, `list`, `status`, `commit`, `scrub`.

use serde_json::{Value, json};

use crate::cli::{Detach, List, Named, Scrub};
use cli::failure::Failure;
use cli::output;
use daemon::LastWrites;
use daemon::control::Request;
use daemon::runtime::{self, Absence, Place, Silent};

fn ask(args: &Named, request: &Request) -> Result<Value, Failure> {
    Place::new(&args.runtime.directory()?, &args.name).ask(request)
}

fn done(args: &Named, what: &str) -> Result<(), Failure> {
    if args.json {
        return output::print_json(&json!({ "name": args.name, "done": what }));
    }
    output::print(&format!("{what} {}", args.name));
    Ok(())
}

pub fn detach(args: &Detach) -> Result<(), Failure> {
    let named = &args.named;
    let place = Place::new(&named.runtime.directory()?, &named.name);
    if daemon::launch::clear_left(&place)? {
        return done(named, "cleared away what a killed daemon left of");
    }
    let spinner = output::spinner(format!("detaching {}", named.name));
    let ended = place.detach(args.discard_uncommitted, args.force);
    drop(spinner);
    let last = match ended {
        // It is away, as was asked for; what that has cost is said.
        Err(failure) if args.force && !place.exists() => {
            output::warning(&failure.to_string());
            None
        }
        ended => ended?,
    };
    if named.json {
        return output::print_json(&json!({ "name": named.name, "done": "detached", "uncommitted": last }));
    }
    done(named, "detached")?;
    match last {
        None => {}
        Some(LastWrites::Committed { blocks }) => {
            output::print(&format!("  committed what was not yet: {blocks} blocks"));
        }
        Some(LastWrites::Discarded { blocks }) => {
            output::print(&format!("  forgot what was not committed: {blocks} blocks"));
        }
    }
    Ok(())
}

pub fn commit(args: &Named) -> Result<(), Failure> {
    let spinner = output::spinner(format!("committing {}", args.name));
    ask(args, &Request::Commit)?;
    drop(spinner);
    done(args, "committed")
}

pub fn scrub(args: &Scrub) -> Result<(), Failure> {
    let request = if args.stop { Request::StopScrub } else { Request::Scrub { rate: args.rate } };
    ask(&args.named, &request)?;
    done(&args.named, if args.stop { "stopped scrubbing" } else { "scrubbing" })
}

pub fn status(args: &Named) -> Result<(), Failure> {
    let answer = Place::new(&args.runtime.directory()?, &args.name).ask_soon(&Request::Status)?;
    if args.json {
        return output::print_json(&answer["report"]);
    }
    output::print(answer["text"].as_str().unwrap_or_default());
    Ok(())
}

pub fn list(args: &List) -> Result<(), Failure> {
    let directory = args.runtime.directory()?;
    let running = runtime::running(&directory);
    let summary =
        |name: &str, status: &Result<Value, Failure>| summary(name, status, &Place::new(&directory, name));
    if args.json {
        let all: Vec<Value> = running.iter().map(|(name, status)| summary(name, status)).collect();
        return output::print_json(&all);
    }
    if running.is_empty() {
        output::print("no volume is attached");
        return Ok(());
    }
    let rows: Vec<[String; 5]> = running.iter().map(|(name, status)| row(&summary(name, status))).collect();
    output::print(&table(["NAME", "STATE", "SIZE", "DEVICE", "STORE"].map(String::from), &rows));
    Ok(())
}

fn summary(name: &str, status: &Result<Value, Failure>, place: &Place) -> Value {
    match status {
        Ok(answer) => {
            let report = &answer["report"];
            let volume = &report["volume"];
            let state = if volume["failure"].is_null() { "attached" } else { "failed" };
            let places = ["loop-device", "device", "uri"].map(|key| &report[key]);
            let device = places.into_iter().find(|place| !place.is_null());
            json!({ "name": name, "state": state, "size": volume["size"], "device": device, "store": volume["store"],
                "process": report["process"] })
        }
        Err(failure) if failure.is_silent() => {
            let Silent { process, stopped, seconds } = place.silent().unwrap_or_default();
            json!({ "name": name, "state": "silent", "process": process, "stopped": stopped, "silent-seconds": seconds })
        }
        Err(_) => {
            let state = match place.absence() {
                Absence::Foreign => "of another user",
                Absence::Passing => "attaching or detaching",
                Absence::Dead => "dead",
            };
            json!({ "name": name, "state": state })
        }
    }
}

fn row(summary: &Value) -> [String; 5] {
    let text = |key: &str| summary[key].as_str().unwrap_or("-").to_string();
    let size = summary["size"].as_u64().map_or("-".into(), output::bytes);
    let state = match summary["silent-seconds"].as_u64() {
        Some(seconds) => format!("does not answer since {seconds} s"),
        None => text("state"),
    };
    [text("name"), state, size, text("device"), text("store")]
}

/// Columns as wide as their widest cell.
fn table<const N: usize>(head: [String; N], rows: &[[String; N]]) -> String {
    let all = || std::iter::once(&head).chain(rows);
    let widths: [usize; N] =
        std::array::from_fn(|column| all().map(|row| row[column].chars().count()).max().unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_string()
    };
    all().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let rows = [["a".to_string(), "bb".into()], ["ccc".into(), String::new()]];
        assert_eq!(table(["X".into(), "YY".into()], &rows), "X    YY\na    bb\nccc");
    }
}
