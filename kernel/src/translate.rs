//! The planner's words and those of the `ipvs` and `ipset` crates, both ways.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use plan::actual::{ActualRealServer, ActualSet, ActualVirtualServer, ListedVirtualServer};
use plan::capacity::{Capacity, SetSize};
use plan::hash::HashSet;
use plan::kernel_objects::{Deadline, Entry, Frontend, RealServer, VirtualServer};
use plan::model::{Family, Protocol};
use plan::scheduler::SchedulerName;
use plan::sets::{SetId, SetType};

/// The scheduler's own flags; the others have a meaning for every scheduler.
const SCHEDULER_FLAGS: ipvs::Flags =
    ipvs::Flags::SCHEDULER_1.union(ipvs::Flags::SCHEDULER_2).union(ipvs::Flags::SCHEDULER_3);

/// Mark that distinguishes a deadline in an upper threshold from another program's threshold: no
/// operator means a thousand million connections. With the deadline added it stays within what
/// `ipvsadm` restores, `i32::MAX`.
const DEADLINE_MARK: u32 = 1 << 30;

// === IPVS ===

pub fn virtual_server_id(frontend: &Frontend) -> ipvs::VirtualServerId {
    let protocol = match frontend.protocol {
        Protocol::Tcp => ipvs::Protocol::TCP,
        Protocol::Udp => ipvs::Protocol::UDP,
        Protocol::Sctp => ipvs::Protocol::SCTP,
    };
    ipvs::VirtualServerId::Address { protocol, address: frontend.address, port: frontend.port }
}

/// `None` for a virtual server that can never be ours: by firewall mark, or of another protocol.
pub(crate) fn frontend(id: &ipvs::VirtualServerId) -> Option<Frontend> {
    let ipvs::VirtualServerId::Address { protocol, address, port } = *id else { return None };
    let protocol = match protocol {
        ipvs::Protocol::TCP => Protocol::Tcp,
        ipvs::Protocol::UDP => Protocol::Udp,
        ipvs::Protocol::SCTP => Protocol::Sctp,
        _ => return None,
    };
    Some(Frontend { address, protocol, port })
}

pub(super) fn virtual_server(
    frontend: &Frontend,
    server: &VirtualServer,
) -> Result<ipvs::VirtualServer, ipvs::ParseError> {
    let scheduler = ipvs::Scheduler::new(server.scheduler.as_str())?;
    let mut wanted = ipvs::VirtualServer::new(virtual_server_id(frontend), scheduler);
    wanted.flags |= ipvs::Flags::from_bits_retain(server.scheduler_flags);
    Ok(match server.persistence {
        Some(seconds) => wanted.with_persistence(seconds),
        None => wanted,
    })
}

pub(super) fn actual_virtual_server(
    server: Option<VirtualServer>,
    real_servers: &[ipvs::RealServerStatus],
) -> ActualVirtualServer {
    ActualVirtualServer {
        server,
        real_servers: real_servers.iter().map(actual_real_server).collect(),
    }
}

/// `None` as for [`frontend`].
pub(super) fn listed(found: &ipvs::VirtualServer) -> Option<ListedVirtualServer> {
    Some(ListedVirtualServer { frontend: frontend(&found.id)?, server: in_our_words(found) })
}

/// `None` if the kernel has it in a way that we never ask for.
pub(super) fn in_our_words(found: &ipvs::VirtualServer) -> Option<VirtualServer> {
    let server = VirtualServer {
        scheduler: SchedulerName::new(found.scheduler.as_str()).ok()?,
        persistence: found
            .flags
            .contains(ipvs::Flags::PERSISTENT)
            .then_some(found.persistence_timeout),
        scheduler_flags: found.flags.bits() & SCHEDULER_FLAGS.bits(),
    };
    let asked_for = virtual_server(&frontend(&found.id)?, &server).ok()?;
    asked_for.is_same_configuration(found).then_some(server)
}

