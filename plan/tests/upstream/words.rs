//! Objects, written as one would say them.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use plan::event::Event;
use plan::model::{
    Conditions, Endpoint, EndpointSlice, Family, ObjectName, Protocol, Service, ServicePort,
    SlicePort, TrafficPolicy,
};

pub(crate) const CLUSTER: TrafficPolicy = TrafficPolicy::Cluster;
pub(crate) const LOCAL: TrafficPolicy = TrafficPolicy::Local;

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no address"))
}

pub(crate) fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

pub(crate) fn number(port: u16) -> NonZeroU16 {
    NonZeroU16::new(port).unwrap()
}

/// A Service of type ClusterIP with these cluster addresses, and the port `http`, 80/TCP.
pub(crate) fn service(name: &str, cluster: &[&str]) -> Service {
    let mut service = Service {
        created: 7,
        ports: vec![port("http", "80/TCP")],
        ..Service::new(ObjectName::new("ns", name))
    };
    for address in ips(cluster) {
        match address {
            IpAddr::V4(address) => service.cluster_v4 = Some(address),
            IpAddr::V6(address) => service.cluster_v6 = Some(address),
        }
    }
    service
}

/// A port as kubectl prints it: `80/TCP`, with a node port `80:30080/TCP`.
pub(crate) fn port(name: &str, text: &str) -> ServicePort {
    let (numbers, protocol) = text.split_once('/').unwrap();
    let (port, node_port) = match numbers.split_once(':') {
        Some((port, node_port)) => (port, Some(node_port)),
        None => (numbers, None),
    };
    ServicePort {
        name: name.into(),
        protocol: protocol_of(protocol),
        port: port.parse().unwrap(),
        node_port: node_port.map(|port| port.parse().unwrap()),
    }
}

/// A slice of a Service; its port is `http`, 8080/TCP.
pub(crate) fn slice(name: &str, service: &str, endpoints: &[&str]) -> EndpointSlice {
    slice_with(name, service, &[("http", "8080/TCP")], endpoints)
}

/// A slice of the family that its first endpoint has.
pub(crate) fn slice_with(
    name: &str,
    service: &str,
    ports: &[(&str, &str)],
    endpoints: &[&str],
) -> EndpointSlice {
    let endpoints: Vec<Endpoint> = endpoints.iter().map(|text| endpoint(text)).collect();
    EndpointSlice {
        name: ObjectName::new("ns", name),
        service: ObjectName::new("ns", service),
        family: endpoints.first().map_or(Family::V4, |first| Family::of(first.address)),
        ports: ports.iter().map(|(name, text)| slice_port(name, text)).collect(),
        endpoints,
    }
}

/// An endpoint: its address, perhaps with `@` and its node, then what else there is to say of it.
/// `10.244.0.2@n1 in:zone-a for:zone-a,zone-b for-node:n1 terminating`
///
/// | word | ready | serving | terminating |
/// | --- | --- | --- | --- |
/// | (none) | yes | yes | no |
/// | `unready` | no | no | no |
/// | `serving` | no | yes | no |
/// | `terminating` | no | yes | yes |
/// | `ended` | no | no | yes |
/// | `published` (not ready, and published all the same) | yes | no | yes |
pub(crate) fn endpoint(text: &str) -> Endpoint {
    let mut words = text.split(' ');
    let place = words.next().unwrap();
    let (address, node) = match place.split_once('@') {
        Some((address, node)) => (address, Some(Arc::from(node))),
        None => (place, None),
    };
    let conditions = Conditions::default();
    let mut endpoint = Endpoint { address: ip(address), conditions, node, zone: None, hints: None };
    for word in words {
        if let Some(conditions) = conditions_of(word) {
            endpoint.conditions = conditions;
            continue;
        }
        let (what, names) = word.split_once(':').unwrap();
        let mut names: Vec<Arc<str>> = names.split(',').map(Arc::from).collect();
        match what {
            "in" => endpoint.zone = names.pop(),
            "for" => Arc::make_mut(endpoint.hints.get_or_insert_default()).zones = names,
            "for-node" => Arc::make_mut(endpoint.hints.get_or_insert_default()).nodes = names,
            _ => panic!("{word:?} says nothing about an endpoint"),
        }
    }
    endpoint
}

pub(crate) fn applied(service: &Service) -> Event {
    Event::ServiceApplied(Box::new(service.clone()))
}

pub(crate) fn sliced(slice: &EndpointSlice) -> Event {
    Event::SliceApplied(Box::new(slice.clone()))
}

pub(crate) fn removed(service: &Service) -> Event {
    Event::ServiceRemoved(service.name.clone())
}

pub(crate) fn unsliced(slice: &EndpointSlice) -> Event {
    Event::SliceRemoved(slice.name.clone())
}

fn slice_port(name: &str, text: &str) -> SlicePort {
    let (port, protocol) = text.split_once('/').unwrap();
    SlicePort { name: name.into(), protocol: protocol_of(protocol), port: port.parse().unwrap() }
}

fn protocol_of(text: &str) -> Protocol {
    match text {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        _ => panic!("{text:?} is no protocol"),
    }
}

fn conditions_of(word: &str) -> Option<Conditions> {
    let (ready, serving, terminating) = match word {
        "unready" => (false, false, false),
        "serving" => (false, true, false),
        "terminating" => (false, true, true),
        "ended" => (false, false, true),
        "published" => (true, false, true),
        _ => return None,
    };
    Some(Conditions { ready, serving, terminating })
}
