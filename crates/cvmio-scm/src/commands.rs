//! The commands.

mod salvage;
mod serve;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::CommandFactory;
use error_kind::Kind;
use scm::geometry::PAGE_SIZES;
use scm::{Access, Engine, Geometry, Mapping, Medium, Report, claimed_header};
use seal::slot::Credential;
use seal::{Random, SystemRandom};

use crate::arguments::{Accept, Arguments, Check, Create, QemuArgs, Recover, Status};
use crate::control;
use crate::progress::Bar;
use cli::failure::Failure;

pub use serve::serve;

/// How long a VMM may take to notice that its server is gone, beside the time for which that had it wait for requests under way (`--io-ms`).
const VMM_PATIENCE: Duration = Duration::from_secs(10);

fn credential(path: &Path) -> Result<Credential, Failure> {
    secrets::key_file(path).map(Credential::KeyFile)
}

/// Keeps keys out of core dumps, and says so where they may be swapped out.
fn protect() -> Result<(), Failure> {
    match seal::hygiene::protect_process().map_err(Failure::io)? {
        seal::hygiene::Locking::All => {}
        some @ seal::hygiene::Locking::Some { .. } => cli::output::warning(&some.to_string()),
    }
    Ok(())
}

fn random() -> Arc<dyn Random> {
    Arc::new(SystemRandom)
}

pub fn create(args: &Create) -> Result<(), Failure> {
    protect()?;
    let credential = credential(&args.key_file)?;
    if !PAGE_SIZES.contains(&args.page_size) {
        return Err(Failure::usage(format!(
            "pages of {} bytes are not possible: use 4k or 2m",
            args.page_size
        )));
    }
    if args.size == 0 || !args.size.is_multiple_of(args.page_size) {
        return Err(Failure::usage(format!(
            "a region of {} bytes is no whole number of pages of {} bytes",
            args.size, args.page_size
        )));
    }
    let directory = match args.region.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Whatever the page size, a region that may move to hugetlbfs one day, and what QEMU maps, has whole huge pages.
    let granule = Mapping::granule(directory)?.max(args.page_size);
    let geometry = Geometry::new(args.page_size, args.size / args.page_size, args.workers, granule)?;
    let mapping = Mapping::create(&args.region, geometry.file_len())?;
    let bar = Bar::new("encrypting");
    let made =
        scm::create(&mapping, &geometry, args.suite, credential, &random(), &|done, all| bar.show(done, all));
    if let Err(error) = made {
        drop(mapping);
        // It has no header yet.
        let _ = std::fs::remove_file(&args.region);
        return Err(error.into());
    }
    drop(bar);
    cli::say!(
        "{}: {} pages of {} bytes, {} bytes in all",
        args.region.display(),
        geometry.pages(),
        geometry.page_size(),
        geometry.file_len()
    );
    Ok(())
}

/// Maps a region, opens it, and says what recovery did.
fn open(
    region: &Path,
    key_file: &Path,
    patience: Duration,
) -> Result<(Engine, Arc<Mapping>, Report), Failure> {
    protect()?;
    let credential = credential(key_file)?;
    let mapping = Arc::new(Mapping::open(region, Access::Exclusive)?);
    // The VMM of a server that was killed: it lets go as soon as it notices.
    scm::serve::Server::wait_for_vmm(&mapping, patience)?;
    let medium: Arc<dyn Medium> = Arc::clone(&mapping) as Arc<dyn Medium>;
    let bar = Bar::new("looking at");
    let (engine, report) = Engine::open(medium, &credential, random(), &|done, all| bar.show(done, all))
        .map_err(|error| told(region, error))?;
    Ok((engine, mapping, report))
}

fn told(region: &Path, error: scm::Error) -> Failure {
    Failure::from(error).on(region.display())
}

fn say(report: &Report) {
    if !report.is_clean() {
        cli::say!(
            "recovered: {} pages finished, {} undone, {} were open and are encrypted now, {} corrupt",
            report.finished,
            report.undone,
            report.open,
            report.corrupt
        );
    }
    if report.unverified > 0 {
        cli::say!(
            "{} pages are unverified: they were open at a crash, so they are whole but nothing vouches for their content; look at it (fsck in \
             the guest), then run `cvmio scm accept`, or write them anew",
            report.unverified
        );
    }
}