pub(super) fn real_server(server: &RealServer) -> ipvs::RealServer {
    ipvs::RealServer::new(server.address, server.port).with_weight(server.weight)
}

/// The upper threshold holds the deadline. A draining real server has no other use for it: the
/// kernel compares it with the number of connections to keep new ones away (`ip_vs_bind_dest` in
/// net/netfilter/ipvs/ip_vs_conn.c), which weight 0 does already; and 0, which is written when the
/// weight comes back, ends an overload (`__ip_vs_update_dest` in ip_vs_ctl.c).
pub(super) fn draining_real_server(server: SocketAddr, deadline: Deadline) -> ipvs::RealServer {
    ipvs::RealServer::new(server.ip(), server.port())
        .with_weight(0)
        .with_upper_threshold(DEADLINE_MARK + deadline.second())
}

fn deadline(found: &ipvs::RealServer) -> Option<Deadline> {
    let second = found.upper_threshold.checked_sub(DEADLINE_MARK).map(u64::from);
    let deadline = second.map(Deadline::at).filter(|_| found.weight == 0)?;
    (draining_real_server(found.socket_address(), deadline) == *found).then_some(deadline)
}

fn actual_real_server(found: &ipvs::RealServerStatus) -> (SocketAddr, ActualRealServer) {
    let socket = found.server.socket_address();
    let asked_for =
        RealServer { address: socket.ip(), port: socket.port(), weight: found.server.weight };
    let deadline = deadline(&found.server);
    let actual = ActualRealServer {
        weight: found.server.weight,
        plain: deadline.is_some() || real_server(&asked_for) == found.server,
        deadline,
        connections: u64::from(found.active_connections) + u64::from(found.inactive_connections),
    };
    (socket, actual)
}

// === ipset ===

/// The table's names are known to be valid, as a test of it shows.
pub(super) fn set_name(set: SetId) -> Result<ipset::Name, ipset::ParseError> {
    ipset::Name::new(set.name())
}

pub(super) fn set_spec(set: SetId, size: SetSize) -> ipset::SetSpec {
    let options = ipset::SetOptions::default();
    let options = match set.set_type() {
        SetType::BitmapPort => options.with_ports(0..=u16::MAX),
        _ => options.with_hash_size(hash_size(size)).with_max_elements(size.capacity.entries()),
    };
    let (set_type, family) = set_kind(set);
    ipset::SetSpec::new(set_type, family).with_options(options)
}

/// One bucket for each entry that is expected, and no fewer than kube-proxy and the kernel have by
/// default. The kernel doubles them, copies all entries and waits for every processor when a
/// bucket that has twelve is to have one more (`mtype_add` and `mtype_resize` in
/// net/netfilter/ipset/ip_set_hash_gen.h). With at most two entries a bucket on average that does
/// not happen while a set of a million is filled. A bucket without entries costs a pointer.
pub(super) fn hash_size(size: SetSize) -> u32 {
    const LEAST: u32 = 1_024;
    let buckets = size.expected.checked_next_power_of_two().map(u32::try_from);
    let most = size.capacity.entries().max(LEAST);
    buckets.and_then(Result::ok).unwrap_or(most).clamp(LEAST, most)
}

fn set_kind(set: SetId) -> (ipset::SetType, ipset::Family) {
    let set_type = match set.set_type() {
        SetType::HashAddress => ipset::SetType::HashIp,
        SetType::HashAddressPort => ipset::SetType::HashIpPort,
        SetType::HashAddressPortAddress => ipset::SetType::HashIpPortIp,
        SetType::HashAddressPortNet => ipset::SetType::HashIpPortNet,
        SetType::BitmapPort => ipset::SetType::BitmapPort,
    };
    let family = match (set.set_type(), set.family) {
        (SetType::BitmapPort, _) => ipset::Family::Unspecified,
        (_, Family::V4) => ipset::Family::Ipv4,
        (_, Family::V6) => ipset::Family::Ipv6,
    };
    (set_type, family)
}

