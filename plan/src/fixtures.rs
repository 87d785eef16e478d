//! Objects for tests.

use std::net::IpAddr;
use std::num::NonZeroU16;

use crate::model::{
    Conditions, Endpoint, EndpointSlice, Family, ObjectName, Protocol, Service, ServicePort,
    SlicePort,
};

pub(crate) fn number(port: u16) -> NonZeroU16 {
    NonZeroU16::new(port).unwrap()
}

pub(crate) fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A Service of type ClusterIP with the port `http`.
pub(crate) fn mk_service() -> Service {
    Service {
        created: 7,
        cluster_v4: Some([10, 96, 0, 9].into()),
        ports: vec![mk_port("http", Protocol::Tcp, 80, None)],
        ..Service::new(ObjectName::new("ns", "web"))
    }
}

pub(crate) fn mk_port(
    name: &str,
    protocol: Protocol,
    port: u16,
    node_port: Option<u16>,
) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol,
        port: number(port),
        node_port: node_port.map(number),
    }
}

pub(crate) fn mk_slice(family: Family, endpoints: &[(&str, &str)]) -> EndpointSlice {
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    EndpointSlice {
        name: ObjectName::new("ns", "web-1"),
        service: ObjectName::new("ns", "web"),
        family,
        ports: protocols
            .map(|protocol| SlicePort { name: "http".into(), protocol, port: number(8080) })
            .to_vec(),
        endpoints: endpoints
            .iter()
            .map(|(address, node)| Endpoint {
                address: address.parse().unwrap(),
                conditions: Conditions::default(),
                node: Some((*node).into()),
                zone: None,
                hints: None,
            })
            .collect(),
    }
}
