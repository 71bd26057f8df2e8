//! `cvmio volume prepare`, `activate` and `deactivate`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use seal::Random;
use serde::Serialize;
use serde_json::json;
use volume::policy::{Policy, VERSION};

use super::create::{new_anchor, shown};
use crate::cli::service::{Activate, Deactivate, Prepare, TAB, Units};
use cli::failure::Failure;
use cli::output;
use daemon::input;
use service::tab::{self, Line};
use service::{MAX_CONFIG, Target};

pub fn prepare(args: &Prepare) -> Result<(), Failure> {
    input::whole_blocks(args.size)?;
    let mut id = [0; 16];
    seal::SystemRandom.fill(&mut id);
    let freshness = daemon::wear::level(args.freshness, Some(&args.anchor));
    let policy = Policy {
        version: VERSION,
        volume: id,
        suite: args.suite,
        confidentiality: !args.no_confidentiality,
        integrity: true,
        freshness,
        size: args.size,
        anchor: Some(args.anchor.clone()),
        format_if_blank: true,
        anchor_options: input::anchor_options(&args.anchor_options.anchor_options)?,
    };
    if freshness == volume::format::protections::Freshness::Off {
        return Err(Failure::usage(
            "without freshness nothing can tell a first use from a store that was blanked; create the volume by hand",
        ));
    }
    policy.to_toml()?;
    if args.policy.exists() {
        return Err(Failure::usage(format!(
            "there is a policy at {} already; name another file",
            args.policy.display()
        )));
    }
    let anchor = input::anchor_files(Some(&args.anchor), &policy.anchor_options);
    input::refuse_same(&[vec![("policy", Some(&args.policy))], input::named("anchor", &anchor)])?;
    // Before an anchor is made, which nobody could use without it.
    input::check_new_policy(&args.policy, false)?;
    let created = new_anchor(&args.anchor, &policy.anchor_options)?;
    service::refuse_claimed(created.anchor.as_ref())?;
    let saved = input::save_policy(&args.policy, &policy, false);
    if let (Err(_), Some(undo)) = (&saved, created.undo) {
        undo();
    }
    saved?;
    if args.json {
        return output::print_json(&json!({ "policy": args.policy, "volume": shown(&policy) }));
    }
    output::print(&format!(
        "prepared a volume of {}; `cvmio volume activate` makes it on first use\n  policy  {}\n  anchor  {}\n\
         Keep these where the host of the store cannot change them: they are what the volume is checked against.",
        output::bytes(policy.size),
        args.policy.display(),
        args.anchor
    ));
    Ok(())
}

pub fn activate(args: &Activate) -> Result<(), Failure> {
    let runtime = args.runtime.directory()?;
    let which = &args.which;
    if which.all {
        let lines = tab::read(&which.tab)?;
        return each(lines.iter().filter(|line| !line.noauto && !line.initramfs), |line| {
            service::activate(&line.target, &runtime)
        });
    }
    let target = match (&which.name, &which.config) {
        (Some(name), _) => tab::find(&which.tab, name)?,
        (None, Some(path)) => read_config(path)?,
        (None, None) => return Err(Failure::internal("nothing was named")),
    };
    let target = match args.front_end {
        Some(front_end) => target.shown_as(front_end.into())?,
        None => target,
    };
    output::print_json(&service::activate(&target, &runtime)?)
}

pub fn deactivate(args: &Deactivate) -> Result<(), Failure> {
    let runtime = args.runtime.directory()?;
    let which = &args.which;
    if which.all {
        // The last one first: it may lie on another.
        let lines = tab::read(&which.tab)?;
        return each(lines.iter().rev().filter(|line| !line.initramfs), |line| {
            service::deactivate(&line.target.name, &runtime)
        });
    }
    let name = match (&which.name, &which.config) {
        (Some(name), _) => name.clone(),
        (None, Some(path)) => read_config(path)?.name,
        (None, None) => return Err(Failure::internal("nothing was named")),
    };
    output::print_json(&service::deactivate(&name, &runtime)?)
}

pub fn units(args: &Units) -> Result<(), Failure> {
    service::units::write(&tab::read(&args.tab)?, &args.tab, &args.directory)
}

/// What systemd calls at boot, with three directories of which the first is for us. Without a table there is nothing to do.
pub fn generate(mut directories: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let directory = directories.next().ok_or_else(|| {
        Failure::usage("cvmio-generator is started by systemd; to see its work: cvmio volume units DIR")
    })?;
    let tab = Path::new(TAB);
    if !tab.exists() {
        return Ok(());
    }
    service::units::write(&tab::read(tab)?, tab, Path::new(&directory))
}

/// One that fails keeps no other from its turn; the first failure is the command's.
fn each<'a, T: Serialize>(
    lines: impl Iterator<Item = &'a Line>,
    act: impl Fn(&Line) -> Result<T, Failure>,
) -> Result<(), Failure> {
    let mut done = Vec::new();
    let mut failed = None;
    for line in lines {
        let name = &line.target.name;
        match act(line) {
            Ok(result) => {
                done.push(
                    serde_json::to_value(result).map_err(|error| Failure::internal(error.to_string()))?,
                );
            }
            Err(failure) => {
                output::warning(&format!("{name}: {failure}"));
                done.push(json!({ "name": name, "error": failure.as_json() }));
                failed.get_or_insert(failure);
            }
        }
    }
    output::print_json(&done)?;
    failed.map_or(Ok(()), |failure| Err(failure.told()))
}

fn read_config(path: &Path) -> Result<Target, Failure> {
    let fail = |error: std::io::Error| {
        Failure::usage(format!("the configuration {} cannot be read: {error}", path.display()))
    };
    cli::input::take(path, "configuration")?;
    let source: Box<dyn Read> = match path == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(path).map_err(fail)?),
    };
    let mut text = String::new();
    source.take(MAX_CONFIG + 1).read_to_string(&mut text).map_err(fail)?;
    if text.len() as u64 > MAX_CONFIG {
        return Err(Failure::usage(format!("the configuration is longer than {MAX_CONFIG} bytes")));
    }
    Target::parse(&text)
}
