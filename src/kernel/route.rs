//! Local routes of ours, over rtnetlink.
//!
//! The ownership marker of our routes is their protocol number, which the kernel only stores
//! (`ip route show table local proto 107`). They are on the loopback interface, which IPVS needs up
//! anyway. On `kube-ipvs0`, those of IPv4 would go when its last address goes (`fib_inetaddr_event` in
//! net/ipv4/fib_frontend.c), and the kernel takes routes of IPv6 only for an interface that is up
//! (`fib6_nh_init` in net/ipv6/route.c), which ours is not.
//!
//! And routing rules, which are read.
//!
//! Source: include/uapi/linux/{rtnetlink,fib_rules}.h.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink::{Batch, DecodeError, Error, Protocol, Socket, attributes};
use plan::model::Family;
use rustix::io::Errno;

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const RTM_GETRULE: u16 = 34;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
/// Attributes that say which packets a rule is for: addresses, interface, mark, realms, tunnel,
/// interface that a packet leaves by, master device, users, protocol, ports.
const FRA_SELECTORS: [u16; 11] = [1, 2, 3, 10, 12, 17, 19, 20, 22, 23, 24];
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
const RT_TABLE_LOCAL: u8 = 255;
const RT_SCOPE_HOST: u8 = 254;
const RTN_LOCAL: u8 = 2;
/// Protocol of our routes: none of the header's `RTPROT_…`, nor of iproute2's `rt_protos`.
const PROTOCOL: u8 = 107;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// `LOOPBACK_IFINDEX` (include/net/flow.h): its index in every network namespace.
const LOOPBACK: u32 = 1;
/// `struct rtmsg`: family, length of the destination, length of the source, type of service, table,
/// protocol, scope, type, flags (u32).
const HEADER: usize = 12;

/// The table of local addresses.
pub(crate) const TABLE_LOCAL: u32 = 255;

/// A routing rule (`ip rule`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoutingRule {
    /// Its preference: the lowest comes first.
    pub(crate) preference: u32,
    /// Table that it leads to; 0: none.
    pub(crate) table: u32,
    /// True if it is not for every packet.
    pub(crate) is_selective: bool,
}

/// rtnetlink, in the network namespace it was opened in.
#[derive(Debug)]
pub(crate) struct Routes {
    socket: Socket,
}

/// Routes to add or remove, in order, in one batch.
#[derive(Debug, Default)]
pub(crate) struct RouteBatch {
    batch: Batch,
}

/// Lists the routing rules of a family, in order. A kernel without such rules has none.
pub(crate) fn rules(family: Family) -> Result<Vec<RoutingRule>, Error> {
    let mut socket = Socket::open(Protocol::Route)?;
    let listed = socket.dump(
        RTM_GETRULE,
        |message| {
            message.body().push(number(family));
            message.body().extend_from_slice(&[0; HEADER - 1]);
        },
        |body| decode_rule(number(family), body),
    );
    let mut rules = match listed {
        Err(error) if is_nothing(&error) => Vec::new(),
        result => result?,
    };
    rules.sort_by_key(|rule| rule.preference);
    Ok(rules)
}

// === impl RoutingRule ===

impl RoutingRule {
    /// True if every packet that comes here is looked up in the table of local addresses.
    pub(crate) fn is_plain_local(&self) -> bool {
        self.table == TABLE_LOCAL && !self.is_selective
    }
}

// === impl Routes ===

impl Routes {
    pub(crate) fn open() -> Result<Self, Error> {
        let mut socket = Socket::open(Protocol::Route)?;
        // Without it, the kernel lists every route there is, which are then passed over.
        let _everything = socket.list_strictly();
        Ok(Self { socket })
    }

