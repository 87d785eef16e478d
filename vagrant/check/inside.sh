#!/usr/bin/env bash
# Runs in the guest of run.sh at every start: provisions twice at the first, and checks at both.
set -uo pipefail
state=/var/lib/check
trap 'sync; systemctl --no-block poweroff' EXIT

# check WHAT COMMAND...: the command must succeed.
check() {
    local what=$1
    shift
    if "$@"; then
        echo "ok    $what"
    else
        echo "FAIL  $what"
        echo 1 >>"$state/failed"
    fi
}

is() {
    [ "$1" = "$2" ] || { echo "      it is '$1', not '$2'"; return 1; }
}

provision() {
    # Vagrant runs a copy from elsewhere.
    cp /project/vagrant/node.sh /tmp/vagrant-shell && bash /tmp/vagrant-shell 10 10 11 12
}

# All that node.sh writes, and the packages that are there.
fingerprint() {
    sha256sum /etc/modules-load.d/* /etc/sysctl.d/* /etc/fstab /etc/apt/keyrings/* /etc/apt/sources.list.d/* \
        /etc/containerd/* /etc/cni/net.d/* /usr/local/sbin/pod-routes \
        /etc/systemd/system/pod-routes.service /etc/default/kubelet
    dpkg-query --show
    apt-mark showhold
    ctr --namespace k8s.io images list --quiet
}

# The route to the pods of a machine. The service sets it every five seconds, a slow guest may take longer.
route() {
    local found
    for _ in $(seq 30); do
        found=$(ip -4 route show 10.244."$1".0/24 | xargs)
        [ -n "$found" ] && break
        sleep 1
    done
    echo "$found"
}

# What vagrant does to the private network at each `up` and `reload`.
card_set_up_anew() {
    ifdown eth1 && ip address flush dev eth1 && ifup eth1
}

# A pod's network by containerd's own folder of plugins and our configuration: ADD, a packet to the bridge, DEL.
pod_network() {
    local folder config answer status=0
    folder=$(awk -F '"' '/^ *bin_dir =/ { print $2 }' /etc/containerd/config.toml)
    config=$(sed -n '/"type": "bridge"/,/^    }/p' /etc/cni/net.d/10-bridge.conflist | sed '$d')
    config="{\"cniVersion\":\"1.0.0\",\"name\":\"pods\",$config}"
    ip netns add pod || return 1
    export CNI_CONTAINERID=check CNI_NETNS=/run/netns/pod CNI_IFNAME=eth0 CNI_PATH=$folder
    CNI_COMMAND=ADD "$folder/bridge" <<<"$config" >"$state/cni" || { cat "$state/cni"; status=1; }
    ip netns exec pod ip -4 route show default | grep --quiet 'via 10.244.10.1 dev eth0' || status=1
    # The machine refuses the connection, so packets go both ways.
    answer=$(ip netns exec pod bash -c 'exec 3<>/dev/tcp/10.244.10.1/9' 2>&1)
    [[ $answer == *refused* ]] || { echo "$answer"; status=1; }
    CNI_COMMAND=DEL "$folder/bridge" <<<"$config" || status=1
    [ -x "$folder/portmap" ] && [ -x "$folder/host-local" ] || status=1
    ip netns delete pod
    return "$status"
}

runs_a_container() {
    is "$(timeout 120 ctr --namespace k8s.io run --rm --runc-systemd-cgroup --cgroup system.slice:check:one \
        localhost/kube-ipvs:vagrant one /bin/busybox echo it runs)" "it runs"
}

check_machine() {
    check "modules are loaded" eval '[ -d /sys/module/br_netfilter ] && [ -d /sys/module/ip_vs ] && [ -d /sys/module/overlay ]'
    for key in net.bridge.bridge-nf-call-iptables net.bridge.bridge-nf-call-ip6tables net.ipv4.ip_forward; do
        check "$key is 1" is "$(sysctl --values "$key")" 1
    done
    check "no swap" is "$(tail --lines=+2 /proc/swaps)" ""
    check "cgroup v2" is "$(stat --file-system --format=%T /sys/fs/cgroup)" cgroup2fs
    check "containerd runs" systemctl is-active --quiet containerd
    check "its CRI plugin is loaded" is "$(ctr plugins list | awk '$2 == "cri" { print $4 }')" ok
    check "its cgroups are systemd's" grep --quiet 'SystemdCgroup = true' /etc/containerd/config.toml
    check "the image has its name" is \
        "$(ctr --namespace k8s.io images list --quiet name==localhost/kube-ipvs:vagrant)" localhost/kube-ipvs:vagrant
    check "the image runs" runs_a_container
    check "the pods' network works" pod_network
    check "the route to 11" is "$(route 11)" "10.244.11.0/24 via 192.168.56.11 dev eth1"
    check "the route to 12" is "$(route 12)" "10.244.12.0/24 via 192.168.56.12 dev eth1"
    check "pod-routes.service runs" systemctl is-active --quiet pod-routes
    check "the card is set up anew" card_set_up_anew
    check "the route to 11 is back" is "$(route 11)" "10.244.11.0/24 via 192.168.56.11 dev eth1"
    check "packages are held" is "$(apt-mark showhold | xargs)" "kubeadm kubectl kubelet"
    check "the kubelet is enabled" systemctl is-enabled --quiet kubelet
    check "the overlay renders" eval 'kubectl kustomize /project/vagrant/overlay | grep --quiet "image: localhost/kube-ipvs:vagrant"'
}

echo "--- start on Linux $(uname -r), $(cut --delimiter=. --fields=1 /proc/uptime) s after power-on"
if [ ! -e "$state/restarted" ]; then
    check "node.sh, first time" provision
    fingerprint >"$state/first" 2>&1
    check_machine
    check "node.sh, second time" provision
    fingerprint >"$state/second" 2>&1
    check "the second time changes nothing" diff "$state/first" "$state/second"
    check_machine
    touch "$state/restarted"
    trap - EXIT
    sync
    systemctl --no-block reboot
    exit
fi
check_machine
if [ -s "$state/failed" ]; then
    echo "$(wc --lines <"$state/failed") of them failed"
else
    echo "all of it holds: $(date --utc --iso-8601)"
fi
