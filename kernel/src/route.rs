//! Local routes of ours, over rtnetlink.
//!
//! The ownership marker of our routes is their protocol number, which the kernel only stores
//! (`ip route show table local proto 107`). They are on the loopback interface, which IPVS needs up
//! anyway. On `kube-ipvs0`, those of IPv4 would go when its last address goes (`fib_inetaddr_event` in
//! net/ipv4/fib_frontend.c), and the kernel takes routes of IPv6 only for an interface that is up
//! (`fib6_nh_init` in net/ipv6/route.c), which ours is not.
//!
//! Each route to a network has a routing rule of ours as well if other programs' rules come before that of
//! the table `local`: see `routing_rule`.
//!
//! Source: include/uapi/linux/rtnetlink.h.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink::{Batch, DecodeError, Error, Protocol, Socket, attributes};
use plan::hash::HashSet;
use plan::model::Family;
use plan::routes::RouteOp;
use tracing::warn;

use super::family::{AF_INET, AF_INET6, number};
use super::routing_rule::{self, PROTOCOL, RT_TABLE_LOCAL, RoutingRule, RuleBatch, is_nothing};

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
const RT_SCOPE_HOST: u8 = 254;
const RTN_LOCAL: u8 = 2;
/// `LOOPBACK_IFINDEX` (include/net/flow.h): its index in every network namespace.
const LOOPBACK: u32 = 1;
/// `struct rtmsg`: family, length of the destination, length of the source, type of service, table,
/// protocol, scope, type, flags (u32).
const HEADER: usize = 12;

/// rtnetlink, in the network namespace it was opened in.
#[derive(Debug)]
pub struct Routes {
    socket: Socket,
}

/// Networks with a local route or a routing rule of ours.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OurRoutes {
    /// All of them.
    pub all: HashSet<IpNet>,
    /// Those that lack the route, or the rule although other programs' rules come first.
    pub(crate) incomplete: HashSet<IpNet>,
}

/// Routes to add or remove, in order, in one batch.
#[derive(Debug, Default)]
pub(crate) struct RouteBatch {
    batch: Batch,
    /// The network of each, and whether it is added.
    networks: Vec<(IpNet, bool)>,
}

impl Routes {
    pub fn open() -> Result<Self, Error> {
        let mut socket = Socket::open(Protocol::Route)?;
        // Without it, the kernel lists every route there is, which are then passed over.
        let _everything = socket.list_strictly();
        Ok(Self { socket })
    }

    /// Our routes of both families.
    pub fn ours(&mut self) -> Result<OurRoutes, Error> {
        let routed: HashSet<IpNet> = self.routed()?.into_iter().collect();
        let (mut all, mut incomplete) = (routed.clone(), HashSet::default());
        for family in Family::BOTH {
            let rules = routing_rule::list(&mut self.socket, family)?;
            let ruled = ruled(&rules);
            incomplete.extend(ruled.difference(&routed));
            if routing_rule::before_local(&rules).is_some() {
                let is_of_family = |it: &&IpNet| Family::of_net(it) == family;
                let unruled = routed.difference(&ruled).filter(is_of_family);
                incomplete.extend(unruled.filter(|it| needs_rule(it)));
            }
            all.extend(ruled);
        }
        Ok(OurRoutes { all, incomplete })
    }

