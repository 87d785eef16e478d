#!/usr/bin/env bash
# Shows that every check of ../smoke.sh can fail. Stand-ins for kubectl, curl and ipvsadm answer as a
# cluster would: once with all in order, then with one fault after the other. Needs nothing, takes seconds.
set -euo pipefail
smoke=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/smoke.sh
work=$(mktemp --directory)
trap 'rm -r "$work"' EXIT
mkdir "$work/bin"

cat >"$work/bin/kubectl" <<'END'
#!/usr/bin/env bash
case "$FAULT $*" in
    "no-workload apply --filename"* | "no-pods --namespace smoke rollout"*) exit 1 ;;
    "no-daemonset --namespace kube-system rollout"* | "no-api --namespace kube-system get"*) exit 1 ;;
    "kube-proxy --namespace kube-system get"*) echo "kube-proxy 3" ;;
    "pod-unserved --namespace smoke exec"* | "no-rollout apply --kustomize"*) exit 1 ;;
    "pod-elsewhere --namespace smoke get pods"*) ;;
    *" --namespace smoke get pods"*) printf 192.168.56.12 ;;
    *" apply --kustomize "*) awk '/scheduler:/ { print $2 }' "${*: -1}/config.yaml" >"$STATE/scheduler" ;;
esac
END
cat >"$work/bin/curl" <<'END'
#!/usr/bin/env bash
url=${*: -1}
scheduler=$(cat "$STATE/scheduler")
calls=$(($(cat "$STATE/calls") + 1))
echo "$calls" >"$STATE/calls"
case "$FAULT $url" in
    "unhealthy "*/healthz) exit 22 ;;
    "silent "*/hostname) exit 7 ;;
    "leak http://192.168.56.11:30081/"*) ;;
    "refusal http://192.168.56.11:30081/"*) exit 7 ;;
    *" http://192.168.56.11:30081/"*) exit 28 ;;
    "masqueraded "*/clientip) echo 192.168.56.11:40000 ;;
    *" "*/clientip) echo 192.168.56.10:40000 ;;
    "one-pod "*/hostname) echo pod-1 ;;
    "unsteady "*/hostname) echo "pod-$((calls % 2))" ;;
    *" "*/hostname) [ "$scheduler" = sh ] && echo pod-1 || echo "pod-$((calls % 2))" ;;
esac
END
cat >"$work/bin/ipvsadm" <<'END'
#!/usr/bin/env bash
scheduler=$(cat "$STATE/scheduler")
[ "$FAULT" = "other-scheduler" ] && scheduler=wrr
echo "TCP  10.96.0.80:80 $scheduler"
END
chmod +x "$work"/bin/*

# Runs smoke.sh with one fault, or none.
run() {
    local state="$work/state.$1"
    mkdir "$state"
    echo rr >"$state/scheduler"
    echo 0 >"$state/calls"
    FAULT=$1 STATE=$state PATH="$work/bin:$PATH" bash "$smoke" >"$work/output.$1"
}

run none || { grep FAIL "$work/output.none"; echo "with all in order, smoke.sh fails" >&2; exit 1; }
declare -A running
for fault in no-workload no-pods no-daemonset no-api kube-proxy pod-unserved pod-elsewhere no-rollout \
    unhealthy silent leak refusal masqueraded one-pod unsteady other-scheduler; do
    run "$fault" &
    running[$fault]=$!
done
for fault in "${!running[@]}"; do
    if wait "${running[$fault]}"; then
        echo "smoke.sh does not see the fault $fault" >&2
        exit 1
    fi
done
sed -n 's/^ok    //p' "$work/output.none" | sort --unique >"$work/checks"
sed -n 's/^FAIL  //p' "$work"/output.* | sort --unique >"$work/seen"
if comm -23 "$work/checks" "$work/seen" | grep .; then
    echo "smoke.sh never fails these checks" >&2
    exit 1
fi
echo "each of the $(wc --lines <"$work/checks") checks of smoke.sh fails with some fault"
