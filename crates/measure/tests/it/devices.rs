//! Block devices: loop devices, where root may attach them.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Runner, SMALL};

fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Detached when dropped, after what is mounted on it.
struct Loop {
    device: String,
    mount: Option<String>,
}

impl Loop {
    /// `None` where none can be attached, and says so in a line that `scripts/test` counts.
    fn of(file: &Path) -> Option<Self> {
        let device = said("losetup", &["--find", "--show", file.to_str().unwrap()]);
        if device.is_none() {
            let thread = std::thread::current();
            eprintln!("\nSKIPPED {}: no loop device can be attached", thread.name().unwrap_or("a test"));
        }
        Some(Self { device: device?, mount: None })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Some(mount) = &self.mount {
            said("umount", &[mount]);
        }
        said("losetup", &["--detach", &self.device]);
    }
}

#[test]
fn a_device_is_measured_if_it_is_empty_and_in_nobodys_use() {
    let runner = Runner::new();
    let file = runner.path("file");
    fs::write(&file, vec![0; 16 << 20]).unwrap();
    let Some(mut device) = Loop::of(&file) else { return };
    let name = device.device.clone();
    let line = format!(
        "fio {SMALL} --target {name} --only latency-randwrite --turns 1 --no-control --out DIR/run.json"
    );
    runner.run(&line).unwrap();
    let run = runner.result("run.json");
    assert_eq!((run.samples.len(), run.targets[0].name.as_str()), (1, name.as_str()));
    // Now it holds what was measured with.
    let before = fs::read(&file).unwrap();
    let line = format!("{line} --replace");
    let refused = runner.error(&line);
    assert!(
        refused.contains("holds data") && refused.contains(&format!("--destroy-data {name}")),
        "{refused}"
    );
    assert_eq!(fs::read(&file).unwrap(), before);
    runner.run(&format!("{line} --destroy-data {name}")).unwrap();

    said("mkfs.ext4", &["-q", "-F", &name]).unwrap();
    let place = runner.path("mounted");
    fs::create_dir(&place).unwrap();
    let place = place.to_str().unwrap().to_string();
    said("mount", &[&name, &place]).unwrap();
    device.mount = Some(place);
    let refused = runner.error(&format!("{line} --destroy-data {name}"));
    assert!(refused.contains("in use") && refused.contains("mounted"), "{refused}");
    // With another target, that one's results are kept.
    assert!(
        runner.error(&format!("{line} --target DIR --destroy-data {name}")).contains("1 of 2 targets failed")
    );
    let run = runner.result("run.json");
    assert_eq!((run.samples.len(), run.failures.len()), (1, 1));
    assert!(run.failures[0].message.contains("in use"), "{:?}", run.failures);
}

#[test]
fn no_space_for_a_target_or_for_the_run_file_loses_nothing() {
    let runner = Runner::new();
    let place = runner.path("tiny");
    fs::create_dir(&place).unwrap();
    let place = place.to_str().unwrap().to_string();
    if said("mount", &["-t", "tmpfs", "-o", "size=16k", "tmpfs", &place]).is_none() {
        let thread = std::thread::current();
        eprintln!("\nSKIPPED {}: nothing can be mounted", thread.name().unwrap_or("a test"));
        return;
    }
    struct Mounted(String);
    impl Drop for Mounted {
        fn drop(&mut self) {
            said("umount", &[&self.0]);
        }
    }
    let _mounted = Mounted(place.clone());
    let line = format!("fio {SMALL} --only latency-read --turns 1 --no-control --out DIR/run.json");
    runner.error(&format!("{line} --target DIR --target {place}"));
    let run = runner.result("run.json");
    assert_eq!((run.samples.len(), run.failures.len()), (1, 1));
    assert!(run.failures[0].message.contains("MiB free"), "{:?}", run.failures);

    let line = format!(
        "fio {SMALL} --target DIR --only latency-read --turns 100 --no-control --out DIR/tiny/run.json"
    );
    let error = runner.error(&line);
    assert!(error.contains("run.json cannot be written") && error.contains("No space left"), "{error}");
    let kept = runner.result("tiny/run.json");
    assert!(!kept.samples.is_empty(), "what was measured before is whole");
}
