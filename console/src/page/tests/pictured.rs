//! A shop's cluster in good order, as pictures of the documentation show it: sums add up, and one endpoint drains.

use super::*;

/// Answers about it.
pub(super) fn answers() -> Router {
    Router::new()
        .route("/v1/status", get(|| async { answer("Status", status()) }))
        .route("/v1/services", get(|| async { answer("Services", services()) }))
        .route("/v1/service", get(|| async { answer("Service", service()) }))
        .route("/v1/trace", get(|| async { answer("Trace", trace()) }))
}

fn status() -> Value {
    let mut status = super::status();
    status["input"] = json!({"services": 412, "slices": 430, "endpoints": 3_976, "withWarnings": 0,
        "waiting": 0, "waitingSeconds": null});
    status["mode"]["configured"] = "ipvs".into();
    status["program"]["seconds"] = 277_384.0.into();
    status["kernel"] = json!({"inSyncOnce": true, "virtualServers": 655, "realServers": 6_120,
        "addresses": 441, "operations": 18_204, "refused": 0, "driftRepaired": 3,
        "driftLastTenMinutes": 0, "driftLastHour": 0, "driftLast": "2026-11-26T21:14:08Z",
        "auditPasses": 9_240, "failedReadings": 0, "pending": 0, "pendingFirst": [],
        "sysctlMismatches": 0, "sysctlsPutBack": 0, "flowsRemoved": 37});
    status["draining"] = json!({"virtualServers": 2, "connections": 9, "byHand": 0});
    status["sets"] = json!([
        {"name": "KUBE-CLUSTER-IP", "entries": 588, "capacity": 65_536},
        {"name": "KUBE-EXTERNAL-IP", "entries": 4, "capacity": 65_536},
        {"name": "KUBE-IPVS-IPS", "entries": 441, "capacity": 65_536},
        {"name": "KUBE-LOAD-BALANCER", "entries": 25, "capacity": 65_536},
        {"name": "KUBE-LOAD-BALANCER-LOCAL", "entries": 6, "capacity": 65_536},
        {"name": "KUBE-LOOP-BACK", "entries": 118, "capacity": 65_536},
        {"name": "KUBE-NODE-PORT-TCP", "entries": 38, "capacity": 65_536},
    ]);
    status["errors"] = json!([]);
    status
}

fn services() -> Value {
    let row = |name: &str,
               kind: &str,
               cluster: &str,
               external: &[&str],
               node_port: Option<u16>,
               used,
               active| {
        json!({"namespace": "shop", "name": name, "type": kind, "clusterAddresses": [cluster],
            "externalAddresses": external,
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": node_port}],
            "endpoints": used, "ready": used, "used": used, "warnings": 0,
            "connections": {"active": active, "inactive": active / 3}})
    };
    let cart = row("cart", "LoadBalancer", "10.96.0.10", &["203.0.113.9"], Some(30_080), 2, 61);
    json!({
        "services": [
            cart,
            row("catalogue", "ClusterIP", "10.96.31.4", &[], None, 8, 240),
            row("payment", "NodePort", "10.96.7.122", &[], Some(31_443), 3, 12),
            row("search", "ClusterIP", "10.96.80.61", &[], None, 5, 96),
        ],
        "next": null,
        "uncounted": null,
    })
}

/// So many connections so far and a second, with what they carry.
fn traffic(all: u64, rate: u64) -> Value {
    json!({"connections": all, "incomingPackets": all * 11, "outgoingPackets": all * 13,
        "incomingBytes": all * 700, "outgoingBytes": all * 17_000, "connectionsPerSecond": rate,
        "incomingPacketsPerSecond": rate * 11, "outgoingPacketsPerSecond": rate * 13,
        "incomingBytesPerSecond": rate * 700, "outgoingBytesPerSecond": rate * 17_000})
}

