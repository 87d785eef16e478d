#!/usr/bin/env bash
# Lets a worker join. Can be run again.
set -euo pipefail

if [ ! -e /etc/kubernetes/kubelet.conf ]; then
    kubeadm join 192.168.56.10:6443 --token abcdef.0123456789abcdef \
        --discovery-token-unsafe-skip-ca-verification
fi
