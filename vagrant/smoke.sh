#!/usr/bin/env bash
# Asks Services of the cluster, and says `ok` or `FAIL` for each thing that must hold. Runs on the
# control plane: vagrant ssh control-plane --command 'sudo bash /project/vagrant/smoke.sh'
set -uo pipefail
export KUBECONFIG=/etc/kubernetes/admin.conf
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
nodes=(192.168.56.10 192.168.56.11 192.168.56.12)
pair=10.96.0.80
single=10.96.0.81
failed=0

# check WHAT COMMAND...: the command must succeed.
check() {
    local what=$1
    shift
    if "$@"; then
        echo "ok    $what"
    else
        echo "FAIL  $what"
        failed=$((failed + 1))
    fi
}

ask() {
    curl --silent --show-error --fail --max-time 3 "http://$1" 2>/dev/null
}

answers() {
    ask "$1" >/dev/null
}

# The packets must be dropped, so that curl waits in vain (status 28): docs/traffic-policies.md says why.
drops() {
    curl --silent --max-time 3 --output /dev/null "http://$1"
    [ $? = 28 ]
}

# True if an address is a worker's.
is_worker() {
    [ "$1" = "${nodes[1]}" ] || [ "$1" = "${nodes[2]}" ]
}

# True if the API server says that there is no kube-proxy, and not if it says nothing.
no_kube_proxy() {
    local found
    found=$(kubectl --namespace kube-system get daemonset kube-proxy --ignore-not-found) &&
        [ -z "$found" ]
}

# Asks twenty times and prints how many different pods answered; 0 if one did not.
pods_that_answer() {
    local name names=()
    for _ in $(seq 20); do
        name=$(ask "$1/hostname") || { echo 0; return; }
        names+=("$name")
    done
    printf '%s\n' "${names[@]}" | sort --unique | wc --lines
}

is() {
    [ "$1" = "$2" ]
}

# The scheduler of a virtual server on this node, as the kernel has it.
scheduler_of() {
    ipvsadm --list --numeric --tcp-service "$1" 2>/dev/null |
        awk -v server="$1" '$1 == "TCP" && $2 == server { print $3 }'
}

# Rolls kube-ipvs out with a scheduler.
choose_scheduler() {
    local copy
    copy=$(mktemp --directory)
    cp --recursive "$project/deploy" "$project/vagrant" "$copy/"
    sed --in-place "s/scheduler: .*/scheduler: $1/" "$copy/vagrant/overlay/config.yaml"
    kubectl apply --kustomize "$copy/vagrant/overlay" >/dev/null &&
        kubectl --namespace kube-system rollout status daemonset/kube-ipvs --timeout=3m >/dev/null
    local status=$?
    rm --recursive --force "$copy"
    return "$status"
}

check "the workload is there" kubectl apply --filename "$project/vagrant/workload.yaml"
for deployment in pair single; do
    check "the pods of $deployment are ready" \
        kubectl --namespace smoke rollout status "deployment/$deployment" --timeout=5m
done
check "kube-proxy is not here" no_kube_proxy
check "kube-ipvs runs everywhere" \
    kubectl --namespace kube-system rollout status daemonset/kube-ipvs --timeout=3m
for node in "${nodes[@]}"; do
    check "the health server of $node says yes" answers "$node:10256/healthz"
done

check "a cluster address: both pods answer the node" is "$(pods_that_answer "$pair")" 2
check "a cluster address: a pod is answered" \
    kubectl --namespace smoke exec deployment/single -- \
    curl --silent --fail --max-time 3 --output /dev/null "http://$pair/hostname"
for node in "${nodes[@]}"; do
    check "a NodePort at $node: both pods answer" is "$(pods_that_answer "$node:30080")" 2
done

local_node=$(kubectl --namespace smoke get pods --selector app=single \
    --output jsonpath='{.items[0].status.hostIP}')
check "policy Local: the pod is on a worker" is_worker "$local_node"
check "policy Local: the cluster address answers everywhere" answers "$single/hostname"
for node in "${nodes[@]}"; do
    if [ "$node" = "$local_node" ]; then
        check "policy Local: $node has the pod and answers" answers "$node:30081/hostname"
        check "policy Local: the pod sees its client's address" \
            is "$(ask "$node:30081/clientip" | cut --delimiter=: --fields=1)" "${nodes[0]}"
    elif [ "$node" != "${nodes[0]}" ]; then
        # Our own node counts as inside the cluster, so only others have to drop.
        check "policy Local: $node has no pod and drops" drops "$node:30081/hostname"
    fi
done

for scheduler in lc sh rr; do
    check "scheduler $scheduler: rolled out" choose_scheduler "$scheduler"
    check "scheduler $scheduler: the kernel has it" is "$(scheduler_of "$pair:80")" "$scheduler"
    # With sh, a client always gets the same one.
    expected=2
    [ "$scheduler" = sh ] && expected=1
    if [ "$scheduler" = lc ]; then
        # Connections that have ended count a little, too, so who answers is not certain.
        check "scheduler lc: answered" answers "$pair/hostname"
    else
        check "scheduler $scheduler: $expected of the pods answer this client" \
            is "$(pods_that_answer "$pair")" "$expected"
    fi
done

if [ "$failed" -gt 0 ]; then
    echo "$failed of them failed; kubectl --namespace kube-system logs daemonset/kube-ipvs"
    exit 1
fi
echo "all of it holds"
