#!/bin/busybox sh
# The first program of a guest: finds the root file system by the hash that stands on the measured command line, and starts it.
export PATH=/bin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /lower /upper /root
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev

fail() {
    echo "cvmio: $1" >/dev/console
    poweroff -f
}

hash='' offset='' storage='' epoch=''
for word in $(cat /proc/cmdline); do
    case $word in
        cvmio.root=*) hash=${word#*=} ;;
        cvmio.offset=*) offset=${word#*=} ;;
        cvmio.storage=*) storage=${word#*=} ;;
    esac
done
[ -n "$hash" ] && [ -n "$offset" ] && [ -n "$storage" ] || fail "the command line names no root, offset or storage"

# In this order; some are part of some kernels, and some are for machines of another kind.
while read -r module; do insmod "/modules/$module" 2>/dev/null; done </modules/order

# The disk may take a moment to be there.
tries=0
until [ -b /dev/vda ] || [ $tries -ge 100 ]; do sleep 0.1; tries=$((tries + 1)); done
veritysetup open /dev/vda root /dev/vda "$hash" --hash-offset="$offset" --panic-on-corruption ||
    fail "the root disk is not the one that the command line names"
mount -t squashfs -o ro,nodev /dev/mapper/root /lower || fail "the root disk holds no file system"

# All that is written stays in memory. Nothing is swapped: no swap space exists.
mount -t tmpfs -o mode=755,size=64m none /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work none /root || fail "no memory for the root file system"
mkdir -p /root/job
mount -t tmpfs -o mode=700,size="$storage" none /root/job || fail "no memory for the job ($storage bytes)"
mount -t tmpfs -o mode=755,size=96m none /root/run
for directory in proc sys dev; do mount --move /$directory /root/$directory; done
exec switch_root /root /usr/lib/cvmio/boot
