//! The commands.

mod doctor;
mod fetch;
mod verify;

use std::path::Path;

use attest::simulated::{self, Root};
use attest::snp::measure::{Firmware, KernelHashes, Launch as Launched, launch_measurement};
use attest::{Binding, Hex, ReportData};
use clap::CommandFactory;
use cli::failure::Failure;
use cli::output;
use serde_json::json;

use crate::arguments::{self, Arguments, Launch, Measure, Nonce, SimulateLaunch};
use evidence_files::files;

pub use doctor::doctor;
pub use fetch::fetch;
pub use verify::verify;

/// The report data that answers a nonce alone.
fn answer(nonce: &Nonce) -> ReportData {
    Binding::new("cvmio attest report 1").field("nonce", &nonce.0).report_data()
}

pub fn report(args: &arguments::Report) -> Result<(), Failure> {
    let report_data = match (&args.nonce, args.report_data) {
        (Some(nonce), _) => answer(nonce),
        (None, Some(report_data)) => report_data,
        (None, None) => return Err(Failure::usage("either a nonce or report data is needed")),
    };
    let evidence = match &args.simulated {
        Some(seat) => {
            output::warning("this evidence is simulated: no chip vouches for anything in it");
            chip::simulated(seat, report_data)?
        }
        None => chip::evidence(&chip::System, report_data, args.vmpl)?,
    };
    match &args.out {
        Some(path) => files::write(path, evidence.to_json().as_bytes(), 0o644, true)?,
        None => output::print(&evidence.to_json()),
    }
    Ok(())
}

/// The firmware of a launch.
fn firmware(path: &Path) -> Result<Firmware, Failure> {
    let parsed = Firmware::parse(&files::read(path, files::LARGE)?);
    parsed.map_err(|error| Failure::from(error).on(path.display()))
}

/// Kernel, initrd (empty without one) and command line.
type Kernel<'a> = (Vec<u8>, Vec<u8>, &'a str);

fn kernel(launch: &Launch) -> Result<Option<Kernel<'_>>, Failure> {
    let Some(kernel) = &launch.kernel else { return Ok(None) };
    let kernel = files::read(kernel, files::LARGE)?;
    let initrd = launch.initrd.as_ref().map_or(Ok(Vec::new()), |initrd| files::read(initrd, files::LARGE))?;
    Ok(Some((kernel, initrd, launch.append.as_deref().unwrap_or_default())))
}

fn kernel_hashes(launch: &Launch) -> Result<Option<KernelHashes>, Failure> {
    Ok(kernel(launch)?.map(|(kernel, initrd, line)| KernelHashes::new(&kernel, &initrd, line)))
}

fn launched<'a>(firmware: &'a Firmware, launch: &Launch) -> Result<Launched<'a>, Failure> {
    Ok(Launched {
        firmware,
        kernel: kernel_hashes(launch)?,
        vcpus: launch.vcpus,
        processor: launch.vcpu_type,
        guest_features: launch.guest_features,
        vmm: launch.vmm,
    })
}

/// What a simulated platform measures.
fn simulated_measurement(kernel: &[u8], initrd: &[u8], line: &str) -> Hex<48> {
    simulated::measure(&[("kernel", kernel), ("initrd", initrd), ("command-line", line.as_bytes())])
}

pub fn measure(args: &Measure) -> Result<(), Failure> {
    let (platform, measurement) = if args.simulated {
        let (kernel, initrd, line) =
            kernel(&args.launch)?.ok_or_else(|| Failure::usage("a kernel is needed"))?;
        ("simulated", simulated_measurement(&kernel, &initrd, line))
    } else {
        let path = args.launch.firmware.as_ref();
        let path = path.ok_or_else(|| Failure::usage("the firmware is needed: --firmware FILE"))?;
        let firmware = firmware(path)?;
        ("snp", launch_measurement(&launched(&firmware, &args.launch)?)?)
    };
    if args.json {
        return output::print_json(&json!({ "platform": platform, "measurement": measurement }));
    }
    output::print(&measurement.to_string());
    Ok(())
}

pub fn simulate_root(key: &Path) -> Result<(), Failure> {
    let root = Root::generate()?;
    files::write_secret(key, root.document())?;
    output::print(&root.key()?.to_string());
    Ok(())
}

pub fn simulate_launch(args: &SimulateLaunch) -> Result<(), Failure> {
    let root = Root::read(&files::read(&args.key, files::SMALL)?);
    let root = root.map_err(|error| Failure::from(error).on(args.key.display()))?;
    let kernel = files::read(&args.kernel, files::LARGE)?;
    let initrd = args.initrd.as_ref().map_or(Ok(Vec::new()), |initrd| files::read(initrd, files::LARGE))?;
    let measurement = simulated_measurement(&kernel, &initrd, &args.append);
    let launch = simulated::Launch {
        measurement,
        host_data: args.host_data,
        machine_id: args.machine_id,
        tcb: args.tcb,
        is_debug: false,
    };
    files::write_secret(&args.out, &root.launch(&launch)?)?;
    output::print(&measurement.to_string());
    Ok(())
}

pub fn grammar() -> Result<(), Failure> {
    output::print_json(&cli::grammar::Grammar::of(&Arguments::command()))
}
