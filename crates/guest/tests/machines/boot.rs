//! The test bed itself: what a script says and how it ends comes back, and a guest that does neither is a failure.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn output_and_exit_code_come_back() {
    let Some(bed) = guest::bed() else { return };
    let outcome = bed.guest().run("cvmio --version; uname -r; seq 20000; echo complaint >&2; exit 7");
    let outcome = outcome.unwrap_or_else(|trouble| panic!("{trouble}"));
    assert_eq!(outcome.code, 7, "{outcome}");
    let lines: Vec<&str> = outcome.output.lines().collect();
    assert!(lines[0].starts_with("cvmio ") && lines[1].ends_with("-cloud-amd64"), "{outcome}");
    assert_eq!(lines.len(), 20_003, "{outcome}");
    assert_eq!(lines[20_001..], ["20000", "complaint"]);
}

#[test]
fn a_guest_that_crashes_or_hangs_is_a_failure() {
    let Some(bed) = guest::bed() else { return };
    let crash = bed.guest().run("echo before; echo c >/proc/sysrq-trigger; echo after").unwrap_err();
    assert!(crash.reason.contains("before its script"), "{crash}");
    assert_eq!(crash.output, "before\n");
    assert!(crash.console.contains("Kernel panic"), "{crash}");
    let hang = bed.guest().limit(Duration::from_secs(3)).run("sleep 1000").unwrap_err();
    assert!(hang.reason.contains("3 s"), "{hang}");
}

/// Tells the test below that it is the one to be killed.
const VICTIM: &str = "GUEST_TEST_VICTIM";

#[test]
fn no_guest_outlives_its_test() {
    if std::env::var_os(VICTIM).is_some() {
        let Some(bed) = guest::bed() else { return };
        let _ = bed.guest().run("sleep 1000");
        return;
    }
    let mut this = Command::new(std::env::current_exe().unwrap());
    let mut victim =
        this.args(["--exact", "boot::no_guest_outlives_its_test"]).env(VICTIM, "1").spawn().unwrap();
    let qemu = loop {
        match machine_of(victim.id()) {
            Some(process) => break process,
            None if victim.try_wait().unwrap().is_some() => {
                // It says itself why it could not boot.
                assert!(guest::bed().is_none(), "no machine was booted");
                return;
            }
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    victim.kill().unwrap();
    victim.wait().unwrap();
    let killed = Instant::now();
    while Path::new(&format!("/proc/{qemu}")).exists() {
        assert!(killed.elapsed() < Duration::from_secs(10), "process {qemu} is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The QEMU that a process has started.
fn machine_of(parent: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.find(|number| {
        let read = |name: &str| fs::read_to_string(format!("/proc/{number}/{name}")).unwrap_or_default();
        read("status").contains(&format!("\nPPid:\t{parent}\n"))
            // When it is QEMU already, and not `setpriv`, which becomes it.
            && read("cmdline").split('\0').nth(3).is_some_and(|program| program.ends_with("qemu-system-x86_64"))
    })
}
