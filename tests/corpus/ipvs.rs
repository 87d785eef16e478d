//! Mode ipvs: virtual servers, sets, addresses and rules are kube-proxy's, but for exceptions.

mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use plan::actual::Actual;
use plan::kernel_objects::Frontend;
use plan::mode::Mode;
use plan::model::Protocol;
use plan::sets::{SetId, SetKind};
use serde_json::Value;

use crate::cluster::{Node, Stage, clusters, settings};
use crate::saved::difference;

/// State of kube-proxy or of kube-ipvs, in a common form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct State {
    virtual_servers: BTreeMap<Frontend, Server>,
    sets: BTreeMap<&'static str, BTreeSet<String>>,
    bound: BTreeSet<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Server {
    /// Scheduler and persistence, as `ipvsadm` prints them.
    parameters: String,
    real: BTreeMap<SocketAddr, u32>,
}

/// Facts of the objects, read without the code of kube-ipvs.
struct Cluster {
    endpoints_here: BTreeSet<IpAddr>,
    services: Vec<Value>,
}

impl State {
    /// State that kube-proxy left.
    fn left(stage: &Stage) -> Self {
        let mut state = Self { bound: stage.bound(), ..Self::default() };
        for line in stage.read("ipvs/ipvsadm-Sn").lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let frontend = frontend(words[1], words[2]);
            match words[0] {
                "-A" => {
                    let server = Server { parameters: words[3..].join(" "), ..Server::default() };
                    assert_eq!(state.virtual_servers.insert(frontend, server), None, "{line}");
                }
                "-a" => {
                    assert_eq!([words[3], words[5], words[6]], ["-r", "-m", "-w"], "{line}");
                    let server = state.virtual_servers.get_mut(&frontend).unwrap();
                    server.real.insert(words[4].parse().unwrap(), words[7].parse().unwrap());
                }
                _ => panic!("{line}"),
            }
        }
        for line in stage.read("ipvs/ipset-save").lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let set = SetId::by_name(words[1]).unwrap_or_else(|| panic!("{line}"));
            let entries = state.sets.entry(set.name()).or_default();
            match words[0] {
                "create" => {}
                "add" => drop(entries.insert(full(set, words[2]))),
                _ => panic!("{line}"),
            }
        }
        state
    }

    /// State of kube-ipvs.
    fn here(actual: &Actual) -> Self {
        let mut state = Self::default();
        for (frontend, found) in &actual.virtual_servers {
            let server = found.server.as_ref().unwrap();
            assert_eq!(server.scheduler_flags, 0, "{frontend}");
            let persistence = server.persistence.map(|seconds| format!(" -p {seconds}"));
            let parameters = format!("-s {}{}", server.scheduler, persistence.unwrap_or_default());
            let real = found.real_servers.iter().map(|(at, real)| (*at, real.weight)).collect();
            state.virtual_servers.insert(*frontend, Server { parameters, real });
        }
        for (set, found) in &actual.sets {
            let entries = found.entries.iter().map(ToString::to_string).collect();
            state.sets.insert(set.name(), entries);
        }
        state.bound = actual.addresses.iter().copied().collect();
        state
    }

    fn has(&self, kind: SetKind, frontend: &Frontend) -> bool {
        let set = SetId { kind, family: frontend.family() };
        let Some(entries) = self.sets.get(set.name()) else { return false };
        match kind {
            SetKind::NodePortLocalTcp | SetKind::NodePortLocalUdp => {
                entries.contains(&frontend.port.to_string())
            }
            _ => entries.contains(&entry(frontend)),
        }
    }

    /// True if kube-proxy says by a set that the frontend is for this node's endpoints.
    fn is_external_local(&self, frontend: &Frontend, cluster: &Cluster) -> bool {
        let is_node_port = cluster.is_own(frontend.address);
        let node_port = match frontend.protocol {
            Protocol::Tcp => SetKind::NodePortLocalTcp,
            Protocol::Udp => SetKind::NodePortLocalUdp,
            Protocol::Sctp => SetKind::NodePortLocalSctp,
        };
        if is_node_port {
            return self.has(node_port, frontend);
        }
        [SetKind::ExternalIpLocal, SetKind::LoadBalancerLocal]
            .into_iter()
            .any(|set| self.has(set, frontend))
    }

    /// Exception: where a policy is Local and no endpoint is on this node, kube-proxy takes those
    /// elsewhere. Here the policy's promise is kept: such traffic is dropped.
    fn without_fallback(&mut self, cluster: &Cluster) {
        let is_local = |frontend: &Frontend| {
            self.is_external_local(frontend, cluster) || cluster.is_internal_local(frontend)
        };
        let local: Vec<_> = self.virtual_servers.keys().copied().filter(is_local).collect();
        for frontend in local {
            let server = self.virtual_servers.get_mut(&frontend).unwrap();
            let is_here = |at: &SocketAddr| cluster.endpoints_here.contains(&at.ip());
            if !server.real.keys().any(is_here) {
                server.real.clear();
            }
        }
    }

    /// Exception: a virtual server without real servers is not there, and its clients are refused
    /// or dropped by a rule.
    fn without_empty_servers(&mut self) {
        self.virtual_servers.retain(|_, server| !server.real.is_empty());
    }

    /// Exception: frontends with externalTrafficPolicy Local have a second virtual server, the
    /// internal frontend, with an address of its own.
    fn without_internal_frontends(&mut self) {
        let networks = settings(Mode::Ipvs).internal_frontend_networks;
        let is_circuit = |address: IpAddr| networks.around(address).is_some();
        self.virtual_servers.retain(|frontend, _| !is_circuit(frontend.address));
        self.bound.retain(|address| !is_circuit(*address));
        for entries in self.sets.values_mut() {
            let address = |entry: &str| entry.split(',').next().unwrap().parse();
            entries.retain(|entry| !address(entry).is_ok_and(is_circuit));
        }
    }

    /// Exception: some sets are ours alone.
    fn without_own_sets(&mut self) {
        self.sets.retain(|name, _| SetId::by_name(name).unwrap().kind.is_of_kube_proxy());
    }

    /// Lines that can be compared.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (frontend, server) in &self.virtual_servers {
            lines.push(format!("{frontend} {}", server.parameters));
            let real = server.real.iter();
            lines.extend(real.map(|(at, weight)| format!("{frontend} -> {at} weight {weight}")));
        }
        for (set, entries) in &self.sets {
            lines.push(format!("set {set}"));
            lines.extend(entries.iter().map(|entry| format!("set {set}: {entry}")));
        }
        lines.extend(self.bound.iter().map(|address| format!("bound {address}")));
        lines
    }
}

