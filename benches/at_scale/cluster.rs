//! The cluster that is measured: ClusterIP Services with one TCP port, all alike, beside
//! `default/kubernetes`. What the API would say of it is made when it is needed, so that nothing of
//! it is in the memory that is measured.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::ops::Range;
use std::str::FromStr;

use anyhow::{Context as _, Error, Result, ensure};
use plan::event::Event;
use plan::kernel_objects::Frontend;
use plan::model::{
    Conditions, Endpoint, EndpointSlice, Family, ObjectName, Protocol, Service, ServicePort,
    SlicePort,
};
use serde::{Deserialize, Serialize};

/// The port of every Service and every endpoint.
pub(crate) const PORT: NonZeroU16 = NonZeroU16::MIN;
/// The address of `default/kubernetes`: 10.96.0.1.
pub(crate) const API_SERVER: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Endpoint of `default/kubernetes`: 172.16.0.1.
const API_SERVER_ENDPOINT: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 1);
/// 10.96.0.2, where the other cluster addresses begin.
const SERVICES: u32 = 0x0a60_0002;
/// 11.0.0.0, where endpoints begin.
const ENDPOINTS: u32 = 0x0b00_0000;
/// The address of the large Service: 10.111.0.1.
const LARGE: Ipv4Addr = Ipv4Addr::new(10, 111, 0, 1);
/// 100.64.0.0, where its endpoints begin, and 100.80.0.0, where those begin that come later.
const LARGE_ENDPOINTS: u32 = 0x6440_0000;
const LATER_ENDPOINTS: u32 = 0x6450_0000;

/// Size of a cluster, as Services and endpoints of each: `10000x10`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) services: u32,
    /// Number of endpoints of each Service.
    pub(crate) endpoints: u32,
}

/// A Service with ten ports and 5,000 endpoints, in slices of a hundred.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Large;

/// Something that happens to a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Change {
    /// It has these of its endpoints now.
    Endpoints { service: u32, which: Range<u32> },
    /// It comes, with the usual endpoints.
    Added { service: u32 },
    /// It goes.
    Removed { service: u32 },
}

impl Size {
    pub(crate) fn cluster_address(self, service: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(SERVICES + service)
    }

    pub(crate) fn frontend(self, service: u32) -> Frontend {
        frontend(self.cluster_address(service), PORT)
    }

    /// Every Service has addresses for twice as many endpoints as it uses, and some more.
    pub(crate) fn endpoint(self, service: u32, index: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(ENDPOINTS + service * (2 * self.endpoints + 2) + index)
    }

    /// Those that it has at first.
    pub(crate) fn usual(self) -> Range<u32> {
        0..self.endpoints
    }

    /// Everything that Kubernetes would say of it, in the order of its lists.
    pub(crate) fn events(self) -> impl Iterator<Item = Event> {
        let services = (0..self.services).map(move |number| self.service(number));
        let slices = (0..self.services).map(move |number| self.slice(number, self.usual()));
        api_server().into_iter().chain(services).chain(slices)
    }

    /// Returns the events that Kubernetes would send for a change.
    pub(crate) fn events_of(self, change: &Change) -> Vec<Event> {
        match change {
            Change::Endpoints { service, which } => vec![self.slice(*service, which.clone())],
            Change::Added { service } => {
                vec![self.service(*service), self.slice(*service, self.usual())]
            }
            Change::Removed { service } => {
                vec![Event::ServiceRemoved(name(*service)), Event::SliceRemoved(name(*service))]
            }
        }
    }

    fn service(self, number: u32) -> Event {
        service(name(number), self.cluster_address(number), number.into())
    }

    fn slice(self, service: u32, which: Range<u32>) -> Event {
        slice(name(service), which.map(|index| self.endpoint(service, index).into()))
    }
}

impl Large {
    const PORTS: u16 = 10;
    const SLICES: u32 = 50;
    const IN_SLICE: u32 = 100;

