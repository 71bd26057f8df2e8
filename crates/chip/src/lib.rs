//! The guest's side: asking the chip for evidence, by the kernel's configfs (`/sys/kernel/config/tsm/report`, Linux 6.7).
//!
//! A directory made there is a request: `inblob` takes the report data, `privlevel` a level as decimal text; reading `outblob` has the chip make
//! the report, and `auxblob` has the host's certificates. `generation` counts writes: a change that we did not make means somebody else used it.
//!
//! Where the kernel has no such directory, the device `/dev/sev-guest` is asked. `/dev/tdx_guest` is not: it gives a report that is good on this
//! machine alone, and what makes a quote of it is reached through configfs.

mod device;

pub use device::{Answer, Device, REQUEST_SIZE, RESPONSE_SIZE, SEV_GUEST, SevGuest, TABLE_SIZE};

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use attest::{Evidence, Platform, ReportData, snp};
use cli::failure::Failure;
use evidence_files::files;

/// Where the kernel shows it.
pub const REPORTS: &str = "/sys/kernel/config/tsm/report";
/// The event log of a TDX guest.
const EVENT_LOG: &str = "/sys/firmware/acpi/tables/data/CCEL";

/// What this needs of a system: a seam for recorded answers.
pub trait Files {
    /// Makes a directory.
    fn make(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Writes a whole file at once.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Reads a whole file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// The device of SNP guests, where there is one.
    fn device(&self) -> Option<&dyn SevGuest>;
}

/// This system.
pub struct System;

impl Files for System {
    fn make(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::write(path, bytes)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn device(&self) -> Option<&dyn SevGuest> {
        if Path::new(SEV_GUEST).exists() { Some(&Device) } else { None }
    }
}

/// A request, which is gone when it is dropped.
struct Request<'a> {
    files: &'a dyn Files,
    path: PathBuf,
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        // It holds nothing but report data, and a leftover is harmless.
        let _ = self.files.remove(&self.path);
    }
}

impl Request<'_> {
    fn read(&self, name: &str) -> Result<Vec<u8>, Failure> {
        let path = self.path.join(name);
        self.files.read(&path).map_err(|error| Failure::io(format!("{}: {error}", path.display())))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.path.join(name);
        self.files.write(&path, bytes).map_err(|error| Failure::io(format!("{}: {error}", path.display())))
    }

    fn generation(&self) -> Result<u64, Failure> {
        let text = self.read("generation")?;
        let number = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
        number.ok_or_else(|| Failure::io("the kernel's `generation` is no number"))
    }
}

/// A new request.
fn request(files: &dyn Files) -> Result<Request<'_>, Failure> {
    // Several threads of a process may ask at once.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = Path::new(REPORTS).join(format!("cvmio-{}-{number}", std::process::id()));
    files.make(&path).map_err(|error| {
        let why = format!("no request for evidence can be made in {REPORTS}: {error}");
        Failure::usage(why).with("`cvmio attest doctor` says what this machine can do")
    })?;
    Ok(Request { files, path })
}

/// Whose evidence the kernel makes.
fn provider(request: &Request<'_>) -> Result<Platform, Failure> {
    let provider = request.read("provider")?;
    match String::from_utf8_lossy(&provider).trim() {
        "sev_guest" => Ok(Platform::Snp),
        "tdx_guest" => Ok(Platform::Tdx),
        other => {
            Err(Failure::io(format!("the kernel's provider of evidence is {other:?}, which is not known")))
        }
    }
}

/// The kind of machine that this is, by the evidence that its kernel makes.
///
/// # Errors
/// If it makes none.
pub fn platform(files: &dyn Files) -> Result<Platform, Failure> {
    match (request(files), files.device()) {
        (Ok(request), _) => provider(&request),
        (Err(_), Some(_)) => Ok(Platform::Snp),
        (Err(failure), None) => Err(failure),
    }
}

/// Has the chip make evidence with this report data. `vmpl` is the privilege level to ask as (SNP).
///
/// # Errors
/// If the kernel makes none, or somebody else used the same request.
pub fn evidence(files: &dyn Files, report_data: ReportData, vmpl: Option<u32>) -> Result<Evidence, Failure> {
    let request = match (request(files), files.device()) {
        (Ok(request), _) => request,
        (Err(_), Some(device)) => return device::evidence(device, report_data, vmpl),
        (Err(failure), None) => return Err(failure),
    };
    let before = request.generation()?;
    let mut writes = 1;
    if let Some(level) = vmpl {
        request.write("privlevel", level.to_string().as_bytes())?;
        writes += 1;
    }
    request.write("inblob", &report_data.0)?;
    let report = request.read("outblob")?;
    let evidence = match provider(&request)? {
        Platform::Snp => {
            // A host without certificates gives none; the verifier has them from elsewhere.
            let table = request.read("auxblob").unwrap_or_default();
            let certificates = snp::certificates(&table).map_err(Failure::from)?;
            Evidence::Snp { report, certificates }
        }
        Platform::Tdx => Evidence::Tdx { quote: report, event_log: files.read(Path::new(EVENT_LOG)).ok() },
        Platform::Simulated => return Err(Failure::internal("a kernel makes no simulated evidence")),
    };
    if request.generation()? != before + writes {
        return Err(Failure::io("somebody else has used the same request for evidence; try again"));
    }
    Ok(evidence)
}

/// Evidence of a simulated platform, by what its launcher has handed over.
///
/// # Errors
/// If the file is something else.
pub fn simulated(seat: &Path, report_data: ReportData) -> Result<Evidence, Failure> {
    let issuer = attest::simulated::Issuer::read(&files::read(seat, files::SMALL)?);
    let issuer = issuer.map_err(|error| Failure::from(error).on(seat.display()))?;
    Ok(issuer.evidence(report_data)?)
}

#[cfg(test)]
mod tests;
