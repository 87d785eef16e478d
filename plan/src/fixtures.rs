//! Objects for tests.

use std::net::IpAddr;
use std::num::NonZeroU16;

use crate::exposure::Exposure;
use crate::facts::NodeFacts;
use crate::ipvs::compile;
use crate::ipvs::fragment::Fragment;
use crate::local::{HealthCheck, LocalGap};
use crate::model::{
    Conditions, Endpoint, EndpointSlice, Family, ObjectName, Protocol, Service, ServicePort,
    SlicePort,
};
use crate::problem::Problem;
use crate::settings::Settings;

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

/// A Service's fragment, and what follows from its exposure beside it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Compiled {
    pub(crate) fragment: Fragment,
    pub(crate) problems: Vec<Problem>,
    pub(crate) health_check: Option<HealthCheck>,
    pub(crate) local_gap: LocalGap,
}

pub(crate) fn compile(
    service: &Service,
    slices: &[&EndpointSlice],
    facts: &NodeFacts,
    settings: &Settings,
) -> Compiled {
    let exposure = Exposure::new(service, slices, facts, settings);
    let compile::Compiled { fragment, problems } = compile::compile(&exposure, facts, settings);
    let Exposure { health_check, local_gap, .. } = exposure;
    Compiled { fragment, problems, health_check, local_gap }
}
