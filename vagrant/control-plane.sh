#!/usr/bin/env bash
# Makes the control plane, without kube-proxy, and gives it kube-ipvs. Can be run again.
set -euo pipefail
# shellcheck source=versions.sh
source /project/vagrant/versions.sh
export KUBECONFIG=/etc/kubernetes/admin.conf

if [ ! -e "$KUBECONFIG" ]; then
    # The token is no secret: the network between the machines is theirs alone.
    kubeadm init --skip-phases=addon/kube-proxy --kubernetes-version "v$kubernetes" \
        --apiserver-advertise-address 192.168.56.10 --control-plane-endpoint 192.168.56.10:6443 \
        --token abcdef.0123456789abcdef --token-ttl 0
fi
kubectl apply --kustomize /project/vagrant/overlay
kubectl --namespace kube-system rollout status daemonset/kube-ipvs --timeout=5m
