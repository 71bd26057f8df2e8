//! `cvmio volume check`: every block that the map reaches is read and opened.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use volume::{AttachOptions, Kind};

use super::offline::{self, Opened};
use crate::cli::Check;
use cli::failure::Failure;
use cli::output;
use daemon::check::{Report, THREADS, check};
use daemon::control::Request;
use daemon::runtime::Place;

/// How often it is seen how far a check has come.
const GLANCE: Duration = Duration::from_millis(20);

pub fn run(args: &Check) -> Result<(), Failure> {
    let report = match offline::running(&args.offline.store, &args.runtime)? {
        Some(place) => by_daemon(&place)?,
        None => offline(args)?,
    };
    show(args, &report)
}

/// Lets the daemon check, and shows how far it has come.
fn by_daemon(place: &Place) -> Result<Report, Failure> {
    let bar = output::bar("checking", 0);
    let answer = std::thread::scope(|scope| {
        let asked = scope.spawn(|| place.ask(&Request::Check));
        while !bar.is_hidden() && !asked.is_finished() {
            // Whatever keeps it from saying, the check itself will say.
            if let Ok(status) = place.ask_soon(&Request::Status) {
                let number = |key: &str| status["report"]["check"][key].as_u64();
                number("of").into_iter().for_each(|of| bar.set_length(of));
                bar.set_position(number("blocks").unwrap_or_default());
            }
            std::thread::sleep(GLANCE);
        }
        asked.join().unwrap_or_else(|_| Err(Failure::internal("a thread ended by a defect")))
    })?;
    bar.finish_and_clear();
    serde_json::from_value(answer).map_err(|error| Failure::internal(error.to_string()))
}

fn offline(args: &Check) -> Result<Report, Failure> {
    let Opened { environment, policy, credential } = offline::open(&args.offline, false)?;
    let spinner = output::spinner("opening");
    let options = AttachOptions::default();
    let volume = volume::attach_read_only(environment, policy, credential, options)?.block()?;
    drop(spinner);
    let bar = output::bar("checking", volume.status().mapped_blocks);
    let report = check(&volume, &Arc::default(), THREADS, |blocks| bar.set_position(blocks))?;
    bar.finish_and_clear();
    Ok(report)
}

fn show(args: &Check, report: &Report) -> Result<(), Failure> {
    let verdict = verdict(report);
    if !args.offline.json {
        output::print(&text(report));
        return verdict;
    }
    let stretches = |list: &[(u64, u64)]| -> Vec<Value> {
        list.iter().map(|(block, blocks)| json!({ "block": block, "blocks": blocks })).collect()
    };
    let mut found = json!({
        "blocks": report.blocks,
        "damaged-blocks": report.damaged_blocks, "damaged": stretches(&report.damaged),
        "unreadable-blocks": report.unreadable_blocks, "unreadable": stretches(&report.unreadable),
    });
    if let Err(failure) = &verdict {
        found["error"] = failure.as_json();
    }
    output::print_json(&found)?;
    verdict.map_err(Failure::told)
}

fn verdict(report: &Report) -> Result<(), Failure> {
    match (report.damaged_blocks, report.unreadable_blocks) {
        (0, 0) => Ok(()),
        (0, unreadable) => Err(Failure::io(format!(
            "{} blocks cannot be read; restore what lies on them from a backup, and replace the disk",
            output::count(unreadable)
        ))),
        (damaged, _) => {
            let message = format!(
                "{} blocks are not what was written there; restore what lies on them from a backup, and suspect the host",
                output::count(damaged)
            );
            Err(volume::Error::new(Kind::Corrupt, message).into())
        }
    }
}

fn text(report: &Report) -> String {
    let checked = output::count(report.blocks);
    if report.damaged_blocks == 0 && report.unreadable_blocks == 0 {
        return format!("{checked} blocks checked, all whole");
    }
    let list = |blocks: u64, what: &str, list: &[(u64, u64)]| match blocks {
        0 => String::new(),
        blocks => {
            let lines = list.iter().map(|(block, blocks)| format!("\n  {blocks} blocks from {block} on"));
            format!(", {} {what}:{}", output::count(blocks), lines.collect::<String>())
        }
    };
    let damaged = list(report.damaged_blocks, "damaged", &report.damaged);
    let unreadable = list(report.unreadable_blocks, "that cannot be read", &report.unreadable);
    format!("{checked} blocks checked{damaged}{unreadable}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_tells_what_is_damaged_from_what_cannot_be_read() {
        let mut report = Report {
            blocks: 1024,
            damaged_blocks: 0,
            damaged: Vec::new(),
            unreadable_blocks: 0,
            unreadable: Vec::new(),
        };
        assert_eq!(text(&report), "1,024 blocks checked, all whole");
        (report.unreadable_blocks, report.unreadable) = (2, vec![(7, 1), (9, 1)]);
        let unreadable = ", 2 that cannot be read:\n  1 blocks from 7 on\n  1 blocks from 9 on";
        assert_eq!(text(&report), format!("1,024 blocks checked{unreadable}"));
        (report.damaged_blocks, report.damaged) = (3, vec![(20, 3)]);
        let damaged = ", 3 damaged:\n  3 blocks from 20 on";
        assert_eq!(text(&report), format!("1,024 blocks checked{damaged}{unreadable}"));
        assert_eq!(report.lost(), 5);
    }
}
