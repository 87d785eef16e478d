//! Planning costs what there is to plan, for objects by any author: four times as much of anything
//! takes four times the work, not sixteen times. Work is counted, not timed.

use std::num::NonZeroU16;

use proptest::prelude::*;
use proptest::sample::select;

use super::of;
use crate::actual::Actual;
use crate::event::Event;
use crate::fixtures::{addresses, mk_service, mk_slice};
use crate::model::{
    EndpointSlice, Family, ObjectName, Protocol, Service, ServiceKind, ServicePort, SlicePort,
    TrafficPolicy,
};
use crate::planner::{Planner, RoundLimit};
use crate::settings::Settings;

/// Services that all claim the same, but for their cluster addresses.
#[derive(Debug, Clone, Copy)]
struct Shape {
    services: u16,
    ports: u16,
    external: u16,
    load_balancer: u16,
    ranges: u16,
    endpoints: u16,
    node_ports: bool,
    protocol: Protocol,
    policy: TrafficPolicy,
}

/// Number in a shape that grows.
type Dimension = fn(&mut Shape) -> &mut u16;

const DIMENSIONS: [(&str, Dimension); 6] = [
    ("services", |shape| &mut shape.services),
    ("ports", |shape| &mut shape.ports),
    ("external addresses", |shape| &mut shape.external),
    ("load-balancer addresses", |shape| &mut shape.load_balancer),
    ("source ranges", |shape| &mut shape.ranges),
    ("endpoints", |shape| &mut shape.endpoints),
];

impl Shape {
    /// The youngest one has number 0.
    fn service(&self, number: u16) -> Service {
        let outer = |first: u8, count: u16| {
            (0..count).map(move |n| [first, 0, n.to_be_bytes()[0], n.to_be_bytes()[1]].into())
        };
        let ports = (0..self.ports).map(|n| ServicePort {
            name: format!("port-{n}").into(),
            protocol: self.protocol,
            port: NonZeroU16::MIN.saturating_add(n),
            node_port: self.node_ports.then(|| NonZeroU16::MIN.saturating_add(30_000 + n)),
        });
        let [high, low] = number.to_be_bytes();
        Service {
            name: name(number),
            created: -i64::from(number),
            kind: ServiceKind::LoadBalancer,
            cluster_v4: Some([10, 96, high, low].into()),
            external: outer(198, self.external).collect(),
            load_balancer: outer(203, self.load_balancer).collect(),
            source_ranges: outer(172, self.ranges).map(ipnet::IpNet::from).collect(),
            external_policy: self.policy,
            ports: ports.collect(),
            ..mk_service()
        }
    }

    fn slice(&self, number: u16, ready: bool) -> EndpointSlice {
        let ports = (0..self.ports).map(|n| SlicePort {
            name: format!("port-{n}").into(),
            protocol: self.protocol,
            port: NonZeroU16::MIN.saturating_add(n),
        });
        let node = |n: u16| if n.is_multiple_of(2) { "this-node" } else { "another-node" };
        let texts: Vec<_> =
            (0..self.endpoints).map(|n| format!("10.0.{}.{}", n / 250, n % 250 + 1)).collect();
        let endpoints = (0_u16..).zip(&texts).map(|(n, text)| (text.as_str(), node(n)));
        let mut slice = mk_slice(Family::V4, &endpoints.collect::<Vec<_>>());
        if let Some(first) = slice.endpoints.first_mut() {
            first.conditions.ready = ready;
        }
        EndpointSlice { name: name(number), service: name(number), ports: ports.collect(), ..slice }
    }

    /// A planner that knows all Services, and has planned none.
    fn planner(&self) -> Planner {
        let mut planner = Planner::new(Settings::new("this-node"));
        planner.apply(Event::LocalAddresses(addresses(&["192.0.2.10"])));
        for number in 0..self.services {
            planner.apply(Event::ServiceApplied(Box::new(self.service(number))));
            planner.apply(Event::SliceApplied(Box::new(self.slice(number, true))));
        }
        planner
    }

