//! The settings of a virtual machine as a target.

use std::fmt;

use super::super::spec::Settings;

/// Values with names, as on the command line; the first is the default.
trait Named: Copy + PartialEq + 'static {
    const ALL: &'static [(Self, &'static str)];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(value, _)| *value == self).map_or("", |(_, name)| name)
    }

    fn parse(key: &str, text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(value, _)| *value).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(_, name)| *name).collect();
            format!("`{key}` is {}, not `{text}`", names.join(" or "))
        })
    }
}

/// The device that the guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// virtio-blk.
    VirtioBlk,
    /// A SCSI disk behind virtio-scsi.
    VirtioScsi,
    /// QEMU's NVMe controller.
    Nvme,
}

impl Named for Disk {
    const ALL: &'static [(Self, &'static str)] =
        &[(Self::VirtioBlk, "virtio-blk"), (Self::VirtioScsi, "virtio-scsi"), (Self::Nvme, "nvme")];
}

/// How QEMU reads and writes its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aio {
    /// `io_submit`.
    Native,
    /// Threads that wait.
    Threads,
    /// `io_uring_enter`.
    IoUring,
}

impl Aio {
    /// As QEMU names it.
    pub fn qemu(self) -> &'static str {
        self.name()
    }
}

impl Named for Aio {
    const ALL: &'static [(Self, &'static str)] =
        &[(Self::IoUring, "io_uring"), (Self::Native, "native"), (Self::Threads, "threads")];
}

/// How the guest learns that a request is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// By an interrupt.
    Interrupt,
    /// By looking again and again.
    Poll,
}

impl Named for Completion {
    const ALL: &'static [(Self, &'static str)] = &[(Self::Interrupt, "interrupt"), (Self::Poll, "poll")];
}

/// What lies between the disk and the measurement, in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protect {
    /// Nothing.
    None,
    /// dm-crypt, as cryptsetup sets it up.
    DmCrypt,
    /// dm-crypt that encrypts in the thread that has the request.
    DmCryptInline,
    /// dm-crypt with authenticated encryption, on dm-integrity.
    DmIntegrity,
    /// A cvm-io volume as a ublk device.
    Cvmio,
}

impl Named for Protect {
    const ALL: &'static [(Self, &'static str)] = &[
        (Self::None, "none"),
        (Self::DmCrypt, "dm-crypt"),
        (Self::DmCryptInline, "dm-crypt-inline"),
        (Self::DmIntegrity, "dm-integrity"),
        (Self::Cvmio, "cvmio"),
    ];
}

/// What protects the machine's memory from its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Plain,
    /// AMD SEV-SNP.
    Snp,
    /// Intel TDX.
    Tdx,
}

impl Named for Kind {
    const ALL: &'static [(Self, &'static str)] =
        &[(Self::Plain, "plain"), (Self::Snp, "snp"), (Self::Tdx, "tdx")];
}

impl Named for bool {
    const ALL: &'static [(Self, &'static str)] = &[(false, "off"), (true, "on")];
}

/// A virtual machine that is booted for the run, and measured from within.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vm {
    /// The device that it sees.
    pub disk: Disk,
    /// Whether the host's page cache takes part.
    pub cache: bool,
    /// How QEMU reads and writes.
    pub aio: Aio,
    /// Whether the device has a thread of its own in QEMU.
    pub iothread: bool,
    /// How the guest learns that a request is done.
    pub completion: Completion,
    /// Whether requests go through the bounce buffer that a confidential guest needs (`swiotlb=force`).
    pub bounce: bool,
    /// What encrypts in the guest.
    pub protect: Protect,
    /// What protects its memory.
    pub kind: Kind,
}

impl Default for Vm {
    fn default() -> Self {
        Self {
            disk: Disk::VirtioBlk,
            cache: false,
            aio: Aio::IoUring,
            iothread: false,
            completion: Completion::Interrupt,
            bounce: false,
            protect: Protect::None,
            kind: Kind::Plain,
        }
    }
}

impl Settings for Vm {
    const KEYS: &'static [&'static str] =
        &["disk", "cache", "aio", "iothread", "completion", "bounce", "protect", "kind"];
    const WHAT: &'static str = "a virtual machine";

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "disk" => self.disk = Named::parse(key, value)?,
            "cache" => self.cache = Named::parse(key, value)?,
            "aio" => self.aio = Named::parse(key, value)?,
            "iothread" => self.iothread = Named::parse(key, value)?,
            "completion" => self.completion = Named::parse(key, value)?,
            "bounce" => self.bounce = Named::parse(key, value)?,
            "protect" => self.protect = Named::parse(key, value)?,
            "kind" => self.kind = Named::parse(key, value)?,
            _ => return Err(Self::unknown(key)),
        }
        Ok(())
    }
}

impl Vm {
    /// Each setting with its value.
    fn settings(&self) -> [(&'static str, &'static str); 8] {
        [
            ("disk", self.disk.name()),
            ("cache", self.cache.name()),
            ("aio", self.aio.name()),
            ("iothread", self.iothread.name()),
            ("completion", self.completion.name()),
            ("bounce", self.bounce.name()),
            ("protect", self.protect.name()),
            ("kind", self.kind.name()),
        ]
    }

    /// Why QEMU or Linux does not have this combination.
    pub fn impossible(&self) -> Option<String> {
        let why = match self {
            Self { aio: Aio::Native, cache: true, .. } => "QEMU's aio=native needs cache=off",
            Self { disk: Disk::Nvme, iothread: true, .. } => "QEMU's NVMe controller takes no iothread",
            Self { disk: Disk::VirtioScsi, completion: Completion::Poll, .. } => {
                "Linux' virtio-scsi has no queues that are polled"
            }
            Self { protect: Protect::None, .. } | Self { completion: Completion::Interrupt, .. } => {
                return None;
            }
            _ => "completion=poll reaches no further than the disk itself; leave protect out",
        };
        Some(why.into())
    }
}

impl fmt::Display for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::default();
        let own = self.settings().into_iter().zip(usual.settings()).filter(|(own, usual)| own != usual);
        let own: Vec<String> = own.map(|((key, value), _)| format!("{key}={value}")).collect();
        f.write_str("vm")?;
        if own.is_empty() { Ok(()) } else { write!(f, ":{}", own.join(",")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_read_as_it_is_written() {
        for text in [
            "vm",
            "vm:disk=nvme,cache=on,aio=threads",
            "vm:iothread=on,completion=poll,bounce=on",
            "vm:protect=dm-crypt-inline,kind=snp",
        ] {
            assert_eq!(text.parse::<super::super::super::Spec>().unwrap().to_string(), text);
        }
        let mut vm = Vm::default();
        let said = vm.set("disk", "floppy").unwrap_err();
        assert!(said.contains("virtio-blk or virtio-scsi or nvme"), "{said}");
        assert!(vm.set("colour", "red").unwrap_err().contains("no setting `colour`"));
    }

    #[test]
    fn what_does_not_go_together_says_why() {
        let why = |text: &str| match text.parse().unwrap() {
            super::super::super::Spec::Vm(vm) => vm.impossible(),
            other => panic!("{other}"),
        };
        assert!(why("vm:aio=native,cache=on").unwrap().contains("cache=off"));
        assert!(why("vm:disk=nvme,iothread=on").unwrap().contains("iothread"));
        assert!(why("vm:disk=virtio-scsi,completion=poll").is_some());
        assert!(why("vm:completion=poll,protect=dm-crypt").is_some());
        assert!(why("vm:aio=native").is_none() && why("vm:completion=poll,bounce=on").is_none());
    }
}
