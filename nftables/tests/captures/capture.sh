#!/bin/sh
# Prints what nft and the kernel say to each other, for the tests of the codec.
# README.md says how to run it and what it prints.
set -eu

trace=$(mktemp) && lines=$(mktemp)
trap 'rm -f "$trace" "$lines"' EXIT

key='ip daddr . meta l4proto . th dport'

# The objects that the tests know, one command of nft a line.
cat >"$lines" <<END
add table ip zz
add chain ip zz prerouting { type nat hook prerouting priority -110; policy accept; }
add chain ip zz output { type nat hook output priority -110; policy accept; }
add chain ip zz postrouting { type nat hook postrouting priority 90; policy accept; }
add chain ip zz forward { type filter hook forward priority 10; policy drop; }
add chain ip zz cluster
add chain ip zz refuse
add set ip zz cluster-ips { type ipv4_addr . inet_proto . inet_service; }
add set ip zz addresses { type ipv4_addr; }
add set ip zz health-ports { type inet_service; }
add set ip zz hairpin { type ipv4_addr . inet_proto . inet_service . ipv4_addr; }
add map ip zz shadows { type ipv4_addr . inet_proto . inet_service : ipv4_addr; }
add flowtable ip zz flows { hook ingress priority 0; devices = { lo }; }
add element ip zz cluster-ips { 10.96.0.10 . tcp . 80 }
add element ip zz health-ports { 30001 }
add element ip zz hairpin { 10.244.1.5 . tcp . 8080 . 10.244.1.5 }
add element ip zz shadows { 10.96.0.10 . tcp . 80 : 240.96.0.10 }
add rule ip zz prerouting $key @cluster-ips goto cluster
add rule ip zz prerouting ip daddr != @addresses return
add rule ip zz prerouting tcp dport @health-ports return
add rule ip zz prerouting fib daddr type != local return
add rule ip zz prerouting $key . ip saddr & 255.255.255.0 @hairpin return
add rule ip zz output ip saddr 127.0.0.0/8 return
add rule ip zz output dnat to $key map @shadows
add rule ip zz forward ct direction original ct status dnat flow add @flows
add rule ip zz forward ct state established,related accept
add rule ip zz cluster ip saddr != 10.244.0.0/16 meta mark set meta mark | 0x4000
add rule ip zz cluster ip saddr 10.244.0.0/16 dnat prefix to 240.0.0.0/4
add rule ip zz cluster iifname != "veth*" meta mark set meta mark | 0x4000
add rule ip zz cluster iifname "cni0" drop
add rule ip zz cluster dnat to ip daddr
add rule ip zz refuse tcp flags & rst == rst return
add rule ip zz refuse meta l4proto tcp reject with tcp reset
add rule ip zz refuse reject with icmp port-unreachable
add rule ip zz postrouting meta mark & 0x4000 == 0x4000 jump cluster-masquerade
add rule ip zz postrouting meta mark set meta mark & 0xffffbfff
add rule ip zz postrouting $key . ip saddr @hairpin masquerade
add rule ip zz postrouting oifname "eth0" masquerade fully-random
add table ip6 zz
add chain ip6 zz p { type nat hook prerouting priority -110; policy accept; }
add set ip6 zz cluster-ips { type ipv6_addr . inet_proto . inet_service; }
add element ip6 zz cluster-ips { fd00:96::a . tcp . 80 }
add rule ip6 zz p ip6 daddr . meta l4proto . th dport @cluster-ips meta mark set meta mark | 0x4000
add rule ip6 zz p dnat to ip6 daddr
add rule ip6 zz p dnat prefix to feff::/16
add chain ip6 zz r
add rule ip6 zz r reject with icmpv6 port-unreachable
END
# A chain that a rule of postrouting jumps to.
sed -i 's/^add chain ip zz cluster$/&\nadd chain ip zz cluster-masquerade/' "$lines"

# Prints the messages that went one way between nft's netlink socket, its file descriptor 3, and the kernel.
messages() {
    awk -v call="$1" -v mark="$2" '
        function flush() { if (text != "") print mark, text; text = "" }
        /^[a-z]+\(3/ { flush(); on = ($0 ~ "^" call) }
        on && /^ \| [0-9a-f]+  / { octets = substr($0, 11, 49); gsub(/ /, "", octets); text = text octets }
        END { flush() }
    ' "$trace"
}

# Prints a command, and the transaction that carries it out: nft's last send.
changed() {
    echo "# nft $1"
    strace -o "$trace" -e trace=sendmsg,sendto -e write=3 nft "$1"
    messages sendmsg '>' | tail -n 1
}

case ${1:-} in
requests)
    while read -r line; do changed "$line"; done <"$lines"
    changed 'delete element ip zz cluster-ips { 10.96.0.10 . tcp . 80 }'
    changed 'flush set ip zz cluster-ips'
    changed 'flush chain ip zz refuse'
    changed 'delete table ip6 zz'
    ;;
answers)
    nft -f "$lines"
    echo "# nft list ruleset"
    strace -o "$trace" -e trace=recvmsg -e read=3 nft list ruleset >"$lines"
    messages recvmsg '<'
    sed 's/^/= /' "$lines"
    ;;
*)
    echo "usage: $0 requests|answers" >&2
    exit 2
    ;;
esac
