//! `doctor`: what this machine can do, and what is missing.

use std::fs;
use std::path::Path;

use cli::failure::Failure;
use cli::output;
use serde_json::json;

use crate::arguments::Doctor;
use chip::REPORTS;

/// One thing that was looked at.
struct Finding {
    what: &'static str,
    is_there: bool,
    advice: &'static str,
}

/// Whether a line of `/proc/cpuinfo` has a flag.
fn has_flag(info: &str, flag: &str) -> bool {
    let line = info.lines().find(|line| line.starts_with("flags"));
    line.is_some_and(|line| line.split_whitespace().any(|word| word == flag))
}

fn says_yes(path: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
}

fn findings() -> [Finding; 6] {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let is_guest = has_flag(&info, "tdx_guest") || Path::new("/dev/sev-guest").exists();
    [
        Finding {
            what: "this machine is a confidential VM (SEV-SNP or TDX)",
            is_there: is_guest,
            advice: "without a chip that vouches, only `--simulated` evidence can be made here",
        },
        Finding {
            what: "the kernel makes evidence by configfs",
            is_there: Path::new(REPORTS).is_dir(),
            advice: "Linux 6.7 or later, before it only SNP guests by /dev/sev-guest; `modprobe sev-guest` or `tdx-guest`, and mount configfs on /sys/kernel/config",
        },
        Finding {
            what: "there is an event log of the firmware (TDX)",
            is_there: Path::new("/sys/firmware/acpi/tables/data/CCEL").exists(),
            advice: "only TDX guests have one; without it runtime registers are judged by their values",
        },
        Finding {
            what: "the processor can run SEV-SNP guests",
            is_there: has_flag(&info, "sev_snp") && says_yes("/sys/module/kvm_amd/parameters/sev_snp"),
            advice: "an EPYC 7003 or later, SNP enabled in its firmware, and kvm_amd with sev_snp=1",
        },
        Finding {
            what: "the processor can run TDX guests",
            is_there: says_yes("/sys/module/kvm_intel/parameters/tdx"),
            advice: "a Xeon of the fourth generation or later, TDX enabled in its firmware, and kvm_intel with tdx=1",
        },
        Finding { what: "evidence can be judged here", is_there: true, advice: "" },
    ]
}

pub fn doctor(args: &Doctor) -> Result<(), Failure> {
    let all = findings();
    if args.json {
        let all = all.map(|one| json!({ "what": one.what, "there": one.is_there, "advice": one.advice }));
        return output::print_json(&all);
    }
    for one in all {
        let mark = if one.is_there { "yes" } else { "no " };
        let advice = if one.is_there { String::new() } else { format!(" ({})", one.advice) };
        output::print(&format!("{mark}  {}{advice}", one.what));
    }
    Ok(())
}
