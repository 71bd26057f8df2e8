//! A cvm-io volume, made and attached as its users do it: by the command line.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use super::{Address, Environment, Front, Kept, Need, Ready, Volume, file, mounts, place, servers};
use crate::error::{Context, Result};
use crate::program::{Server, output, shown};

/// Makes and attaches it.
///
/// # Errors
/// When the command line refuses, or the front end does not come up.
pub fn start(volume: &Volume, environment: &Environment<'_>) -> Result<Ready> {
    let place = place(environment)?;
    let root = place.path().canonicalize().doing(place.path().display())?;
    let mut key = [0; 64];
    fastrand::fill(&mut key);
    let key_file = root.join("key");
    // The volume protects random bytes for as long as the run takes: this key is no secret.
    fs::write(&key_file, key).doing(key_file.display())?;
    let cvmio = || {
        let mut command = Command::new(environment.cvmio);
        command.env("CVMIO_RUNTIME_DIR", root.join("run")).current_dir(&root);
        command
    };
    let mut create = cvmio();
    create.args(["volume", "create", "disk", "--provision=full", "--key-file=key"]);
    create.args(["--size", &environment.size.to_string()]);
    protections(volume, &mut create, &format!("file:{}", root.join("anchor").display()));
    output(&mut create, environment.interrupt)?;
    let mut attach = cvmio();
    let as_it_is_needed = match environment.need {
        Need::Blocks => Front::Nbd,
        Need::Files => Front::Loop,
    };
    let shown_as = volume.front.unwrap_or(as_it_is_needed);
    let front = match shown_as {
        Front::Nbd => "nbd",
        Front::Ublk => "ublk",
        Front::Fuse | Front::Loop => "fuse",
    };
    attach.args(["volume", "attach", "disk", "--key-file=key", "--foreground", "--as", front]);
    if volume.buffered {
        attach.arg("--buffered");
    }
    if let Some(bytes) = &volume.block_cache {
        attach.args(["--block-cache", bytes]);
    }
    let commands = vec![shown(&create), shown(&attach)];
    let mut server = Server::start(&mut attach)?;
    let shown_at = root.join("run/disk");
    let (address, devices) = reach(shown_as, &shown_at, &mut server, environment)?;
    let mut ready = Ready::new(address, environment.size);
    ready.commands = commands;
    // The loop device is let go of before the daemon ends.
    ready.mounts = devices;
    ready.page_cache |= volume.buffered;
    ready.server = Some(server);
    ready.place = Some(place);
    Ok(ready)
}

/// Waits until a volume is there, as its front end shows it; what must be undone before its daemon ends.
fn reach(
    shown_as: Front,
    shown_at: &Path,
    server: &mut Server,
    environment: &Environment<'_>,
) -> Result<(Address, Vec<Kept>)> {
    Ok(match shown_as {
        Front::Nbd => {
            let socket = shown_at.join("nbd.sock");
            server.wait_until(environment.interrupt, || UnixStream::connect(&socket).is_ok())?;
            (Address::Nbd(servers::uri(&socket)), Vec::new())
        }
        Front::Ublk => {
            let device = shown_at.join("disk");
            server.wait_until(environment.interrupt, || device.exists())?;
            let path = device.canonicalize().doing(device.display())?;
            (Address::File { path, direct: true }, Vec::new())
        }
        Front::Fuse | Front::Loop => {
            let link = shown_at.join("disk");
            server.wait_until(environment.interrupt, || link.exists())?;
            let path = link.canonicalize().doing(link.display())?;
            if shown_as == Front::Loop {
                let (device, undo) = mounts::loop_device(&path, environment.interrupt)?;
                (Address::File { path: device, direct: true }, vec![undo])
            } else {
                let direct = file::direct(&path);
                (Address::File { path, direct }, Vec::new())
            }
        }
    })
}

fn protections(volume: &Volume, create: &mut Command, beside: &str) {
    if let Some(suite) = &volume.suite {
        create.args(["--suite", suite]);
    } else if !volume.integrity {
        // The default needs integrity.
        create.args(["--suite", "aes-256-xts"]);
    }
    if let Some(level) = &volume.level {
        create.args(["--freshness", level]);
    }
    if volume.level.as_deref() != Some("off") {
        create.args(["--anchor", volume.anchor.as_deref().unwrap_or(beside)]);
    }
    if !volume.confidentiality {
        create.arg("--no-confidentiality");
    }
    if !volume.integrity {
        create.arg("--no-integrity");
    }
}
