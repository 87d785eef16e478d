//! The protocol, held against "Kubernetes API Concepts" with a client that knows nothing of it.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its own functions too"
)]

mod access;
mod client;
mod faults;
mod lists;
mod watches;
mod writes;

use serde_json::{Value, json};

const SERVICES: &str = "/api/v1/services";

/// A service in the namespace `shop`.
fn service(name: &str, cluster_ip: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": name}},
        "spec": {"clusterIP": cluster_ip, "ports": [{"port": 80}]},
    })
}

/// The names of a list's items.
fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("items");
    items.iter().map(|item| item["metadata"]["name"].as_str().expect("a name")).collect()
}
