#!/bin/sh
# Runs on the new root file system ($1) behind prepare.sh: leaves out what no job reads, and what differs from build to build.
set -eu
root=$1
rm -rf "$root/cvmio-boot"
for path in usr/share/doc usr/share/man usr/share/info usr/share/locale usr/share/bash-completion usr/share/zsh usr/share/lintian \
    var/cache/apt var/lib/apt/lists var/log var/cache/debconf var/cache/ldconfig usr/share/perl usr/share/zoneinfo; do
    rm -rf "${root:?}/$path"
done
mkdir -p "$root/var/log" "$root/job" "$root/run" "$root/proc" "$root/sys" "$root/dev"
rm -f "$root/etc/machine-id" "$root/var/lib/dbus/machine-id" "$root/etc/hostname" "$root/etc/resolv.conf"
echo guest >"$root/etc/hostname"
printf '127.0.0.1 localhost guest\n' >"$root/etc/hosts"
