//! Random input from small worlds, so that names, addresses and ports collide all the time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use ipnet::IpNet;
use plan::event::Event;
use plan::hand_drain::HandDrain;
use plan::model::{
    Conditions, Endpoint, EndpointSlice, Family, Hints, Node, ObjectName, OtherNode, Overrides,
    Protocol, Service, ServiceKind, ServiceName, ServicePort, SliceName, SlicePort, TrafficPolicy,
    Weights,
};
use plan::scheduler::SchedulerName;
use plan::settings::{InternalFrontendNetworks, LocalDetection, NodePortAddresses, Settings};
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

pub(crate) const NODE_NAME: &str = "this-node";

/// Addresses that may be on the node's interfaces, and may be a Service's external address as well.
/// One is the internal frontend of an external address.
const LOCAL: [&str; 8] = [
    "127.0.0.1",
    "192.0.2.10",
    "192.0.2.11",
    "198.51.100.1",
    "246.51.100.2",
    "::1",
    "fd00::10",
    "fe80::10",
];

/// Addresses that other nodes may have: this one's, external ones, and some that nothing else has.
const OTHERS: [&str; 7] = [
    "192.0.2.10",
    "192.0.2.20",
    "198.51.100.1",
    "198.51.100.2",
    "fd00::10",
    "fd00::20",
    "fd00:e::1",
];

/// Networks that have local routes by some settings.
pub(crate) const ROUTES: [&str; 4] =
    ["10.96.0.0/16", "198.51.100.0/24", "fd00:96::/108", "fd00:e::/64"];

/// Excluded by some settings.
pub(crate) const EXCLUDED: &str = "198.51.100.200";

/// Three of them have the same internal frontend, which is one of them as well; two others have another
/// one. That of one more is broadcast.
const OUTER: [&str; 17] = [
    "198.51.100.1",
    "198.51.100.2",
    "203.0.113.5",
    "219.0.113.5",
    "187.0.113.5",
    "204.0.113.5",
    "220.0.113.5",
    "15.255.255.255",
    "251.0.113.5",
    "192.0.2.10",
    "10.96.0.1",
    "127.0.0.1",
    "224.0.0.1",
    "fd00::10",
    "fd00:e::1",
    "fe80::1",
    EXCLUDED,
];

const NETS: [&str; 7] = [
    "10.0.0.0/8",
    "192.0.2.0/24",
    "192.0.2.11/32",
    "0.0.0.0/0",
    "fd00::/64",
    "fd00:1::/64",
    "::/0",
];

/// The input as it is after some events.
#[derive(Debug, Clone, Default)]
pub(crate) struct World {
    services: BTreeMap<ServiceName, Box<Service>>,
    slices: BTreeMap<SliceName, Box<EndpointSlice>>,
    node: Option<Box<Node>>,
    local: Vec<IpAddr>,
    others: BTreeMap<Arc<str>, OtherNode>,
    api_server: Vec<SocketAddr>,
    missing: BTreeSet<SchedulerName>,
    hand_drains: BTreeSet<HandDrain>,
}