/// True if a set that is there can hold what ours is to hold.
pub(super) fn is_same_kind(set: SetId, found: &ipset::Identity) -> bool {
    let (set_type, family) = set_kind(set);
    found.set_type == set_type && (family == ipset::Family::Unspecified || found.family == family)
}

pub(super) fn actual_set(found: &ipset::Set) -> ActualSet {
    let (mut entries, mut n_unknown) = (HashSet::default(), found.undecoded);
    for listed in &found.entries {
        match actual_entry(&listed.entry) {
            Some(entry) => drop(entries.insert(entry)),
            None => n_unknown += 1,
        }
    }
    let capacity = found.header.options.max_elements.map_or(Capacity::FIRST, Capacity::new);
    ActualSet { entries, n_unknown, capacity }
}

pub(super) fn entry(entry: &Entry) -> ipset::Entry {
    let protocol = |frontend: &Frontend| match frontend.protocol {
        Protocol::Tcp => ipset::Protocol::TCP,
        Protocol::Udp => ipset::Protocol::UDP,
        Protocol::Sctp => ipset::Protocol::SCTP,
    };
    match entry {
        Entry::Address(address) => ipset::Entry::Ip(*address),
        Entry::AddressPort(frontend) => ipset::Entry::IpPort {
            address: frontend.address,
            protocol: protocol(frontend),
            port: frontend.port,
        },
        Entry::AddressPortAddress(frontend, second) => ipset::Entry::IpPortIp {
            address: frontend.address,
            protocol: protocol(frontend),
            port: frontend.port,
            second: *second,
        },
        Entry::AddressPortNet(frontend, net) => ipset::Entry::IpPortNet {
            address: frontend.address,
            protocol: protocol(frontend),
            port: frontend.port,
            network: ipset::Network::new(net.addr(), net.prefix_len())
                .unwrap_or(ipset::Network::host(net.addr())),
        },
        Entry::Port(port) => ipset::Entry::Port(*port),
    }
}

