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
# shellcheck disable=SC3045  # busybox's shell can
ulimit -n 65536
# shellcheck source=/dev/null  # written for each guest
. /vm/environment
cd /job || exit

if grep -qw vm.shell /proc/cmdline; then
	echo "kernel $(uname -r); files are in /job; leave with ctrl-d, or ctrl-a x to cut the power"
	setsid cttyhack sh /vm/command
	poweroff -f
fi

# The first number in the port's name depends on what else is plugged in.
for report in /dev/vport*p2; do :; done

tell() {
	echo "$1" > "$report"
}

# A program's output passes through a pipe, because on a terminal programs colour it and write it
# line by line. The console forgets its raw mode when the last user closes it.
exec 4> /dev/hvc0
stty -F /dev/hvc0 raw -echo
mkfifo /vm/output
cat /vm/output >&4 4>&- &
printer=$!
exec 3> /vm/output 4>&-

run() {
	sh "$1" < /dev/null >&3 2>&3 3>&-
}

# Ends everything, so that all output has been written, and tells how it went.
finish() {
	exec 3>&-
	for process in /proc/[0-9]*; do
		process=${process#/proc/}
		[ "$process" = 1 ] || [ "$process" = "$printer" ] || kill -9 "$process"
	done 2> /dev/null
	wait "$printer"
	if [ -b /dev/vda ]; then
		tar -cf /dev/vda -C /job/out . || tell "output=$?"
		sync
	fi
	tell "$1"
	poweroff -f
}

# Shortly before the host loses patience, the kernel's log gets the processes there are.
list_processes() {
	sleep $(($(cat /vm/limit) - 3 - $(cut -d. -f1 /proc/uptime)))
	ps --ppid 2 -p 2 --deselect -o pid,ppid,stat,wchan:20,args | while read -r line; do
		echo "process: $line" > /dev/kmsg
	done
}

tell up
# The boot was quiet since the serial line is slow; what the kernel says from now on is of interest.
echo 7 > /proc/sys/kernel/printk
list_processes 2> /dev/null 3>&- &

run /vm/setup || finish "setup=$?"
run /vm/command
finish "exit=$?"
