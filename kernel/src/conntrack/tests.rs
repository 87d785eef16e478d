#[cfg(feature = "kernel-tests")]
mod kernel;

use std::net::SocketAddr;

use netlink::{Batch, MessageWriter};
use plan::flows::{Flow, FlowTargets};
use plan::kernel_objects::Frontend;
use proptest::prelude::*;

use super::message::*;
use super::*;

/// `CTA_STATUS`, `CTA_ID`, `CTA_ZONE` (include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const STATUS: u16 = 3;
const ID: u16 = 12;
const ZONE: u16 = 18;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn mk_tuple(protocol: Protocol, source: &str, destination: &str) -> Tuple {
    Tuple { protocol, source: at(source), destination: at(destination) }
}

fn mk_targets(protocol: Protocol, frontends: impl IntoIterator<Item = SocketAddr>) -> FlowTargets {
    let mut targets = FlowTargets::default();
    for socket in frontends {
        let frontend = Frontend { address: socket.ip(), protocol, port: socket.port() };
        targets.insert(frontend, None::<[SocketAddr; 0]>);
    }
    targets
}

/// A message's body, as written.
fn body(write: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
    let mut batch = Batch::new();
    batch.push(GET, 0, write);
    batch.body(0).unwrap().to_vec()
}

/// An entry as the kernel lists it: more attributes than matter, and these in its order.
fn listed(original: Tuple, reply: Tuple, zone: Option<u16>) -> Vec<u8> {
    body(|message| {
        write_header(message, Family::of(original.destination.ip()));
        let mut attributes = message.attributes();
        attributes.nested(CTA_TUPLE_ORIG, |tuple| original.write(tuple));
        attributes.nested(CTA_TUPLE_REPLY, |tuple| reply.write(tuple));
        attributes.u32_be(STATUS, 0x18e);
        attributes.u32_be(ID, 0xfeed_beef);
        if let Some(zone) = zone {
            attributes.u16_be(ZONE, zone);
        }
    })
}

fn dns(zone: Option<u16>) -> Vec<u8> {
    let original = mk_tuple(Protocol::Udp, "10.244.1.9:4242", "10.96.0.10:53");
    let reply = mk_tuple(Protocol::Udp, "10.244.2.5:5353", "10.244.1.9:4242");
    listed(original, reply, zone)
}

#[test]
fn an_entry_is_read() {
    let expected = ConntrackEntry {
        flow: Flow {
            protocol: Protocol::Udp,
            destination: at("10.96.0.10:53"),
            reply_source: at("10.244.2.5:5353"),
        },
        source: at("10.244.1.9:4242"),
        id: 0xfeed_beef,
    };
    assert_eq!(decode(&dns(None)), Ok(Some(expected)));
    assert_eq!(decode(&dns(Some(0))), Ok(Some(expected)));
}

#[test]
fn an_entry_of_ipv6_and_sctp_is_read() {
    let original = mk_tuple(Protocol::Sctp, "[fd00::1]:1", "[fd00:96::10]:132");
    let reply = mk_tuple(Protocol::Sctp, "[fd00:244::5]:132", "[fd00::1]:1");
    let entry = decode(&listed(original, reply, None)).unwrap().unwrap();
    assert_eq!(entry.flow.protocol, Protocol::Sctp);
    assert_eq!(entry.flow.destination, at("[fd00:96::10]:132"));
    assert_eq!(entry.flow.reply_source, at("[fd00:244::5]:132"));
}

#[test]
fn entries_in_zones_and_without_ports_are_passed_over() {
    assert_eq!(decode(&dns(Some(7))), Ok(None));
    let icmp = body(|message| {
        write_header(message, Family::V4);
        message.attributes().nested(CTA_TUPLE_ORIG, |tuple| {
            tuple.nested(1, |ip| ip.address(1, [10, 0, 0, 1].into()));
            tuple.nested(2, |proto| proto.u8(1, 1));
        });
    });
    assert_eq!(decode(&icmp), Ok(None));
}

#[test]
fn an_entry_without_an_id_is_an_error() {
    let original = mk_tuple(Protocol::Udp, "10.244.1.9:4242", "10.96.0.10:53");
    let bytes = body(|message| {
        write_header(message, Family::V4);
        let mut attributes = message.attributes();
        attributes.nested(CTA_TUPLE_ORIG, |tuple| original.write(tuple));
        attributes.nested(CTA_TUPLE_REPLY, |tuple| original.write(tuple));
    });
    assert!(decode(&bytes).unwrap_err().to_string().contains("CTA_ID"));
}

