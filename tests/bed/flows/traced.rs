//! Traces of all flows, by the planner alone, beside what the table says.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};

use bed::Protocol;
use console::answers::trace::{masqueraded_sources, own_sources};
use plan::event::Event;
use plan::mode::Mode;
use plan::model;
use plan::planner::{Plan, Planner};
use plan::settings::{LocalDetection, Settings};
use plan::trace::{Fate, Origin, Packet, Source};
use plan::userspace::{ProxyPortState, RelayPort};
use source::manifests::Manifests;
use source::{Options, SourceEvent};
use tokio::sync::mpsc;

use super::row::{Client, Frontend, Outcome, Seen};
use super::trial::{Place, Trials};
use super::world::World;
use bed::addresses::{POD_RANGE_IPV4, POD_RANGE_IPV6};

/// Port of the clients.
const CLIENT_PORT: u16 = 40_000;
/// The first proxy port.
const PROXY_PORTS: u16 = 41_000;

/// Servers that get a client's packets at a place, each with the source that it sees. None: no server gets
/// them, or what they answer is lost.
pub(super) type Foretold = BTreeMap<(Place, Client), BTreeMap<String, IpAddr>>;

/// End of a packet, with the address that an endpoint sees.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Endpoint { endpoint: SocketAddr, sees: IpAddr },
    Unanswered { endpoint: SocketAddr },
    Refused { by: String },
    Dropped,
    Delivered,
    PassedOn,
}

/// The planners of both nodes, and the sources that these take for addresses, as far as they were asked.
struct Traced<'a> {
    world: &'a World,
    planners: [Planner; 2],
    own_sources: RefCell<HashMap<(usize, SocketAddr), Option<IpAddr>>>,
}

/// Requires that the outcome of every flow is foretold as the table has it. Returns what is foretold.
pub(super) fn require_foretold(world: &World, trials: &Trials) -> Foretold {
    let planners = [1, 2].map(|node| planner(world, node));
    let traced = Traced { world, planners, own_sources: RefCell::default() };
    let (mut foretold, mut wrong) = (Foretold::new(), Vec::new());
    for (place, clients) in trials {
        for (client, expected) in clients {
            let ends = traced.ends(*place, *client);
            if traced.is_as_expected(*place, *client, *expected, &ends) {
                foretold.insert((*place, *client), traced.seen(&ends));
            } else {
                wrong
                    .push(format!("{client:?} at {place:?}: expected {expected}, traced {ends:?}"));
            }
        }
    }
    let flows = trials.values().map(BTreeMap::len).sum::<usize>();
    assert!(wrong.is_empty(), "{} of {flows}:\n{}", wrong.len(), wrong.join("\n"));
    foretold
}

