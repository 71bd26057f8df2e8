//! A block device by the kernel's ublk driver.

use std::path::Path;
use std::sync::Arc;

use export::ublk::{Options, Recovery, Ublk};

use super::{Disk, Failed, Front, Shown, events, holders, in_use};
use crate::runtime::{Claim, Place};
use cli::failure::Failure;

/// Requests in flight for each queue.
const DEPTH: u16 = 128;

/// Shows the volume `owner`. A device that is `read_only` goes with its daemon: nothing is lost, and it is attached again as it was.
///
/// # Errors
/// When the kernel refuses. Nothing is left then; but a device whose daemon was killed stays as it is.
pub fn show(
    queues: u8,
    owner: [u8; 16],
    claim: &Claim,
    disk: Disk,
    read_only: bool,
    failed: &Failed,
) -> Result<Ublk, Failure> {
    // What a commit has not anchored yet is gone when the daemon is: a file system must not go on as if it were there.
    let recovery = if read_only {
        None
    } else if disk.keeps_what_is_flushed() {
        in_memory(claim.place()).then(|| Recovery { path: claim.place().ublk(), owner })
    } else {
        events::tell("with freshness transaction, the device does not outlive its daemon");
        None
    };
    let options = Options { queues: queues.into(), depth: DEPTH, read_only, recovery };
    let failed = Arc::clone(failed);
    let tell = Arc::new(move |error| failed(Failure::from(error)));
    let shown = Ublk::show(Arc::new(disk), &options, &(tell as export::ublk::Failed))?;
    if shown.recovered() {
        events::tell(&format!("{} goes on: its daemon had been killed", shown.path().display()));
    }
    claim.link(shown.path())?;
    Ok(shown)
}

/// Whether the last changes can be kept in the runtime directory.
fn in_memory(place: &Place) -> bool {
    let found = export::ublk::is_in_memory(&place.ublk());
    if !found {
        events::tell(
            "the runtime directory is not in memory (tmpfs), so the device does not outlive its daemon",
        );
    }
    found
}

/// What a killed daemon has left, for a front end that cannot go on with it.
///
/// # Errors
/// If there is such a device.
pub fn nothing_left(place: &Path) -> Result<(), Failure> {
    if place.exists() {
        return Err(Failure::usage(
            "the daemon of this name was killed, and its ublk device is there still: attach with --as ublk, for writing, to go on with it, or detach \
             it (`cvmio volume detach`)",
        ));
    }
    Ok(())
}

impl Front for Ublk {
    fn shown(&self) -> Shown {
        Shown::Ublk { device: self.path().to_path_buf() }
    }

    fn hide(&self) -> Result<(), Failure> {
        let users = holders::of_block_device(self.path());
        if !users.is_empty() {
            return Err(in_use(&users));
        }
        Ok(self.stop()?)
    }
}
