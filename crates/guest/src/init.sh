#!/bin/busybox sh
# The first process of a guest. What the script prints goes to a port of its own, how it ends to another: neither is a terminal, and who
# writes to one waits until the host has it.
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
for module in /modules/*.ko; do
    insmod "$module" || echo "$module cannot be loaded" >/dev/console
done
while [ ! -e /dev/vport0p1 ] || [ ! -e /dev/vport0p2 ]; do sleep 0.01; done
cd /root
sh /script </dev/null >/dev/vport0p1 2>&1
echo $? >/dev/vport0p2
poweroff -f
