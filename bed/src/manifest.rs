//! Services and their EndpointSlices as YAML, for tests to write and change.

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::cluster::Host;
use crate::protocol::Protocol;

/// A Service with its endpoints. The text form is a multi-document manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name, in the namespace `default`.
    pub name: String,
    /// `spec.clusterIPs`.
    pub cluster: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external: Vec<IpAddr>,
    /// `status.loadBalancer.ingress`.
    pub load_balancer: Vec<IpAddr>,
    /// The same with `ipMode: Proxy`.
    pub load_balancer_proxy: Vec<IpAddr>,
    /// `spec.ports`.
    pub ports: Vec<Port>,
    /// Session affinity by client address, in seconds.
    pub affinity: Option<u32>,
    /// Every endpoint, of both families.
    pub endpoints: Vec<Endpoint>,
    /// Further lines of the Service's `spec`, such as `externalTrafficPolicy: Local`.
    pub more: Vec<String>,
}

/// One of a Service's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The protocol.
    pub protocol: Protocol,
    /// Port that clients connect to.
    pub port: u16,
    /// Port that the pods listen on.
    pub target: u16,
    /// The port on each node, 0 for none.
    pub node_port: u16,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the endpoint.
    pub address: IpAddr,
    /// `node1`.
    pub node: String,
    /// The Pod: `pod1-1`; none where a node stands for one.
    pub pod: Option<String>,
    /// True if the endpoint takes traffic.
    pub ready: bool,
    /// True if the endpoint is about to end.
    pub terminating: bool,
    /// True if the endpoint still answers while it is about to end.
    pub serving: bool,
    /// `hints`, as YAML on one line, such as `{forZones: [{name: a}]}`.
    pub hints: Option<&'static str>,
}

impl Service {
    /// A Service with this cluster address and no ports yet.
    #[must_use]
    pub fn new(name: &str, cluster: impl Into<IpAddr>) -> Self {
        Self {
            name: name.to_owned(),
            cluster: vec![cluster.into()],
            external: Vec::new(),
            load_balancer: Vec::new(),
            load_balancer_proxy: Vec::new(),
            ports: Vec::new(),
            affinity: None,
            endpoints: Vec::new(),
            more: Vec::new(),
        }
    }

    /// With one more port.
    #[must_use]
    pub fn port(mut self, protocol: Protocol, port: u16, target: u16) -> Self {
        self.ports.push(Port { protocol, port, target, node_port: 0 });
        self
    }

    /// With one more port that is a port on each node too.
    #[must_use]
    pub fn node_port(mut self, protocol: Protocol, port: u16, target: u16, node_port: u16) -> Self {
        self.ports.push(Port { protocol, port, target, node_port });
        self
    }

