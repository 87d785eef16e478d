#!/bin/sh
# Leaves the modules of RHEL 10's kernel-modules-core, without what is in kernel-modules-extra
# (def_variants.yaml.rhel of the kernel's package, as in github.com/xcp-ng-rpms/kernel: the first match
# wins there, and all else of these folders is in kernel-modules-core). net/sctp/ stays all the same,
# since servers of the tests listen on SCTP.
cd "/lib/modules/$(uname -r)/kernel/net" || exit
if grep -qE '^(ip_set|nft_compat|x_tables|br_netfilter) ' /proc/modules; then
	echo "a module that RHEL 10 lacks is loaded" >&2
	exit 1
fi
if [ ! -d netfilter/ipset ]; then
	echo "cannot remove netfilter/ipset: $PWD has none" >&2
	exit 1
fi
rm -rf netfilter/ipset netfilter/nft_compat* netfilter/xt_* bridge/br_netfilter* \
	ipv4/netfilter/ip_* ipv4/netfilter/ipt_* ipv4/netfilter/arp* ipv6/netfilter/ip6*
depmod || exit
for gone in ip_set nft_compat xt_mark br_netfilter ip_tables; do
	if modprobe -nq "$gone"; then
		echo "cannot remove the module $gone: modprobe still finds it" >&2
		exit 1
	fi
done
rm -f /usr/sbin/xtables-nft-multi /usr/sbin/xtables-legacy-multi /usr/sbin/ipset /usr/sbin/nft
