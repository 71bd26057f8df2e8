//! The commands of the documents, run as they stand there, one behind the other: what an earlier one leaves is what the next one meets.
//!
//! Paths are those of a directory of the test, the disk is a loop device, and what is asked for on a terminal comes from a file. Nothing else is
//! changed.

use std::fs;
use std::process::Command;

use crate::common::machine::{quietly, sh};
use crate::common::pages::{commands, page};
use crate::common::{Desk, programs};
use crate::skip_without_devices;

/// A machine of its own: directories, a disk, and a shell in which the documents' commands are typed.
struct Machine {
    desk: Desk,
    disk: String,
}

impl Machine {
    fn new() -> Self {
        let desk = Desk::new();
        for directory in ["etc", "lib", "srv", "root", "nas", "backup", "host"] {
            fs::create_dir(desk.path(directory)).unwrap();
        }
        desk.write("words", b"a passphrase on paper\n");
        let raw = desk.path("raw");
        fs::File::create(&raw).unwrap().set_len(128 << 20).unwrap();
        let disk = sh(&format!("losetup -f --show {}", raw.display())).trim().to_owned();
        Self { desk, disk }
    }

    /// What stands in the documents, on this machine.
    fn here(&self, command: &str) -> String {
        let at = |name: &str| self.desk.path(name).display().to_string();
        let mut command = command.to_owned();
        for (there, here) in [
            ("/dev/loop0", "$LOOP".into()),
            ("/dev/vdb", self.disk.clone()),
            ("/etc/cvmio", at("etc")),
            ("/var/lib/cvmio", at("lib")),
            ("/srv/ledger", at("srv")),
            ("/root/", format!("{}/", at("root"))),
            ("/mnt/nas", at("nas")),
            ("/mnt/host", at("host")),
            ("/backup/", format!("{}/", at("backup"))),
        ] {
            command = command.replace(there, &here);
        }
        match command.contains("key add") {
            true => format!("{command} --new-passphrase-file {}", at("words")),
            false => command,
        }
    }

    /// Types commands, and ends at the first that fails.
    fn type_in(&self, commands: &[String]) {
        let mut script = String::from(
            "cvmio() { \"$CVMIO\" \"$@\" > said; ended=$?; cat said; found=$(sed -n 's/^ *block device *//p' said); LOOP=${found:-$LOOP}; echo $LOOP > loop; return $ended; }\nLOOP=$(cat loop 2>/dev/null || true)\n",
        );
        for command in commands {
            // The shell goes on behind a list whose first part fails.
            script += &format!("echo '+' {:?}\n{} || exit 1\n", command, self.here(command));
        }
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).current_dir(self.desk.path("")).env("CVMIO", programs::cvmio());
        let output = shell.env("CVMIO_RUNTIME_DIR", self.desk.path("run")).output().unwrap();
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}{error}");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        quietly(&format!("umount {}", self.desk.path("srv").display()));
        for name in ["ledger", "disk"] {
            let _ = self.desk.run(&format!("volume detach {name}"));
        }
        quietly(&format!("losetup -d {}", self.disk));
    }
}

/// Whether this process has CAP_SYS_RESOURCE (capabilities(7), number 24).
fn may_resize() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(effective.trim(), 16).unwrap() & 1 << 24 != 0
}

/// A day at a disk: made, used, given another key, grown, saved and looked at. Headers are saved while the volume is attached, as it stands there.
#[test]
fn a_disk_lives_as_the_page_on_operations_says() {
    skip_without_devices!();
    let page = page("docs/operations.md");
    let machine = Machine::new();
    let day_one = commands(&page, "## Day one, on a cloud VM's /dev/vdb");
    let nbd = day_one.iter().position(|command| command.contains("--as nbd")).unwrap();
    // Behind that come the kernel's NBD client and its module, which a guest has.
    assert!(day_one.len() - nbd == 6 && nbd >= 9, "{day_one:#?}");
    machine.type_in(&day_one[..nbd]);

    let attach = |commands: &[String]| {
        commands.iter().find(|command| command.contains("volume attach")).cloned().unwrap()
    };
    let mount = day_one.iter().find(|command| command.starts_with("mount")).cloned().unwrap();
    let back = |machine: &Machine| machine.type_in(&[attach(&day_one), mount.clone()]);
    back(&machine);
    machine.type_in(&["cvmio volume scrub ledger --rate 50M".into()]);
    machine.type_in(&commands(&page, "### When somebody may have the key"));
    // The provider has made the disk larger.
    sh(&format!("truncate -s 192M {0} && losetup -c {1}", machine.desk.path("raw").display(), machine.disk));
    let grow: Vec<String> = commands(&page, "## More room").into_iter().take(3).collect();
    assert!(grow.iter().any(|command| command.contains("header backup")), "{grow:#?}");
    // A kernel lets only those resize a mounted ext4 that have CAP_SYS_RESOURCE, and a container's root may have not.
    let may = |command: &String| may_resize() || !command.starts_with("resize2fs");
    machine.type_in(&grow.into_iter().filter(may).collect::<Vec<_>>());

    let backup = commands(&page, "## Backup and restore");
    let import = backup.iter().position(|command| command.contains("--check")).unwrap();
    machine.type_in(&backup[..import]);
    let whole = backup.iter().position(|command| command.starts_with("cp --sparse")).unwrap();
    machine.type_in(&backup[whole..=whole + 2]);
}

#[test]
fn a_file_lives_as_the_page_on_operations_says() {
    skip_without_devices!();
    let machine = Machine::new();
    machine.desk.write("backup.key", &[9; 32]);
    sh(&format!("chmod 600 {}", machine.desk.path("backup.key").display()));
    let mut day_one = commands(&page("docs/operations.md"), "## Day one, on a file");
    // The name is the file's, and a test has a small one.
    day_one.iter_mut().for_each(|command| *command = command.replace("1G", "64M").replace("2G", "96M"));
    assert!(day_one.len() > 9, "{day_one:#?}");
    machine.type_in(&["rm key".into()]);
    machine.type_in(&day_one);
}

#[test]
fn the_first_page_leads_to_a_file_system() {
    skip_without_devices!();
    let machine = Machine::new();
    let lines = commands(&page("README.md"), "# cvmio: disks for confidential VMs");
    let first = lines.iter().position(|command| command.starts_with("mkdir")).unwrap();
    assert!(lines[first..].len() >= 5, "{lines:#?}");
    machine.type_in(&lines[first..first + 5]);
}
