#!/bin/busybox sh
# The first process of a guest that is a whole system: finds it on the first disk, hands it the script, and makes way.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
    insmod "$module" || echo "$module cannot be loaded" >/dev/console
done
while [ ! -e /dev/vda ]; do sleep 0.01; done
mount -t ext4 /dev/vda /mnt
mount -t tmpfs -o mode=755 run /mnt/run
cp /script /mnt/run/guest-script
mount --move /dev /mnt/dev
exec switch_root /mnt /sbin/init