pub fn recover(args: &Recover) -> Result<(), Failure> {
    let (engine, _mapping, report) = open(&args.region, &args.key_file, VMM_PATIENCE)?;
    let status = engine.status();
    if report.is_clean() {
        cli::say!("{}: it was stopped cleanly", args.region.display());
    }
    say(&report);
    cli::say!("{} of {} pages are encrypted", status.encrypted, status.pages);
    if report.corrupt > 0 {
        return Err(Failure::new(Kind::Corrupt, format!("{} pages are corrupt", report.corrupt)));
    }
    Ok(())
}

pub fn check(args: &Check) -> Result<(), Failure> {
    protect()?;
    let credential = credential(&args.key_file)?;
    let mapping = Mapping::open(&args.region, Access::ReadOnly)?;
    if let Some(out) = &args.salvage {
        return salvage::salvage(&args.region, &mapping, &credential, out);
    }
    let bar = Bar::new("opening");
    let checked = scm::check::check(&mapping, &credential, random(), &|done, all| bar.show(done, all))
        .map_err(|error| told(&args.region, error))?;
    drop(bar);
    let report = checked.report;
    let under_way = report.finished + report.undone;
    if report.open + under_way > 0 {
        cli::say!(
            "{} pages are open and {under_way} were under way at a crash: run `cvmio scm recover`",
            report.open
        );
    }
    if checked.corrupt_pages > 0 {
        return Err(Failure::new(
            Kind::Corrupt,
            format!(
                "{}: corrupt pages: {}: they were changed or replayed on the medium; restore them from a backup",
                args.region.display(),
                named(&checked.corrupt, checked.corrupt_pages)
            ),
        ));
    }
    cli::say!("{}: every encrypted page opens; {} are unverified", args.region.display(), report.unverified);
    if !checked.unverified.is_empty() {
        cli::say!("unverified pages: {}", named(&checked.unverified, report.unverified));
    }
    Ok(())
}

/// The first of so many pages.
fn named(pages: &[u64], all: u64) -> String {
    let named: Vec<String> = pages.iter().map(u64::to_string).collect();
    let more = all.saturating_sub(pages.len() as u64);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
}

pub fn accept(args: &Accept) -> Result<(), Failure> {
    let (engine, _mapping, report) = open(&args.region, &args.key_file, VMM_PATIENCE)?;
    say(&report);
    let pages = engine.geometry().pages();
    if let Some(page) = args.pages.iter().find(|page| **page >= pages) {
        return Err(Failure::usage(format!("there is no page {page}: the region has {pages}")));
    }
    let wanted: Vec<u64> = if args.all { (0..pages).collect() } else { args.pages.clone() };
    let mut accepted = 0;
    for page in wanted {
        let done = engine.accept(page).map_err(|error| told(&args.region, error))?;
        if !done && !args.all {
            cli::say!("page {page} is not unverified");
        }
        accepted += u64::from(done);
    }
    cli::say!("{accepted} pages are vouched for again; {} are unverified", engine.status().unverified);
    Ok(())
}

pub fn grammar() -> Result<(), Failure> {
    let grammar = cli::grammar::Grammar::of(&Arguments::command());
    cli::say!("{}", serde_json::to_string_pretty(&grammar).map_err(Failure::io)?);
    Ok(())
}

pub fn man(directory: &Path) -> Result<(), Failure> {
    cli::manual::write(Arguments::command(), directory, |_| true).map_err(Failure::io)
}

