//! The cluster that is measured: ClusterIP Services with one TCP port, all alike.

use std::net::Ipv4Addr;
use std::num::NonZeroU16;

use plan::event::Event;
use plan::model::{
    Conditions, Endpoint, EndpointSlice, Family, ObjectName, Protocol, Service, ServiceKind,
    ServicePort, SlicePort, TrafficPolicy,
};

/// The port of every Service and every endpoint.
pub(crate) const PORT: NonZeroU16 = NonZeroU16::MIN;
/// 10.96.0.0, where cluster addresses begin.
const SERVICES: u32 = 0x0a60_0000;
/// 11.0.0.0, where endpoints begin.
const ENDPOINTS: u32 = 0x0b00_0000;

/// How much there is of what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) services: u32,
    /// Of each Service.
    pub(crate) endpoints: u32,
}

/// What a change does to a Service: its last endpoint gives way to another, or comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) service: u32,
    pub(crate) added: Ipv4Addr,
    pub(crate) removed: Ipv4Addr,
    replaced: bool,
}

// === impl Size ===

impl Size {
    pub(crate) fn cluster_address(self, service: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(SERVICES + service)
    }

    pub(crate) fn cluster_addresses(self) -> impl Iterator<Item = Ipv4Addr> {
        (0..self.services).map(move |service| self.cluster_address(service))
    }

    /// Every Service has one endpoint more than it uses, for changes.
    fn endpoint(self, service: u32, index: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(ENDPOINTS + service * (self.endpoints + 1) + index)
    }

    pub(crate) fn endpoints(self, service: u32) -> impl Iterator<Item = Ipv4Addr> {
        (0..self.endpoints).map(move |index| self.endpoint(service, index))
    }

    /// Everything that Kubernetes would say of it.
    pub(crate) fn events(self) -> Vec<Event> {
        (0..self.services)
            .flat_map(|service| [self.service(service), self.slice(service, false)])
            .collect()
    }

    /// The changes to measure: of each Service in turn, whose second change undoes its first.
    pub(crate) fn changes(self, count: u32) -> impl Iterator<Item = Change> {
        (0..count).map(move |turn| {
            let service = turn % self.services;
            let replaced = (turn / self.services).is_multiple_of(2);
            let former = self.endpoint(service, self.endpoints - 1);
            let spare = self.endpoint(service, self.endpoints);
            let (added, removed) = if replaced { (spare, former) } else { (former, spare) };
            Change { service, added, removed, replaced }
        })
    }

    /// What Kubernetes would say of a change.
    pub(crate) fn event(self, change: Change) -> Event {
        self.slice(change.service, change.replaced)
    }

    fn service(self, number: u32) -> Event {
        Event::ServiceApplied(Box::new(Service {
            name: name(number),
            created: number.into(),
            kind: ServiceKind::ClusterIp,
            cluster_v4: Some(self.cluster_address(number)),
            cluster_v6: None,
            external: Vec::new(),
            load_balancer: Vec::new(),
            source_ranges: Vec::new(),
            affinity: None,
            external_policy: TrafficPolicy::Cluster,
            internal_policy: TrafficPolicy::Cluster,
            health_check_node_port: None,
            choice: None,
            ports: vec![ServicePort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: PORT,
                node_port: None,
            }],
        }))
    }

    fn slice(self, service: u32, last_replaced: bool) -> Event {
        let endpoint = |index: u32| Endpoint {
            address: self
                .endpoint(service, index + u32::from(last_replaced && index + 1 == self.endpoints))
                .into(),
            conditions: Conditions::default(),
            node: Some("another-node".into()),
            zone: None,
            hints: None,
        };
        Event::SliceApplied(Box::new(EndpointSlice {
            name: name(service),
            service: name(service),
            family: Family::V4,
            ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: PORT }],
            endpoints: (0..self.endpoints).map(endpoint).collect(),
        }))
    }
}

fn name(number: u32) -> ObjectName {
    ObjectName::new("namespace", format!("service-{number}"))
}