fn frontend(protocol: &str, socket: &str) -> Frontend {
    let protocol = match protocol {
        "-t" => Protocol::Tcp,
        "-u" => Protocol::Udp,
        "--sctp-service" => Protocol::Sctp,
        _ => panic!("{protocol}"),
    };
    let socket: SocketAddr = socket.parse().unwrap();
    Frontend { address: socket.ip(), protocol, port: socket.port() }
}

fn entry(frontend: &Frontend) -> String {
    let Frontend { address, protocol, port } = frontend;
    format!("{address},{}:{port}", protocol.name())
}

/// `ipset save` leaves out the prefix length of a single address.
fn full(set: SetId, entry: &str) -> String {
    if set.kind != SetKind::LoadBalancerSourceCidr || entry.contains('/') {
        return entry.to_owned();
    }
    let length = if entry.rsplit(',').next().unwrap().contains(':') { 128 } else { 32 };
    format!("{entry}/{length}")
}

impl Cluster {
    fn of(stage: &Stage) -> Self {
        Self { endpoints_here: stage.endpoints_here(), services: stage.objects("services.json") }
    }

    /// True for an address of the node itself.
    fn is_own(&self, address: IpAddr) -> bool {
        !self
            .services
            .iter()
            .any(|service| addresses(service).into_iter().any(|it| it == address.to_string()))
    }

    /// True if the frontend is a cluster address with internalTrafficPolicy Local.
    fn is_internal_local(&self, frontend: &Frontend) -> bool {
        self.services.iter().any(|service| {
            let spec = &service["spec"];
            let has = cluster_addresses(service).contains(&frontend.address.to_string());
            has && spec["internalTrafficPolicy"] == "Local"
        })
    }
}

