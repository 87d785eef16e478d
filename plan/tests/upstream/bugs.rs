//! Bugs that users of kube-proxy's ipvs mode reported, as far as a planner can show that it is
//! otherwise here. The numbers tell the reports apart; the documentation of each test names issues
//! of kubernetes/kubernetes where there are some.

mod addresses;
mod api_server;
mod state;

use std::collections::BTreeSet;

use plan::model::{Service, ServiceKind, TrafficPolicy};

use crate::node::Node;
use crate::words::{applied, ips, port, service, slice, sliced};

const ONE_HERE: [&str; 2] = ["10.244.0.2@n1", "10.244.1.2@n2"];
const NONE_HERE: [&str; 1] = ["10.244.1.2@n2"];

fn web() -> Service {
    service("web", &["10.96.0.9"])
}

fn balanced(external_policy: TrafficPolicy) -> Service {
    let load_balancer = ips(&["203.0.113.5"]);
    Service { kind: ServiceKind::LoadBalancer, load_balancer, external_policy, ..web() }
}

fn node_port(text: &str) -> Service {
    Service { kind: ServiceKind::NodePort, ports: vec![port("http", text)], ..web() }
}

fn run(service: &Service, endpoints: &[&str]) -> Node {
    Node::after([applied(service), sliced(&slice("web-1", "web", endpoints))])
}

fn strings(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}
