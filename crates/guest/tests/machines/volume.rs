//! Volumes on a guest's virtual disks.

use std::fs;

/// Something to find on a disk, if it is there in the clear.
const MARKER: &str = "what the host must not see";

#[test]
fn day_one_with_fuse_and_a_loop_device() {
    let Some(bed) = guest::bed() else { return };
    let disk = bed.disk("disk", 128 << 20);
    let programs = ["usr/sbin/mkfs.ext4", "usr/sbin/resize2fs"];
    let guest = bed.guest().modules(&["fuse", "loop", "ext4"]).programs(&programs).disk(&disk);
    let script = format!(
        "head -c 32 /dev/urandom > key
         cvmio volume create /dev/vda --size 64M --key-file key --policy policy.toml --anchor file:/root/anchor
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
         cvmio volume grow day --key-file key
         resize2fs /dev/loop0
         dd if=/dev/zero of=/mnt/large bs=1M count=80 conv=fsync 2>/dev/null
         cmp content /mnt/content
         umount /mnt
         cvmio volume detach day
         cvmio volume check /dev/vda --key-file key --policy policy.toml"
    );
    let said = guest.succeed(&script);
    assert!(said.contains("/dev/loop0 is mounted on /mnt"), "{said}");
    assert_eq!(said.matches("modprobe ublk_drv").count(), 2, "an error, and a warning: {said}");
    assert!(said.contains("grown from 64 MiB to"), "{said}");
    let stored = fs::read(&disk).unwrap();
    assert!(stored.iter().filter(|&&byte| byte != 0).count() > 8 << 20, "the volume is on this disk");
    let marker = MARKER.as_bytes();
    assert!(!stored.windows(marker.len()).any(|bytes| bytes == marker), "the disk has plaintext on it");
}

/// One build runs on any x86-64-v2: here there is neither AES-NI nor AVX, and each cipher has to do without.
#[test]
fn a_processor_of_2008_will_do() {
    let Some(bed) = guest::bed() else { return };
    let disk = bed.disk("disk", 32 << 20);
    let guest = bed.guest().processor("Nehalem").modules(&["fuse"]).disk(&disk);
    let script = "grep -m1 -o sse4_2 /proc/cpuinfo
         if grep -qwE 'aes|avx' /proc/cpuinfo; then echo 'it has more'; exit 1; fi
         head -c 32 /dev/urandom > key
         head -c 3000000 /dev/urandom > content
         attach() { cvmio volume attach /dev/vda --name v --key-file key --policy $policy; }
         live() {
             policy=$1.toml
             shift
             cvmio volume create /dev/vda --force --size 16M --key-file key --policy $policy \"$@\"
             attach
             dd if=content of=/run/cvmio/v/disk bs=64k conv=notrunc,fsync 2>/dev/null
             cvmio volume detach v
             attach
             head -c 3000000 /run/cvmio/v/disk | cmp - content
             cvmio volume detach v
             cvmio volume check /dev/vda --key-file key --policy $policy
         }
         for suite in aes-256-gcm aegis-128x2 aegis-256x2; do
             live $suite --suite $suite --anchor file:/root/$suite
         done
         live xts --suite aes-256-xts --no-integrity --freshness off
         live gmac --no-confidentiality --anchor file:/root/gmac";
    let said = guest.succeed(script);
    assert_eq!(said.matches("all whole").count(), 5, "{said}");
}
