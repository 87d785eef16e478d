//! Messages recorded between `ipvsadm` and real kernels: ours must mean the same both ways.
//! Source of the recordings: `tests/captures/README.md`.

use std::collections::BTreeMap;

use netlink::attributes;

use super::encoded;
use crate::codec::*;
use crate::*;

const KERNELS: [(&str, &str); 3] = [
    ("5.10", include_str!("../../../tests/captures/5.10.hex")),
    ("6.1", include_str!("../../../tests/captures/6.1.hex")),
    ("6.12", include_str!("../../../tests/captures/6.12.hex")),
];

/// The messages of one command, in order, with their headers.
struct Session {
    messages: Vec<(Direction, Vec<u8>)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    ToKernel,
    FromKernel,
}

impl Session {
    fn of(capture: &str, command: &str) -> Self {
        Self::nth(capture, command, 0)
    }

    /// Returns one session of a command that was run more than once.
    fn nth(capture: &str, command: &str, index: usize) -> Self {
        let start = format!("$ {command}\n");
        let text = capture.split("\n\n").filter_map(|part| part.strip_prefix(&start)).nth(index);
        let mut messages = Vec::new();
        for line in text.unwrap_or_else(|| panic!("`{command}` was not recorded")).lines() {
            let direction = match line.as_bytes()[0] {
                b'>' => Direction::ToKernel,
                b'<' => Direction::FromKernel,
                _ => continue,
            };
            let mut rest = bytes(&line[2..]);
            while !rest.is_empty() {
                let length = u32::from_le_bytes(rest[..4].try_into().unwrap()) as usize;
                let after = rest.split_off(length.next_multiple_of(4).min(rest.len()));
                rest.truncate(length);
                messages.push((direction, std::mem::replace(&mut rest, after)));
            }
        }
        Self { messages }
    }

    /// The bodies that have a command, which is the first byte.
    fn bodies(&self, direction: Direction, command: u8) -> Vec<&[u8]> {
        self.messages
            .iter()
            .filter(|(d, message)| *d == direction && message[16] == command)
            .map(|(_, message)| &message[16..])
            .collect()
    }

