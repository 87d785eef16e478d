//! Traces of all flows, by the planner alone, beside what the table says.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use bed::Protocol;
use kube_ipvs::source::manifests::Manifests;
use kube_ipvs::source::{Options, SourceEvent};
use plan::event::Event;
use plan::mode::Mode;
use plan::model;
use plan::planner::{Plan, Planner};
use plan::settings::{LocalDetection, Settings};
use plan::trace::{Fate, Origin, Packet, Source};
use plan::userspace::{ProxyPortState, RelayPort};
use tokio::sync::mpsc;

use super::row::{Client, Frontend, Outcome, Row, Seen};
use super::trial::{Place, trials};
use super::world::World;
use bed::addresses::{POD_RANGE_IPV4, POD_RANGE_IPV6};

/// Port of the clients.
const CLIENT_PORT: u16 = 40_000;
/// The first proxy port.
const PROXY_PORTS: u16 = 41_000;

/// The planners of both nodes.
struct Traced<'a> {
    world: &'a World,
    planners: [Planner; 2],
}

/// Requires that the outcome of every flow is foretold as the table has it. Returns how many.
pub(super) fn require_foretold(world: &World, rows: &[&[Row]]) -> usize {
    let traced = Traced { world, planners: [1, 2].map(|node| planner(world, node)) };
    let trials = trials(rows, world.mode);
    let mut wrong = Vec::new();
    for (place, clients) in &trials {
        for (client, expected) in clients {
            let fates = traced.fates(*place, *client);
            if !traced.is_as_expected(*place, *client, *expected, &fates) {
                wrong.push(format!(
                    "{client:?} at {place:?}: expected {expected}, traced {fates:?}"
                ));
            }
        }
    }
    let flows = trials.values().map(std::collections::BTreeMap::len).sum();
    assert!(wrong.is_empty(), "{} of {flows}:\n{}", wrong.len(), wrong.join("\n"));
    flows
}

/// A node's planner, which has read the manifests.
fn planner(world: &World, node: u8) -> Planner {
    let host = world.bed.cluster.node(node).unwrap();
    let pods = [POD_RANGE_IPV4, POD_RANGE_IPV6].map(|range| range.parse().unwrap());
    let settings = Settings {
        mode: world.mode,
        local_detection: LocalDetection::ClusterCidr(pods.into()),
        ..Settings::new(host.name.as_str())
    };
    let mut planner = Planner::new(settings);
    let addresses = [true, false].into_iter().flat_map(|ipv4| world.node_addresses(node, ipv4));
    planner.apply(Event::LocalAddresses(addresses.collect()));
    for event in objects(world, &host.name) {
        planner.apply(event);
    }
    let plan = planner.plan();
    for event in listening(&plan) {
        planner.apply(event);
    }
    planner.plan();
    planner
}

/// Returns the objects of the manifests, as a node's source delivers them.
fn objects(world: &World, node: &str) -> Vec<Event> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let manifests = Manifests::new(world.bed.manifests.path(), &Options::new(node)).unwrap();
        let (sender, mut receiver) = mpsc::channel(16);
        let running = tokio::spawn(manifests.run(sender));
        let mut events = Vec::new();
        loop {
            match receiver.recv().await.unwrap() {
                SourceEvent::Change(event) => events.push(event),
                SourceEvent::Complete => break,
                _ => {}
            }
        }
        running.abort();
        events
    })
}

/// Returns what a relay says that gets each port that it asks for.
fn listening(plan: &Plan) -> Vec<Event> {
    let of_service = |(service, ports): &(model::ServiceName, Vec<RelayPort>)| {
        let sockets = ports.iter().flat_map(|port| {
            port.proxy_ports(service).map(|(id, _)| (id, port.address)).collect::<Vec<_>>()
        });
        sockets.collect::<Vec<_>>()
    };
    let all = plan.relay.iter().flat_map(of_service).zip(PROXY_PORTS..);
    let listens = all.map(|((id, address), port)| {
        let state = ProxyPortState::Listening(SocketAddr::new(address, port));
        Event::ProxyPort(Box::new(id), state)
    });
    listens.collect()
}

// === impl Traced ===

