#!/bin/sh
# The first process of a guest. It runs what is in /vm and tells the host over a serial port:
#   up          user space works, the program is about to start
#   setup=CODE  the setup failed, the program was not started
#   output=CODE the files in /job/out could not be handed over
#   exit=CODE   the program ended
# The program's output goes over the virtio console, the kernel's log over the serial line.

export PATH=/usr/sbin:/usr/bin HOME=/root TERM=linux LANG=C.UTF-8

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
mount --make-rshared /
hostname guest
ip link set lo up
modprobe -aq virtio_pci virtio_console virtio_blk
ulimit -n 65536
. /vm/environment
cd /job || exit

if grep -qw vm.shell /proc/cmdline; then
	echo "kernel $(uname -r); files are in /job; leave with ctrl-d, or ctrl-a x to cut the power"
	setsid cttyhack bash --norc -i
	poweroff -f
fi

# The first number in the port's name depends on what else is plugged in.
for report in /dev/vport*p2; do :; done

tell() {
	echo "$1" > "$report"
}

# Held open, because the console forgets its raw mode when the last user closes it.
exec 3> /dev/hvc0
stty -F /dev/hvc0 raw -echo
tell up
# The boot was quiet since the serial line is slow; what the kernel says from now on is of interest.
echo 7 > /proc/sys/kernel/printk

sh /vm/setup < /dev/null >&3 2>&3 3>&-
code=$?
if [ "$code" != 0 ]; then
	tell "setup=$code"
	poweroff -f
fi

sh /vm/command < /dev/null >&3 2>&3 3>&-
code=$?

if [ -b /dev/vda ]; then
	tar -cf /dev/vda -C /job/out . || tell "output=$?"
	sync
fi
tell "exit=$code"
poweroff -f
