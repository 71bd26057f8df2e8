//! Volumes on a guest's virtual disks.

use std::fs;

/// Something to find on a disk, if it is there in the clear.
const MARKER: &str = "what the host must not see";

#[test]
fn day_one_with_fuse_and_a_loop_device() {
    let Some(bed) = guest::bed() else { return };
    let disk = bed.disk("disk", 128 << 20);
    let guest = bed.guest().modules(&["fuse", "loop", "ext4"]).programs(&["usr/sbin/mkfs.ext4"]).disk(&disk);
    let script = format!(
        "head -c 32 /dev/urandom > key
         cvmio volume create /dev/vda --key-file key --policy policy.toml --anchor file:/root/anchor
         attach() {{ cvmio volume attach /dev/vda --name day --key-file key --policy policy.toml \"$@\"; }}
         if attach --as ublk; then echo 'ublk without its module'; exit 1; fi
         attach --loop
         mkfs.ext4 -q /dev/loop0
         mount -t ext4 /dev/loop0 /mnt
         dd if=/dev/urandom of=content bs=1M count=8 2>/dev/null
         yes '{MARKER}' | head -n 10000 >> content
         cp content /mnt/content
         if cvmio volume detach day; then echo 'detached while mounted'; exit 1; fi
         umount /mnt
         cvmio volume detach day
         attach --as auto
         mount -t ext4 /dev/loop0 /mnt
         cmp content /mnt/content
         umount /mnt
         cvmio volume detach day
         cvmio volume check /dev/vda --key-file key --policy policy.toml"
    );
    let said = guest.succeed(&script);
    assert!(said.contains("/dev/loop0 is mounted on /mnt"), "{said}");
    assert_eq!(said.matches("modprobe ublk_drv").count(), 2, "an error, and a warning: {said}");
    let stored = fs::read(&disk).unwrap();
    assert!(stored.iter().filter(|&&byte| byte != 0).count() > 8 << 20, "the volume is on this disk");
    let marker = MARKER.as_bytes();
    assert!(!stored.windows(marker.len()).any(|bytes| bytes == marker), "the disk has plaintext on it");
}