impl World {
    pub(crate) fn after<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut world = Self::default();
        for event in events {
            match event.clone() {
                Event::ServiceApplied(service) => {
                    world.services.insert(service.name.clone(), service);
                }
                Event::ServiceRemoved(name) => {
                    world.services.remove(&name);
                }
                Event::SliceApplied(slice) => {
                    world.slices.insert(slice.name.clone(), slice);
                }
                Event::SliceRemoved(name) => {
                    world.slices.remove(&name);
                }
                Event::NodeApplied(node) => world.node = Some(node),
                Event::LocalAddresses(addresses) => world.local = addresses,
                Event::OtherNodeApplied(name, node) => {
                    world.others.insert(name, node);
                }
                Event::OtherNodeRemoved(name) => {
                    world.others.remove(&name);
                }
                Event::ApiServerAddresses(addresses) => world.api_server = addresses,
                Event::SchedulerMissing(scheduler) => {
                    world.missing.insert(scheduler);
                }
                Event::SchedulerLoaded(scheduler) => {
                    world.missing.remove(&scheduler);
                }
                // The relay's, which follow from what it is asked for.
                Event::ProxyPort(..) => {}
                Event::HandDrainBegan(drain) => {
                    world.hand_drains.insert(*drain);
                }
                Event::HandDrainEnded(drain) => {
                    world.hand_drains.remove(&*drain);
                }
            }
        }
        world
    }

    /// True if the API server is reached by one of these addresses.
    pub(crate) fn has_api_server_at(&self, addresses: &[IpAddr]) -> bool {
        self.api_server.iter().any(|server| addresses.contains(&server.ip()))
    }

    /// Events that lead to it, one for each object.
    pub(crate) fn events(&self) -> Vec<Event> {
        let services = self.services.values().cloned().map(Event::ServiceApplied);
        let slices = self.slices.values().cloned().map(Event::SliceApplied);
        let node = self.node.clone().map(Event::NodeApplied);
        let local = Event::LocalAddresses(self.local.clone());
        let others = self.others.iter().map(|(n, o)| Event::OtherNodeApplied(n.clone(), o.clone()));
        let missing = self.missing.iter().cloned().map(Event::SchedulerMissing);
        let drains = self.hand_drains.iter().cloned().map(Box::new).map(Event::HandDrainBegan);
        let api_server = Event::ApiServerAddresses(self.api_server.clone());
        let of_node =
            node.into_iter().chain([local, api_server]).chain(others).chain(missing).chain(drains);
        services.chain(slices).chain(of_node).collect()
    }
}

pub(crate) fn every_local_address() -> Vec<IpAddr> {
    LOCAL.map(ip).to_vec()
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub(crate) fn settings() -> impl Strategy<Value = Settings> {
    let families = select(vec![
        vec![Family::V4, Family::V6],
        vec![Family::V4, Family::V6],
        vec![Family::V4],
        vec![Family::V6],
    ]);
    let choices = any::<[bool; 6]>();
    (families, internal_frontend_networks(), choices).prop_map(
        |(
            families,
            internal_frontend_networks,
            [excludes, node_ports, maglev, node_cidr, localhost, routes],
        )| {
            let mut settings = Settings::new(NODE_NAME);
            settings.families = families;
            settings.internal_frontend_networks = internal_frontend_networks;
            if excludes {
                settings.exclude = vec![IpNet::from(ip(EXCLUDED))];
            }
            if node_ports {
                let networks = vec![net("192.0.2.10/31"), net("fe80::/64")];
                settings.node_port_addresses = NodePortAddresses::Networks(networks);
            }
            if maglev {
                settings.scheduler = SchedulerName::new("mh").unwrap();
            }
            if node_cidr {
                settings.local_detection = LocalDetection::NodeCidr;
            }
            settings.localhost_node_ports = localhost;
            if routes {
                settings.service_routes = ROUTES.map(net).to_vec();
            }
            settings
        },
    )
}

/// Usually the default networks, which are unused; sometimes one with external addresses, or none.
fn internal_frontend_networks() -> impl Strategy<Value = InternalFrontendNetworks> {
    let taken = InternalFrontendNetworks {
        v4: "198.51.100.0/24".parse().ok(),
        ..InternalFrontendNetworks::default()
    };
    select(vec![
        InternalFrontendNetworks::default(),
        InternalFrontendNetworks::default(),
        taken,
        InternalFrontendNetworks::NONE,
    ])
}

/// Groups of events: each group is planned together.
pub(crate) fn groups() -> impl Strategy<Value = Vec<Vec<Event>>> {
    vec(vec(event(), 1..6), 1..10)
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => service().prop_map(|service| Event::ServiceApplied(Box::new(service))),
        2 => service_name().prop_map(Event::ServiceRemoved),
        6 => slice().prop_map(|slice| Event::SliceApplied(Box::new(slice))),
        2 => slice_name().prop_map(Event::SliceRemoved),
        1 => node().prop_map(|node| Event::NodeApplied(Box::new(node))),
        2 => subsequence(every_local_address(), 0..=LOCAL.len()).prop_map(Event::LocalAddresses),
        2 => (other_node(), subsequence(OTHERS.map(ip).to_vec(), 0..4), subsequence(NETS.to_vec(), 0..2))
            .prop_map(|(name, addresses, networks)| {
                let pod_cidrs = networks.into_iter().map(net).collect();
                Event::OtherNodeApplied(name, OtherNode { addresses, pod_cidrs })
            }),
        1 => other_node().prop_map(Event::OtherNodeRemoved),
        1 => (subsequence(OTHERS.map(ip).to_vec(), 0..3), port(vec![80, 6443])).prop_map(
            |(addresses, port)| {
                let at = |address| SocketAddr::new(address, port.get());
                Event::ApiServerAddresses(addresses.into_iter().map(at).collect())
            }
        ),
        1 => scheduler().prop_map(Event::SchedulerMissing),
        1 => scheduler().prop_map(Event::SchedulerLoaded),
        2 => hand_drain().prop_map(|drain| Event::HandDrainBegan(Box::new(drain))),
        1 => hand_drain().prop_map(|drain| Event::HandDrainEnded(Box::new(drain))),
    ]
}