    /// Work of the round at the start that costs most.
    fn longest_round(&self) -> u64 {
        let mut planner = self.planner();
        drop(planner.take_over(Actual::default(), Vec::new()));
        let mut longest = 0;
        while planner.is_dirty() {
            longest = longest.max(of(|| planner.plan_round(ROUND)));
        }
        longest
    }

    /// Work to plan all Services, then for one endpoint of the youngest and of the oldest, then for
    /// the oldest going.
    fn work(&self) -> [(&'static str, u64); 4] {
        let mut planner = self.planner();
        let first = of(|| planner.plan_round(ONE_BY_ONE));
        let all = first
            + of(|| {
                while planner.is_dirty() {
                    planner.plan_round(ONE_BY_ONE);
                }
            });
        let mut change = |number: u16| {
            let slice = self.slice(number, false);
            of(|| {
                planner.apply(Event::SliceApplied(Box::new(slice)));
                planner.plan()
            })
        };
        let (youngest, oldest) = (change(0), change(self.services - 1));
        let gone = of(|| {
            planner.apply(Event::ServiceRemoved(name(self.services - 1)));
            planner.plan()
        });
        [("all", all), ("youngest", youngest), ("oldest", oldest), ("gone", gone)]
    }
}

const ONE_BY_ONE: RoundLimit = RoundLimit { services: 1, ..RoundLimit::NONE };

/// Limit of a round: the event loop's, but smaller.
const ROUND: RoundLimit = RoundLimit { services: 4, operations: 64, operations_per_service: 64 };

fn name(number: u16) -> ObjectName {
    ObjectName::new("ns", format!("service-{number}"))
}

fn shape() -> impl Strategy<Value = Shape> {
    let protocol = select(vec![Protocol::Tcp, Protocol::Udp]);
    let policy = select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local]);
    let sizes = (1_u16..8, 1_u16..8, 0_u16..6, 0_u16..6, 0_u16..4, 0_u16..6);
    (sizes, any::<bool>(), protocol, policy).prop_map(|(sizes, node_ports, protocol, policy)| {
        let (services, ports, external, load_balancer, ranges, endpoints) = sizes;
        Shape {
            services,
            ports,
            external,
            load_balancer,
            ranges,
            endpoints,
            node_ports,
            protocol,
            policy,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Eight times as much of one thing takes eight times the work, and what comparing deeper trees
    /// costs.
    #[test]
    fn work_grows_with_what_there_is_to_plan(
        mut shape in shape(),
        (what, dimension) in select(DIMENSIONS.to_vec()),
    ) {
        let size = dimension(&mut shape);
        *size += 8;
        let few = shape.work();
        *dimension(&mut shape) *= 8;
        let many = shape.work();
        for ((task, few), (_, many)) in few.into_iter().zip(many) {
            prop_assert!(many <= few * 16, "{what}, {task}: {few}, then {many}: {shape:?}");
        }
    }

    /// Eight times as many Services that claim the same make no round of the start longer, but for
    /// what comparing deeper trees costs.
    #[test]
    fn work_of_a_round_is_bounded_however_many_claim_the_same(mut shape in shape()) {
        shape.services += 8;
        let few = shape.longest_round();
        shape.services *= 8;
        let many = shape.longest_round();
        prop_assert!(many <= few * 3, "{few}, then {many}: {shape:?}");
    }
}

/// Services that claim the same addresses do not slow each other's changes.
#[test]
fn a_change_of_one_costs_the_same_however_many_claim_the_same() {
    let of = |services| {
        let shape = Shape {
            services,
            ports: 4,
            external: 8,
            load_balancer: 0,
            ranges: 0,
            endpoints: 4,
            node_ports: false,
            protocol: Protocol::Udp,
            policy: TrafficPolicy::Local,
        };
        let [_, (_, youngest), (_, oldest), _] = shape.work();
        (youngest, oldest)
    };
    let (few, many) = (of(4), of(64));
    assert!(many.0 <= few.0 * 2 && many.1 <= few.1 * 2, "{few:?}, then {many:?}");
}
