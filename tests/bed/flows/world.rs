//! The cluster, with a Service for everything that the table is given, and a proxy on both nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bed::addresses::{
    POD_RANGE_IPV4, POD_RANGE_IPV6, bridge_ipv4, bridge_ipv6, pod_range_ipv4, pod_range_ipv6,
};
use bed::{ClusterSpec, Host, Protocol, Proxy, Server, Service};

use plan::mode::Mode;
use plan::settings::{FastPath, RuleForm};

use super::row::{Client, Endpoints, Frontend, Given, Policy, Ranges};
use super::trial::Trials;
use crate::fixture::{Bed, TARGET, ip};

/// The protocols that every row is tried with.
pub(super) const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// The first Service's node port, but one.
const NODE_PORTS: u16 = 31_000;

/// Everything that the rows are tried on.
pub(super) struct World {
    pub(super) bed: Bed,
    /// Mode of both nodes' proxies.
    pub(super) mode: Mode,
    /// Form of their rules in mode ipvs.
    pub(super) form: RuleForm,
    pub(super) fast_path: FastPath,
    /// All Services, each with a number of its own.
    numbers: BTreeMap<Given, u8>,
    pub(super) proxies: Vec<Proxy>,
    _hosts: Vec<Server>,
}

impl World {
    /// Builds it for these trials; when it returns, both nodes have all Services.
    pub(super) fn build(trials: &Trials, mode: Mode, form: RuleForm, fast_path: FastPath) -> Self {
        let bed = Bed::with(&ClusterSpec { clients: 2, ..ClusterSpec::default() });
        let ports = PROTOCOLS.map(|protocol| (protocol, TARGET));
        let nodes = bed.cluster.nodes();
        let hosts = nodes.iter().map(|node| Server::start(node, &ports).unwrap()).collect();
        for node in nodes {
            // By nature the kernel refuses a client but a few times a second.
            node.namespace.set_sysctl("net/ipv4/icmp_ratemask", "0").unwrap();
            node.namespace.set_sysctl("net/ipv6/icmp/ratelimit", "0").unwrap();
        }
        let mut world = Self {
            bed,
            mode,
            form,
            fast_path,
            numbers: numbered(trials),
            proxies: Vec::new(),
            _hosts: hosts,
        };
        let services: Vec<String> =
            world.numbers.keys().map(|given| world.service(*given).to_yaml()).collect();
        world.bed.manifests.write("flows.yaml", &services.join("---\n")).unwrap();
        let nodes = (1..).zip(world.bed.cluster.nodes());
        let nodes: Vec<String> = nodes.map(|(number, node)| node_yaml(number, node)).collect();
        world.bed.manifests.write("nodes.yaml", &nodes.join("---\n")).unwrap();
        world.proxies = world.start_proxies();
        world
    }

    /// The host that a client is.
    pub(super) fn host(&self, client: Client) -> &Host {
        let cluster = &self.bed.cluster;
        match client {
            Client::Outside => cluster.client(1),
            Client::SecondOutside => cluster.client(2),
            Client::EndpointHere => cluster.pod(1, 1),
            Client::PodHere => cluster.pod(1, 2),
            Client::PodElsewhere => cluster.pod(2, 2),
            Client::ThisNode => cluster.node(1),
            Client::OtherNode => cluster.node(2),
        }
        .unwrap()
    }

    /// Returns the address and the port that a client connects to.
    pub(super) fn target(&self, given: Given, frontend: Frontend, ipv4: bool) -> (IpAddr, u16) {
        let number = self.number(given);
        let pick = |four: &str, six: &str| {
            let (net, separator) = if ipv4 { (four, '.') } else { (six, ':') };
            (ip(&format!("{net}{separator}{number}")), port(given))
        };
        let node_port = |number: u8, node: Client| {
            (address(self.host(node), ipv4), NODE_PORTS + u16::from(number))
        };
        match frontend {
            Frontend::Cluster => pick("10.96.1", "fd00:96:"),
            Frontend::External => pick("198.51.100", "fd00:203::1"),
            Frontend::Balancer => {
                let shares = given.ranges == Ranges::SecondOutsideSharing;
                let number = self.number(if shares { owner(given) } else { given });
                let text = if ipv4 {
                    format!("203.0.113.{number}")
                } else {
                    format!("fd00:203::2:{number}")
                };
                (ip(&text), port(given))
            }
            Frontend::NodePort => node_port(number, Client::ThisNode),
            Frontend::PortElsewhere => node_port(number, Client::OtherNode),
            Frontend::None => (address(self.bed.pod(2, 1), ipv4), TARGET),
        }
    }

    /// The addresses of the client itself that a server may see.
    pub(super) fn own_addresses(&self, client: Client, ipv4: bool) -> Vec<IpAddr> {
        match client {
            Client::ThisNode => self.node_addresses(1, ipv4),
            Client::OtherNode => self.node_addresses(2, ipv4),
            pod_or_outside => vec![address(self.host(pod_or_outside), ipv4)],
        }
    }

    /// The addresses of the node whose proxy takes a client's packets for a frontend first.
    pub(super) fn entry_addresses(
        &self,
        client: Client,
        frontend: Frontend,
        ipv4: bool,
    ) -> Vec<IpAddr> {
        let node = match (frontend, client) {
            (Frontend::NodePort, _) => 1,
            (Frontend::PortElsewhere, _) | (_, Client::PodElsewhere | Client::OtherNode) => 2,
            _ => 1,
        };
        self.node_addresses(node, ipv4)
    }

    /// A node has an address on the underlay, and one for its pods.
    pub(super) fn node_addresses(&self, node: u8, ipv4: bool) -> Vec<IpAddr> {
        let bridge = if ipv4 { bridge_ipv4(node).into() } else { bridge_ipv6(node).into() };
        vec![address(self.bed.cluster.node(node).unwrap(), ipv4), bridge]
    }

