#!/usr/bin/env bash
# Runs node.sh in an emulated Debian 12, twice and across a restart, and checks the machine it leaves.
# Needs root, Debian 12 or later, some 10 GB below target/, and ten to twenty minutes. ../README.md says what it shows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
work=$PWD/target/vagrant
root=$work/root
repository=$root/srv/kubernetes
apt-get -qq install --yes --no-install-recommends \
    mmdebstrap qemu-system-x86 gnupg dpkg-dev e2fsprogs busybox-static >/dev/null
mkdir -p "$work"
# shellcheck disable=SC2016  # apt's variables
mirror=$(apt-get indextargets -o APT::Get::IndexTargets::ReleaseInfo=false \
    --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' | awk '$1 == "bookworm" { print $2; exit }')
: "${mirror:?no apt source of this machine names Debian 12}"

if [ ! -e "$work/root.done" ]; then
    echo "--- the root file system"
    rm -rf "$root"
    # The box's network scripts and kernel. Packages that node.sh installs are here before, since unpacking
    # them in emulation takes ten minutes; with BARE set, they are not.
    beforehand=,apparmor,ca-certificates,containerd,containernetworking-plugins,conntrack,curl,iptables,ipvsadm
    [ -z "${BARE:-}" ] || beforehand=
    mmdebstrap --quiet --variant=minbase \
        --include=systemd-sysv,udev,dbus,ifupdown,isc-dhcp-client,iproute2,linux-image-amd64,initramfs-tools,procps,kmod,zstd"$beforehand" \
        --aptopt='Acquire::Check-Valid-Until "false"' bookworm "$root" "$mirror"
    touch "$work/root.done"
fi

echo "--- a repository with Debian's kubectl, and stand-ins for kubeadm and kubelet, which Debian lacks"
if [ ! -e "$work/kubectl.deb" ]; then
    apt=$(mktemp --directory)
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    echo "deb [arch=amd64 signed-by=$keyring] $mirror sid main" >"$apt/sources.list"
    options=(-qq -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o Dir::Etc::preferencesparts=/dev/null -o Dir::State::status=/dev/null
        -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache"
        -o APT::Sandbox::User= -o Acquire::Languages=none)
    apt-get "${options[@]}" update
    (cd "$apt" && apt-get "${options[@]}" download kubectl && mv kubectl_*.deb "$work/kubectl.deb")
    rm -r "$apt"
fi
version=$(dpkg-deb --field "$work/kubectl.deb" Version)
rm -rf "$repository"
mkdir -p "$repository"
cp "$work/kubectl.deb" "$repository/"
for package in kubeadm kubelet; do
    tree=$work/$package
    rm -rf "$tree"
    mkdir -p "$tree/DEBIAN" "$tree/usr/bin" "$tree/lib/systemd/system"
    printf '%s\n' "Package: $package" "Version: $version" "Architecture: amd64" \
        "Maintainer: nobody <nobody@localhost>" "Description: stand-in, does nothing" >"$tree/DEBIAN/control"
    printf '#!/bin/sh\nexit 1\n' >"$tree/usr/bin/$package"
    chmod 755 "$tree/usr/bin/$package"
    if [ "$package" = kubelet ]; then
        printf '%s\n' "[Service]" "EnvironmentFile=-/etc/default/kubelet" "ExecStart=/usr/bin/kubelet" \
            "Restart=always" "RestartSec=10" "[Install]" "WantedBy=multi-user.target" \
            >"$tree/lib/systemd/system/kubelet.service"
    fi
    dpkg-deb --root-owner-group --build "$tree" "$repository" >/dev/null
done
export GNUPGHOME=$work/gnupg
if [ ! -d "$GNUPGHOME" ]; then
    mkdir -m 700 "$GNUPGHOME"
    gpg --batch --quiet --passphrase '' --quick-generate-key check@localhost rsa2048 sign never
fi
(
    cd "$repository"
    dpkg-scanpackages --multiversion . 2>/dev/null >Packages
    {
        printf '%s\n' "Date: $(date --utc --rfc-email)" "Architectures: amd64" "SHA256:"
        echo " $(sha256sum Packages | cut --delimiter=' ' --fields=1) $(stat --format=%s Packages) Packages"
    } >Release
    gpg --batch --quiet --yes --clearsign --output InRelease Release
    gpg --batch --quiet --yes --armor --export --output Release.key
)

echo "--- an image made by hand, in the place of ours"
layout=$work/layout
rm -rf "$layout"
mkdir -p "$layout/blobs/sha256" "$layout/layer/bin"
cp /bin/busybox "$layout/layer/bin/"
tar --create --file "$layout/layer.tar" --directory "$layout/layer" --owner=0 --group=0 .
# Stores a file by its digest, and prints how the OCI names it.
blob() {
    local digest
    digest=$(sha256sum "$1" | cut --delimiter=' ' --fields=1)
    echo "\"mediaType\":\"application/vnd.oci.image.$2\",\"digest\":\"sha256:$digest\",\"size\":$(stat --format=%s "$1")"
    mv "$1" "$layout/blobs/sha256/$digest"
}
layer=$(blob "$layout/layer.tar" layer.v1.tar)
digest=${layer#*\"digest\":\"}
digest=${digest%%\"*}
echo "{\"architecture\":\"amd64\",\"os\":\"linux\",\"config\":{\"Cmd\":[\"/bin/busybox\"]},\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"$digest\"]}}" >"$layout/config"
config=$(blob "$layout/config" config.v1+json)
echo "{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\"config\":{$config},\"layers\":[{$layer}]}" >"$layout/manifest"
manifest=$(blob "$layout/manifest" manifest.v1+json)
echo "{\"schemaVersion\":2,\"manifests\":[{$manifest,\"annotations\":{\"org.opencontainers.image.ref.name\":\"${IMAGE_REFERENCE:-vagrant}\"}}]}" >"$layout/index.json"
echo '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
rm -r "$layout/layer"

echo "--- the disk"
project=$root/project
rm -rf "$project" "$root/var/lib/check"
mkdir -p "$project/vagrant/.build" "$root/var/lib/check"
cp -r deploy "$project/"
cp -r vagrant/*.sh vagrant/*.yaml vagrant/overlay vagrant/check "$project/vagrant/"
tar --create --file "$project/vagrant/.build/kube-ipvs.tar" --directory "$layout" .
printf '%s\n' "kubernetes_package=$version" kubernetes_repository=file:///srv/kubernetes \
    >"$project/vagrant/versions.local.sh"
echo control-plane >"$root/etc/hostname"
printf '127.0.0.1 localhost\n127.0.1.1 control-plane\n' >"$root/etc/hosts"
rm -f "$root/etc/resolv.conf"
# As the box has them and vagrant writes them.
printf '%s\n' "auto lo" "iface lo inet loopback" "allow-hotplug eth0" "iface eth0 inet dhcp" \
    "auto eth1" "iface eth1 inet static" "  address 192.168.56.10" "  netmask 255.255.255.0" \
    >"$root/etc/network/interfaces"
fallocate --length 64M "$root/swapfile"
chmod 600 "$root/swapfile"
mkswap --quiet "$root/swapfile" 2>/dev/null || mkswap "$root/swapfile" >/dev/null
printf '%s\n' "/dev/vda / ext4 defaults 0 1" "/swapfile none swap sw 0 0" >"$root/etc/fstab"
printf '%s\n' "[Unit]" "After=multi-user.target" "[Service]" "Type=oneshot" "TimeoutStartSec=infinity" \
    "ExecStart=/bin/bash /project/vagrant/check/inside.sh" "StandardOutput=file:/dev/ttyS1" \
    "StandardError=inherit" "[Install]" "WantedBy=graphical.target" >"$root/etc/systemd/system/check.service"
ln -sf /lib/systemd/system/graphical.target "$root/etc/systemd/system/default.target"
mkdir -p "$root/etc/systemd/system/graphical.target.wants"
ln -sf ../check.service "$root/etc/systemd/system/graphical.target.wants/check.service"
rm -f "$work/disk.img"
mke2fs -q -t ext4 -d "$root" "$work/disk.img" 5G

echo "--- the guest"
: >"$work/output"
status=0
timeout "${LIMIT:-1800}" qemu-system-x86_64 -M q35 -nodefaults -no-user-config -display none -accel tcg,thread=multi \
    -cpu Nehalem,+rdrand,-cx16 -smp 1 -m 2048 -kernel "$root/vmlinuz" -initrd "$root/initrd.img" \
    -append "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off cryptomgr.notests" \
    -drive "if=none,id=disk,format=raw,cache=unsafe,file=$work/disk.img" -device virtio-blk-pci,drive=disk \
    -netdev user,id=outside -device virtio-net-pci,netdev=outside \
    -netdev hubport,id=private,hubid=1 -device virtio-net-pci,netdev=private \
    -serial "file:$work/console" -serial "file:$work/output" || status=$?
cat "$work/output"
if [ "$status" != 0 ]; then
    echo "the guest did not end by itself ($status); $work/console has its console" >&2
    exit 1
fi
grep --quiet '^all of it holds' "$work/output"
