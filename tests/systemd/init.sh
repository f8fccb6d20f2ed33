#!/bin/bash
# PID 1 of the test's namespaces, until it becomes systemd: a machine of its own over the files of this one.
#
# init.sh WORK PACKAGE NEXT: WORK is an empty folder, the others are Debian packages, the second of a later version.
set -euo pipefail
work=$1 package=$2 next=$3
root=$work/root

# Nothing that is mounted from here on is seen outside, and all that is written goes to memory.
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$work"
mkdir "$work/upper" "$work/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" overlay "$root"

mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
# An empty /tmp: systemd would clear this machine's, file by file, before it goes on.
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/zero" c 1 5
mknod -m 666 "$root/dev/full" c 1 7
mknod -m 666 "$root/dev/random" c 1 8
mknod -m 666 "$root/dev/urandom" c 1 9
mknod -m 666 "$root/dev/tty" c 5 0

# A machine that has OpenJet already keeps its settings to itself.
rm -rf "$root/etc/openjet" "$root/var/lib/openjet"
cp "$package" "$root/opt/openjet.deb"
cp "$next" "$root/opt/openjet-next.deb"
# No package updates and the like in the middle of a test.
ln -sf /dev/null "$root/etc/systemd/system/timers.target"
# Nor a new list of all manual pages.
rm -f "$root/var/lib/man-db/auto-update"
rm -f "$root/etc/machine-id"
touch "$root/etc/machine-id"

cd "$root"
mkdir -p .outside
pivot_root . .outside
umount -l /.outside
# basic.target: nothing of this machine's own services.
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=basic.target </dev/null
