//! The exported file as a block device, with a real file system on it.

use crate::common::{Page, Rig, run, turn};
use export::fuse::Options;
use export::{Error, loopdev};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const SIZE: usize = 64 << 20;

#[test]
fn a_file_system_survives_a_whole_life() {
    let Some(_turn) = turn(true) else { return };
    let mut rig = Rig::new(SIZE, &Options::default());
    let device = rig.attach();
    let busy = rig.mount().unmount().unwrap_err();
    assert!(matches!(&busy, Error::Busy(why) if why.contains(&*device.to_string_lossy())), "{busy:?}");
    run("mkfs.ext4", &[Path::new("-q"), &device]);
    assert!(rig.device.counts().discards > 0, "mkfs discards the whole device");

    let inside = rig.directory.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    rustix::mount::mount(&device, &inside, "ext4", rustix::mount::MountFlags::empty(), c"").unwrap();
    rig.mounted.push(inside.clone());
    assert!(matches!(loopdev::detach(&device), Err(Error::Busy(_))), "it is mounted");
    let text: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut file = File::create(inside.join("file")).unwrap();
    file.write_all(&text).unwrap();
    let before = rig.device.counts().flushes;
    file.sync_all().unwrap();
    assert!(rig.device.counts().flushes > before, "fsync reaches the device");
    drop(file);
    rustix::mount::unmount(&inside, rustix::mount::UnmountFlags::empty()).unwrap();
    rig.mounted.clear();

    run("e2fsck", &[Path::new("-fn"), &device]);
    rig.detach();
    // On another loop device, so that nothing can come from a cache.
    let device = rig.attach();
    rustix::mount::mount(&device, &inside, "ext4", rustix::mount::MountFlags::RDONLY, c"").unwrap();
    rig.mounted.push(inside.clone());
    assert!(std::fs::read(inside.join("file")).unwrap() == text);
    rustix::mount::unmount(&inside, rustix::mount::UnmountFlags::empty()).unwrap();
    rig.mounted.clear();
    rig.detach();
    rig.finish();
}

/// The kernel would detach it when the last user closes it, behind the back of everybody who was told that it stays.
#[test]
fn a_loop_device_that_is_in_use_stays_when_it_is_closed() {
    let Some(_turn) = turn(true) else { return };
    let mut rig = Rig::new(SIZE, &Options::default());
    let device = rig.attach();
    let user = File::open(&device).unwrap();
    assert!(matches!(loopdev::detach(&device), Err(Error::Busy(_))), "it is open");
    drop(user);
    assert_eq!(loopdev::holders(&rig.file()), Ok(vec![device.clone()]));
    let mut first = [0; 512];
    File::open(&device).unwrap().read_exact_at(&mut first, 0).unwrap();
    rig.detach();
    assert_eq!(loopdev::holders(&rig.file()), Ok(Vec::new()));
    rig.finish();
}

#[test]
fn a_loop_device_is_attached_named_and_detached() {
    let Some(_turn) = turn(true) else { return };
    let mut rig = Rig::new(SIZE, &Options::default());
    let file = rig.file();
    assert_eq!(loopdev::holders(&file), Ok(Vec::new()));
    let device = rig.attach();
    assert_eq!(loopdev::holders(&file), Ok(vec![device.clone()]));
    let name = device.file_name().unwrap().to_str().unwrap().to_owned();
    let queue =
        |name: &str, what: &str| std::fs::read_to_string(format!("/sys/block/{name}/queue/{what}")).unwrap();
    assert_eq!(queue(&name, "logical_block_size").trim(), "4096");
    assert_eq!(queue(&name, "write_cache").trim(), "write back", "or the kernel would not flush");
    rig.detach();
    assert_eq!(loopdev::holders(&file), Ok(Vec::new()));
    rig.finish();

    let mut rig = Rig::new(SIZE, &Options { read_only: true, ..Options::default() });
    assert!(loopdev::attach(&rig.file(), false).is_err());
    let device = loopdev::attach(&rig.file(), true).unwrap();
    rig.loops.push(device.clone());
    let name = device.file_name().unwrap().to_str().unwrap();
    assert_eq!(std::fs::read_to_string(format!("/sys/block/{name}/ro")).unwrap().trim(), "1");
    rig.detach();
    rig.finish();
}

#[test]
fn many_requests_of_the_loop_device_are_in_flight_together() {
    let Some(_turn) = turn(true) else { return };
    const THREADS: u64 = 24;
    let mut rig = Rig::new(SIZE, &Options::default());
    let path = rig.attach();
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap();
    let device = OpenOptions::new().read(true).write(true).custom_flags(direct).open(&path).unwrap();
    for write in [true, false] {
        rig.device.gather(usize::try_from(THREADS).unwrap());
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let device = &device;
                scope.spawn(move || {
                    let mut page = Page([number.to_le_bytes()[0] + 1; 4096]);
                    // Apart, so that the kernel can't merge them.
                    if write {
                        device.write_all_at(&page.0, number * 65536).unwrap();
                    } else {
                        device.read_exact_at(&mut page.0, number * 65536).unwrap();
                    }
                    assert!(page.0 == [number.to_le_bytes()[0] + 1; 4096]);
                });
            }
        });
        assert_eq!(rig.device.counts().most_in_flight, usize::try_from(THREADS).unwrap(), "write: {write}");
    }
    drop(device);
    rig.detach();
    rig.finish();
}
