//! `serve`: a region for a VMM, until it is told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use export::fuse::{Mount, Options};
use scm::serve::{LEAST_OPEN, Limits, Server};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{VMM_PATIENCE, open, say};
use crate::arguments::{Mode, Serve};
use crate::control;
use crate::fuse::{self, Pages};
use cli::failure::Failure;

pub fn serve(args: &Serve) -> Result<(), Failure> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Failure::io(format!("signals cannot be handled: {error}")))?;
    match args.mode {
        Mode::Fuse => serve_fuse(args, signals),
        Mode::Userfaultfd => serve_userfaultfd(args, signals),
    }
}

fn permissions(args: &Serve) -> control::Permissions {
    control::Permissions { mode: args.socket_mode, owner: args.socket_owner }
}

fn serve_fuse(args: &Serve, mut signals: Signals) -> Result<(), Failure> {
    let mountpoint = args.mountpoint.as_deref().ok_or_else(|| Failure::usage("`--mountpoint` is missing"))?;
    let (engine, _mapping, report) =
        open(&args.region, &args.key_file, VMM_PATIENCE + Duration::from_millis(args.io_ms))?;
    say(&report);
    let engine = Arc::new(engine);
    let _control = args
        .socket
        .as_deref()
        .map(|path| control::Server::start(path, permissions(args), Arc::clone(&engine)))
        .transpose()?;
    let pages = Arc::new(Pages::new(Arc::clone(&engine)));
    let options = Options {
        threads: args.threads as usize,
        mapped: true,
        directory: Some(fuse::DIRECTORY),
        wipe: true,
        ..Options::default()
    };
    let mount = Arc::new(Mount::new(mountpoint, fuse::FILE, pages, &options)?);
    cli::say!("ready: {}", mount.file().display());
    let handle = signals.handle();
    let stopper = {
        let mount = Arc::clone(&mount);
        thread::spawn(move || {
            for _ in &mut signals {
                match mount.unmount() {
                    Ok(()) => break,
                    // A VMM has it: the next signal tries again.
                    Err(error) => eprintln!("cannot stop yet: {error}"),
                }
            }
        })
    };
    let served = mount.wait();
    handle.close();
    // It has nothing to return, and a panic in it has been told.
    let _ = stopper.join();
    engine.stop()?;
    served?;
    cli::say!("stopped: every page is encrypted");
    Ok(())
}

fn serve_userfaultfd(args: &Serve, mut signals: Signals) -> Result<(), Failure> {
    let socket = args.socket.as_deref().ok_or_else(|| Failure::usage("`--socket` is missing"))?;
    let (engine, mapping, report) =
        open(&args.region, &args.key_file, VMM_PATIENCE + Duration::from_millis(args.io_ms))?;
    say(&report);
    let size = engine.geometry().page_size();
    let limits = Limits {
        open_pages: args.open_limit / size,
        idle: Duration::from_millis(args.idle_ms),
        hold: Duration::from_millis(args.io_ms),
        read_ahead: args.read_ahead / engine.geometry().page_size(),
        cpu_percent: args.cpu_percent,
        threads: args.threads as usize,
    };
    if limits.open_pages < LEAST_OPEN {
        return Err(Failure::usage(format!(
            "`--open-limit {}` has room for {} pages of {size} bytes, and one instruction may need {LEAST_OPEN}: give it at least {}",
            args.open_limit,
            limits.open_pages,
            LEAST_OPEN * size
        )));
    }
    let server = Server::new(Arc::new(engine), mapping, limits)?;
    let listener = control::listen(socket, permissions(args))?;
    cli::say!("ready: {}", socket.display());
    let stop = Arc::new(AtomicBool::new(false));
    let handle = signals.handle();
    let stopper = {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            if signals.forever().next().is_some() {
                stop.store(true, Ordering::Relaxed);
            }
        })
    };
    let served = server.run(listener, &stop);
    handle.close();
    // It has nothing to return, and a panic in it has been told.
    let _ = stopper.join();
    // Whoever finds it gone waits for the next server.
    let _ = std::fs::remove_file(socket);
    served?;
    cli::say!("stopped: every page is encrypted");
    Ok(())
}
