//! `check --salvage`: what still opens of a damaged region.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use cli::failure::Failure;
use error_kind::Kind;
use scm::Mapping;
use seal::slot::Credential;

use super::{named, random, told};
use crate::progress::Bar;

pub fn salvage(region: &Path, mapping: &Mapping, credential: &Credential, out: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::io(format!("{}: {error}", out.display()));
    // It is in the clear.
    let file = File::options().write(true).create_new(true).mode(0o600).open(out).map_err(failed)?;
    let bar = Bar::new("opening");
    let mut write = |at: u64, content: &[u8]| file.write_all_at(content, at);
    let found =
        scm::check::salvage(mapping, credential, random(), &mut write, &|done, all| bar.show(done, all));
    let found = found.map_err(|error| told(region, error)).and_then(|found| {
        file.set_len(found.length).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(found)
    });
    drop(bar);
    let found = match found {
        Ok(found) => found,
        Err(failure) => {
            // It is ours, new, and of no use.
            let _ = std::fs::remove_file(out);
            return Err(failure);
        }
    };
    cli::say!("{}: {} pages are there, in the clear", out.display(), found.opened);
    if found.lost_pages > 0 {
        cli::say!(
            "{} pages do not open, and are zeros there (changed, or open at a crash): {}",
            found.lost_pages,
            named(&found.lost, found.lost_pages)
        );
    }
    if let Some(error) = found.damage {
        return Err(Failure::new(
            Kind::Corrupt,
            format!(
                "{}: {error}; so each page that is there was sealed for its place in this region, but nothing says that it is the latest",
                region.display()
            ),
        ));
    }
    Ok(())
}
