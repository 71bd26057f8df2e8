//! The commands.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use clap::CommandFactory;
use cli::failure::Failure;
use cli::grammar::Grammar;
use cli::{manual, output};
use host::{DiskSettings, Server, Settings};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::arguments::{Arguments, Command, Serve, What};
use crate::control::{self, Control};
use crate::metrics::Metrics;
use crate::{bench, journal, vmm};

/// Most bytes of a file of settings: more is none.
const LARGEST: u64 = 4 << 20;

/// Runs a command to its end.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve(&args)?,
        Command::Status(args) => control::status(&args.control, args.json)?,
        Command::QemuArgs(args) => output::print(&vmm::qemu(&disks(&args.what)?, &args)),
        Command::CloudHypervisorArgs(args) => {
            output::print(&vmm::cloud_hypervisor(&disks(&args.what)?, &args)?);
        }
        Command::Bench(args) => bench::run(&args)?,
        Command::Grammar => {
            output::print(&serde_json::to_string(&Grammar::of(&Arguments::command())).map_err(Failure::io)?);
        }
        Command::Man { directory } => manual::write(Arguments::command(), &directory, |_| true)?,
    }
    Ok(())
}

fn read(path: &Path) -> Result<Settings, Failure> {
    let failed = |error: std::io::Error| Failure::io(format!("{}: {error}", path.display()));
    let found = fs::metadata(path).map_err(failed)?;
    if !found.is_file() || found.len() > LARGEST {
        return Err(Failure::usage(format!("{}: it is no file of settings", path.display())));
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    Settings::parse(&text).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// The disks, as far as a VMM has to know of them.
fn disks(what: &What) -> Result<Vec<DiskSettings>, Failure> {
    match (&what.config, &what.socket) {
        (Some(path), _) => Ok(read(path)?.disks),
        (None, Some(socket)) => {
            let mut disk = DiskSettings::new(socket, "");
            disk.queues = what.queues.unwrap_or(disk.queues);
            Ok(vec![disk])
        }
        (None, None) => Err(Failure::usage("name a socket or a file of settings")),
    }
}

fn settings(args: &Serve) -> Result<Settings, Failure> {
    let mut settings = match (&args.what.config, &args.what.socket, &args.disk) {
        (Some(path), _, _) => read(path)?,
        (None, Some(socket), Some(file)) => {
            let mut disk = DiskSettings::new(socket, file);
            disk.queues = args.what.queues.unwrap_or(disk.queues);
            disk.mode = args.mode.map_or(disk.mode, Into::into);
            disk.spin_us = args.spin_us.unwrap_or(disk.spin_us);
            disk.read_only = args.read_only;
            disk.direct = !args.cached;
            disk.id.clone_from(&args.id);
            disk.requests_per_second = args.requests_per_second;
            disk.bytes_per_second = args.bytes_per_second;
            Settings { cores: Vec::new(), disks: vec![disk] }
        }
        _ => return Err(Failure::usage("name --socket and --disk, or a --config with both")),
    };
    if !args.cores.is_empty() {
        settings.cores.clone_from(&args.cores);
    }
    Ok(settings)
}

fn serve(args: &Serve) -> Result<(), Failure> {
    journal::begin();
    // First: a signal that comes during the start must not be lost.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(Failure::io)?;
    let settings = settings(args)?;
    let server = Arc::new(Server::start(&settings)?);
    let control = args.control.as_deref().map(|path| Control::start(path, &server)).transpose()?;
    let metrics = args.metrics.map(|address| Metrics::start(address, &server)).transpose()?;
    if let Some(metrics) = &metrics {
        log::info!("metrics at http://{}/metrics", metrics.address());
    }
    for disk in &settings.disks {
        log::info!("{}: serves {}", disk.socket.display(), disk.file.display());
    }
    output::print("ready");
    let _ = signals.forever().next();
    drop((control, metrics));
    // The last of it: requests in flight end now, and sockets go.
    drop(Arc::into_inner(server));
    Ok(())
}