fn texts(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten();
    texts.filter_map(|text| Some(text.as_str()?.to_owned())).collect()
}

fn cluster_addresses(service: &Value) -> Vec<String> {
    texts(&service["spec"]["clusterIPs"])
}

/// All addresses that a Service has.
fn addresses(service: &Value) -> Vec<String> {
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array().into_iter().flatten();
    let ingress = ingress.filter_map(|ingress| Some(ingress["ip"].as_str()?.to_owned()));
    let mut addresses = cluster_addresses(service);
    addresses.extend(texts(&service["spec"]["externalIPs"]));
    addresses.extend(ingress);
    addresses
}

/// State that kube-proxy left, with the exceptions, in lines.
fn expected(stage: &Stage) -> Vec<String> {
    let mut left = State::left(stage);
    left.without_fallback(&Cluster::of(stage));
    left.without_empty_servers();
    left.lines()
}

fn assert_as_left(stage: &Stage, node: &Node, how: &str) {
    let mut here = State::here(node.kernel.actual());
    here.without_internal_frontends();
    here.without_own_sets();
    let difference = difference(&expected(stage), &here.lines());
    assert!(difference.is_empty(), "{} {how}:\n{difference}", stage.name());
}

#[test]
fn virtual_servers_sets_and_addresses_are_kube_proxys() {
    for cluster in clusters() {
        let mut node = Node::new(settings(Mode::Ipvs));
        for stage in &cluster {
            assert_as_left(stage, &Node::at(stage, settings(Mode::Ipvs)), "from scratch");
            node.move_to(stage);
            assert_as_left(stage, &node, "change by change");
        }
    }
}

/// True if outside clients of a Service get this node's endpoints.
fn is_external_local(service: &Value) -> bool {
    service["spec"]["externalTrafficPolicy"] == "Local"
}

/// The frontends that a port of a Service has at some addresses.
fn frontends<'a>(
    service: &'a Value,
    addresses: &'a [String],
) -> impl Iterator<Item = (String, Frontend)> + 'a {
    let ports = service["spec"]["ports"].as_array().into_iter().flatten();
    ports.flat_map(move |port| {
        addresses.iter().map(move |address| {
            let protocol = match port["protocol"].as_str().unwrap() {
                "TCP" => Protocol::Tcp,
                "UDP" => Protocol::Udp,
                "SCTP" => Protocol::Sctp,
                other => panic!("{other}"),
            };
            let port_number = port["port"].as_u64().unwrap().try_into().unwrap();
            let address = address.parse().unwrap();
            let frontend = Frontend { address, protocol, port: port_number };
            (port["name"].as_str().unwrap_or_default().to_owned(), frontend)
        })
    })
}

#[test]
fn internal_frontends_have_the_endpoints_that_kube_proxy_gives_to_cluster_addresses() {
    let mut compared = 0;
    for stage in clusters().iter().flatten() {
        let left = State::left(stage);
        let here = State::here(Node::at(stage, settings(Mode::Ipvs)).kernel.actual());
        let networks = settings(Mode::Ipvs).internal_frontend_networks;
        for service in stage.objects("services.json").iter().filter(|it| is_external_local(it)) {
            let cluster = cluster_addresses(service);
            let outer: Vec<_> =
                addresses(service).into_iter().filter(|it| !cluster.contains(it)).collect();
            if service["spec"]["internalTrafficPolicy"] == "Local" {
                continue;
            }
            for (name, inner) in frontends(service, &cluster) {
                for (_, outer) in frontends(service, &outer)
                    .filter(|(port, outer)| *port == name && outer.family() == inner.family())
                {
                    // Not served: another node's load balancer, or `ipMode: Proxy`.
                    if !left.virtual_servers.contains_key(&outer) {
                        continue;
                    }
                    let address = networks.address_for(outer.address).unwrap();
                    let circuit = here.virtual_servers.get(&Frontend { address, ..outer });
                    let circuit = circuit.map(|it| it.real.clone()).unwrap_or_default();
                    assert_eq!(circuit, left.virtual_servers[&inner].real, "{outer}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 0, "no cluster has externalTrafficPolicy Local");
}