fn service() -> Value {
    let endpoint =
        |address: &str, node: &str, used: &str, weight: u32, active: u32, traffic: Value| {
            let drains = (used == "gone").then_some(640.0);
            json!({"endpoint": address, "node": node, "zone": null, "hints": null, "use": used,
            "weight": weight, "active": active, "inactive": active / 3, "drainingSeconds": drains,
            "traffic": traffic})
        };
    let elsewhere = json!({"endpoint": "10.244.2.7:8080", "node": "node-2", "zone": null, "hints": null,
        "use": "elsewhere", "weight": null, "active": null, "inactive": null, "drainingSeconds": null,
        "traffic": null});
    let frontend = |address: &str, kind: &str, policy: &str, traffic: Value, endpoints: Value| {
        json!({"protocol": "TCP", "address": address, "port": 80, "portName": "http", "kind": kind,
            "trafficPolicy": policy, "hints": "none", "internalFrontendOf": null, "takenBy": null,
            "scheduler": "rr", "persistenceSeconds": null, "isInKernel": true, "traffic": traffic,
            "endpoints": endpoints})
    };
    let everywhere = json!([
        endpoint("10.244.1.5:8080", "node-1", "used", 1, 20, traffic(912_406, 12)),
        endpoint("10.244.2.7:8080", "node-2", "used", 1, 21, traffic(912_407, 12)),
        endpoint("10.244.2.9:8080", "node-2", "gone", 0, 9, traffic(248_787, 0)),
    ]);
    let here = json!([
        endpoint("10.244.1.5:8080", "node-1", "used", 1, 11, traffic(604_811, 7)),
        elsewhere
    ]);
    json!({
        "namespace": "shop", "name": "cart", "type": "LoadBalancer", "mode": "ipvs",
        "internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Local", "affinitySeconds": null,
        "sourceRanges": [], "healthCheck": {"port": 31_000, "localEndpoints": 1},
        "isWaiting": false, "warnings": [],
        "frontends": [frontend("10.96.0.10", "clusterAddress", "Cluster", traffic(2_073_600, 24), everywhere),
            frontend("203.0.113.9", "loadBalancer", "Local", traffic(604_811, 7), here)],
        "moreFrontends": 0, "uncounted": null,
    })
}

/// A client outside asks the Service's cluster IP: rules of `docs/console.md`.
fn trace() -> Value {
    let rule = |hook: &str, table: &str, chain: &str, number: u32, rule: &str, entries: &[&str]| {
        json!({"step": "rule", "hook": hook, "table": table, "chain": chain, "number": number, "rule": rule,
            "entries": entries, "isOfEndpoint": false})
    };
    let found = ["KUBE-CLUSTER-IP: 10.96.0.10,tcp:80"];
    let endpoint = |address: &str, sees: &str| json!({"endpoint": address, "weight": 1, "share": 0.5, "sees": sees, "isMasqueraded": true});
    json!({
        "mode": "ipvs",
        "packet": {"protocol": "tcp", "asked": "192.168.0.100", "source": "192.168.0.100",
            "destination": "10.96.0.10:80", "interface": "eth0"},
        "service": "shop/cart", "arrives": true,
        "ways": [{"steps": [
            rule("PREROUTING", "nat", "PREROUTING", 1, "-j KUBE-SERVICES", &[]),
            rule("PREROUTING", "nat", "KUBE-SERVICES", 2,
                "! -s 10.244.0.0/16 -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ", &found),
            rule("PREROUTING", "nat", "KUBE-MARK-MASQ", 1, "-j MARK --set-xmark 0x4000/0x4000", &[]),
            {"step": "mark", "mark": "0x4000"},
            rule("PREROUTING", "nat", "KUBE-SERVICES", 4,
                "-m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT", &found),
            {"step": "routing", "isLocal": true},
            rule("INPUT", "filter", "INPUT", 1, "-m conntrack ! --ctstate RELATED,ESTABLISHED -j KUBE-IPVS-FILTER", &[]),
            rule("INPUT", "filter", "KUBE-IPVS-FILTER", 4,
                "-m set --match-set KUBE-CLUSTER-IP dst,dst -m conntrack --ctstate NEW -j ACCEPT", &found),
            {"step": "virtualServer", "address": "10.96.0.10:80", "scheduler": "rr", "persistence": null},
            rule("OUTPUT", "mangle", "OUTPUT", 1, "-m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL", &[]),
            rule("POSTROUTING", "nat", "POSTROUTING", 1, "-j KUBE-POSTROUTING", &[]),
            rule("POSTROUTING", "nat", "KUBE-POSTROUTING", 3, "-j MARK --set-xmark 0x4000/0x0", &[]),
            {"step": "mark", "mark": "0x0"},
            rule("POSTROUTING", "nat", "KUBE-POSTROUTING", 4, "-j MASQUERADE --random-fully", &[]),
            ], "end": "endpoint", "share": null,
            "endpoints": [endpoint("10.244.1.5:8080", "10.244.1.1"), endpoint("10.244.2.7:8080", "192.168.0.11")]}],
        "notes": [],
    })
}