/// What a server says of itself, for people.
fn print_served(status: &scm::Status) {
    cli::say!(
        "{} pages of {} bytes: {} encrypted, {} open, {} unverified, {} corrupt",
        status.pages,
        status.page_size,
        status.encrypted,
        status.open,
        status.unverified,
        status.corrupt
    );
    cli::say!(
        "since the start: {} opened, {} of them ahead; {} encrypted in {} batches; {} written; {} read",
        status.opened,
        status.ahead,
        status.closed,
        status.batches,
        status.rewritten,
        status.read
    );
    cli::say!(
        "processor time: {} ms, {} ms of it for taking pages back",
        status.cpu_ms,
        status.taking_cpu_ms
    );
    if status.faults > 0 {
        cli::say!(
            "{} faults: median {} ns, 99 % {} ns, 99.9 % {} ns",
            status.faults,
            status.fault_p50_ns,
            status.fault_p99_ns,
            status.fault_p999_ns
        );
    }
    for step in status.fault_steps.iter().filter(|step| step.p50_ns > 0) {
        cli::say!("  {}: median {} ns, 99 % {} ns", step.name, step.p50_ns, step.p99_ns);
    }
    if status.stopped {
        cli::say!("the medium has failed: serving has stopped");
    }
}

pub fn status(args: &Status) -> Result<(), Failure> {
    if let Some(socket) = &args.socket {
        let status = control::ask(socket)?;
        if args.metrics {
            cli::output::print(&status.metrics());
        } else if args.json {
            cli::say!("{}", serde_json::to_string(&status).map_err(Failure::internal)?);
        } else {
            print_served(&status);
        }
        return Ok(());
    }
    let region = args.region.as_deref().unwrap_or(Path::new(""));
    let mapping = Mapping::open(region, Access::Peek)?;
    let header = claimed_header(&mapping).map_err(|error| told(region, error))?;
    let claimed = scm::check::claimed(&mapping, &header)?;
    let geometry = header.geometry;
    if args.metrics {
        cli::output::print(&claimed.metrics(geometry.pages()));
    } else if args.json {
        cli::say!(
            "{}",
            serde_json::json!({
                "proven": false,
                "page_size": geometry.page_size(),
                "pages": geometry.pages(),
                "open": claimed.open,
                "encrypted": geometry.pages() - claimed.open,
                "unverified": claimed.unverified,
                "under_way": claimed.under_way,
                "suite": header.suite.name(),
            })
        );
    } else {
        cli::say!(
            "{} pages of {} bytes, {}: {} encrypted, {} open, {} unverified, {} under way (as the region claims; `check` proves it)",
            geometry.pages(),
            geometry.page_size(),
            header.suite,
            geometry.pages() - claimed.open,
            claimed.open,
            claimed.unverified,
            claimed.under_way
        );
    }
    Ok(())
}

pub fn qemu_args(args: &QemuArgs) -> Result<(), Failure> {
    let (path, size) = match (&args.socket, &args.mountpoint) {
        (Some(socket), _) => {
            let region = scm::client::Region::ask(socket)?;
            (socket.join(crate::fuse::FILE), region.length())
        }
        (None, Some(mountpoint)) => served_file(mountpoint)?,
        (None, None) => return Err(Failure::usage("`--socket` or `--mountpoint` is missing")),
    };
    let path = std::path::absolute(&path).map_err(Failure::io)?;
    // A comma in a path is written twice; a shell splits what is printed at white space.
    let text = path.to_str().filter(|text| !text.contains(char::is_whitespace)).ok_or_else(|| {
        Failure::usage(format!(
            "{}: white space, or what is not UTF-8, cannot be in arguments for QEMU: use another path, or a link without it",
            path.display()
        ))
    })?;
    let text = text.replace(',', ",,");
    cli::say!(
        "-object memory-backend-file,id=scm0,share=on,mem-path={text},size={size} -device virtio-pmem-pci,memdev=scm0,id=pmem0"
    );
    Ok(())
}

/// The file of a server, and its length.
fn served_file(mountpoint: &Path) -> Result<(std::path::PathBuf, u64), Failure> {
    const FUSE: i64 = 0x6573_5546;
    let path = mountpoint.join(crate::fuse::DIRECTORY).join(crate::fuse::FILE);
    let start = "start `cvmio scm serve --mode fuse` with this `--mountpoint` first";
    let is_served = rustix::fs::statfs(&path).is_ok_and(|found| found.f_type == FUSE);
    if !is_served {
        return Err(Failure::usage(format!("{}: no region is served there: {start}", path.display())));
    }
    let len =
        std::fs::metadata(&path).map_err(|error| Failure::io(format!("{}: {error}", path.display())))?.len();
    Ok((path, len))
}