/// A node's planner, which has read the manifests.
fn planner(world: &World, node: u8) -> Planner {
    let host = world.bed.cluster.node(node).unwrap();
    let pods = [POD_RANGE_IPV4, POD_RANGE_IPV6].map(|range| range.parse().unwrap());
    let settings = Settings {
        mode: world.mode,
        rule_form: world.form,
        fast_path: world.fast_path,
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

impl Traced<'_> {
    /// Returns what can become of a client's packet, on all nodes that it passes.
    fn ends(&self, place: Place, client: Client) -> BTreeSet<End> {
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
            Origin::Node => self.own_source(node, destination),
            Origin::Interface { .. } => source,
        };
        let source = SocketAddr::new(source, CLIENT_PORT);
        let packet = Packet { protocol, source, destination, origin };
        let ends = self.ends_on(node, &packet);
        if !ends.contains(&End::PassedOn) {
            return ends;
        }
        if place.frontend == Frontend::None {
            return [End::Endpoint { endpoint: destination, sees: source.ip() }].into();
        }
        let other = u8::try_from(2 - node).unwrap();
        let has_address = self.world.node_addresses(other, place.ipv4).contains(&address);
        if !has_address {
            return ends;
        }
        self.ends_on(1 - node, &Packet { origin: interface("eth0", false), ..packet })
    }

    fn ends_on(&self, node: usize, packet: &Packet) -> BTreeSet<End> {
        let trace = self.planners[node].trace(packet).unwrap();
        let end = |fate| match fate {
            Fate::Endpoint { endpoint, source: Source::Client(sees) } => {
                End::Endpoint { endpoint, sees }
            }
            Fate::Endpoint { endpoint, source: Source::Node } => {
                End::Endpoint { endpoint, sees: self.own_source(node, endpoint) }
            }
            Fate::Unanswered { endpoint, .. } => End::Unanswered { endpoint },
            Fate::Refused { by } => End::Refused { by },
            Fate::Dropped => End::Dropped,
            Fate::Delivered => End::Delivered,
            Fate::PassedOn => End::PassedOn,
        };
        trace.ways.into_iter().map(|way| end(way.fate)).collect()
    }

    /// Returns the address of a node by which it comes to another one, as the console asks for it.
    fn own_source(&self, node: usize, to: SocketAddr) -> IpAddr {
        let mut known = self.own_sources.borrow_mut();
        let ask = || {
            let namespace = &self.world.bed.cluster.nodes()[node].namespace;
            // The relay makes connections of its own.
            let is_relayed = self.world.mode == Mode::Userspace;
            let sources = if is_relayed { own_sources } else { masqueraded_sources };
            let sources = namespace.enter(|| sources(vec![to])).unwrap().unwrap();
            sources.get(&to).copied()
        };
        known.entry((node, to)).or_insert_with(ask).unwrap_or_else(|| panic!("{node} to {to}"))
    }

    fn is_as_expected(
        &self,
        place: Place,
        client: Client,
        expected: Outcome,
        ends: &BTreeSet<End>,
    ) -> bool {
        let all = |is_so: fn(&End) -> bool| !ends.is_empty() && ends.iter().all(is_so);
        let by_icmp = if place.ipv4 { "icmp-port-unreachable" } else { "icmp6-port-unreachable" };
        let only = |end: End| *ends == BTreeSet::from([end]);
        match expected {
            Outcome::Answer(servers, seen) => {
                let sources = match seen {
                    Seen::Itself => self.world.own_addresses(client, place.ipv4),
                    Seen::Node => self.world.entry_addresses(client, place.frontend, place.ipv4),
                };
                let is_seen =
                    |end: &End| matches!(end, End::Endpoint { sees, .. } if sources.contains(sees));
                // Each server sees one source.
                let by_server = self.seen(ends);
                by_server.keys().map(String::as_str).eq(servers.iter().copied())
                    && by_server.len() == ends.len()
                    && ends.iter().all(is_seen)
            }
            Outcome::Unanswered(servers) => {
                all(|end| matches!(end, End::Unanswered { .. }))
                    && ends.len() == servers.len()
                    && ends.iter().all(|end| match end {
                        End::Unanswered { endpoint } => servers.contains(&&*self.server(*endpoint)),
                        _ => false,
                    })
            }
            Outcome::Refused => all(|end| matches!(end, End::Refused { .. })),
            Outcome::Rejected => only(End::Refused { by: by_icmp.to_owned() }),
            Outcome::Dropped => only(End::Dropped),
            Outcome::PassedOn => only(End::PassedOn),
        }
    }

    /// Returns the servers that get the packet, and answer it by this node, with the source of each.
    fn seen(&self, ends: &BTreeSet<End>) -> BTreeMap<String, IpAddr> {
        let seen = ends.iter().filter_map(|end| match end {
            End::Endpoint { endpoint, sees } => Some((self.server(*endpoint), *sees)),
            _ => None,
        });
        seen.collect()
    }

    /// Returns the name of the server that has an address.
    fn server(&self, endpoint: SocketAddr) -> String {
        let cluster = &self.world.bed.cluster;
        let mut hosts = cluster.pods().chain(cluster.nodes());
        let host = hosts.find(|host| host.addresses().contains(&endpoint.ip()));
        host.unwrap_or_else(|| panic!("{endpoint}")).name.clone()
    }
}
