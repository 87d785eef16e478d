#!/usr/bin/env bash
# Makes a machine ready to be a node: container runtime, kubelet, the pods' network, our image.
# Arguments: the machine's number, then the numbers of all machines. Can be run again.
set -euo pipefail
number=$1
shift
# Vagrant copies a script away before it runs it, so the others are found by their place.
# shellcheck source=versions.sh
source /project/vagrant/versions.sh
image=/project/vagrant/.build/kube-ipvs.tar
if [ ! -e "$image" ]; then
    echo "there is no image to test: run ./image.sh, then vagrant rsync, then vagrant up" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive

echo "--- the kernel"
cat >/etc/modules-load.d/kubernetes.conf <<'END'
br_netfilter
ip_vs
overlay
END
modprobe --all br_netfilter ip_vs overlay
# Pods on the same bridge reach each other through Services only if bridged packets are seen.
cat >/etc/sysctl.d/90-kubernetes.conf <<'END'
net.bridge.bridge-nf-call-iptables = 1
net.bridge.bridge-nf-call-ip6tables = 1
net.ipv4.ip_forward = 1
END
sysctl --quiet --system
# The kubelet refuses to run with swap.
swapoff --all
sed -i '/\sswap\s/s/^[^#]/#&/' /etc/fstab

echo "--- the packages"
keyring=/etc/apt/keyrings/kubernetes.asc
source_list=/etc/apt/sources.list.d/kubernetes.list
apt-get -qq update
apt-get -qq install --yes --no-install-recommends \
    apparmor ca-certificates containerd containernetworking-plugins conntrack curl iptables ipvsadm
mkdir -p /etc/apt/keyrings
# Anew each time, since the repository may be another one now; in one move, so that no half key stays.
curl --fail --silent --show-error --location --output "$keyring.new" "$kubernetes_key"
mv "$keyring.new" "$keyring"
echo "deb [signed-by=$keyring] $kubernetes_repository/ /" >"$source_list"
apt-get -qq update
apt-get -qq install --yes --no-install-recommends --allow-change-held-packages \
    "kubeadm=$kubernetes_package" "kubectl=$kubernetes_package" "kubelet=$kubernetes_package"
apt-mark hold kubeadm kubectl kubelet >/dev/null

echo "--- the container runtime"
mkdir -p /etc/containerd
# The plugins of the pods' network are where Debian has them.
containerd config default |
    sed -e 's/SystemdCgroup = false/SystemdCgroup = true/' \
        -e 's|bin_dir = "/opt/cni/bin"|bin_dir = "/usr/lib/cni"|' >/etc/containerd/config.toml
systemctl restart containerd
# An OCI archive may name only the tag.
name=localhost/kube-ipvs:vagrant
ctr --namespace k8s.io images import --base-name "${name%:*}" "$image"
if [ -z "$(ctr --namespace k8s.io images list --quiet "name==$name")" ]; then
    echo "$image has no image of the name $name: run ./image.sh, then vagrant rsync" >&2
    exit 1
fi

echo "--- the pods' network: a bridge on each node, and a route to each other node's"
mkdir -p /etc/cni/net.d
cat >/etc/cni/net.d/10-bridge.conflist <<END
{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge",
      "bridge": "pods0",
      "isDefaultGateway": true,
      "hairpinMode": true,
      "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.244.$number.0/24" }]] }
    },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}
END
# Again and again: whoever sets up the network card anew, as `vagrant reload` does, takes its routes away.
{
    echo "#!/bin/sh"
    echo "while :; do"
    for other in "$@"; do
        [ "$other" = "$number" ] ||
            echo "    ip route replace 10.244.$other.0/24 via 192.168.56.$other"
    done
    echo "    sleep 5"
    echo "done"
} >/usr/local/sbin/pod-routes
chmod 755 /usr/local/sbin/pod-routes
cat >/etc/systemd/system/pod-routes.service <<'END'
[Unit]
Description=Routes to the pods of other nodes
After=network-online.target
Wants=network-online.target
[Service]
ExecStart=/usr/local/sbin/pod-routes
[Install]
WantedBy=multi-user.target
END
systemctl daemon-reload
systemctl enable --quiet pod-routes.service
systemctl restart pod-routes.service

echo "--- the kubelet"
# The first network card is vagrant's own and has the same address everywhere.
echo "KUBELET_EXTRA_ARGS=--node-ip=192.168.56.$number" >/etc/default/kubelet
systemctl enable --quiet kubelet
