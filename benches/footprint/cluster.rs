//! A cluster of so many Services: an API server with objects as long as real ones.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use apiserver::{Options, Server};
use serde_json::{Value, json};

/// Size of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) services: u32,
    /// Number of endpoints of each Service.
    pub(crate) endpoints: u32,
}

impl Size {
    /// Parses a size that is written as `10000x10`; 10 endpoints if it does not say how many.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (services, endpoints) = text.split_once('x').unwrap_or((text, "10"));
        Some(Self { services: services.parse().ok()?, endpoints: endpoints.parse().ok()? })
    }

    /// Returns the number of endpoints of the whole cluster.
    pub(crate) fn all_endpoints(self) -> u32 {
        self.services * self.endpoints
    }
}

/// An API server at this address that has them all.
pub(crate) fn serve(size: Size, listen: SocketAddr) -> Result<Server> {
    let options = Options { listen, anonymous: true, managed_fields: true, ..Options::default() };
    let server = Server::start(options)?;
    for number in 0..size.services {
        server.apply(service(number))?;
        server.apply(slice(number, size.endpoints))?;
    }
    Ok(server)
}

/// Returns a Service.
pub(crate) fn service(number: u32) -> Value {
    let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number).to_string();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("service-{number}"), "namespace": "default"},
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster", "selector": {"app": format!("app-{number}")},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        },
        "status": {"loadBalancer": {}},
    })
}

/// Returns the slice of a Service with so many endpoints.
pub(crate) fn slice(number: u32, n_endpoints: u32) -> Value {
    let endpoints: Vec<Value> = (0..n_endpoints)
        .map(|endpoint| {
            let pod = number * n_endpoints + endpoint;
            let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 128, 0, 1)) + pod);
            json!({
                "addresses": [address.to_string()],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "nodeName": format!("node{}", pod % 100 + 1), "zone": "zone-a",
                "targetRef": {
                    "kind": "Pod", "namespace": "default", "name": format!("pod-{pod}"),
                    "uid": format!("00000000-0000-0000-0000-{pod:012}"),
                },
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("service-{number}-abcde"), "namespace": "default",
            "labels": {
                "kubernetes.io/service-name": format!("service-{number}"),
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": endpoints,
    })
}
