//! Routing rules (`ip rule`), over rtnetlink.
//!
//! The kernel looks a packet up in the table `local` first, unless another program's rule comes before that
//! table's: Amazon's network plugin does that for pods with security groups of their own. What such a rule
//! leads elsewhere never meets IPVS. So each route of ours to a network has a rule then, which looks that
//! network up in the table `local` before all others. A network that is not local goes on to the next rule.
//!
//! Source: include/uapi/linux/{rtnetlink,fib_rules}.h.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink::{Batch, DecodeError, Error, Socket, attributes};
use plan::model::Family;
use rustix::io::Errno;

use super::family::{AF_INET, AF_INET6, number};

pub(super) const RT_TABLE_LOCAL: u8 = 255;
/// Protocol of our routes and routing rules: none of the header's `RTPROT_…`, nor of iproute2's `rt_protos`.
pub(super) const PROTOCOL: u8 = 107;

const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_GETRULE: u16 = 34;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
/// `FR_ACT_TO_TBL`: a table is looked up.
const TO_TABLE: u8 = 1;
const FRA_DST: u16 = 1;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
const FRA_PROTOCOL: u16 = 21;
/// Attributes that say which packets a rule is for: addresses, interface, mark, realms, tunnel,
/// interface that a packet leaves by, master device, users, protocol, ports.
const FRA_SELECTORS: [u16; 11] = [FRA_DST, 2, 3, 10, 12, 17, 19, 20, 22, 23, 24];
/// `struct fib_rule_hdr`: family, length of the destination, length of the source, type of service,
/// table, two reserved bytes, action, flags (u32).
const HEADER: usize = 12;
/// Preference of our rules. Only those with 0 come first, as that of the table `local` mostly does.
pub(crate) const PREFERENCE: u32 = 1;

/// The table of local addresses.
const TABLE_LOCAL: u32 = RT_TABLE_LOCAL as u32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoutingRule {
    /// Its preference: the lowest comes first.
    pub(crate) preference: u32,
    /// Table that it leads to; 0: none.
    pub(crate) table: u32,
    /// True if it is not for every packet.
    pub(crate) is_selective: bool,
    /// Network that it is for, if the rule is ours.
    pub(crate) ours: Option<IpNet>,
}

/// Routing rules to add or remove, in order, in one batch.
#[derive(Debug, Default)]
pub(super) struct RuleBatch(Batch);

