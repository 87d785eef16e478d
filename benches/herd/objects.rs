//! Objects with what a real cluster's have, read by a proxy or not.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

const UID: &str = "7d6f0f6e-6a4e-4e0c-8f3e-2b1d7c5a9e10";
const TIME: &str = "2026-01-15T12:00:00Z";

/// Images that a kubelet reports at most (`nodeStatusMaxImages`).
const IMAGES: u32 = 50;

pub(crate) fn service(number: u32) -> Value {
    let address = Ipv4Addr::from_bits(0x0a60_0001 + number).to_string();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("service-{number}"), "namespace": "shop"},
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster", "selector": {"app": format!("service-{number}")},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        },
        "status": {"loadBalancer": {}},
    })
}

/// A slice of a Service. Another revision has another pod in the first place.
pub(crate) fn slice(number: u32, n_endpoints: u32, revision: u32) -> Value {
    let endpoint = |endpoint: u32| {
        let pod = if endpoint == 0 { revision * 1_000 } else { endpoint };
        let node = (number + endpoint) % 5_000;
        json!({
            "addresses": [Ipv4Addr::from_bits(0x0a80_0000 + number * 0x800 + pod).to_string()],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "nodeName": node_name(node),
            "targetRef": {
                "kind": "Pod", "namespace": "shop", "uid": UID,
                "name": format!("service-{number}-6d4cf56db6-{pod:05}"),
            },
            "zone": format!("eu-central-1{}", if node.is_multiple_of(2) { "a" } else { "b" }),
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("service-{number}-x7k2p"), "generateName": format!("service-{number}-"),
            "namespace": "shop", "uid": UID, "generation": 42, "creationTimestamp": TIME,
            "labels": {
                "app": format!("service-{number}"),
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": format!("service-{number}"),
            },
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": TIME},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": format!("service-{number}"),
                "uid": UID, "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "endpoints": (0..n_endpoints).map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    })
}

pub(crate) fn node_name(number: u32) -> String {
    format!("ip-10-1-{}-{}.eu-central-1.compute.internal", number / 250, number % 250)
}

/// A Node as a kubelet reports it.
pub(crate) fn node(number: u32) -> Value {
    let address = Ipv4Addr::from_bits(0x0a01_0000 + number).to_string();
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "lastHeartbeatTime": TIME,
            "lastTransitionTime": TIME, "message": format!("kubelet says that it is {reason}"),
        })
    };
    let image = |image: u32| {
        let name = format!("registry.example.org/shop/service-{image}");
        json!({
            "names": [format!("{name}@sha256:{image:064x}"), format!("{name}:v1.{image}.0")],
            "sizeBytes": 123_456_789 + image,
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": node_name(number), "uid": UID,
            "labels": {
                "kubernetes.io/hostname": node_name(number), "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": "m5.4xlarge",
                "topology.kubernetes.io/zone": "eu-central-1a",
            },
        },
        "spec": {"podCIDR": "10.128.0.0/24", "podCIDRs": ["10.128.0.0/24"]},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": node_name(number)},
            ],
            "capacity": {"cpu": "16", "memory": "65Gi", "pods": "110"},
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "images": (0..IMAGES).map(image).collect::<Vec<_>>(),
            "nodeInfo": {
                "kubeletVersion": "v1.36.0", "osImage": "Debian GNU/Linux 13 (trixie)",
                "kernelVersion": "6.12.48-cloud-amd64", "operatingSystem": "linux",
                "containerRuntimeVersion": "containerd://2.1.4", "architecture": "amd64",
            },
        },
    })
}
