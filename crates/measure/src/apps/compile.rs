//! Building a real C project, of the user's choice.

use std::path::Path;

use super::script::{FORGET, Script, program};
use super::{Place, command};
use crate::error::{Error, Result};
use crate::program::output;
use crate::session::Measured;

/// Where guests have the project, as one tar.
pub const PACKED: &str = "/root/project.tar";

fn project<'a>(place: &Place<'a>) -> Result<&'a Path> {
    place.sizes.project.as_deref().ok_or_else(|| Error::usage("no --project was named"))
}

/// `make` in a fresh copy. Source: AMD report, section 4.
pub fn make(place: &Place<'_>) -> Result<Measured> {
    let copy_at = place.path("project");
    let mut copy = command("cp");
    copy.args(["-r"]).arg(project(place)?).arg(&copy_at);
    output(&mut copy, place.interrupt)?;
    place.forget(&copy_at)?;
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    place.timed(|| {
        let mut make = place.command("make");
        make.arg(format!("-j{jobs}")).arg("-C").arg(&copy_at);
        output(&mut make, place.interrupt).map(drop)
    })
}

/// Packs the project for guests.
pub fn pack(place: &Place<'_>, to: &Path) -> Result<()> {
    let mut tar = command("tar");
    tar.arg("-cf").arg(to).arg("-C").arg(project(place)?).arg(".");
    output(&mut tar, place.interrupt).map(drop)
}

/// [`make`] in a guest.
pub fn script() -> Script {
    let make = program("make");
    Script {
        before: format!("mkdir $d/project\ntar -xf {PACKED} -C $d/project\n{FORGET}"),
        timed: format!(
            "{make} -j$(nproc) -C $d/project >/run/made 2>&1 || {{ tail -n 20 /run/made >&2; exit 1; }}\nsync\n"
        ),
    }
}
