# What the machines are made of, in one place. Sourced by the scripts here.
# shellcheck shell=bash disable=SC2034  # used by those who source it
kubernetes_minor=1.36
kubernetes=1.36.2
kubernetes_package=1.36.2-1.1
# The folder with Kubernetes' packages, and the key that signs them: upstream's if empty.
kubernetes_repository=
kubernetes_key=

# Sets any of these, for one's own mirror. Git ignores it.
if [ -e /project/vagrant/versions.local.sh ]; then
    # shellcheck source=/dev/null  # it is not part of the project
    source /project/vagrant/versions.local.sh
fi
: "${kubernetes_repository:=https://pkgs.k8s.io/core:/stable:/v$kubernetes_minor/deb}"
: "${kubernetes_key:=$kubernetes_repository/Release.key}"