    /// Our routes of both families.
    pub(crate) fn ours(&mut self) -> Result<Vec<IpNet>, Error> {
        let mut found = Vec::new();
        for family in Family::BOTH {
            let listed = self.socket.dump(
                RTM_GETROUTE,
                |message| {
                    // The kernel chooses by table, protocol and type (`ip_valid_fib_dump_req` in
                    // net/ipv4/fib_frontend.c).
                    let header = [number(family), 0, 0, 0, RT_TABLE_LOCAL, PROTOCOL, 0, RTN_LOCAL];
                    message.body().extend_from_slice(&header);
                    message.body().extend_from_slice(&[0; HEADER - 8]);
                },
                decode_route,
            );
            match listed {
                Ok(routes) => found.extend(routes),
                // A kernel without IPv6, or one that has no such table yet.
                Err(error) if is_nothing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Carries a batch out, and returns a result for each of its routes.
    pub(crate) fn send(&mut self, batch: &RouteBatch) -> Result<Vec<Result<(), Error>>, Error> {
        self.socket.send(&batch.batch)
    }

    pub(crate) fn traffic(&self) -> netlink::Traffic {
        self.socket.traffic()
    }
}

// === impl RouteBatch ===

impl RouteBatch {
    /// Adds a route, or takes over any program's route to the same network.
    pub(crate) fn add(&mut self, network: IpNet) {
        self.push(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, network, Some(LOOPBACK), None);
    }

    /// Adds a route with the source that the node's own connections to its addresses have, or takes
    /// over any program's route to the same network.
    pub(crate) fn add_from(&mut self, network: IpNet, source: IpAddr) {
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.push(RTM_NEWROUTE, flags, network, Some(LOOPBACK), Some(source));
    }

    /// Removes a route of ours, on whichever interface.
    pub(crate) fn remove(&mut self, network: IpNet) {
        self.push(RTM_DELROUTE, 0, network, None, None);
    }

    fn push(
        &mut self,
        request: u16,
        flags: u16,
        network: IpNet,
        interface: Option<u32>,
        source: Option<IpAddr>,
    ) {
        let family = number(Family::of_net(&network));
        self.batch.push(request, flags, |message| {
            message.body().extend_from_slice(&[
                family,
                network.prefix_len(),
                0,
                0,
                RT_TABLE_LOCAL,
                PROTOCOL,
                RT_SCOPE_HOST,
                RTN_LOCAL,
            ]);
            message.body().extend_from_slice(&[0; HEADER - 8]);
            let mut attributes = message.attributes();
            attributes.address(RTA_DST, network.network());
            if let Some(interface) = interface {
                attributes.u32(RTA_OIF, interface);
            }
            if let Some(source) = source {
                attributes.address(RTA_PREFSRC, source);
            }
        });
    }
}

/// True if a notification is about a route of ours.
pub(super) fn is_ours(body: &[u8]) -> bool {
    matches!(decode_route(body), Ok(Some(_)))
}

/// True if a refusal says that there are no routes at all.
fn is_nothing(error: &Error) -> bool {
    [Errno::NOENT, Errno::AFNOSUPPORT, Errno::OPNOTSUPP]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

const fn number(family: Family) -> u8 {
    match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    }
}

/// The network of a local route of ours; others are passed over.
fn decode_route(body: &[u8]) -> Result<Option<IpNet>, DecodeError> {
    let header = body
        .first_chunk::<HEADER>()
        .ok_or_else(|| DecodeError::new("route", "shorter than struct rtmsg"))?;
    let [family, length, _, _, table, protocol, _, kind, ..] = *header;
    if (table, protocol, kind) != (RT_TABLE_LOCAL, PROTOCOL, RTN_LOCAL) {
        return Ok(None);
    }
    for attribute in attributes(body.get(HEADER..).unwrap_or_default()) {
        let attribute = attribute?;
        if attribute.kind == RTA_DST {
            let address: IpAddr = match family {
                AF_INET => attribute.ipv4()?.into(),
                AF_INET6 => attribute.ipv6()?.into(),
                _ => return Ok(None),
            };
            let network = IpNet::new(address, length);
            return network
                .map(Some)
                .map_err(|_| DecodeError::new("route", "longer than its family's addresses"));
        }
    }
    Ok(None)
}

/// A routing rule of a family. `struct fib_rule_hdr`: family, length of the destination, length of the
/// source, type of service, table, two reserved bytes, action, flags (u32).
fn decode_rule(family: u8, body: &[u8]) -> Result<Option<RoutingRule>, DecodeError> {
    let header = body
        .first_chunk::<HEADER>()
        .ok_or_else(|| DecodeError::new("routing rule", "shorter than struct fib_rule_hdr"))?;
    let [of, to, from, service, table, ..] = *header;
    if of != family {
        return Ok(None);
    }
    let mut rule = RoutingRule {
        preference: 0,
        table: table.into(),
        is_selective: (to, from, service) != (0, 0, 0),
    };
    for attribute in attributes(body.get(HEADER..).unwrap_or_default()) {
        let attribute = attribute?;
        match attribute.kind {
            FRA_PRIORITY => rule.preference = attribute.u32()?,
            FRA_TABLE => rule.table = attribute.u32()?,
            kind if FRA_SELECTORS.contains(&kind) => rule.is_selective = true,
            _ => {}
        }
    }
    Ok(Some(rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_request_is_what_the_header_file_says() {
        let mut batch = RouteBatch::default();
        batch.add("10.96.0.0/12".parse().unwrap());
        batch.remove("10.96.0.0/12".parse().unwrap());
        assert_eq!(
            batch.batch.body(0).unwrap(),
            [
                2, 12, 0, 0, 255, 107, 254, 2, 0, 0, 0, 0, // struct rtmsg
                8, 0, 1, 0, 10, 96, 0, 0, // RTA_DST
                8, 0, 4, 0, 1, 0, 0, 0, // RTA_OIF
            ]
        );
        assert_eq!(batch.batch.body(1).unwrap().len(), HEADER + 8, "on whichever interface");
        batch.add_from("10.96.0.10/32".parse().unwrap(), [192, 168, 0, 11].into());
        assert_eq!(
            batch.batch.body(2).unwrap(),
            [
                2, 32, 0, 0, 255, 107, 254, 2, 0, 0, 0, 0, // struct rtmsg
                8, 0, 1, 0, 10, 96, 0, 10, // RTA_DST
                8, 0, 4, 0, 1, 0, 0, 0, // RTA_OIF
                8, 0, 7, 0, 192, 168, 0, 11, // RTA_PREFSRC
            ]
        );
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for network in ["10.96.0.0/12", "fd00:96::/108"].map(|text| text.parse::<IpNet>().unwrap())
        {
            let mut batch = RouteBatch::default();
            batch.add(network);
            let written = batch.batch.body(0).unwrap().to_vec();
            assert_eq!(decode_route(&written).unwrap(), Some(network));
            // Of another table, by another protocol, of another type.
            for (byte, other) in [(4, 254), (5, 2), (7, 1)] {
                let mut foreign = written.clone();
                foreign[byte] = other;
                assert_eq!(decode_route(&foreign).unwrap(), None);
            }
        }
        assert!(decode_route(&[2, 12, 0]).is_err());
    }

    #[test]
    fn a_routing_rule_is_read() {
        let rule = |to: u8, attributes: &[(u16, u32)]| {
            let mut batch = Batch::default();
            batch.push(RTM_GETRULE, 0, |message| {
                message.body().extend_from_slice(&[2, to, 0, 0, 255, 0, 0, 1, 0, 0, 0, 0]);
                let mut writer = message.attributes();
                attributes.iter().for_each(|(kind, value)| writer.u32(*kind, *value));
            });
            decode_rule(2, batch.body(0).unwrap()).unwrap().unwrap()
        };
        let plain = rule(0, &[]);
        assert!(plain.is_plain_local());
        assert_eq!(plain.preference, 0);
        assert!(!rule(12, &[]).is_plain_local());
        let mark = 10;
        assert!(!rule(0, &[(mark, 1)]).is_plain_local());
        let other = rule(0, &[(FRA_PRIORITY, 10), (FRA_TABLE, 2004)]);
        assert_eq!((other.preference, other.table), (10, 2004));
        assert_eq!(decode_rule(10, &[2, 0, 0, 0, 255, 0, 0, 1, 0, 0, 0, 0]), Ok(None));
    }

    #[test]
    fn this_machine_looks_local_addresses_up_first() {
        let rules = rules(Family::V4).unwrap();
        assert!(rules.first().is_some_and(RoutingRule::is_plain_local), "{rules:?}");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            mut body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
            ours in proptest::prelude::any::<bool>(),
        ) {
            if ours && body.len() > 7 {
                (body[4], body[5], body[7]) = (RT_TABLE_LOCAL, PROTOCOL, RTN_LOCAL);
            }
            let _any = decode_route(&body);
            let _any = decode_rule(AF_INET, &body);
        }
    }

    #[test]
    fn this_machine_has_no_route_of_ours() {
        assert_eq!(Routes::open().unwrap().ours().unwrap(), []);
    }
}
