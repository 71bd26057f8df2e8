//! The guest's side: asking the chip for evidence, by the kernel's configfs (`/sys/kernel/config/tsm/report`, Linux 6.7).
//!
//! A directory made there is a request: `inblob` takes the report data, `privlevel` a level as decimal text; reading `outblob` has the chip make
//! the report, and `auxblob` has the host's certificates. `generation` counts writes: a change that we did not make means somebody else used it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use attest::{Evidence, ReportData, snp};
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

/// Has the chip make evidence with this report data.
pub fn evidence(files: &dyn Files, report_data: ReportData, vmpl: Option<u32>) -> Result<Evidence, Failure> {
    let path = Path::new(REPORTS).join(format!("cvmio-{}", std::process::id()));
    files.make(&path).map_err(|error| {
        let why = format!("no request for evidence can be made in {REPORTS}: {error}");
        Failure::usage(why).with("`cvmio attest doctor` says what this machine can do")
    })?;
    let request = Request { files, path };
    let before = request.generation()?;
    let mut writes = 1;
    if let Some(level) = vmpl {
        request.write("privlevel", level.to_string().as_bytes())?;
        writes += 1;
    }
    request.write("inblob", &report_data.0)?;
    let report = request.read("outblob")?;
    let provider = request.read("provider")?;
    let provider = String::from_utf8_lossy(&provider).trim().to_string();
    let evidence = match provider.as_str() {
        "sev_guest" => {
            // A host without certificates gives none; the verifier has them from elsewhere.
            let table = request.read("auxblob").unwrap_or_default();
            let certificates = snp::certificates(&table).map_err(Failure::from)?;
            Evidence::Snp { report, certificates }
        }
        "tdx_guest" => Evidence::Tdx { quote: report, event_log: files.read(Path::new(EVENT_LOG)).ok() },
        other => {
            return Err(Failure::io(format!(
                "the kernel's provider of evidence is {other:?}, which is not known"
            )));
        }
    };
    if request.generation()? != before + writes {
        return Err(Failure::io("somebody else has used the same request for evidence; try again"));
    }
    Ok(evidence)
}

/// Evidence of a simulated platform.
pub fn simulated(seat: &Path, report_data: ReportData) -> Result<Evidence, Failure> {
    let issuer = attest::simulated::Issuer::read(&files::read(seat, files::SMALL)?);
    let issuer = issuer.map_err(|error| Failure::from(error).on(seat.display()))?;
    Ok(issuer.evidence(report_data)?)
}

#[cfg(test)]
mod tests;
