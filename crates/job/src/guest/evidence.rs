//! Evidence of this guest: from its chip, or, where there is none, from what the launcher of a simulated platform has handed over.

use std::fs;
use std::path::Path;
use std::process::Command;

use attest::ReportData;
use attest::simulated::Issuer;

use crate::error::{Context, Error, Result};
use crate::program::output;

/// Devices of chips that vouch for their guests.
const CHIPS: [&str; 2] = ["/dev/sev-guest", "/dev/tdx_guest"];
/// What the launcher hands over; see [`vm::FILES`].
const SEAT: &str = "/sys/firmware/qemu_fw_cfg/by_name/opt/cvmio/seat/raw";

/// The evidence document for this report data.
///
/// # Errors
/// If nothing vouches for this guest.
pub fn evidence(report_data: ReportData) -> Result<serde_json::Value> {
    let text = if CHIPS.iter().any(|chip| Path::new(chip).exists()) {
        let mut command = Command::new("cvmio-attest");
        let said = output(command.args(["report", "--report-data", &report_data.to_string()]))?;
        String::from_utf8(said.stdout).map_err(|_| Error::protocol("the evidence is no text"))?
    } else {
        simulated(&fs::read(SEAT).of(SEAT)?, report_data)?
    };
    serde_json::from_str(&text)
        .map_err(|error| Error::protocol(format!("the evidence is no JSON: {error}")).because(error))
}

fn simulated(seat: &[u8], report_data: ReportData) -> Result<String> {
    let failed = |error: attest::simulated::SimulatedError| Error::protocol(error.to_string()).because(error);
    Ok(Issuer::read(seat).map_err(failed)?.evidence(report_data).map_err(failed)?.to_json())
}