/// `None` for an entry of a protocol that we never write.
pub(super) fn actual_entry(found: &ipset::Entry) -> Option<Entry> {
    let frontend = |address: IpAddr, protocol: ipset::Protocol, port: u16| {
        let protocol = match protocol {
            ipset::Protocol::TCP => Protocol::Tcp,
            ipset::Protocol::UDP => Protocol::Udp,
            ipset::Protocol::SCTP => Protocol::Sctp,
            _ => return None,
        };
        Some(Frontend { address, protocol, port })
    };
    Some(match *found {
        ipset::Entry::Ip(address) => Entry::Address(address),
        ipset::Entry::IpPort { address, protocol, port } => {
            Entry::AddressPort(frontend(address, protocol, port)?)
        }
        ipset::Entry::IpPortIp { address, protocol, port, second } => {
            Entry::AddressPortAddress(frontend(address, protocol, port)?, second)
        }
        ipset::Entry::IpPortNet { address, protocol, port, network } => {
            let net = IpNet::new(network.address(), network.prefix_length()).ok()?;
            Entry::AddressPortNet(frontend(address, protocol, port)?, net)
        }
        ipset::Entry::Port(port) => Entry::Port(port),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use plan::scheduler::SCHEDULERS;

    use super::*;

    fn mk_frontend(protocol: Protocol) -> Frontend {
        Frontend { address: "fd00:96::1".parse().unwrap(), protocol, port: 443 }
    }

    #[test]
    fn entries_come_back_as_they_went() {
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            let frontend = mk_frontend(protocol);
            let entries = [
                Entry::Address(frontend.address),
                Entry::AddressPort(frontend),
                Entry::AddressPortAddress(frontend, "fd00::2".parse().unwrap()),
                Entry::AddressPortNet(frontend, "fd00::/64".parse().unwrap()),
                Entry::Port(30_080),
            ];
            for wanted in entries {
                assert_eq!(actual_entry(&entry(&wanted)), Some(wanted));
                assert_eq!(entry(&wanted).to_string(), wanted.to_string());
            }
        }
    }

    #[test]
    fn virtual_servers_come_back_as_they_went() {
        let frontend = mk_frontend(Protocol::Sctp);
        for (scheduler, persistence, scheduler_flags) in
            [("rr", None, 0), ("mh", None, 0x10), ("wlc", Some(10_800), 0)]
        {
            let scheduler = SchedulerName::new(scheduler).unwrap();
            let wanted = VirtualServer { scheduler, persistence, scheduler_flags };
            let there = virtual_server(&frontend, &wanted).unwrap();
            assert_eq!(in_our_words(&there), Some(wanted));
            assert_eq!(super::frontend(&there.id), Some(frontend));
        }
    }

    #[test]
    fn the_planners_flags_of_schedulers_are_the_librarys() {
        let flags = SCHEDULERS.iter().flat_map(|scheduler| scheduler.flags);
        let of_planner: Vec<_> = flags.map(|flag| (flag.name, flag.bit)).collect();
        let of_library = [
            ("sh-fallback", ipvs::Flags::SH_FALLBACK),
            ("sh-port", ipvs::Flags::SH_PORT),
            ("mh-fallback", ipvs::Flags::MH_FALLBACK),
            ("mh-port", ipvs::Flags::MH_PORT),
        ];
        assert_eq!(of_planner, of_library.map(|(name, flag)| (name, flag.bits())));
    }

    fn found(server: ipvs::RealServer) -> ActualRealServer {
        let mut status = ipvs::RealServerStatus::new(server);
        status.active_connections = 2;
        status.inactive_connections = 1;
        status.persistent_connections = 7;
        actual_real_server(&status).1
    }

    #[test]
    fn a_deadline_comes_back_as_it_went_and_nothing_else_is_one() {
        let socket = SocketAddr::from(([10, 244, 0, 1], 8_080));
        for second in [0, 1, 90_000, u64::from(Deadline::LAST.second()), u64::MAX] {
            let deadline = Deadline::at(second);
            let draining = draining_real_server(socket, deadline);
            assert!(i32::try_from(draining.upper_threshold).is_ok());
            let expected = ActualRealServer {
                weight: 0,
                plain: true,
                deadline: Some(deadline),
                connections: 3,
            };
            assert_eq!(found(draining), expected);
        }
        let foreign = |change: fn(&mut ipvs::RealServer)| {
            let mut server = draining_real_server(socket, Deadline::at(90_000));
            change(&mut server);
            let found = found(server);
            (found.plain, found.deadline)
        };
        assert_eq!(foreign(|server| server.weight = 1), (false, None));
        assert_eq!(foreign(|server| server.upper_threshold = 1_000), (false, None));
        assert_eq!(foreign(|server| server.upper_threshold = u32::MAX), (false, None));
        assert_eq!(foreign(|server| server.lower_threshold = 1), (false, None));
        assert_eq!(
            foreign(|server| server.forwarding = ipvs::ForwardingMethod::DirectRoute),
            (false, None)
        );
        assert_eq!(foreign(|server| server.upper_threshold = 0), (true, None));
    }

    #[test]
    fn what_we_never_ask_for_has_no_words() {
        let server = VirtualServer {
            scheduler: SchedulerName::default(),
            persistence: None,
            scheduler_flags: 0,
        };
        let mut found = virtual_server(&mk_frontend(Protocol::Udp), &server).unwrap();
        found.flags |= ipvs::Flags::ONE_PACKET;
        assert_eq!(in_our_words(&found), None);
    }

    #[test]
    fn every_set_is_of_its_own_kind() {
        for set in Family::BOTH.into_iter().flat_map(SetId::all) {
            let spec = set_spec(set, SetSize::of_new(set, 0));
            assert_eq!(spec.set_type.as_bytes(), set.set_type().name().as_bytes());
        }
    }
}
