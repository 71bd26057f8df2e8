//! The kernel's own encryption: dm-crypt, with and without dm-integrity, on a loop device.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::mounts::Undo;
use super::{Address, Environment, Kept, Ready, file, mounts, place};
use crate::error::{Context, Result};
use crate::ledger;
use crate::program::{output, shown};

/// Why the kernel cannot do it.
pub fn unavailable() -> Option<String> {
    // Loads the module where there is one.
    let _ = Command::new("modprobe").args(["-q", "dm-crypt"]).output();
    // Not /dev/mapper/control, which tools of the device mapper make where no driver is behind it.
    let there = fs::read_to_string("/proc/misc").is_ok_and(|misc| misc.contains("device-mapper"));
    (!there).then(|| "the kernel has no device mapper (CONFIG_BLK_DEV_DM, CONFIG_DM_CRYPT)".into())
}

/// LUKS2, with aes-xts-plain64 as cryptsetup chooses it; with `integrity`, AES-GCM with tags that dm-integrity keeps.
///
/// # Errors
/// When cryptsetup is missing or fails.
pub fn start(integrity: bool, environment: &Environment<'_>) -> Result<Ready> {
    let place = place(environment)?;
    let root = place.path().canonicalize().doing(place.path().display())?;
    let (disk, key) = (root.join("disk"), root.join("key"));
    // The header takes 16 MiB, the tags and the journal of dm-integrity less than an eighth.
    let room = environment.size + (32 << 20) + if integrity { environment.size / 8 } else { 0 };
    file::allocate(&disk, room)?;
    fs::write(&key, b"no secret: what it protects is random").doing(key.display())?;
    let mut format = Command::new("cryptsetup");
    format.args([
        "luksFormat",
        "--batch-mode",
        "--type=luks2",
        "--pbkdf=pbkdf2",
        "--pbkdf-force-iterations=1000",
    ]);
    format.arg("--sector-size=4096");
    if integrity {
        format.args(["--cipher=aes-gcm-random", "--integrity=aead", "--integrity-no-wipe"]);
    }
    format.arg(&disk).arg(&key);
    output(&mut format, environment.interrupt)?;
    let (device, loop_undo) = mounts::loop_device(&disk, environment.interrupt)?;
    let name =
        format!("cvmio-bench-{}-{}", std::process::id(), if integrity { "integrity" } else { "crypt" });
    let recorded = ledger::mapping(&name)?;
    let mut open = Command::new("cryptsetup");
    open.args(["open", "--type=luks2", "--key-file"]).arg(&key).arg(&device).arg(&name);
    output(&mut open, environment.interrupt)?;
    let close = Kept::Undo(Undo::new(&["cryptsetup", "close", &name], vec![recorded]));
    let path = PathBuf::from("/dev/mapper").join(&name);
    let mut ready = Ready::new(Address::File { path, direct: true }, environment.size);
    ready.commands = vec![shown(&format), shown(&open)];
    ready.devices = vec![close, loop_undo];
    ready.place = Some(place);
    Ok(ready)
}
