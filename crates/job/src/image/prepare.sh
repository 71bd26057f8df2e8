#!/bin/sh
# Runs on the new root file system ($1), before it is packed: takes out what is booted, notes what is in it, and leaves out what no job reads.
set -eu
root=$1
export LC_ALL=C
chroot "$root" sh -eu <<'INSIDE'
mkdir -p /cvmio-boot/modules /cvmio-boot/bin /cvmio-boot/kernel
# Each package with its version and the digest of its file.
for package in $(dpkg-query -W -f '${Package}:${Architecture}=${Version}\n' | sort); do
    apt-cache show --no-all-versions "$package" |
        awk -v name="$package" '/^SHA256:/ { print name, $2; exit }'
done >/cvmio-boot/packages
kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)$/\1/p' | head -n 1)
cd /cvmio-boot/kernel
apt-get download -q "$kernel"
file=$(ls ./*.deb)
echo "$kernel $(sha256sum "$file" | cut -d' ' -f1)" >>/cvmio-boot/packages
dpkg-deb -x "$file" unpacked
cp unpacked/boot/vmlinuz-* /cvmio-boot/vmlinuz
base=unpacked; [ -d unpacked/lib/modules ] || base=unpacked/usr
version=$(ls $base/lib/modules)
depmod -b $base "$version"
# The last three are for volumes.
for module in virtio_blk virtio_net squashfs dm_verity overlay qemu_fw_cfg tsm sev-guest tdx-guest fuse loop ext4; do
    modprobe -C /dev/null -d $base -S "$version" --show-depends "$module" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p' |
    while read -r path; do
        name=$(basename "$path" | sed 's/\.ko.*//')
        [ -e "/cvmio-boot/modules/$name" ] && continue
        case $path in *.xz) xz -dc "$path" >"/cvmio-boot/modules/$name" ;; *) cp "$path" "/cvmio-boot/modules/$name" ;; esac
        echo "$name" >>/cvmio-boot/modules/order
    done
done
cd /
rm -rf /cvmio-boot/kernel
cp "$(command -v busybox)" /cvmio-boot/bin/busybox
cp "$(command -v veritysetup)" /cvmio-boot/bin/veritysetup
ldd /usr/sbin/veritysetup | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "/cvmio-boot/root$(dirname "$library")"
    cp -L "$library" "/cvmio-boot/root$library"
done
INSIDE
