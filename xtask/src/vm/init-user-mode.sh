#!/bin/sh
# The first process of a guest whose kernel is a program of the host. It does what init.sh does, but
# talks to the host through its files: /vm/host is a directory of the host, where `report` gets the
# words that init.sh explains, and `output` what the program writes.

export PATH=/usr/sbin:/usr/bin HOME=/root TERM=linux LANG=C.UTF-8

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm /vm/host /vm/disk
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
mount --make-rshared /
# As on a host without nf_tables, which these kernels cannot do for IPv4. Those of series 7 have no
# x_tables either.
if modprobe ip_tables 2> /dev/null; then
	for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
		ln -sf xtables-legacy-multi "/usr/sbin/$name"
	done
fi
# That of 6.1 has a hook for a module that Debian does not make, and looks for it at every request to
# x_tables (CONFIG_BPFILTER), which starts modprobe each time. It may not, and so it has from the
# beginning whatever it would load by itself.
case $(uname -r) in
6.1.*)
	for start in ip_set ip_vs iptable_ ip6table_ xt_ ipt_ ip6t_ nf_ dummy veth bridge br_netfilter \
		macvlan ipvlan tun.ko sctp sch_ inet_diag tcp_diag udp_diag crc32c hmac sha; do
		find "/lib/modules/$(uname -r)" -name "$start*"
	done | sed 's|.*/||; s|\.ko$||' | xargs modprobe -a
	echo > /proc/sys/kernel/modprobe
	;;
esac
# Built into most kernels, and so not loaded by those who need it.
modprobe ipv6
hostname guest
ip link set lo up

disk=
read -r words < /proc/cmdline
for word in $words; do
	case $word in
	vm.host=*) mount -t hostfs -o "${word#vm.host=}" none /vm/host ;;
	vm.disk=*) disk=${word#vm.disk=} ;;
	esac
done
# shellcheck disable=SC3045  # busybox's shell can
ulimit -n 65536
# shellcheck source=/dev/null  # written for each guest
. /vm/environment
cd /job || exit

case $words in
*vm.shell*)
	echo "kernel $(uname -r); files are in /job; leave with ctrl-d"
	setsid cttyhack sh /vm/command
	poweroff -f
	;;
esac

tell() {
	echo "$1" >> /vm/host/report
}

run() {
	sh "$1" < /dev/null >> /vm/host/output 2>&1
}

finish() {
	if [ -n "$disk" ]; then
		mount -t hostfs -o "${disk%/*}" none /vm/disk
		tar -cf "/vm/disk/${disk##*/}" -C /job/out . || tell "output=$?"
	fi
	tell "$1"
	poweroff -f
}

tell up
run /vm/setup || finish "setup=$?"
run /vm/command
finish "exit=$?"
