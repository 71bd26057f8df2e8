//! Launching a virtual machine from a kernel, an initramfs and a command line, which are what its evidence measures.
//!
//! [`Launch`] says what the machine is; [`Launch::command`] is QEMU's command line for it, and [`Launch::start`] runs it. Everything that
//! is not listed here is left out of the machine: QEMU gets no default devices and reads no configuration of the user's.
//!
//! The host that runs this is not trusted by anybody: what it does wrong, the guest's evidence shows.

#![forbid(unsafe_code)]

mod error;
mod platform;
mod running;

use std::path::{Path, PathBuf};
use std::process::Command;

use attest::snp::measure::Firmware;

pub use error::Error;
pub use platform::{Platform, Unavailable};
pub use running::Running;

/// Where the guest finds files of [`Launch::files`]: `/sys/firmware/qemu_fw_cfg/by_name/NAME/raw`.
pub const FILES: &str = "opt/cvmio";

/// A port of the guest that is reachable on this machine's loopback address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// The port here.
    pub host: u16,
    /// The port there.
    pub guest: u16,
}

/// A disk of the guest: `/dev/vda`, `/dev/vdb` and so on, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// A file or block device, with the bytes as they are.
    pub path: PathBuf,
    /// Whether the guest may only read it.
    pub read_only: bool,
}

/// A machine that is to be started.
#[derive(Debug, Clone)]
pub struct Launch {
    /// QEMU: a path, or a name to look for.
    pub qemu: PathBuf,
    /// How its memory is protected.
    pub platform: Platform,
    /// The kernel. Measured.
    pub kernel: PathBuf,
    /// The initramfs. Measured.
    pub initramfs: PathBuf,
    /// The kernel's command line. Measured.
    pub words: String,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// Bytes of memory; a multiple of 1 MiB.
    pub memory: u64,
    /// Virtual processors.
    pub processors: u16,
    /// Its only way to the outside: the guest itself reaches nothing.
    pub forwards: Vec<Forward>,
    /// Small files that the host hands to the guest (fw_cfg), by their names below [`FILES`]. Not measured.
    pub files: Vec<(String, PathBuf)>,
    /// Where the guest's console is written.
    pub console: PathBuf,
}

impl Launch {
    /// Whether this machine can run it at all.
    ///
    /// # Errors
    /// The reason why not, and what to do.
    pub fn check(&self) -> Result<(), Error> {
        self.platform.check().map_err(Error::Unavailable)?;
        if let Platform::Snp { firmware } = &self.platform {
            check_hash_table(firmware)?;
        }
        for path in
            [&self.kernel, &self.initramfs].into_iter().chain(self.disks.iter().map(|disk| &disk.path))
        {
            std::fs::metadata(path).map_err(|error| Error::Missing(path.clone(), error))?;
        }
        Ok(())
    }

    /// QEMU's command line.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.qemu);
        let mut machine = String::from("q35");
        self.platform.arguments(self.memory, &mut machine, &mut command);
        command.args(["-M", &machine, "-cpu", self.platform.processor()]);
        command.args(["-m", &format!("{}M", self.memory >> 20), "-smp", &self.processors.to_string()]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.arg("-kernel").arg(&self.kernel).arg("-initrd").arg(&self.initramfs);
        command.args(["-append", &self.words]);
        command.args(["-chardev", &format!("file,id=console,path={}", quoted(&self.console))]);
        command.args(["-serial", "chardev:console"]);
        for (number, disk) in self.disks.iter().enumerate() {
            self.disk(number, disk, &mut command);
        }
        self.network(&mut command);
        for (name, path) in &self.files {
            command.args(["-fw_cfg", &format!("name={FILES}/{name},file={}", quoted(path))]);
        }
        command
    }

    /// Starts it. The process outlives this one, unless [`Running`] is dropped or told to end.
    ///
    /// # Errors
    /// If this machine cannot run it, or QEMU cannot be started. `log` gets what QEMU says.
    pub fn start(&self, log: &Path) -> Result<Running, Error> {
        self.check()?;
        Running::start(self.command(), log)
    }

