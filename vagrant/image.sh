#!/usr/bin/env bash
# Builds the image of the working tree, and puts it where the machines find it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

builder=
for candidate in podman docker; do
    if command -v "$candidate" >/dev/null; then
        builder=$candidate
        break
    fi
done
if [ -z "$builder" ]; then
    echo "neither podman nor docker is installed here" >&2
    exit 1
fi

mkdir -p vagrant/.build
archive=vagrant/.build/kube-ipvs.tar
"$builder" build --file deploy/image/Containerfile --tag localhost/kube-ipvs:vagrant .
rm -f "$archive"
"$builder" save --output "$archive" localhost/kube-ipvs:vagrant
echo "$archive is ready"
