#!/usr/bin/env bash
# Builds the image of the working tree, and puts it where the machines find it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p vagrant/.build
cargo xtask image --arch amd64 --name localhost/kube-ipvs:vagrant --allow-dirty
cp target/image/kube-ipvs-*.oci.tar vagrant/.build/kube-ipvs.tar
echo "vagrant/.build/kube-ipvs.tar is ready"