    /// With these pods as ready endpoints, on the nodes that their names say. A node stands for a
    /// pod in the network of its host.
    #[must_use]
    pub fn pods<'a>(mut self, pods: impl IntoIterator<Item = &'a Host>) -> Self {
        self.endpoints.extend(pods.into_iter().flat_map(endpoints));
        self
    }

    /// With a pod that is about to end as an endpoint; if it is `serving`, it still answers.
    #[must_use]
    pub fn terminating_pod(mut self, pod: &Host, serving: bool) -> Self {
        let endpoints = endpoints(pod);
        self.endpoints.extend(endpoints.map(|endpoint| Endpoint {
            ready: false,
            terminating: true,
            serving,
            ..endpoint
        }));
        self
    }

    /// The manifest.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        let mut yaml = self.service();
        for ipv4 in [true, false] {
            if self.endpoints.iter().any(|endpoint| endpoint.address.is_ipv4() == ipv4) {
                yaml.push_str("---\n");
                yaml.push_str(&self.slice(ipv4));
            }
        }
        yaml
    }

    fn service(&self) -> String {
        let has_ingress = !self.load_balancer.is_empty() || !self.load_balancer_proxy.is_empty();
        let kind = match (has_ingress, self.ports.iter().any(|p| p.node_port > 0)) {
            (true, _) => "LoadBalancer",
            (false, true) => "NodePort",
            (false, false) => "ClusterIP",
        };
        let first = self.cluster.first().map(ToString::to_string).unwrap_or_default();
        let mut yaml = format!(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: {}\n  namespace: default\n\
             spec:\n  type: {kind}\n  clusterIP: \"{first}\"\n",
            self.name
        );
        addresses(&mut yaml, "clusterIPs", &self.cluster);
        yaml.push_str("  ipFamilies:\n");
        for address in &self.cluster {
            let _infallible = writeln!(yaml, "  - {}", family(address.is_ipv4()));
        }
        addresses(&mut yaml, "externalIPs", &self.external);
        if let Some(seconds) = self.affinity {
            let _infallible = writeln!(
                yaml,
                "  sessionAffinity: ClientIP\n  sessionAffinityConfig:\n    clientIP:\n      \
                 timeoutSeconds: {seconds}"
            );
        }
        for line in &self.more {
            let _infallible = writeln!(yaml, "  {line}");
        }
        yaml.push_str("  ports:\n");
        for port in &self.ports {
            let _infallible = writeln!(
                yaml,
                "  - name: {}\n    protocol: {}\n    port: {}",
                port.name(),
                port.protocol_name(),
                port.port
            );
            if port.node_port > 0 {
                let _infallible = writeln!(yaml, "    nodePort: {}", port.node_port);
            }
        }
        if has_ingress {
            yaml.push_str("status:\n  loadBalancer:\n    ingress:\n");
        }
        for address in &self.load_balancer {
            let _infallible = writeln!(yaml, "    - ip: \"{address}\"");
        }
        for address in &self.load_balancer_proxy {
            let _infallible = writeln!(yaml, "    - ip: \"{address}\"\n      ipMode: Proxy");
        }
        yaml
    }

    fn slice(&self, ipv4: bool) -> String {
        let family = family(ipv4);
        let name = format!("{}-{}", self.name, family.to_lowercase());
        let mut yaml = format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}\n  \
             namespace: default\n  labels:\n    kubernetes.io/service-name: {}\n\
             addressType: {family}\nports:\n",
            self.name
        );
        for port in &self.ports {
            let _infallible = writeln!(
                yaml,
                "- name: {}\n  protocol: {}\n  port: {}",
                port.name(),
                port.protocol_name(),
                port.target
            );
        }
        yaml.push_str("endpoints:\n");
        for endpoint in self.endpoints.iter().filter(|e| e.address.is_ipv4() == ipv4) {
            let _infallible = writeln!(
                yaml,
                "- addresses: [\"{}\"]\n  nodeName: {}\n  conditions:\n    ready: {}",
                endpoint.address, endpoint.node, endpoint.ready
            );
            if endpoint.terminating {
                let _infallible =
                    writeln!(yaml, "    serving: {}\n    terminating: true", endpoint.serving);
            }
            if let Some(pod) = &endpoint.pod {
                let _infallible =
                    writeln!(yaml, "  targetRef: {{kind: Pod, namespace: default, name: {pod}}}");
            }
            if let Some(hints) = endpoint.hints {
                let _infallible = writeln!(yaml, "  hints: {hints}");
            }
        }
        yaml
    }
}

impl Port {
    fn name(&self) -> String {
        format!("{}-{}", self.protocol_name().to_lowercase(), self.port)
    }

    fn protocol_name(&self) -> &'static str {
        match self.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }
}

/// A host's addresses as ready endpoints.
fn endpoints(host: &Host) -> impl Iterator<Item = Endpoint> {
    let node = match host.name.strip_prefix("pod").and_then(|rest| rest.split('-').next()) {
        Some(number) => format!("node{number}"),
        None => host.name.clone(),
    };
    host.addresses().into_iter().map(move |address| Endpoint {
        address,
        node: node.clone(),
        pod: host.name.starts_with("pod").then(|| host.name.clone()),
        ready: true,
        terminating: false,
        serving: true,
        hints: None,
    })
}

fn family(ipv4: bool) -> &'static str {
    if ipv4 { "IPv4" } else { "IPv6" }
}

fn addresses(yaml: &mut String, field: &str, addresses: &[IpAddr]) {
    if addresses.is_empty() {
        return;
    }
    let _infallible = writeln!(yaml, "  {field}:");
    for address in addresses {
        let _infallible = writeln!(yaml, "  - \"{address}\"");
    }
}
