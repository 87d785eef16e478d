use std::num::NonZeroU16;

use super::*;
use crate::model::{ObjectName, SlicePort};

fn mk_port(name: &str, protocol: Protocol) -> ServicePort {
    ServicePort { name: name.into(), protocol, port: NonZeroU16::MIN, node_port: None }
}

fn mk_slice(name: &str, ports: &[(&str, Protocol, u16)], endpoints: &[Endpoint]) -> EndpointSlice {
    EndpointSlice {
        name: ObjectName::new("ns", name),
        service: ObjectName::new("ns", "web"),
        family: Family::V4,
        ports: ports
            .iter()
            .map(|(name, protocol, port)| SlicePort {
                name: (*name).into(),
                protocol: *protocol,
                port: NonZeroU16::new(*port).unwrap(),
            })
            .collect(),
        endpoints: endpoints.to_vec(),
    }
}

fn mk_endpoint(address: &str, conditions: Conditions) -> Endpoint {
    Endpoint { address: address.parse().unwrap(), conditions, node: None, zone: None, hints: None }
}

const READY: Conditions = Conditions { ready: true, serving: true, terminating: false };
const STARTING: Conditions = Conditions { ready: false, serving: false, terminating: false };
const TERMINATING: Conditions = Conditions { ready: false, serving: true, terminating: true };
const GONE: Conditions = Conditions { ready: false, serving: false, terminating: true };

fn sockets(candidates: &[Candidate<'_>]) -> Vec<String> {
    candidates.iter().map(|c| format!("{}:{}", c.endpoint.address, c.port)).collect()
}

fn candidates<'a>(
    port: &'a ServicePort,
    family: Family,
    slices: &[&'a EndpointSlice],
) -> Vec<Candidate<'a>> {
    EndpointsByPort::new(family, slices).candidates(port)
}

#[test]
fn ports_are_matched_by_name_and_protocol_never_by_number() {
    let ready = [mk_endpoint("10.0.0.1", READY)];
    let ports = [
        ("http", Protocol::Tcp, 8080),
        ("http", Protocol::Udp, 8081),
        ("dns", Protocol::Tcp, 8082),
        ("", Protocol::Tcp, 8083),
    ];
    let slice = mk_slice("s", &ports, &ready);
    let of = |name, protocol| sockets(&candidates(&mk_port(name, protocol), Family::V4, &[&slice]));
    assert_eq!(of("http", Protocol::Tcp), ["10.0.0.1:8080"]);
    assert_eq!(of("http", Protocol::Udp), ["10.0.0.1:8081"]);
    assert_eq!(of("", Protocol::Tcp), ["10.0.0.1:8083"]);
    assert_eq!(of("dns", Protocol::Sctp), [""; 0]);
}

#[test]
fn slices_of_the_other_family_do_not_count_nor_do_stray_addresses() {
    let ports = [("", Protocol::Tcp, 80)];
    let mut slice =
        mk_slice("s", &ports, &[mk_endpoint("10.0.0.1", READY), mk_endpoint("fd00::1", READY)]);
    let port = mk_port("", Protocol::Tcp);
    assert_eq!(sockets(&candidates(&port, Family::V4, &[&slice])), ["10.0.0.1:80"]);
    assert_eq!(candidates(&port, Family::V6, &[&slice]), []);
    slice.family = Family::V6;
    assert_eq!(sockets(&candidates(&port, Family::V6, &[&slice])), ["fd00::1:80"]);
}

#[test]
fn of_the_same_endpoint_in_several_slices_the_better_one_counts_in_any_order() {
    let ports = [("", Protocol::Tcp, 80)];
    let ranking = [READY, STARTING, TERMINATING, GONE];
    let port = mk_port("", Protocol::Tcp);
    for (place, better) in ranking.iter().enumerate() {
        for worse in &ranking[place + 1..] {
            let one = mk_slice("1", &ports, &[mk_endpoint("10.0.0.1", *better)]);
            let other = mk_slice("2", &ports, &[mk_endpoint("10.0.0.1", *worse)]);
            for slices in [[&one, &other], [&other, &one]] {
                let found = candidates(&port, Family::V4, &slices);
                assert_eq!(found.len(), 1);
                assert_eq!(found[0].endpoint.conditions, *better);
            }
        }
    }
}

#[test]
fn the_same_address_with_two_ports_is_two_endpoints_and_order_is_by_number() {
    let one = mk_slice("1", &[("", Protocol::Tcp, 9000)], &[mk_endpoint("10.0.0.2", READY)]);
    let two = mk_slice(
        "2",
        &[("", Protocol::Tcp, 80)],
        &[mk_endpoint("10.0.0.10", READY), mk_endpoint("10.0.0.2", READY)],
    );
    let port = mk_port("", Protocol::Tcp);
    let found = candidates(&port, Family::V4, &[&one, &two]);
    assert_eq!(sockets(&found), ["10.0.0.2:80", "10.0.0.2:9000", "10.0.0.10:80"]);
}
