//! Building a real C project, of the user's choice.

use super::{Place, command};
use crate::error::{Error, Result};
use crate::program::output;
use crate::session::Measured;

/// `make` in a fresh copy. Source: AMD report, section 4.
pub fn make(place: &Place<'_>) -> Result<Measured> {
    let project = place.sizes.project.as_deref().ok_or_else(|| Error::usage("no --project was named"))?;
    let copy_at = place.path("project");
    let mut copy = command("cp");
    copy.args(["-r"]).arg(project).arg(&copy_at);
    output(&mut copy, place.interrupt)?;
    place.forget(&copy_at)?;
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    place.timed(|| {
        let mut make = command("make");
        make.arg(format!("-j{jobs}")).arg("-C").arg(&copy_at);
        output(&mut make, place.interrupt).map(drop)
    })
}
