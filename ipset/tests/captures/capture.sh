#!/bin/sh
# Prints what the ipset tool and the kernel say to each other, for the tests of the codec.
# README.md says how to run it and what it prints.
set -eu

trace=$(mktemp) && out=$(mktemp)
trap 'rm -f "$trace" "$out"' EXIT

# Runs a command of the tool and prints: the command, what goes to the kernel (>), what comes back
# (<), and what the tool prints (=). The tool's netlink socket is its file descriptor 3.
show() {
    echo "# ipset $*"
    strace -o "$trace" -e trace=sendto,recvmsg -e write=3 -e read=3 ipset "$@" >"$out" 2>/dev/null || true
    awk '
        function flush() { if (text != "") print mark, text; text = "" }
        /^sendto\(3/ { flush(); mark = ">" }
        /^recvmsg\(3/ { flush(); mark = "<" }
        /^ \| [0-9a-f]+  / { octets = substr($0, 11, 48); gsub(/ /, "", octets); text = text octets }
        END { flush() }
    ' "$trace"
    sed 's/^/= /' "$out"
}

all='timeout 600 counters comment skbinfo'
attached='timeout 0 packets 7 bytes 8 comment remark skbmark 0xab/0xff0000ff skbprio 1:2 skbqueue 9'

case ${1:-} in
requests)
    # Every command begins with questions of the tool's own; the last request is the one meant.
    last() { show "$@" | awk '/^#/ { print } /^>/ { request = $0 } END { print request }'; }
    last create IP4 hash:ip family inet hashsize 64 maxelem 9 netmask 24
    last create IP6 hash:ip family inet6 timeout 600 counters comment forceadd skbinfo
    last create PORT4 hash:ip,port family inet timeout 600 counters comment skbinfo
    last create PORT6 hash:ip,port family inet6
    last create PORTIP4 hash:ip,port,ip family inet
    last create PORTIP6 hash:ip,port,ip family inet6
    last create PORTNET4 hash:ip,port,net family inet hashsize 1024 maxelem 65536
    last create PORTNET6 hash:ip,port,net family inet6
    last create BITMAP bitmap:port range 10-20 timeout 600
    last create ALLPORTS bitmap:port range 0-65535
    last add IP4 10.0.0.1
    last add IP6 fd00::1
    # shellcheck disable=SC2086  # these are many words
    last add PORT4 10.0.0.1,sctp:80 $attached
    last add PORT4 10.0.0.1,icmp:8/0
    last add PORT6 fd00::1,tcp:80
    last add PORTIP4 10.0.0.1,udp:53,10.0.0.2
    last add PORTIP6 fd00::1,tcp:80,fd00::2
    last add PORTNET4 10.0.0.1,tcp:80,10.1.0.0/16
    last add PORTNET6 fd00::1,tcp:80,fd00::/8
    last add BITMAP 10 timeout 5
    last test PORTNET4 10.0.0.1,tcp:80,10.1.0.0/16
    last test BITMAP 11
    last del PORT6 fd00::1,tcp:80
    last list IP4
    last list -t IP4
    last list -n
    last list
    last rename IP4 IP4B
    last create SWAPPED hash:ip family inet
    last swap IP4B SWAPPED
    last flush SWAPPED
    last flush
    last destroy SWAPPED
    last destroy
    ;;
answers)
    ipset restore <<END
create IP4 hash:ip family inet hashsize 64 maxelem 9 netmask 24
add IP4 10.0.0.0
create IP6 hash:ip family inet6 $all
add IP6 fd00::1 $attached
create PORT4 hash:ip,port family inet
add PORT4 10.0.0.1,tcp:80
add PORT4 10.0.0.1,udp:80
add PORT4 10.0.0.1,sctp:80
create PORT6 hash:ip,port family inet6 counters
add PORT6 fd00::1,tcp:80
create PORTIP4 hash:ip,port,ip family inet
add PORTIP4 10.0.0.1,udp:53,10.0.0.2
create PORTIP6 hash:ip,port,ip family inet6 comment
add PORTIP6 fd00::1,tcp:80,fd00::2 comment remark
create PORTNET4 hash:ip,port,net family inet
add PORTNET4 10.0.0.1,tcp:80,10.1.0.0/16
add PORTNET4 10.0.0.1,tcp:80,10.2.3.4/32
create PORTNET6 hash:ip,port,net family inet6
add PORTNET6 fd00::1,tcp:80,fd00::/8
create BITMAP bitmap:port range 10-20 $all
add BITMAP 10 $attached
create NET hash:net family inet
add NET 10.0.0.0/8
END
    show save
    show list -n
    show create T1 hash:ip family inet
    show create T2 hash:ip,port family inet
    show create T3 hash:ip,port,ip family inet
    show create T4 hash:ip,port,net family inet
    show create T5 bitmap:port range 0-9
    show test T5 5
    show save NONE
    printf 'add T5 1\nadd T5 2\nadd T5 10\nadd T5 3\n' >"$out.lines"
    show restore <"$out.lines"
    rm -f "$out.lines"
    ;;
*)
    echo "usage: $0 requests|answers" >&2
    exit 2
    ;;
esac