impl Traced<'_> {
    /// Returns what can become of a client's packet, on all nodes that it passes.
    fn fates(&self, place: Place, client: Client) -> BTreeSet<Fate> {
        let (address, port) = self.world.target(place.given, place.frontend, place.ipv4);
        let host = self.world.host(client);
        let source = if place.ipv4 { host.ipv4.into() } else { host.ipv6().unwrap().into() };
        let protocol = match place.protocol {
            Protocol::Tcp => model::Protocol::Tcp,
            Protocol::Udp => model::Protocol::Udp,
            Protocol::Sctp => model::Protocol::Sctp,
        };
        let interface = |name: &str, is_by_bridge_port| Origin::Interface {
            name: name.into(),
            is_by_bridge_port,
        };
        let (node, origin) = match client {
            Client::Outside | Client::SecondOutside => (0, interface("eth0", false)),
            Client::PodHere | Client::EndpointHere => (0, interface("cni0", true)),
            Client::PodElsewhere => (1, interface("cni0", true)),
            Client::ThisNode => (0, Origin::Node),
            Client::OtherNode => (1, Origin::Node),
        };
        let destination = SocketAddr::new(address, port);
        let source = match origin {
            Origin::Node => self.planners[node].own_source(address).unwrap_or(source),
            Origin::Interface { .. } => source,
        };
        let source = SocketAddr::new(source, CLIENT_PORT);
        let packet = Packet { protocol, source, destination, origin };
        let fates = fates(&self.planners[node], &packet);
        if !fates.contains(&Fate::PassedOn) {
            return fates;
        }
        if place.frontend == Frontend::None {
            return [Fate::Endpoint { endpoint: destination, source: Source::Client(source.ip()) }]
                .into();
        }
        // To the other node, which has the address.
        let packet = Packet { origin: interface("eth0", false), ..packet };
        self.planners
            .get(1 - node)
            .map_or_else(BTreeSet::new, |planner| self::fates(planner, &packet))
    }

    fn is_as_expected(
        &self,
        place: Place,
        client: Client,
        expected: Outcome,
        fates: &BTreeSet<Fate>,
    ) -> bool {
        let all = |is_so: fn(&Fate) -> bool| !fates.is_empty() && fates.iter().all(is_so);
        let is_passed_by =
            self.world.mode == Mode::Iptables && place.frontend == Frontend::NodePort;
        match expected {
            Outcome::Answer(servers, seen) => {
                let found = fates.iter().map(|fate| self.server(fate));
                let found: Option<BTreeSet<&str>> = found.collect();
                found == Some(servers.iter().copied().collect())
                    && fates.iter().all(|fate| self.is_seen(fate, place, client, seen))
            }
            Outcome::Refused => all(|fate| matches!(fate, Fate::Refused { .. })),
            // Led to a pod of the client's own node, which sees the client itself, and whose answer goes
            // past the node that led there.
            Outcome::Dropped if client == Client::PodElsewhere && is_passed_by => all(|fate| {
                matches!(fate, Fate::Dropped | Fate::Endpoint { source: Source::Client(_), .. })
            }),
            Outcome::Dropped => all(|fate| *fate == Fate::Dropped),
            Outcome::NotServed => all(|fate| !matches!(fate, Fate::Endpoint { .. })),
        }
    }

    /// Returns the name of the server that gets the packet.
    fn server(&self, fate: &Fate) -> Option<&str> {
        let Fate::Endpoint { endpoint, .. } = fate else { return None };
        let cluster = &self.world.bed.cluster;
        let mut hosts = cluster.pods().chain(cluster.nodes());
        let host = hosts.find(|host| host.addresses().contains(&endpoint.ip()))?;
        Some(&host.name)
    }

    fn is_seen(&self, fate: &Fate, place: Place, client: Client, seen: Seen) -> bool {
        let Fate::Endpoint { source, .. } = fate else { return false };
        let own = self.world.own_addresses(client, place.ipv4);
        let entry = self.world.entry_addresses(client, place.frontend, place.ipv4);
        let is = |address: &IpAddr, of: &[IpAddr]| of.contains(address);
        match (seen, source) {
            (Seen::Itself, Source::Client(address)) => is(address, &own),
            (Seen::Node, Source::Client(address)) => is(address, &entry),
            (Seen::Node, Source::Node) => true,
            // Of several addresses of its own, a node may take another one.
            (Seen::Itself, Source::Node) => own == entry,
        }
    }
}

fn fates(planner: &Planner, packet: &Packet) -> BTreeSet<Fate> {
    let trace = planner.trace(packet).unwrap();
    trace.ways.into_iter().map(|way| way.fate).collect()
}