/// Byte by byte, as the kernel's header says: a deletion that names no tuple empties the table.
#[test]
fn a_deletion_names_the_tuple_and_the_id() {
    let entry = decode(&dns(None)).unwrap().unwrap();
    let mut batch = Batch::new();
    push_delete(&mut batch, &entry);
    let expected: Vec<u8> = [
        &[2, 0, 0, 0][..],
        &[52, 0, 1, 0x80],
        &[20, 0, 1, 0x80, 8, 0, 1, 0, 10, 244, 1, 9, 8, 0, 2, 0, 10, 96, 0, 10],
        &[28, 0, 2, 0x80, 5, 0, 1, 0, 17, 0, 0, 0],
        &[6, 0, 2, 0, 0x10, 0x92, 0, 0, 6, 0, 3, 0, 0, 53, 0, 0],
        &[8, 0, 12, 0, 0xfe, 0xed, 0xbe, 0xef],
    ]
    .concat();
    assert_eq!(batch.body(0), Some(&*expected));
}

#[test]
fn a_filter_names_protocol_and_port() {
    let expected: Vec<u8> = [
        &[10, 0, 0, 0][..],
        &[24, 0, 1, 0x80, 20, 0, 2, 0x80, 5, 0, 1, 0, 17, 0, 0, 0, 6, 0, 3, 0, 0, 53, 0, 0],
        &[12, 0, 25, 0x80, 8, 0, 1, 0, 0x28, 0, 0, 0],
    ]
    .concat();
    assert_eq!(
        body(|message| Filter::port(Family::V6, Protocol::Udp, 53).write(message)),
        expected
    );
    assert_eq!(body(|message| Filter::all(Family::V4).write(message)), [2, 0, 0, 0]);
}

#[test]
fn few_ports_are_asked_for_one_by_one() {
    let sockets = |count: u16| (1..=count).map(|port| SocketAddr::from(([10, 96, 0, 10], port)));
    let few = mk_targets(Protocol::Udp, sockets(8));
    assert_eq!(filters(Family::V4, few.frontends()).len(), 8);
    assert_eq!(filters(Family::V6, few.frontends()), []);
    let many = mk_targets(Protocol::Udp, sockets(9));
    let all_udp = [Filter::protocol(Family::V4, Protocol::Udp)];
    assert_eq!(filters(Family::V4, many.frontends()), all_udp);
    let sctp = mk_targets(Protocol::Sctp, sockets(3));
    assert_eq!(
        filters(Family::V4, sctp.frontends()),
        [Filter::protocol(Family::V4, Protocol::Sctp)]
    );
}

#[test]
fn one_port_of_many_addresses_is_asked_for_once() {
    let addresses = (1..=200).map(|host| SocketAddr::from(([192, 0, 2, host], 30_053)));
    let targets = mk_targets(Protocol::Udp, addresses);
    assert_eq!(
        filters(Family::V4, targets.frontends()),
        [Filter::port(Family::V4, Protocol::Udp, 30_053)]
    );
}

#[test]
fn what_the_kernel_did_not_filter_is_noticed() {
    let flow = decode(&dns(None)).unwrap().unwrap().flow;
    assert!(Filter::all(Family::V4).passes(&flow));
    assert!(Filter::port(Family::V4, Protocol::Udp, 53).passes(&flow));
    assert!(!Filter::port(Family::V4, Protocol::Udp, 54).passes(&flow));
    assert!(!Filter::protocol(Family::V4, Protocol::Sctp).passes(&flow));
    assert!(!Filter::all(Family::V6).passes(&flow));
}

proptest! {
    /// Reading ends without a panic, whatever arrives.
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _any = decode(&bytes);
    }

    /// An entry that was cut short, or in which a byte is another, is an error or another entry.
    #[test]
    fn a_damaged_entry_is_read(cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = dns(None);
        let place = cut.index(bytes.len());
        let _damaged = decode(&bytes[..place]);
        bytes[place] = byte;
        let _damaged = decode(&bytes);
    }
}
