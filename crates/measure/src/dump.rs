//! What the host finds in a guest's memory and on its disks. Source: AMD report, appendix.

use std::fs::File;
use std::io::{Read as _, Seek, SeekFrom, Write};
use std::path::Path;

use crate::error::{Context, Error, Result};
use crate::target::vm::agent::base64;
use crate::target::vm::{Boot, Vm};
use crate::target::{Environment, file, place};
use cli::interrupt::Interrupt;

/// Bytes of a secret: no chance makes them appear twice.
const SECRET: usize = 32;
/// Bytes of each disk.
const DISK: u64 = 32 << 20;
/// Bytes of the volume, which is on a disk of its own.
const VOLUME: u64 = 16 << 20;
/// Where a secret lies on its disk, in blocks of 4 KiB.
const BLOCK: u64 = 300;
/// So much of a file is searched at a time.
const CHUNK: usize = 1 << 20;

/// One secret, and how often it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// What it is.
    pub what: &'static str,
    /// In the memory of the virtual machine.
    pub memory: usize,
    /// On the disk that holds it, as the host sees that.
    pub disk: usize,
}

/// Plants secrets in a guest, dumps its memory, and searches.
///
/// # Errors
/// When the guest cannot be booted or dumped.
pub fn search(vm: &Vm, environment: &Environment<'_>) -> Result<Vec<Row>> {
    let place = place(environment)?;
    let root = place.path().canonicalize().doing(place.path().display())?;
    let (disk, volume, memory) = (root.join("disk"), root.join("volume"), root.join("memory"));
    let [file_secret, data, key] = [(); 3].map(|()| {
        let mut secret = [0; SECRET];
        fastrand::fill(&mut secret);
        secret
    });
    file::allocate(&disk, DISK)?;
    file::allocate(&volume, DISK * 4)?;
    plant(&disk, &file_secret)?;
    let script = scenario(&data, &key);
    let boot = Boot {
        vm,
        device: "/dev/vda".into(),
        disk: Some(volume.clone()),
        script,
        contents: environment.contents,
        cvmio: true,
    };
    let mut ready = boot.start(&root, environment)?;
    if let Some(guest) = &mut ready.guest {
        guest.dump(&memory)?;
    }
    drop(ready);
    let secrets = [file_secret, data, key];
    let [in_memory, on_disk, on_volume] =
        [&memory, &disk, &volume].map(|path| occurrences(path, &secrets, environment.interrupt));
    let (in_memory, on_disk, on_volume) = (in_memory?, on_disk?, on_volume?);
    Ok(vec![
        Row { what: "a file on a bare disk, in the page cache", memory: in_memory[0], disk: on_disk[0] },
        Row { what: "data of a cvm-io volume, in the page cache", memory: in_memory[1], disk: on_volume[1] },
        Row {
            what: "the key file of that volume, overwritten after the attach",
            memory: in_memory[2],
            disk: on_volume[2],
        },
    ])
}

/// What the guest does: it reads the bare disk, and through a volume what it wrote there. Page caches stay as long as a device is open.
fn scenario(data: &[u8], key: &[u8]) -> String {
    let (data, key) = (base64(data), base64(key));
    format!(
        "for glance in $(seq 500); do [ -b /dev/vdb ] && break; sleep 0.01; done
        sleep 100000 </dev/vda &
        dd if=/dev/vda of=/dev/null bs=1M
        echo {key} | base64 -d >/run/key
        cvmio volume create /dev/vdb --key-file /run/key --policy /run/policy.toml --size {VOLUME} --anchor file:/run/anchor --force
        cvmio volume attach /dev/vdb --key-file /run/key --policy /run/policy.toml --name secret --as ublk
        dd if=/dev/zero of=/run/key bs={SECRET} count=1 conv=notrunc
        sleep 100000 </dev/ublkb0 &
        echo {data} | base64 -d | dd of=/dev/ublkb0 bs=4096 seek={BLOCK} conv=fsync,notrunc
        echo 1 >/proc/sys/vm/drop_caches
        dd if=/dev/ublkb0 of=/dev/null bs=1M
        dd if=/dev/vda of=/dev/null bs=1M
        "
    )
}

fn plant(disk: &Path, secret: &[u8]) -> Result<()> {
    let mut file = File::options().write(true).open(disk).doing(disk.display())?;
    file.seek(SeekFrom::Start(BLOCK * 4096)).doing(disk.display())?;
    file.write_all(secret).and_then(|()| file.sync_all()).doing(disk.display())
}

/// How often each secret is in a file.
fn occurrences(path: &Path, secrets: &[[u8; SECRET]; 3], interrupt: &Interrupt) -> Result<[usize; 3]> {
    let file = File::open(path).doing(path.display())?;
    let mut counts = [0; 3];
    let mut window = Vec::with_capacity(CHUNK + SECRET);
    loop {
        interrupt.check()?;
        let before = window.len();
        let limit = u64::try_from(CHUNK).unwrap_or(u64::MAX);
        if (&file).take(limit).read_to_end(&mut window).doing(path.display())? == 0 {
            break;
        }
        for (secret, count) in secrets.iter().zip(&mut counts) {
            *count += count_in(&window, secret);
        }
        // One that lies across the end is found with the next chunk, and none is found twice.
        let keep = window.len().min(SECRET - 1);
        if window.len() == before {
            return Err(Error::io(format!("{} cannot be read on", path.display())));
        }
        window.drain(..window.len() - keep);
    }
    Ok(counts)
}

fn count_in(bytes: &[u8], secret: &[u8; SECRET]) -> usize {
    let Some(last) = bytes.len().checked_sub(SECRET) else { return 0 };
    let first = secret[0];
    let starts =
        bytes.get(..=last).unwrap_or_default().iter().enumerate().filter(|(_, byte)| **byte == first);
    starts.filter(|(at, _)| bytes.get(*at..*at + SECRET) == Some(secret.as_slice())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_once_wherever_it_lies() {
        let secrets = [[7; SECRET], [8; SECRET], [9; SECRET]];
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        // Across the end of a chunk, at the beginning, and at the end.
        let mut content = vec![0; 3 * CHUNK];
        for (at, secret) in [(CHUNK - 5, &secrets[0]), (0, &secrets[1]), (3 * CHUNK - SECRET, &secrets[1])] {
            content[at..at + SECRET].copy_from_slice(secret);
        }
        std::fs::write(&path, content).unwrap();
        assert_eq!(occurrences(&path, &secrets, &Interrupt::default()).unwrap(), [1, 2, 0]);
    }
}