    fn routed(&mut self) -> Result<Vec<IpNet>, Error> {
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

    /// Carries a batch out, with the routing rules that belong to its routes, and returns a result for
    /// each of its routes.
    pub(crate) fn send(&mut self, batch: &RouteBatch) -> Result<Vec<Result<(), Error>>, Error> {
        let mut results = self.socket.send(&batch.batch)?;
        let (rules, places) = self.rules_of(batch)?;
        for (place, sent) in places.into_iter().zip(self.socket.send(rules.batch())?) {
            if let (Err(error), Some(result)) = (sent, results.get_mut(place))
                && let Some((network, is_added)) = batch.networks.get(place)
            {
                let verb = if *is_added { "add" } else { "remove" };
                warn!(
                    "cannot {verb} the routing rule to {network} for its local route: {error}; \
                     kube-ipvs retries both"
                );
                *result = Err(error);
            }
        }
        Ok(results)
    }

    /// Returns the routing rules that are to be added or removed with routes, and the place of each one's
    /// route in the batch.
    fn rules_of(&mut self, batch: &RouteBatch) -> Result<(RuleBatch, Vec<usize>), Error> {
        let (mut rules, mut places) = (RuleBatch::default(), Vec::new());
        for family in Family::BOTH {
            let each = batch.networks.iter().enumerate();
            let with_rules: Vec<(usize, IpNet, bool)> = each
                .map(|(place, (network, is_added))| (place, *network, *is_added))
                .filter(|(_, it, _)| Family::of_net(it) == family && needs_rule(it))
                .collect();
            if with_rules.is_empty() {
                continue;
            }
            let found = routing_rule::list(&mut self.socket, family)?;
            let (ruled, is_needed) = (ruled(&found), routing_rule::before_local(&found).is_some());
            for (place, network, is_added) in with_rules {
                match (is_added, ruled.contains(&network)) {
                    (true, false) if is_needed => rules.add(network),
                    (false, true) => rules.remove(network),
                    _ => continue,
                }
                places.push(place);
            }
        }
        Ok((rules, places))
    }

    pub(crate) fn traffic(&self) -> netlink::Traffic {
        self.socket.traffic()
    }
}

impl RouteBatch {
    /// A removal is of a route of ours, on whichever interface.
    pub(crate) fn push(&mut self, op: &RouteOp) {
        let network = op.network();
        let (request, flags, added) = match op {
            RouteOp::Add(route) => (RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, Some(route)),
            RouteOp::Remove(_) => (RTM_DELROUTE, 0, None),
        };
        let family = number(Family::of_net(&network));
        self.networks.push((network, added.is_some()));
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
            if let Some(route) = added {
                attributes.u32(RTA_OIF, LOOPBACK);
                if let Some(source) = route.source {
                    attributes.address(RTA_PREFSRC, source);
                }
            }
        });
    }
}

/// The networks of our routing rules.
fn ruled(rules: &[RoutingRule]) -> HashSet<IpNet> {
    rules.iter().filter_map(|rule| rule.ours).collect()
}

/// True if a route to a network has a routing rule. Those to single addresses are of modes without IPVS.
fn needs_rule(network: &IpNet) -> bool {
    network.prefix_len() < network.max_prefix_len()
}

/// True if a notification is about a route of ours.
pub(super) fn is_ours(body: &[u8]) -> bool {
    matches!(decode_route(body), Ok(Some(_)))
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

#[cfg(test)]
mod tests {
    use plan::routes::LocalRoute;

    use super::*;

    #[test]
    fn a_route_request_is_what_the_header_file_says() {
        let mut batch = RouteBatch::default();
        let network = "10.96.0.0/12".parse().unwrap();
        batch.push(&RouteOp::Add(LocalRoute::to(network)));
        batch.push(&RouteOp::Remove(network));
        assert_eq!(
            batch.batch.body(0).unwrap(),
            [
                2, 12, 0, 0, 255, 107, 254, 2, 0, 0, 0, 0, // struct rtmsg
                8, 0, 1, 0, 10, 96, 0, 0, // RTA_DST
                8, 0, 4, 0, 1, 0, 0, 0, // RTA_OIF
            ]
        );
        assert_eq!(batch.batch.body(1).unwrap().len(), HEADER + 8, "on whichever interface");
        let network = "10.96.0.10/32".parse().unwrap();
        let source = Some([192, 168, 0, 11].into());
        batch.push(&RouteOp::Add(LocalRoute { network, source }));
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
            batch.push(&RouteOp::Add(LocalRoute::to(network)));
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
        }
    }

    #[test]
    fn this_machine_has_no_route_of_ours() {
        assert_eq!(Routes::open().unwrap().ours().unwrap(), OurRoutes::default());
    }
}