    fn number(&self, given: Given) -> u8 {
        self.numbers[&given]
    }

    fn start_proxies(&self) -> Vec<Proxy> {
        let launched = [1, 2].map(|node| {
            let folder = self.bed.manifests.path().to_str().unwrap();
            let name = format!("node{node}");
            let range = format!("--cluster-cidr={POD_RANGE_IPV4},{POD_RANGE_IPV6}");
            let mode = format!("--proxy-mode={}", self.mode);
            let form = format!("--rule-backend={}", self.form.name());
            let path = format!("--fast-path={}", self.fast_path.name());
            let arguments =
                ["--manifests", folder, "--hostname-override", &name, &range, &mode, &form, &path];
            Proxy::start_with(&self.bed.cluster.node(node).unwrap().namespace, &arguments).unwrap()
        });
        let mut proxies = Vec::from(launched);
        for proxy in &mut proxies {
            proxy.wait_until_in_sync().unwrap();
        }
        proxies
    }

    fn service(&self, given: Given) -> Service {
        let name = format!("flow-{}", self.number(given));
        let of_both = |frontend| [true, false].map(|ipv4| self.target(given, frontend, ipv4).0);
        let [ipv4, ipv6] = of_both(Frontend::Cluster);
        let mut service = Service::new(&name, ipv4);
        service.cluster.push(ipv6);
        service.external = of_both(Frontend::External).into();
        service.load_balancer = of_both(Frontend::Balancer).into();
        let (_, node_port) = self.target(given, Frontend::NodePort, true);
        for protocol in PROTOCOLS {
            service = service.node_port(protocol, port(given), TARGET, node_port);
        }
        service.more.extend(match given.policy {
            Policy::Anywhere => None,
            Policy::ExternalLocal => Some("externalTrafficPolicy: Local".to_owned()),
            Policy::InternalLocal => Some("internalTrafficPolicy: Local".to_owned()),
        });
        let ranges = self.ranges(given.ranges);
        if !ranges.is_empty() {
            let quoted: Vec<String> = ranges.iter().map(|range| format!("\"{range}\"")).collect();
            service.more.push(format!("loadBalancerSourceRanges: [{}]", quoted.join(", ")));
        }
        let (here, away) = (self.bed.pod(1, 1), self.bed.pod(2, 1));
        match given.endpoints {
            Endpoints::None => service,
            Endpoints::Here => service.pods([here]),
            Endpoints::Away => service.pods([away]),
            Endpoints::Both => service.pods([here, away]),
            Endpoints::EndingHere => service.terminating_pod(here, true),
            Endpoints::EndingAway => service.terminating_pod(away, true),
            Endpoints::EndingHereReadyAway => service.terminating_pod(here, true).pods([away]),
            Endpoints::Ended => service.terminating_pod(here, false),
            Endpoints::HostHere => service.pods([self.host(Client::ThisNode)]),
            Endpoints::HostAway => service.pods([self.host(Client::OtherNode)]),
        }
    }

    fn ranges(&self, ranges: Ranges) -> Vec<String> {
        let hosts = |clients: &[Client]| {
            let of_client = |client: &Client| self.host(*client).addresses();
            clients.iter().flat_map(of_client).map(single).collect()
        };
        match ranges {
            Ranges::Unrestricted => Vec::new(),
            Ranges::OutsideAndPod | Ranges::OutsideAndPodSharing => {
                hosts(&[Client::Outside, Client::PodHere])
            }
            Ranges::SecondOutsideSharing => hosts(&[Client::SecondOutside]),
            Ranges::Node => hosts(&[Client::ThisNode]),
            Ranges::Underlay => vec!["192.168.0.0/24".to_owned(), "fd00:192::/64".to_owned()],
        }
    }
}

/// Every Service that the trials speak of, and the one that it shares an address with; and its number, from one.
fn numbered(trials: &Trials) -> BTreeMap<Given, u8> {
    let with_owner = |given: Given| {
        let shares = given.ranges == Ranges::SecondOutsideSharing;
        [given].into_iter().chain(shares.then_some(owner(given)))
    };
    let givens = trials.keys().flat_map(|place| with_owner(place.given));
    let mut numbers: BTreeMap<Given, u8> = givens.map(|given| (given, 0)).collect();
    for (number, place) in (1..).zip(numbers.values_mut()) {
        *place = number;
    }
    // The last part of an IPv6 address has the digits of the number.
    assert!(numbers.len() < 255, "more Services than addresses: {}", numbers.len());
    numbers
}

/// The Service whose address another one shares.
fn owner(given: Given) -> Given {
    Given { ranges: Ranges::OutsideAndPodSharing, ..given }
}

/// A Node, with what its proxy wants to know of it.
fn node_yaml(number: u8, node: &Host) -> String {
    let addresses: String = node
        .addresses()
        .iter()
        .map(|address| format!("  - {{type: InternalIP, address: \"{address}\"}}\n"))
        .collect();
    format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: {}\nspec:\n  podCIDRs: [\"{}\", \"{}\"]\n\
         status:\n  addresses:\n{addresses}",
        node.name,
        pod_range_ipv4(number),
        pod_range_ipv6(number)
    )
}

/// Two Services at one address have different ports.
fn port(given: Given) -> u16 {
    if given.ranges == Ranges::SecondOutsideSharing { 81 } else { 80 }
}

fn address(host: &Host, ipv4: bool) -> IpAddr {
    if ipv4 { host.ipv4.into() } else { host.ipv6().unwrap().into() }
}

/// An address as a range.
fn single(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}
