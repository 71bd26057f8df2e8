//! `cvmio run`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use cli::failure::Failure;
use cli::interrupt::Interrupt;
use cli::output;
use job::file::schema;
use job::owner::{Done, Flow, Machine, Options, Prepared, verify};
use job::volume::Used;
use serde_json::json;
use vm::Platform;

use crate::arguments::{Kind, Run};
use crate::trust;

/// Runs a job, or verifies what an earlier one has left.
pub fn run(args: &Run) -> Result<i32, Failure> {
    if args.schema {
        return output::print_json(&schema()).map(|()| 0);
    }
    if let Some(manifest) = &args.verify {
        return check(args, manifest).map(|()| 0);
    }
    let (Some(file), Some(image)) = (&args.file, &args.image) else {
        return Err(Failure::usage("a job file and --image are missing"));
    };
    let options = options(args, image)?;
    let prepared = Prepared::read(file, args.replace)?;
    let interrupt = Interrupt::on_signals()?;
    let flow = interrupt.end(Flow::launch(&prepared, &options, &say, &interrupt))?;
    if args.detach {
        let name = &prepared.job.name;
        flow.leave();
        say(&format!("the container runs; `cvmio job resume {name}` brings its result"));
        return Ok(0);
    }
    finish(flow, args.json, &interrupt)
}

fn options(args: &Run, image: &Path) -> Result<Options, Failure> {
    let firmware = || args.firmware.clone().ok_or_else(|| Failure::usage("--firmware is missing"));
    let platform = match args.platform {
        Kind::Snp => Platform::Snp { firmware: firmware()? },
        Kind::Tdx => Platform::Tdx { firmware: firmware()? },
        Kind::Simulated => Platform::unprotected(),
    };
    let machine = Machine { qemu: args.qemu.clone(), image: image.to_path_buf(), platform, seat: None };
    Ok(Options {
        machine,
        policy: trust::policy(&args.trust)?,
        beside: trust::beside(&args.trust)?,
        allow_simulated: args.trust.allow_simulated,
        replace: args.replace,
    })
}

/// Tells the owner what happens now.
fn say(step: &str) {
    let _ = writeln!(io::stderr(), "cvmio: {step}");
}

/// Follows a job to its end, brings its result and powers its machine off. A job that runs on is kept when its owner's side fails: the
/// connection may be back later.
pub fn finish(flow: Flow, json: bool, interrupt: &Interrupt) -> Result<i32, Failure> {
    let done = match bring(&flow, json) {
        Err(failure) if interrupt.check().is_ok() && flow.goes_on() => {
            let name = flow.name().to_string();
            flow.leave();
            return Err(failure.with(format!(
                "the machine is kept: `cvmio job resume {name}` tries again, `cvmio job stop {name}` ends it"
            )));
        }
        done => done,
    };
    let wiped = flow.wipe();
    let done = interrupt.end(done)?;
    wiped?;
    for path in &done.results {
        say(&format!("{} is there", path.display()));
    }
    say(&format!("the manifest is {}", done.manifest.display()));
    if let Some(limit) = &done.end.stopped_by {
        say(&format!("the container was stopped by {limit}"));
    }
    if json {
        output::print_json(&json!({
            "exit-code": done.end.exit_code,
            "stopped-by": done.end.stopped_by,
            "results": done.results,
            "manifest": done.manifest,
        }))?;
    }
    Ok(code(&done))
}

/// What the exit code says: the container's, and never 0 for one that a limit has stopped.
fn code(done: &Done) -> i32 {
    match (done.end.exit_code, &done.end.stopped_by) {
        (0, Some(_)) => 137,
        (code, _) => code,
    }
}

fn bring(flow: &Flow, json: bool) -> Result<Done, Failure> {
    let mut errors = io::stderr();
    let state = match json {
        true => flow.follow(&mut io::stderr(), &mut errors)?,
        false => flow.follow(&mut io::stdout(), &mut errors)?,
    };
    Ok(flow.fetch(&state)?)
}

/// `cvmio run --verify`.
fn check(args: &Run, manifest: &Path) -> Result<(), Failure> {
    let judge = trust::judge(&args.trust)?;
    let bytes =
        fs::read(manifest).map_err(|error| Failure::usage(format!("{}: {error}", manifest.display())))?;
    let base = manifest.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let verified = verify(&bytes, &judge, base)?;
    let predicate = &verified.statement.predicate;
    if args.json {
        return output::print_json(&json!({
            "job": predicate.job,
            "platform": verified.claims.platform(),
            "measurement": verified.claims.measurement(),
            "exit-code": predicate.end.exit_code,
            "stopped-by": predicate.end.stopped_by,
            "volumes": predicate.volumes,
            "files": verified.compared,
        }));
    }
    let volumes: String = predicate.volumes.iter().map(volume).collect();
    output::print(&format!(
        "job {}: ended with exit code {}\nplatform {}, measurement {}\n{volumes}signature and evidence pass; {} files are those that the guest has signed",
        predicate.job,
        predicate.end.exit_code,
        verified.claims.platform(),
        verified.claims.measurement(),
        verified.compared
    ));
    Ok(())
}

/// A volume of a manifest, as a line.
fn volume(used: &Used) -> String {
    let before =
        used.before.as_ref().map_or("new".into(), |stamp| format!("generation {}", stamp.generation));
    format!(
        "volume {} at {}: {before} before, generation {} after, {}\n",
        used.volume, used.to, used.after.generation, used.after.state
    )
}