/// Lists the routing rules of a family, in order. A kernel without such rules has none.
pub(super) fn list(socket: &mut Socket, family: Family) -> Result<Vec<RoutingRule>, Error> {
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

/// Lists the routing rules of a family, in order.
pub(crate) fn rules(family: Family) -> Result<Vec<RoutingRule>, Error> {
    list(&mut Socket::open(netlink::Protocol::Route)?, family)
}

/// Returns the first rule that leads packets elsewhere before the table `local` is looked up.
pub(crate) fn before_local(rules: &[RoutingRule]) -> Option<&RoutingRule> {
    let mut before = rules.iter().take_while(|it| !it.is_plain_local());
    before.find(|it| it.table != TABLE_LOCAL)
}

/// True if a notification is about a rule of ours, or about that of the table `local`, which others have to
/// remove to put theirs before it.
pub(super) fn leads_to_ours(body: &[u8]) -> bool {
    let family = body.first().copied().unwrap_or_default();
    let rule = decode_rule(family, body).ok().flatten();
    rule.is_some_and(|rule| rule.ours.is_some() || rule.is_plain_local())
}

impl RoutingRule {
    /// True if every packet that comes here is looked up in the table of local addresses.
    fn is_plain_local(&self) -> bool {
        self.table == TABLE_LOCAL && !self.is_selective
    }
}

impl RuleBatch {
    pub(super) fn add(&mut self, network: IpNet) {
        self.push(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, network);
    }

    pub(super) fn remove(&mut self, network: IpNet) {
        self.push(RTM_DELRULE, 0, network);
    }

    pub(super) fn batch(&self) -> &Batch {
        &self.0
    }

    fn push(&mut self, request: u16, flags: u16, network: IpNet) {
        let (family, length) = (number(Family::of_net(&network)), network.prefix_len());
        self.0.push(request, flags, |message| {
            let header = [family, length, 0, 0, RT_TABLE_LOCAL, 0, 0, TO_TABLE];
            message.body().extend_from_slice(&header);
            message.body().extend_from_slice(&[0; HEADER - 8]);
            let mut attributes = message.attributes();
            attributes.address(FRA_DST, network.network());
            attributes.u32(FRA_PRIORITY, PREFERENCE);
            attributes.u8(FRA_PROTOCOL, PROTOCOL);
        });
    }
}

fn decode_rule(family: u8, body: &[u8]) -> Result<Option<RoutingRule>, DecodeError> {
    let header = body
        .first_chunk::<HEADER>()
        .ok_or_else(|| DecodeError::new("routing rule", "shorter than struct fib_rule_hdr"))?;
    let [of, length, from, service, table, ..] = *header;
    if of != family {
        return Ok(None);
    }
    let mut rule = RoutingRule {
        preference: 0,
        table: table.into(),
        is_selective: (length, from, service) != (0, 0, 0),
        ours: None,
    };
    let (mut to, mut protocol) = (None, 0);
    for attribute in attributes(body.get(HEADER..).unwrap_or_default()) {
        let attribute = attribute?;
        match attribute.kind {
            FRA_PRIORITY => rule.preference = attribute.u32()?,
            FRA_TABLE => rule.table = attribute.u32()?,
            FRA_PROTOCOL => protocol = attribute.u8()?,
            kind if FRA_SELECTORS.contains(&kind) => rule.is_selective = true,
            _ => {}
        }
        if attribute.kind == FRA_DST {
            let address: IpAddr = match family {
                AF_INET => attribute.ipv4()?.into(),
                AF_INET6 => attribute.ipv6()?.into(),
                _ => return Ok(None),
            };
            to = IpNet::new(address, length).ok();
        }
    }
    let is_ours = (protocol, rule.table, rule.preference) == (PROTOCOL, TABLE_LOCAL, PREFERENCE);
    rule.ours = to.filter(|_| is_ours);
    Ok(Some(rule))
}

/// True if a refusal says that there are no routes at all.
pub(super) fn is_nothing(error: &Error) -> bool {
    [Errno::NOENT, Errno::AFNOSUPPORT, Errno::OPNOTSUPP]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_is_written_is_read_as_ours_and_nothing_else_is() {
        for network in ["10.96.0.0/12", "fd00:96::/108"].map(|text| text.parse::<IpNet>().unwrap())
        {
            let mut batch = RuleBatch::default();
            batch.add(network);
            batch.remove(network);
            let (added, removed) = (batch.0.body(0).unwrap(), batch.0.body(1).unwrap());
            assert_eq!(added, removed);
            let family = number(Family::of_net(&network));
            let read = decode_rule(family, added).unwrap().unwrap();
            let rule = RoutingRule {
                preference: 1,
                table: TABLE_LOCAL,
                is_selective: true,
                ours: Some(network),
            };
            assert_eq!(read, rule);
            assert!(leads_to_ours(added));
            // Of another table.
            let mut foreign = added.to_vec();
            foreign[4] = 254;
            assert!(!leads_to_ours(&foreign));
            assert_eq!(decode_rule(family, &foreign).unwrap().unwrap().ours, None);
        }
    }

    #[test]
    fn a_rule_before_the_table_local_is_found_unless_it_looks_there() {
        let rule = |preference, table, is_selective| RoutingRule {
            preference,
            table,
            is_selective,
            ours: None,
        };
        let local = rule(20, TABLE_LOCAL, false);
        let before = |rules: &[RoutingRule]| before_local(rules).is_some();
        assert!(!before(&[local, rule(100, 101, true)]));
        assert!(before(&[rule(10, 101, true), local]));
        assert!(!before(&[rule(5, TABLE_LOCAL, true), local]));
        assert!(before(&[rule(5, TABLE_LOCAL, true), rule(10, 101, true), local]));
    }

    #[test]
    fn this_machine_looks_local_addresses_up_first() {
        let rules = rules(Family::V4).unwrap();
        assert!(rules.first().is_some_and(RoutingRule::is_plain_local), "{rules:?}");
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            body in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64),
        ) {
            let _any = (leads_to_ours(&body), decode_rule(AF_INET, &body));
            let _any = decode_rule(AF_INET6, &body);
        }
    }
}