fn other_node() -> impl Strategy<Value = Arc<str>> {
    select(vec!["other", "another"]).prop_map(Arc::from)
}

/// One of them may be the operator's choice as well.
fn scheduler() -> impl Strategy<Value = SchedulerName> {
    select(vec!["wrr", "sh", "mh"]).prop_map(|name| SchedulerName::new(name).unwrap())
}

fn hand_drain() -> impl Strategy<Value = HandDrain> {
    let address = (1_u8..6, any::<bool>()).prop_map(|(last, is_v4)| match is_v4 {
        true => IpAddr::from([10, 244, 0, last]),
        false => Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, last.into()).into(),
    });
    let (port, service) =
        (option::of(port(vec![8080, 8443])), option::weighted(0.3, service_name()));
    (address, port, service, any::<bool>()).prop_map(|(address, port, service, is_forced)| {
        HandDrain { is_forced, address, port, service }
    })
}

fn zone() -> impl Strategy<Value = Arc<str>> {
    select(vec!["zone-1", "zone-2"]).prop_map(Arc::from)
}

fn service_name() -> impl Strategy<Value = ServiceName> {
    select(vec!["a", "b", "c", "d"]).prop_map(|name| ObjectName::new("ns", name))
}

fn slice_name() -> impl Strategy<Value = SliceName> {
    select(vec!["s1", "s2", "s3", "s4", "s5"]).prop_map(|name| ObjectName::new("ns", name))
}

fn protocol() -> impl Strategy<Value = Protocol> {
    select(vec![Protocol::Tcp, Protocol::Tcp, Protocol::Udp, Protocol::Sctp])
}

fn port_name() -> impl Strategy<Value = Arc<str>> {
    select(vec!["", "", "http", "dns"]).prop_map(Arc::from)
}

fn port(choice: Vec<u16>) -> impl Strategy<Value = NonZeroU16> {
    select(choice).prop_map(|port| NonZeroU16::new(port).unwrap())
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local])
}

fn overrides() -> impl Strategy<Value = Overrides> {
    let flags = option::of(select(vec![0_u32, 0x08, 0x10]));
    let weights = select(vec![(100, 10, 1), (1, 1, 1), (1, 2, 3)])
        .prop_map(|(node, zone, elsewhere)| Weights { node, zone, elsewhere });
    let drain_deadline_seconds = option::of(select(vec![0_u32, 60]));
    (option::of(scheduler()), flags, drain_deadline_seconds, option::of(weights)).prop_map(
        |(scheduler, scheduler_flags, drain_deadline_seconds, weights)| Overrides {
            is_off_fast_path: false,
            scheduler,
            scheduler_flags,
            drain_deadline_seconds,
            weights,
        },
    )
}

fn service_ports() -> impl Strategy<Value = Vec<ServicePort>> {
    let port =
        (port_name(), protocol(), port(vec![80, 443]), option::of(port(vec![30_080, 30_081, 80])));
    let port = port.prop_map(|(name, protocol, port, node_port)| ServicePort {
        name,
        protocol,
        port,
        node_port,
    });
    vec(port, 0..4)
}

