//! Bytes from the header file's layout, texts of errors, and whatever may come.

mod captures;

use netlink::Refusal;
use proptest::prelude::*;

use super::*;
use crate::{
    AddressFamily, Error, Flags, ForwardingMethod, InterfaceName, Netmask, PersistenceEngine,
    Protocol, Scheduler, Statistics, TunnelFlags, TunnelOptions, TunnelType,
};

/// A request's body as it would be sent.
fn encoded(request: &Request<'_>) -> Vec<u8> {
    let mut batch = netlink::Batch::new();
    batch.push(0x20, 0, |message| request.encode(message));
    batch.body(0).unwrap().to_vec()
}

/// An attribute, padded.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn nested(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind, &attributes.concat())
}

/// `NLA_F_NESTED` (include/uapi/linux/netlink.h).
const NESTED: u16 = 0x8000;

fn message(command: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
    [vec![command, 1, 0, 0], attributes.concat()].concat()
}

fn web() -> VirtualServerId {
    VirtualServerId::tcp([10, 96, 0, 1], 80)
}

/// A virtual server's attributes as a kernel sends them.
fn listed_service(more: &[Vec<u8>]) -> Vec<u8> {
    let mut attributes = vec![
        attribute(1, &2_u16.to_ne_bytes()),
        attribute(2, &6_u16.to_ne_bytes()),
        attribute(3, &[10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        attribute(4, &[0, 80]),
        attribute(6, b"rr\0"),
        attribute(7, &[2, 0, 0, 0, 255, 255, 255, 255]),
        attribute(8, &[0; 4]),
        attribute(9, &[255; 4]),
    ];
    attributes.extend_from_slice(more);
    message(1, &[nested(1, &attributes)])
}

/// A real server's attributes as Linux before 3.18 sends them.
fn listed_destination(forwarding: u32, address: &[u8], more: &[Vec<u8>]) -> Vec<u8> {
    let mut attributes = vec![
        attribute(1, address),
        attribute(2, &[0, 80]),
        attribute(3, &forwarding.to_ne_bytes()),
        attribute(4, &7_u32.to_ne_bytes()),
        attribute(5, &9_u32.to_ne_bytes()),
        attribute(6, &8_u32.to_ne_bytes()),
        attribute(7, &1_u32.to_ne_bytes()),
        attribute(8, &2_u32.to_ne_bytes()),
        attribute(9, &3_u32.to_ne_bytes()),
    ];
    attributes.extend_from_slice(more);
    message(5, &[nested(2, &attributes)])
}

#[test]
fn a_new_virtual_server_is_laid_out_as_the_header_says() {
    let server = VirtualServer {
        flags: Flags::PERSISTENT | Flags::SH_PORT | Flags::HASHED,
        persistence_timeout: 300,
        netmask: Netmask::Prefix(24),
        persistence_engine: PersistenceEngine::new("sip").ok(),
        ..VirtualServer::new(web(), Scheduler::SOURCE_HASHING)
    };
    let expected = message(
        1,
        &[nested(
            NESTED | 1,
            &[
                attribute(1, &2_u16.to_ne_bytes()),
                attribute(2, &6_u16.to_ne_bytes()),
                attribute(3, &[10, 96, 0, 1]),
                attribute(4, &[0, 80]),
                attribute(6, b"sh\0"),
                attribute(11, b"sip\0"),
                attribute(7, &[0x11_u32.to_ne_bytes(), [255; 4]].concat()),
                attribute(8, &300_u32.to_ne_bytes()),
                attribute(9, &[255, 255, 255, 0]),
            ],
        )],
    );
    assert_eq!(encoded(&Request::NewService(&server)), expected);
}

#[test]
fn virtual_servers_of_the_option_are_laid_out_as_the_header_says() {
    // `struct ip_vs_service_entry`, whose statistics have 64-bit numbers.
    #[repr(C)]
    struct Entry {
        head: [u32; 12],
        connections_and_packets: [u32; 3],
        bytes: [u64; 2],
        rates: [u32; 5],
    }
    assert_eq!((align_of::<Entry>(), size_of::<Entry>()), (8, 104));
    let mut buffer = service_entries(3);
    assert_eq!((buffer.len(), &buffer[..4]), (8 + 3 * 104, &3_u32.to_ne_bytes()[..]));
    let mut entry = |number: usize, fields: &[(usize, &[u8])]| {
        for (offset, bytes) in fields {
            let start = 8 + number * 104 + offset;
            buffer[start..start + bytes.len()].copy_from_slice(bytes);
        }
    };
    let flags = 3_u32.to_ne_bytes();
    entry(0, &[(0, &6_u16.to_ne_bytes()), (4, &[10, 96, 0, 1]), (8, &[0, 80]), (16, b"rr")]);
    entry(0, &[(32, &flags), (36, &10_u32.to_ne_bytes()), (40, &[255, 255, 255, 0]), (44, &[9])]);
    entry(1, &[(12, &7_u32.to_ne_bytes()), (16, &[b'x'; 16]), (40, &[255; 4])]);
    let netmask = Netmask::Prefix(24);
    let served = VirtualServer::new(web(), Scheduler::ROUND_ROBIN).with_netmask(netmask);
    let id =
        VirtualServerId::FirewallMark { family: AddressFamily::Ipv4, mark: 7.try_into().unwrap() };
    // A name of 16 bytes has no room for the zero behind it, and the kernel has none such.
    assert!(decode_service_entries(&buffer).is_err());
    buffer[8 + 104 + 16..8 + 104 + 32].fill(0);
    buffer[8 + 104 + 16..8 + 104 + 18].copy_from_slice(b"sh");
    let marked = VirtualServer::new(id, Scheduler::SOURCE_HASHING);
    let expected = vec![served.with_persistence(10), marked];
    assert_eq!(decode_service_entries(&buffer).unwrap(), expected);
    assert_eq!(decode_service_entries(&buffer[..8]).unwrap(), []);
}

#[test]
fn a_new_real_server_is_laid_out_as_the_header_says() {
    let options = TunnelOptions { kind: TunnelType::Gue, port: 6080, flags: TunnelFlags::CHECKSUM };
    let server = RealServer {
        forwarding: ForwardingMethod::Tunnel(options),
        weight: 3,
        upper_threshold: 100,
        lower_threshold: 50,
        ..RealServer::new([10, 0, 0, 1], 8080)
    };
    let expected = message(
        5,
        &[
            nested(
                NESTED | 1,
                &[attribute(1, &10_u16.to_ne_bytes()), attribute(5, &7_u32.to_ne_bytes())],
            ),
            nested(
                NESTED | 2,
                &[
                    attribute(11, &2_u16.to_ne_bytes()),
                    attribute(1, &[10, 0, 0, 1]),
                    attribute(2, &[0x1f, 0x90]),
                    attribute(3, &2_u32.to_ne_bytes()),
                    attribute(4, &3_u32.to_ne_bytes()),
                    attribute(13, &[1]),
                    attribute(14, &[0x17, 0xc0]),
                    attribute(15, &1_u16.to_ne_bytes()),
                    attribute(5, &100_u32.to_ne_bytes()),
                    attribute(6, &50_u32.to_ne_bytes()),
                ],
            ),
        ],
    );
    let mark = VirtualServerId::FirewallMark {
        family: AddressFamily::Ipv6,
        mark: std::num::NonZeroU32::new(7).unwrap(),
    };
    assert_eq!(encoded(&Request::NewDestination(&mark, &server)), expected);
}

#[test]
fn a_sync_daemon_keeps_its_bytes_both_ways() {
    let daemon = SyncDaemon {
        sync_id: 9,
        datagram_length: 1400,
        group: Some([224, 0, 0, 99].into()),
        port: 8849,
        ttl: 3,
        ..SyncDaemon::new(SyncRole::Backup, InterfaceName::new("eth0").unwrap())
    };
    let expected = message(
        9,
        &[nested(
            NESTED | 3,
            &[
                attribute(1, &2_u32.to_ne_bytes()),
                attribute(2, b"eth0\0"),
                attribute(3, &9_u32.to_ne_bytes()),
                attribute(4, &1400_u16.to_ne_bytes()),
                attribute(5, &[224, 0, 0, 99]),
                attribute(7, &8849_u16.to_ne_bytes()),
                attribute(8, &[3]),
            ],
        )],
    );
    let bytes = encoded(&Request::NewDaemon(&daemon));
    assert_eq!(bytes, expected);
    assert_eq!(decode_sync_daemon(&bytes), Ok(daemon));
}

#[test]
fn a_real_server_without_an_address_family_has_the_virtual_servers() {
    let bytes = listed_destination(0, &[10, 0, 0, 1, 9, 9, 9, 9], &[]);
    let decoded = decode_real_server(&bytes, AddressFamily::Ipv4).unwrap();
    assert_eq!(decoded.server.socket_address(), "10.0.0.1:80".parse().unwrap());
    assert_eq!((decoded.server.upper_threshold, decoded.server.lower_threshold), (9, 8));
    let counts =
        (decoded.active_connections, decoded.inactive_connections, decoded.persistent_connections);
    assert_eq!(counts, (1, 2, 3));
    let error = decode_real_server(&bytes, AddressFamily::Ipv6).unwrap_err();
    assert_eq!(error.to_string(), "attribute: type 1 has 8 bytes, 16 are needed");
    // The kernel's word counts when it is there.
    let bytes = listed_destination(0, &[1; 16], &[attribute(11, &10_u16.to_ne_bytes())]);
    assert!(decode_real_server(&bytes, AddressFamily::Ipv4).unwrap().server.address.is_ipv6());
}

#[test]
fn a_tunnels_options_count_for_a_tunnel_only() {
    let options = [attribute(13, &[9]), attribute(14, &[0, 9]), attribute(15, &[4, 0])];
    let method = |number| {
        let bytes = listed_destination(number, &[10, 0, 0, 1], &options);
        decode_real_server(&bytes, AddressFamily::Ipv4).unwrap().server.forwarding
    };
    let options = TunnelOptions {
        kind: TunnelType::Other(9),
        port: 9,
        flags: TunnelFlags::from_bits_retain(u16::from_ne_bytes([4, 0])),
    };
    assert_eq!(method(2), ForwardingMethod::Tunnel(options));
    assert_eq!(method(0), ForwardingMethod::Masquerade);
    assert_eq!(method(77), ForwardingMethod::Other(77));
}

#[test]
fn statistics_of_64_bits_count_before_those_of_32() {
    let narrow = nested(10, &[attribute(1, &5_u32.to_ne_bytes()), attribute(4, &[1; 8])]);
    let wide = nested(12, &[attribute(1, &(1_u64 << 40).to_ne_bytes()), attribute(11, &[])]);
    let read = |more: &[Vec<u8>]| decode_virtual_server(&listed_service(more)).unwrap().statistics;
    assert_eq!(read(&[wide.clone(), narrow.clone()]).connections, 1 << 40);
    assert_eq!(read(&[narrow.clone(), wide]).connections, 1 << 40);
    let old = read(&[narrow]);
    assert_eq!((old.connections, old.incoming_bytes), (5, 0x0101_0101_0101_0101));
    assert_eq!(read(&[]), Statistics::default());
}

#[test]
fn what_is_unknown_is_kept_or_passed_over() {
    let bytes = listed_service(&[
        attribute(99, b"from the future"),
        attribute(2, &50_u16.to_ne_bytes()),
        attribute(6, b"novel\0"),
        attribute(7, &[0x42, 1, 0, 0, 255, 255, 255, 255]),
    ]);
    let decoded = decode_virtual_server(&bytes).unwrap();
    assert!(decoded.hashed);
    assert_eq!(decoded.server.flags, Flags::from_bits_retain(u32::from_ne_bytes([0x40, 1, 0, 0])));
    assert_eq!(decoded.server.scheduler.as_str(), "novel");
    assert!(matches!(decoded.server.id, VirtualServerId::Address { protocol: Protocol(50), .. }));
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let text = |bytes: &[u8]| decode_virtual_server(bytes).unwrap_err().to_string();
    assert_eq!(text(&[1, 1]), "virtual server: shorter than the generic netlink header");
    assert_eq!(text(&[1, 1, 0, 0]), "virtual server: the attribute that holds it is missing");
    assert_eq!(
        text(&message(1, &[nested(1, &[attribute(1, &[2, 0])])])),
        "virtual server: its protocol is missing"
    );
    assert_eq!(
        text(&listed_service(&[attribute(1, &99_u16.to_ne_bytes())])),
        "virtual server: address family 99"
    );
    assert_eq!(
        text(&listed_service(&[attribute(6, b"sixteen-letters-\0")])),
        "name: the scheduler `sixteen-letters-` must have 1 to 15 bytes, none of them zero"
    );
    assert_eq!(
        text(&listed_service(&[attribute(5, &[0; 4])])),
        "virtual server: its firewall mark is zero"
    );
}

fn refused(request: &Request<'_>, errno: i32) -> Error {
    Error::request(&encoded(request), Refusal::new(errno).into())
}

#[test]
fn an_error_says_what_was_tried_the_answer_and_what_to_do() {
    let real_server = RealServer::new([10, 0, 0, 1], 80);
    assert_eq!(
        refused(&Request::NewDestination(&web(), &real_server), 3).to_string(),
        "add real server 10.0.0.1:80 to TCP 10.96.0.1:80: No such process (os error 3): \
         there is no such virtual server"
    );
    let mut server = VirtualServer::new(web(), Scheduler::new("fancy").unwrap());
    assert_eq!(
        refused(&Request::NewService(&server), 2).to_string(),
        "add virtual server TCP 10.96.0.1:80: No such file or directory (os error 2): the kernel \
         has no scheduler `fancy`: load module ip_vs_fancy"
    );
    server.persistence_engine = PersistenceEngine::new("sip").ok();
    assert!(refused(&Request::SetService(&server), 2).to_string().ends_with("ip_vs_pe_sip"));
    // Its text is the C library's: musl says `I/O error`, glibc `Input/output error`.
    let other = refused(&Request::DeleteDestination(&web(), "[fd00::1]:80".parse().unwrap()), 5);
    let answer = std::io::Error::from_raw_os_error(5);
    assert_eq!(
        other.to_string(),
        format!("delete real server [fd00::1]:80 from TCP 10.96.0.1:80: {answer}")
    );
    assert_eq!(
        refused(&Request::Flush, 1).to_string(),
        "delete every virtual server: Operation not permitted (os error 1): \
         CAP_NET_ADMIN in the initial user namespace is needed"
    );
    assert_eq!(
        refused(&Request::DeleteDaemon(SyncRole::Master), 3).to_string(),
        "stop a sync daemon: No such process (os error 3): no such daemon runs"
    );
}

#[test]
fn an_error_is_asked_for_its_kind() {
    let error = |errno| refused(&Request::DeleteService(&web()), errno);
    assert!(error(17).is_exists() && !error(3).is_exists());
    assert!(error(3).is_no_such_service() && error(3).is_not_found());
    assert!(!error(2).is_no_such_service() && !error(2).is_unsupported());
    let address = "10.0.0.1:80".parse().unwrap();
    let deletion = |errno| refused(&Request::DeleteDestination(&web(), address), errno);
    assert!(deletion(2).is_not_found() && !deletion(2).is_no_such_service());
    assert!(deletion(3).is_not_found() && deletion(3).is_no_such_service());
    let server = VirtualServer::new(web(), Scheduler::ROUND_ROBIN);
    for request in [Request::NewService(&server), Request::SetService(&server)] {
        assert!(
            refused(&request, 2).is_unknown_scheduler() && !refused(&request, 2).is_not_found()
        );
        assert!(!refused(&request, 3).is_unknown_scheduler());
    }
    assert!(!deletion(2).is_unknown_scheduler());
    let stopped = refused(&Request::DeleteDaemon(SyncRole::Master), 3);
    assert!(stopped.is_not_found() && !stopped.is_no_such_service());
    assert!(error(1).is_permission() && error(13).is_permission());
    assert!([22, 34, 97].into_iter().all(|errno| error(errno).is_invalid()));
    assert!(!error(12).is_invalid());
    assert_eq!(error(12).raw_os_error(), Some(12));
    let missing = Error::open(Refusal::new(2).into());
    assert!(missing.is_unsupported() && !missing.is_not_found());
    assert!(missing.to_string().contains("modprobe ip_vs"));
    assert!(!Error::open(Refusal::new(1).into()).is_unsupported());
}

/// Every decoder on the same bytes; what counts is that each returns.
fn decode_all(bytes: &[u8]) {
    let _ = decode_service_entries(bytes);
    let family = AddressFamily::Ipv4;
    let _results = (
        decode_virtual_server(bytes),
        decode_real_server(bytes, family),
        decode_sync_daemon(bytes),
        decode_info(bytes),
        decode_timeouts(bytes),
        Description::of(bytes).to_string(),
    );
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(bytes: Vec<u8>) {
        decode_all(&bytes);
        decode_all(&message(1, &[attribute(1, &bytes), attribute(2, &bytes), attribute(3, &bytes)]));
    }

    #[test]
    fn no_changed_byte_makes_a_decoder_panic(place in 0_usize..150, byte: u8) {
        for mut bytes in [
            listed_service(&[nested(10, &[attribute(1, &[0; 4])])]),
            listed_destination(2, &[10; 16], &[nested(12, &[attribute(1, &[0; 8])])]),
        ] {
            let place = place % bytes.len();
            bytes[place] = byte;
            decode_all(&bytes);
        }
    }

    #[test]
    fn a_virtual_server_survives_the_round_trip(
        address: std::net::IpAddr,
        protocol: u16,
        port: u16,
        scheduler in "[a-z_]{1,15}",
        engine in proptest::option::of("[a-z]{1,15}"),
        flags: u32,
        persistence_timeout: u32,
        prefix in 0_u8..=32,
    ) {
        let server = VirtualServer {
            id: VirtualServerId::Address { protocol: Protocol(protocol), address, port },
            scheduler: Scheduler::new(&scheduler).unwrap(),
            flags: Flags::from_bits_retain(flags).difference(Flags::HASHED),
            persistence_timeout,
            netmask: Netmask::Prefix(prefix),
            persistence_engine: engine.and_then(|name| PersistenceEngine::new(&name).ok()),
        };
        let decoded = decode_virtual_server(&encoded(&Request::SetService(&server))).unwrap();
        prop_assert_eq!(decoded.server, server);
    }
}
