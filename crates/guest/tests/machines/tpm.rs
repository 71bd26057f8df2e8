//! A volume whose anchor is in the guest's own TPM (swtpm, as a device of the guest), with power cuts.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use guest::{Bed, Guest};

/// swtpm, which ends with the test. Its state stays in its directory.
struct Tpm {
    directory: PathBuf,
    child: Option<Child>,
}

impl Tpm {
    fn control(&self) -> PathBuf {
        self.directory.join("control")
    }

    fn power_on(&mut self) {
        let _ = fs::remove_file(self.control());
        let child = Command::new("swtpm")
            .args(["socket", "--tpm2", "--tpmstate"])
            .arg(format!("dir={}", self.directory.display()))
            .arg("--ctrl")
            .arg(format!("type=unixio,path={}", self.control().display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.expect("swtpm runs"));
        while !self.control().exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn power_off(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        self.power_off();
    }
}

/// The disk of the volume, and one with the guest's own files.
struct Machine<'a> {
    bed: &'a Bed,
    disks: [PathBuf; 2],
}

impl Machine<'_> {
    /// One that is switched on, with its TPM.
    fn on(&self, tpm: &mut Tpm) -> Guest<'_> {
        tpm.power_off();
        tpm.power_on();
        let programs = ["usr/sbin/mkfs.ext4"];
        let guest = self.bed.guest().modules(&["fuse", "ext4"]).programs(&programs);
        let guest = self.disks.iter().fold(guest, |guest, disk| guest.disk(disk));
        guest.tpm(&tpm.control()).limit(Duration::from_secs(300))
    }

    fn copy(&self) -> Vec<Vec<u8>> {
        self.disks.iter().map(|disk| fs::read(disk).unwrap()).collect()
    }

    fn put_back(&self, copy: &[Vec<u8>]) {
        self.disks.iter().zip(copy).for_each(|(disk, content)| fs::write(disk, content).unwrap());
    }
}

/// The number behind the last line that begins with this word.
fn last(said: &str, word: &str) -> u32 {
    let lines = said.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
    // The power may have been cut in the middle of a line.
    let mut whole = lines.filter_map(|number| number.strip_suffix('.')?.parse().ok());
    whole.next_back().unwrap_or_else(|| panic!("nothing was {word}: {said}"))
}

const CREATE: &str = "ls /dev/tpmrm0
    mkfs.ext4 -q /dev/vdb
    mount -t ext4 /dev/vdb /mnt
    cd /mnt
    head -c 32 /dev/urandom > key
    create() {
        cvmio volume create /dev/vda --size 16M --key-file key --policy policy.toml \
            --anchor tpm:/dev/tpmrm0,0x01800100 --anchor-option companion=/mnt/companion \
            --anchor-option secret-file=/mnt/secret \"$@\"
    }
    if create 2> asked; then exit 1; fi
    create --anchor-option $(grep -o 'endorsement-key=[0-9a-f]*' asked)
    cd /
    umount /mnt";

const ATTACH: &str = "mount -t ext4 /dev/vdb /mnt
    cd /mnt
    attach() { cvmio volume attach /dev/vda --name v --key-file key --policy policy.toml; }
    found() { echo found $(head -c 4096 /run/cvmio/v/disk | tr -d '\\000' | tail -n 1).; }";

/// Moves the anchor again and again. What was committed is said behind it.
const MOVE: &str = "attach
    found
    number=$(head -c 4096 /run/cvmio/v/disk | tr -d '\\000' | tail -n 1)
    number=${number:-0}
    while true; do
        number=$((number + 1))
        echo $number > block
        truncate -s 4096 block
        dd if=block of=/run/cvmio/v/disk bs=4096 conv=notrunc,fsync 2>/dev/null
        cvmio volume commit v > /dev/null
        echo committed $number.
    done";

#[test]
fn a_guest_that_loses_power_amid_moves_finds_what_it_committed_and_no_older_disk_is_taken() {
    let Some(bed) = guest::bed() else { return };
    if Command::new("swtpm").arg("--version").stdout(Stdio::null()).status().is_err() {
        let _ = writeln!(std::io::stderr(), "\nSKIPPED a vTPM in a guest: swtpm is not installed");
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let mut tpm = Tpm { directory: Path::new(state.path()).into(), child: None };
    let machine = Machine { bed: &bed, disks: [bed.disk("volume", 32 << 20), bed.disk("own", 32 << 20)] };
    let _ = machine.on(&mut tpm).succeed(CREATE);

    // Cut at moments that fall into different steps of a move. `TPM_CUTS` says how often: each is a boot.
    let cuts = std::env::var("TPM_CUTS").map_or(4, |text| text.parse::<u32>().expect("a number"));
    let (mut committed, mut old) = (0, Vec::new());
    for number in 0..cuts {
        let delay = Duration::from_millis(160) * number / cuts.max(2).saturating_sub(1);
        let script = format!("{ATTACH}\n{MOVE}");
        let text = format!("committed {}.", committed + 3);
        let said = machine.on(&mut tpm).power_cut(&script, &text, delay);
        if number > 0 {
            let found = last(&said, "found");
            // The move that was cut short counts, or does not.
            assert!((committed..=committed + 1).contains(&found), "{committed} were committed: {said}");
        }
        committed = last(&said, "committed");
        if number == 1 {
            old = machine.copy();
        }
    }
    let new = machine.copy();

    // The host puts back both disks, companion file and all: everything but the TPM.
    machine.put_back(&old);
    let refused = "if attach; then exit 1; else echo code $?.; fi";
    let said = machine.on(&mut tpm).succeed(&format!("{ATTACH}\n{refused}"));
    assert!(said.contains("code 8.") && said.contains("the file is an older copy or was changed"), "{said}");
    // The volume's disk alone.
    machine.put_back(&[old[0].clone(), new[1].clone()]);
    let said = machine.on(&mut tpm).succeed(&format!("{ATTACH}\n{refused}"));
    assert!(said.contains("code 5."), "{said}");
    // The newest of both: where the last cut left a move open, that attach has settled it, so the companion file is newer than its copy.
    machine.put_back(&[new[0].clone(), machine.copy()[1].clone()]);
    let script = format!("{ATTACH}\nattach\nfound\ncvmio volume detach v");
    let said = machine.on(&mut tpm).succeed(&script);
    assert!((committed..=committed + 1).contains(&last(&said, "found")), "{said}");
}