fn service() -> impl Strategy<Value = Service> {
    let kind =
        select(vec![ServiceKind::ClusterIp, ServiceKind::NodePort, ServiceKind::LoadBalancer]);
    let identity = (service_name(), 0_i64..3, kind);
    let cluster = (option::weighted(0.8, 1_u8..4), option::weighted(0.6, 1_u16..4));
    let outer = || subsequence(OUTER.to_vec(), 0..4);
    let addresses = (cluster, outer(), outer(), subsequence(NETS.to_vec(), 0..3));
    let policies = (policy(), policy(), option::of(port(vec![31_000, 31_001])));
    let affinity = option::weighted(0.3, select(vec![60_u32, 10_800]));
    let choices = (affinity, option::weighted(0.3, overrides()));
    (identity, addresses, policies, choices, service_ports()).prop_map(
        |((name, created, kind), addresses, policies, (affinity, overrides), ports)| {
            let ((v4, v6), external, load_balancer, ranges) = addresses;
            Service {
                name,
                created,
                kind,
                cluster_v4: v4.map(|last| Ipv4Addr::new(10, 96, 0, last)),
                cluster_v6: v6.map(|last| Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, last)),
                external: external.into_iter().map(ip).collect(),
                load_balancer: load_balancer.into_iter().map(ip).collect(),
                source_ranges: ranges.into_iter().map(net).collect(),
                affinity,
                external_policy: policies.0,
                internal_policy: policies.1,
                health_check_node_port: policies.2,
                ports,
                overrides: overrides.map(Box::new),
            }
        },
    )
}

fn slice() -> impl Strategy<Value = EndpointSlice> {
    let slice_port = (port_name(), protocol(), port(vec![8080, 8443]))
        .prop_map(|(name, protocol, port)| SlicePort { name, protocol, port });
    let family = select(vec![Family::V4, Family::V4, Family::V6]);
    let parts =
        (slice_name(), service_name(), family, vec(slice_port, 0..4), vec(endpoint(), 0..6));
    parts.prop_map(|(name, service, family, ports, endpoints)| EndpointSlice {
        name,
        service,
        family,
        ports,
        endpoints: endpoints
            .into_iter()
            .map(|(last, endpoint)| Endpoint {
                address: match family {
                    Family::V4 if last == 5 => ip("251.0.113.5"),
                    Family::V4 => Ipv4Addr::new(10, 244, 0, last).into(),
                    Family::V6 => Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, last.into()).into(),
                },
                ..endpoint
            })
            .collect(),
    })
}

/// An endpoint, and the last part of its address, which is of its slice's family. One is where others
/// would have an internal frontend.
fn endpoint() -> impl Strategy<Value = (u8, Endpoint)> {
    // Hints say nothing unless all have them.
    let nodes = subsequence(vec![NODE_NAME, "other"], 0..=2);
    let hints = (vec(zone(), 0..3), nodes).prop_map(|(zones, nodes)| {
        let nodes = nodes.into_iter().map(Arc::from).collect();
        Arc::new(Hints { zones, nodes })
    });
    let conditions = any::<[bool; 3]>().prop_map(|[ready, serving, terminating]| Conditions {
        ready,
        serving,
        terminating,
    });
    let node = option::of(select(vec![NODE_NAME, "other"]));
    let parts = (1_u8..6, conditions, node, option::of(zone()), option::weighted(0.8, hints));
    parts.prop_map(|(last, conditions, node, zone, hints)| {
        let address = Ipv4Addr::UNSPECIFIED.into();
        (last, Endpoint { address, conditions, node: node.map(Arc::from), zone, hints })
    })
}

fn node() -> impl Strategy<Value = Node> {
    let addresses = btree_set(select(vec!["192.0.2.10", "192.0.2.11", "fd00::10"]), 0..3);
    let pod_cidrs = subsequence(NETS.to_vec(), 0..3);
    (addresses, pod_cidrs, option::of(zone())).prop_map(|(addresses, pod_cidrs, zone)| Node {
        zone,
        addresses: addresses.into_iter().map(ip).collect(),
        pod_cidrs: pod_cidrs.into_iter().map(net).collect(),
    })
}