    /// The last message to the kernel: the ones before it ask for the version.
    fn request(&self) -> &[u8] {
        let request = self.messages.iter().rfind(|(d, _)| *d == Direction::ToKernel);
        &request.expect("something was asked").1[16..]
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// The captures come from little-endian machines.
fn on_such_a_machine() -> bool {
    cfg!(target_endian = "little")
}

fn mark(family: AddressFamily, number: u32) -> VirtualServerId {
    let mark = std::num::NonZeroU32::new(number).unwrap();
    VirtualServerId::FirewallMark { family, mark }
}

fn web() -> VirtualServer {
    VirtualServer::new(VirtualServerId::tcp([10, 96, 0, 1], 80), Scheduler::WEIGHTED_ROUND_ROBIN)
}

fn web_real_servers() -> [RealServer; 2] {
    [
        RealServer { weight: 3, ..RealServer::new([10, 0, 0, 1], 8080) },
        RealServer {
            forwarding: ForwardingMethod::DirectRoute,
            weight: 7,
            upper_threshold: 200,
            lower_threshold: 60,
            ..RealServer::new([10, 0, 0, 2], 80)
        },
    ]
}

fn secure() -> VirtualServer {
    let address: std::net::Ipv6Addr = "fd00::1".parse().unwrap();
    let id = VirtualServerId::tcp(address, 443);
    let mut server = VirtualServer::new(id, Scheduler::MAGLEV_HASHING).with_persistence(60);
    server.flags |= Flags::MH_PORT;
    server.netmask = Netmask::Prefix(64);
    server
}

fn secure_real_server() -> RealServer {
    let address: std::net::Ipv6Addr = "fd00::a".parse().unwrap();
    RealServer::new(address, 8443)
}

fn names() -> VirtualServer {
    let id = VirtualServerId::udp([10, 96, 0, 10], 53);
    VirtualServer { flags: Flags::ONE_PACKET, ..VirtualServer::new(id, Scheduler::ROUND_ROBIN) }
}

fn streams() -> VirtualServer {
    let id = VirtualServerId::sctp([10, 96, 0, 11], 9999);
    let mut server = VirtualServer::new(id, Scheduler::SOURCE_HASHING).with_persistence(300);
    server.flags |= Flags::SH_FALLBACK | Flags::SH_PORT;
    server.netmask = Netmask::Prefix(24);
    server
}

fn calls() -> VirtualServer {
    let id = VirtualServerId::udp([10, 96, 0, 12], 5060);
    let mut server = VirtualServer::new(id, Scheduler::ROUND_ROBIN).with_persistence(90);
    server.persistence_engine = PersistenceEngine::new("sip").ok();
    server
}

fn marked() -> [VirtualServer; 2] {
    [
        VirtualServer::new(mark(AddressFamily::Ipv4, 7), Scheduler::LEAST_CONNECTION),
        VirtualServer::new(mark(AddressFamily::Ipv6, 8), Scheduler::SHORTEST_EXPECTED_DELAY),
    ]
}

fn tunnelled() -> [RealServer; 4] {
    let tunnel = |address: std::net::IpAddr, kind, port, flags| RealServer {
        forwarding: ForwardingMethod::Tunnel(TunnelOptions { kind, port, flags }),
        ..RealServer::new(address, 0)
    };
    let address: std::net::Ipv6Addr = "fd00::6".parse().unwrap();
    [
        tunnel([10, 0, 0, 3].into(), TunnelType::Gue, 6080, TunnelFlags::CHECKSUM),
        tunnel([10, 0, 0, 4].into(), TunnelType::Gre, 0, TunnelFlags::empty()),
        tunnel([10, 0, 0, 5].into(), TunnelType::Ipip, 0, TunnelFlags::empty()),
        tunnel(address.into(), TunnelType::Ipip, 0, TunnelFlags::empty()),
    ]
}

#[test]
fn a_listing_is_what_was_added() {
    assert!(on_such_a_machine());
    let [ipv4_mark, ipv6_mark] = marked();
    let mut expected = [web(), secure(), names(), streams(), ipv4_mark, ipv6_mark];
    expected.sort_by_key(|server| server.id);
    for (kernel, capture) in KERNELS {
        let session = Session::of(capture, "ipvsadm -L -n");
        let mut found: Vec<_> = session
            .bodies(Direction::FromKernel, 1)
            .into_iter()
            .map(|body| decode_virtual_server(body).unwrap())
            .collect();
        assert!(found.iter().all(|listed| listed.hashed), "{kernel}");
        assert!(found.iter().all(|listed| listed.statistics == Statistics::default()), "{kernel}");
        found.sort_by_key(|listed| listed.server.id);
        let found: Vec<_> = found.into_iter().map(|listed| listed.server).collect();
        assert_eq!(found, expected, "{kernel}");

        // ipvsadm asks by virtual server in an order of its own; these answers cannot be mixed up.
        let mut found: Vec<_> = session
            .bodies(Direction::FromKernel, 5)
            .into_iter()
            .map(|body| decode_real_server(body, AddressFamily::Ipv4).unwrap().server)
            .collect();
        let mut expected =
            [&web_real_servers()[..], &tunnelled(), &[secure_real_server()]].concat();
        found.sort_by_key(RealServer::socket_address);
        expected.sort_by_key(RealServer::socket_address);
        assert_eq!(found, expected, "{kernel}");
    }
}

#[test]
fn a_single_answer_is_read() {
    for (kernel, capture) in KERNELS {
        let session = Session::of(capture, "ipvsadm -L -n -u 10.96.0.12:5060");
        let answers = session.bodies(Direction::FromKernel, 1);
        assert_eq!(decode_virtual_server(answers[0]).unwrap().server, calls(), "{kernel}");
        let session = Session::of(capture, "ipvsadm -L -n -t 10.96.0.1:80");
        let answers = session.bodies(Direction::FromKernel, 1);
        let changed = VirtualServer { scheduler: Scheduler::LEAST_CONNECTION, ..web() };
        assert_eq!(decode_virtual_server(answers[0]).unwrap().server, changed, "{kernel}");

        let session = Session::of(capture, "ipvsadm -L -n --timeout");
        let info = decode_info(session.bodies(Direction::FromKernel, 14)[0]).unwrap();
        assert_eq!(info.version.to_string(), "1.2.1", "{kernel}");
        assert_eq!(info.connection_table_size, 4096, "{kernel}");
        let timeouts = decode_timeouts(session.bodies(Direction::FromKernel, 12)[0]).unwrap();
        assert_eq!(timeouts, Timeouts { tcp: 800, tcp_fin: 100, udp: 200 }, "{kernel}");

        let session = Session::of(capture, "ipvsadm -L --daemon");
        let daemon = decode_sync_daemon(session.bodies(Direction::FromKernel, 9)[0]).unwrap();
        let loopback = InterfaceName::new("lo").unwrap();
        let expected = SyncDaemon {
            sync_id: 9,
            datagram_length: 1472,
            group: Some([224, 0, 0, 81].into()),
            port: 8848,
            ttl: 1,
            ..SyncDaemon::new(SyncRole::Master, loopback)
        };
        assert_eq!(daemon, expected, "{kernel}");
    }
}

#[test]
fn our_requests_mean_what_those_of_ipvsadm_mean() {
    let [first, second] = web_real_servers();
    let web = web();
    let before = RealServer { weight: 0, upper_threshold: 100, lower_threshold: 50, ..second };
    let [ipv4_mark, ipv6_mark] = marked();
    let [gue, gre, ipip, ipv6] = tunnelled();
    let other = VirtualServer { scheduler: Scheduler::LEAST_CONNECTION, ..web.clone() };
    let (secure, mark_7) = (secure(), ipv4_mark.id);
    let loopback = InterfaceName::new("lo").unwrap();
    let daemon = SyncDaemon { sync_id: 9, ..SyncDaemon::new(SyncRole::Master, loopback) };
    let timeouts = Timeouts { tcp: 800, tcp_fin: 100, udp: 200 };
    let (names, streams, calls, secure_real_server) =
        (names(), streams(), calls(), secure_real_server());
    #[rustfmt::skip]
    let pairs = [
        ("-A -t 10.96.0.1:80 -s wrr", Request::NewService(&web)),
        ("-a -t 10.96.0.1:80 -r 10.0.0.1:8080 -m -w 3", Request::NewDestination(&web.id, &first)),
        ("-a -t 10.96.0.1:80 -r 10.0.0.2:80 -g -w 0 -x 100 -y 50", Request::NewDestination(&web.id, &before)),
        ("-e -t 10.96.0.1:80 -r 10.0.0.2:80 -g -w 7 -x 200 -y 60", Request::SetDestination(&web.id, &second)),
        ("-A -t [fd00::1]:443 -s mh -p 60 -M 64 -b mh-port", Request::NewService(&secure)),
        ("-a -t [fd00::1]:443 -r [fd00::a]:8443 -m", Request::NewDestination(&secure.id, &secure_real_server)),
        ("-A -u 10.96.0.10:53 -s rr -o", Request::NewService(&names)),
        ("-A --sctp-service 10.96.0.11:9999 -s sh -p 300 -M 255.255.255.0 -b sh-fallback,sh-port", Request::NewService(&streams)),
        ("-A -f 7 -s lc", Request::NewService(&ipv4_mark)),
        ("-A -f 8 -6 -s sed", Request::NewService(&ipv6_mark)),
        ("-a -f 7 -r 10.0.0.3:0 -i --tun-type gue --tun-port 6080 --tun-csum", Request::NewDestination(&mark_7, &gue)),
        ("-a -f 7 -r 10.0.0.4:0 -i --tun-type gre --tun-nocsum", Request::NewDestination(&mark_7, &gre)),
        ("-a -f 7 -r 10.0.0.5:0 -i", Request::NewDestination(&mark_7, &ipip)),
        ("-a -f 7 -r [fd00::6]:0 -i", Request::NewDestination(&mark_7, &ipv6)),
        ("-A -u 10.96.0.12:5060 -s rr -p 90 --pe sip", Request::NewService(&calls)),
        ("-E -t 10.96.0.1:80 -s lc", Request::SetService(&other)),
        ("--set 800 100 200", Request::SetTimeouts(timeouts)),
        ("--start-daemon master --mcast-interface lo --syncid 9", Request::NewDaemon(&daemon)),
        ("--stop-daemon master", Request::DeleteDaemon(SyncRole::Master)),
        ("-Z -t 10.96.0.1:80", Request::ZeroService(&web.id)),
        ("-Z", Request::ZeroAll),
        ("-d -t 10.96.0.1:80 -r 10.0.0.1:8080", Request::DeleteDestination(&web.id, first.socket_address())),
        ("-D -t 10.96.0.1:80", Request::DeleteService(&web.id)),
        ("-C", Request::Flush),
    ];
    for (kernel, capture) in KERNELS {
        for (command, request) in &pairs {
            let session = Session::of(capture, &format!("ipvsadm {command}"));
            assert_eq!(
                meaning(&encoded(request)),
                meaning(session.request()),
                "{kernel}: {command}"
            );
        }
    }
}

#[test]
fn a_refusal_names_what_was_refused() {
    for (kernel, capture) in KERNELS {
        let session = Session::of(capture, "ipvsadm -A -t 10.96.0.2:80 -s no-such");
        assert_eq!(
            refusal(&session).to_string(),
            "add virtual server TCP 10.96.0.2:80: No such file or directory (os error 2): the \
             kernel has no scheduler `no-such`: load module ip_vs_no-such",
            "{kernel}"
        );
        let error = refusal(&Session::nth(capture, "ipvsadm -D -t 10.96.0.1:80", 1));
        assert!(error.is_no_such_service() && error.is_not_found(), "{kernel}");
        assert!(error.to_string().starts_with("delete virtual server TCP 10.96.0.1:80: "));
        let error = refusal(&Session::nth(capture, "ipvsadm --stop-daemon master", 1));
        assert!(error.is_not_found() && !error.is_no_such_service(), "{kernel}");
    }
}

/// The session's last message, which is NLMSG_ERROR: an error number, then the refused request.
fn refusal(session: &Session) -> Error {
    let (_, message) = session.messages.last().unwrap();
    assert_eq!(message[4..6], [2, 0]);
    let errno = -i32::from_le_bytes(message[16..20].try_into().unwrap());
    let mut refusal = netlink::Refusal::new(errno);
    refusal.request = message[20..].to_vec();
    Error::request(&message[36..], refusal.into())
}

/// Returns the parts of a request that the kernel reads, by the attributes' path. They differ from
/// the bytes in what the kernel passes over: the order, `NLA_F_NESTED`, the rest of an IPv4
/// address's 16 bytes, and attributes that ipvsadm sends and the command does not need.
fn meaning(body: &[u8]) -> (u8, BTreeMap<(u16, u16), Vec<u8>>) {
    let (command, mut meaning) = (body[0], BTreeMap::new());
    for outer in attributes(&body[4..]).map(Result::unwrap) {
        if outer.kind > 3 {
            meaning.insert((outer.kind, 0), outer.value.to_vec());
            continue;
        }
        for inner in outer.nested().map(Result::unwrap) {
            meaning.insert((outer.kind, inner.kind), inner.value.to_vec());
        }
    }
    // The identity alone counts, unless something is added or changed.
    meaning.retain(|path, _| match (command, path) {
        (1 | 2 | 5 | 6 | 9, (2 | 3, _)) | (1 | 2, (1, _)) => true,
        (_, (1, kind)) => *kind <= 5,
        (_, (2, kind)) => [1, 2, 11].contains(kind),
        (_, (3, kind)) => *kind == 1,
        _ => true,
    });
    if meaning.get(&(2, 3)).is_some_and(|forwarding| forwarding[0] != 2) {
        meaning.retain(|path, _| !matches!(path, (2, 13..=15)));
    }
    for (family, address) in [((1, 1), (1, 3)), ((2, 11), (2, 1))] {
        if meaning.get(&family).is_some_and(|family| family[0] == 2) {
            meaning.entry(address).and_modify(|address| address.truncate(4));
        }
    }
    (command, meaning)
}
