//! `cvmio job`: jobs whose machines run.

use std::io;

use cli::failure::Failure;
use cli::interrupt::Interrupt;
use cli::output;
use job::owner::state::Place;
use job::owner::{Flow, put_away};
use serde_json::json;

use crate::arguments::Job;
use crate::run::finish;

/// Does what was asked for. What is returned is a container's exit code, if one has ended.
pub fn run(command: Job) -> Result<i32, Failure> {
    match command {
        Job::List { json } => list(json).map(|()| 0),
        Job::Logs { name } => {
            let interrupt = Interrupt::on_signals()?;
            let flow = Flow::resume(&name, &interrupt)?;
            let followed = flow.follow(&mut io::stdout(), &mut io::stderr());
            flow.leave();
            interrupt.check().map_err(|_| Failure::interrupted("interrupted; the job goes on"))?;
            followed?;
            Ok(0)
        }
        Job::Resume { name, json } => {
            let interrupt = Interrupt::on_signals()?;
            finish(Flow::resume(&name, &interrupt)?, json, &interrupt)
        }
        Job::Stop { name } => {
            let place = Place::find(&name)?;
            put_away(&place);
            if place.path().exists() {
                place.forget()?;
            }
            Ok(0)
        }
    }
}

fn list(json: bool) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for place in Place::list()? {
        let name = place.path().file_name().unwrap_or_default().display().to_string();
        let record = place.record().ok();
        let state = match &record {
            Some(record) if record.is_alive() => format!("{:?}", record.stage).to_lowercase(),
            Some(_) => "lost its machine".into(),
            None => "was not launched".into(),
        };
        rows.push((name, state, record));
    }
    if json {
        let rows: Vec<_> = rows.iter().map(|(name, state, record)| json!({ "name": name, "state": state, "process": record.as_ref().map(|record| record.process) })).collect();
        return output::print_json(&rows);
    }
    let lines: Vec<String> = rows.iter().map(|(name, state, _)| format!("{name}\t{state}")).collect();
    output::print(if lines.is_empty() { "no jobs".into() } else { lines.join("\n") }.as_str());
    Ok(())
}