    fn disk(&self, number: usize, disk: &Disk, command: &mut Command) {
        let read_only = if disk.read_only { "on" } else { "off" };
        command.args([
            "-blockdev",
            &format!(
                "driver=raw,node-name=disk{number},read-only={read_only},file.driver=file,file.filename={}",
                quoted(&disk.path)
            ),
            "-device",
            &format!("virtio-blk-pci,drive=disk{number}{}", self.platform.device()),
        ]);
    }

    fn network(&self, command: &mut Command) {
        if self.forwards.is_empty() {
            command.args(["-nic", "none"]);
            return;
        }
        let forward = |Forward { host, guest }: &Forward| format!(",hostfwd=tcp:127.0.0.1:{host}-:{guest}");
        let forwards: String = self.forwards.iter().map(forward).collect();
        command.args(["-netdev", &format!("user,id=net,restrict=on{forwards}")]);
        command.args(["-device", &format!("virtio-net-pci,netdev=net,romfile={}", self.platform.device())]);
    }
}

/// Refuses firmware that has no room for the hashes of kernel, initramfs and command line: QEMU refuses it, too, or boots a guest whose
/// measurement says nothing about them.
fn check_hash_table(path: &Path) -> Result<(), Error> {
    let image = std::fs::read(path).map_err(|error| Error::Missing(path.into(), error))?;
    match Firmware::parse(&image) {
        Ok(firmware) if firmware.has_kernel_hashes() => Ok(()),
        _ => Err(Error::NoHashTable(path.into())),
    }
}

/// A path as QEMU's options have it: a comma is written twice.
fn quoted(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(platform: Platform) -> Launch {
        Launch {
            qemu: "qemu-system-x86_64".into(),
            platform,
            kernel: "/k".into(),
            initramfs: "/i".into(),
            words: "console=ttyS0 a=b".into(),
            disks: vec![Disk { path: "/d,1".into(), read_only: true }],
            memory: 2 << 30,
            processors: 2,
            forwards: vec![Forward { host: 4000, guest: 22 }],
            files: vec![("seat".into(), "/s".into())],
            console: "/c".into(),
        }
    }

    fn line(launch: &Launch) -> String {
        launch
            .command()
            .get_args()
            .map(|word| word.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn the_guest_has_what_is_listed_and_reaches_nothing_else() {
        let line = line(&launch(Platform::Emulated));
        for word in [
            "-nodefaults -no-user-config",
            "-append console=ttyS0 a=b",
            "read-only=on,file.driver=file,file.filename=/d,,1",
            "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:4000-:22",
            "-fw_cfg name=opt/cvmio/seat,file=/s",
            "-m 2048M -smp 2",
            "accel=tcg",
        ] {
            assert!(line.contains(word), "{word}: {line}");
        }
        assert!(!line.contains("iommu_platform"), "{line}");
        let none = Launch { forwards: Vec::new(), ..launch(Platform::Emulated) };
        assert!(none.command().get_args().any(|word| word == "none"));
    }

    #[test]
    fn confidential_guests_have_their_objects_and_shared_devices() {
        let line = |platform| line(&launch(platform));
        let snp = line(Platform::Snp { firmware: "/f".into() });
        for word in ["sev-snp-guest,id=cgs", "kernel-hashes=on", "iommu_platform=on", "-bios /f", "accel=kvm"]
        {
            assert!(snp.contains(word), "{word}: {snp}");
        }
        let tdx = line(Platform::Tdx { firmware: "/f".into() });
        for word in ["tdx-guest", "kernel-irqchip=split", "iommu_platform=on"] {
            assert!(tdx.contains(word), "{word}: {tdx}");
        }
    }

    #[test]
    fn firmware_without_a_table_for_hashes_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [0xff; 8192]).unwrap();
        assert!(matches!(check_hash_table(file.path()), Err(Error::NoHashTable(_))));
        assert!(matches!(check_hash_table(Path::new("/nowhere")), Err(Error::Missing(..))));
    }

    #[test]
    fn a_missing_kernel_is_refused_before_qemu_starts() {
        let refused = launch(Platform::Emulated).check().unwrap_err().to_string();
        assert!(refused.contains("/k"), "{refused}");
    }
}
