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
# As on a host without nf_tables, which this kernel cannot do for IPv4.
for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
	ln -sf xtables-legacy-multi "/usr/sbin/$name"
done
# That of 6.1 has a hook for a module that Debian does not make, and looks for it at every request to
# x_tables (CONFIG_BPFILTER). A shell denies it in half the time that modprobe takes.
case $(uname -r) in
6.1.*)
	cat > /usr/sbin/modprobe-for-kernel <<'EOF'
#!/bin/sh
case $* in *" bpfilter") exit 1 ;; esac
exec /usr/sbin/modprobe "$@"
EOF
	chmod 755 /usr/sbin/modprobe-for-kernel
	echo /usr/sbin/modprobe-for-kernel > /proc/sys/kernel/modprobe
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
