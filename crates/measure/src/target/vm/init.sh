#!/bin/busybox sh
# The first process of a guest that is measured: it does what the host asks for through a port, and ends with the host's program.
/bin/busybox --install -s /bin
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mkdir -p /dev/shm /root
mount -t tmpfs shm /dev/shm
cd /root
while read -r module parameters; do
    insmod "/modules/$module" $parameters || echo "$module cannot be loaded"
done </modules/order
while [ ! -e /dev/vport0p1 ]; do sleep 0.01; done
exec 3<>/dev/vport0p1
echo "ready $(uname -r)" >&3
# A line for each script. Its answer: how it ended, how much it printed, and what.
while read -r line <&3; do
    echo "$line" | base64 -d >/run/script
    sh /run/script </dev/null >/run/said 2>/run/complained 3>&-
    echo "done $? $(stat -c %s /run/said) $(stat -c %s /run/complained)" >&3
    cat /run/said /run/complained >&3
done
poweroff -f
