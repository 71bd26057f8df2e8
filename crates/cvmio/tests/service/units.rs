//! The units as systemd reads them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::common::Desk;
use crate::common::machine::{has, tell_skipped};

const TABLE: &str = "\
ledger /dev/disk/by-id/virtio-1 /etc/l.toml key-file:/k/l fs=ext4,mountpoint=/srv/my-data
scratch /var/lib/my%20s.img /etc/s.toml passphrase-file:/k/s loop,nofail
";

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let desk = Desk::new();
    let (policy, anchor) = (desk.path("policy.toml"), desk.path("anchor"));
    desk.done(&format!("volume prepare policy.toml --size 32M --anchor file:{}", anchor.display()));
    desk.write("tab", TABLE.replace("/etc/s.toml", policy.to_str().unwrap()).as_bytes());
    desk.done("volume units units --tab tab");
    let drop_in = String::from_utf8(desk.read("units/cvmio@scratch.service.d/50-cvmiotab.conf")).unwrap();
    assert!(drop_in.contains(&format!("RequiresMountsFor=\"{}\"\n", anchor.display())), "{drop_in}");
    if !has("systemd-analyze") {
        return tell_skipped("no systemd-analyze");
    }
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/cvmio@.service");
    let template = fs::read_to_string(template).unwrap();
    assert_eq!(template.matches("/usr/bin/cvmio ").count(), 2);
    let here = template.replace("/usr/bin/cvmio ", &format!("{} ", env!("CARGO_BIN_EXE_cvmio")));
    desk.write("units/cvmio@.service", here.as_bytes());
    for name in ["ledger", "scratch"] {
        let unit = desk.path("units").join(format!("cvmio@{name}.service"));
        symlink("cvmio@.service", &unit).unwrap();
        let verify = |unit: &Path| {
            let mut command = Command::new("systemd-analyze");
            command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(unit);
            command.env("SYSTEMD_UNIT_PATH", format!("{}:", desk.path("units").display())).output().unwrap()
        };
        let output = verify(&unit);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{name}: {said}");
        // It does look at the drop-ins.
        let drop_in = desk.path("units").join(format!("cvmio@{name}.service.d/50-cvmiotab.conf"));
        let right = fs::read_to_string(&drop_in).unwrap();
        fs::write(&drop_in, right + "Colour=red\n").unwrap();
        let said = String::from_utf8_lossy(&verify(&unit).stderr).into_owned();
        assert!(said.contains("Colour"), "{name}: {said}");
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit_of_the_owners_service() {
    if !has("systemd-analyze") {
        return tell_skipped("no systemd-analyze");
    }
    let desk = Desk::new();
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/cvmio-owner.service");
    let unit = fs::read_to_string(unit).unwrap();
    assert_eq!(unit.matches("=/usr/bin/cvmio-owner serve ").count(), 1);
    let verify = |text: &str| {
        desk.write("cvmio-owner.service", text.as_bytes());
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(desk.path("cvmio-owner.service"));
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let here = unit.replace("/usr/bin/cvmio-owner ", &format!("{} ", env!("CARGO_BIN_EXE_cvmio")));
    assert_eq!(verify(&here), "");
    let wrong = here.replace("[Service]", "[Service]\nColour=red");
    assert!(verify(&wrong).contains("Colour"), "it looks at nothing");
}

#[test]
fn the_generator_is_this_program_by_another_name() {
    let desk = Desk::new();
    symlink(env!("CARGO_BIN_EXE_cvmio"), desk.path("cvmio-generator")).unwrap();
    let run = |arguments: &[&str]| {
        Command::new(desk.path("cvmio-generator"))
            .args(arguments)
            .current_dir(desk.path(""))
            .output()
            .unwrap()
    };
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("started by systemd"));
    if Path::new("/etc/cvmiotab").exists() {
        return tell_skipped("this machine has a table");
    }
    assert!(run(&["normal", "early", "late"]).status.success());
    assert!(!desk.path("normal").exists());
    // A table that is wrong is none.
    desk.write("tab", format!("{TABLE}\nspare /dev/vdd /p key-file:/k noauot\n").as_bytes());
    let said = desk.run("volume units units --tab tab");
    assert_eq!(said.code, 2);
    assert!(
        said.error.contains("tab:4:31: there is no option `noauot`; did you mean `noauto`?"),
        "{}",
        said.error
    );
    assert!(!desk.path("units").exists());
}