    pub(crate) fn frontends(self) -> impl Iterator<Item = Frontend> {
        self.ports().map(|port| frontend(LARGE, port))
    }

    pub(crate) fn events(self) -> impl Iterator<Item = Event> {
        let port = |port: NonZeroU16| ServicePort {
            name: port.to_string().into(),
            protocol: Protocol::Tcp,
            port,
            node_port: None,
        };
        let service = Service {
            cluster_v4: Some(LARGE),
            ports: self.ports().map(port).collect(),
            ..Service::new(self.name())
        };
        let slices = (0..Self::SLICES).map(move |slice| self.slice(slice, None));
        std::iter::once(Event::ServiceApplied(Box::new(service))).chain(slices)
    }

    /// The n-th change of one of its slices, and the address that comes with it.
    pub(crate) fn changed(self, number: u32) -> (Event, IpAddr) {
        let address = Ipv4Addr::from_bits(LATER_ENDPOINTS + number).into();
        (self.slice(number % Self::SLICES, Some(address)), address)
    }

    fn slice(self, number: u32, first: Option<IpAddr>) -> Event {
        let all = (0..Self::IN_SLICE).map(move |index| {
            Ipv4Addr::from_bits(LARGE_ENDPOINTS + number * Self::IN_SLICE + index).into()
        });
        let addresses = first.into_iter().chain(all.skip(usize::from(first.is_some())));
        let ports = self.ports().map(|port| SlicePort {
            name: port.to_string().into(),
            protocol: Protocol::Tcp,
            port,
        });
        let name = ObjectName::new("namespace", format!("large-{number}"));
        Event::SliceApplied(Box::new(EndpointSlice {
            service: self.name(),
            name,
            family: Family::V4,
            ports: ports.collect(),
            endpoints: addresses.map(endpoint).collect(),
        }))
    }

    fn ports(self) -> impl Iterator<Item = NonZeroU16> {
        (8_000..8_000 + Self::PORTS).filter_map(NonZeroU16::new)
    }

    fn name(self) -> ObjectName {
        ObjectName::new("namespace", "large")
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.services, self.endpoints)
    }
}

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (services, endpoints) = text
            .split_once('x')
            .with_context(|| format!("{text:?} is not of the form SERVICESxENDPOINTS"))?;
        let number = |text: &str| -> Result<u32> {
            text.parse().with_context(|| format!("{text:?} is not a number"))
        };
        let size = Self { services: number(services)?, endpoints: number(endpoints)? };
        ensure!(size.services <= 500_000, "at most 500000 services");
        ensure!((1..=200).contains(&size.endpoints), "1 to 200 endpoints each");
        Ok(size)
    }
}

fn api_server() -> [Event; 2] {
    let name = ObjectName::api_server();
    [service(name.clone(), API_SERVER, 0), slice(name, std::iter::once(API_SERVER_ENDPOINT.into()))]
}

fn service(name: ObjectName, address: Ipv4Addr, created: i64) -> Event {
    Event::ServiceApplied(Box::new(Service {
        created,
        cluster_v4: Some(address),
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: PORT,
            node_port: None,
        }],
        ..Service::new(name)
    }))
}

fn slice(name: ObjectName, addresses: impl Iterator<Item = IpAddr>) -> Event {
    Event::SliceApplied(Box::new(EndpointSlice {
        service: name.clone(),
        name,
        family: Family::V4,
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, port: PORT }],
        endpoints: addresses.map(endpoint).collect(),
    }))
}

fn endpoint(address: IpAddr) -> Endpoint {
    Endpoint {
        address,
        conditions: Conditions::default(),
        node: Some("another-node".into()),
        zone: None,
        hints: None,
    }
}

fn frontend(address: Ipv4Addr, port: NonZeroU16) -> Frontend {
    Frontend { address: address.into(), protocol: Protocol::Tcp, port: port.get() }
}

fn name(number: u32) -> ObjectName {
    ObjectName::new("namespace", format!("service-{number}"))
}
