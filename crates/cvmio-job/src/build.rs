//! `cvmio image`.

use std::path::PathBuf;

use cli::failure::Failure;
use cli::interrupt::Interrupt;
use cli::output;
use job::image::{self, Options};
use job::owner::{Prepared, now};

use crate::arguments::{Build, Policy};

/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// Builds an image and says what to expect of its guests.
pub fn build(args: &Build) -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::io(format!("this program cannot be found: {error}")))?;
    let attest = cli::find::find("cvmio-attest");
    if attest.is_none() {
        output::warning(
            "cvmio-attest is not installed: guests of this image can show evidence of a simulated platform only",
        );
    }
    let cvmio = cli::find::find("cvmio");
    if cvmio.is_none() {
        output::warning("cvmio is not installed: guests of this image can attach no volumes");
    }
    let options = Options {
        out: args.out.clone(),
        lock: args.lock.clone(),
        mirror: args.mirror.clone(),
        program,
        attest,
        cvmio,
        date: args.date.unwrap_or_else(|| now() / DAY * DAY),
    };
    let interrupt = Interrupt::on_signals()?;
    let spinner = output::spinner("building the image");
    let image = interrupt.end(image::build(&options, &interrupt))?;
    drop(spinner);
    let file = |name: &str| PathBuf::from(&args.out).join(name).display().to_string();
    output::print(&format!(
        "{} is built\nroot hash {}\npackages: {}",
        args.out.display(),
        image.root_hash,
        file("packages.lock")
    ));
    Ok(())
}

/// Prints the policy that guests of an image pass.
pub fn policy(args: &Policy) -> Result<(), Failure> {
    let prepared = Prepared::read(&args.file, true)?;
    let words = image::Image::open(&args.image)?.words(prepared.plan.storage);
    if args.command_line {
        output::print(&words);
        return Ok(());
    }
    output::print(&image::Image::open(&args.image)?.simulated_policy(&args.image, &words)?);
    Ok(())
}
