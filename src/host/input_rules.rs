//! Conditions of the host that keep Service traffic from IPVS, or NodePorts from being removed: chains
//! of INPUT, routing rules before the table `local`, excluded networks around the node.
//!
//! In IPVS mode packets to Services are packets to the node. They have to be routed by the table
//! `local`, and pass INPUT.

use ipnet::IpNet;
use plan::model::Family;
use plan::settings::{AcceptServiceTraffic, Settings};

use crate::kernel::nftables::{Closing, InputChain, NftablesClient};
use crate::kernel::routing_rule::{self, RoutingRule};

const ENDS_CLOSED: &str = "ends with a rule that refuses everything";

/// Something of the host that drops Service traffic, or leads it away, with advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) what: String,
    pub(crate) remedy: String,
}

/// Looks for what drops Service traffic of IPVS mode in INPUT. `saved` is what `iptables-save` prints
/// of each family.
pub(crate) fn in_input<'a>(
    settings: &Settings,
    saved: impl IntoIterator<Item = (Family, &'a str)>,
) -> Vec<Obstacle> {
    let mut found = Vec::new();
    if settings.accept_service_traffic == AcceptServiceTraffic::Never {
        found.extend(saved.into_iter().filter_map(|(family, text)| of_iptables(family, text)));
    }
    match input_chains() {
        Ok(chains) => found.extend(chains.iter().filter_map(of_nftables)),
        Err(error) => found.push(unreadable(&error)),
    }
    found
}

/// Returns the chains of nftables that may refuse Service traffic. A kernel without netfilter has none.
fn input_chains() -> Result<Vec<InputChain>, netlink::Error> {
    NftablesClient::open()?.map_or_else(|| Ok(Vec::new()), |mut client| client.input_chains())
}

/// Looks for routing rules before that of the table `local`, in the families that are served.
pub(crate) fn in_routing(settings: &Settings) -> Vec<Obstacle> {
    let of_family = |family: &Family| {
        let rules = routing_rule::rules(*family).unwrap_or_default();
        before_local(*family, &rules, !settings.routes(*family).is_empty())
    };
    settings.families.iter().filter_map(of_family).collect()
}

/// Looks for excluded networks with addresses of this node.
pub(crate) fn in_exclusions(exclude: &[IpNet], own: &[IpNet]) -> Vec<Obstacle> {
    let has_own = |net: &&IpNet| own.iter().any(|own| net.contains(&own.addr()));
    let around = exclude.iter().filter(has_own);
    around
        .map(|net| Obstacle {
            what: format!(
                "{net} of ipvs.excludeCIDRs has addresses of this node: virtual servers of NodePorts \
                 that go while kube-ipvs does not run stay, after --cleanup as well"
            ),
            remedy: "leave the nodes' network out of ipvs.excludeCIDRs: virtual servers that other \
                     programs made there are left alone anyway"
                .into(),
        })
        .collect()
}

/// Returns what the table `filter` does with a new connection that none of its rules accepts.
pub(crate) fn drops_input(saved: &str) -> Option<&'static str> {
    let mut table = "";
    let (mut is_dropped, mut last) = (false, None);
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        if table == "filter" {
            is_dropped |= line.starts_with(":INPUT DROP");
            last = line.strip_prefix("-A INPUT ").or(last);
        }
    }
    let closes = |rule: &str| ["-j DROP", "-j REJECT"].iter().any(|it| rule.starts_with(it));
    if is_dropped {
        Some("has the policy DROP")
    } else {
        last.filter(|rule| closes(rule)).map(|_| ENDS_CLOSED)
    }
}

fn of_iptables(family: Family, saved: &str) -> Option<Obstacle> {
    let how = drops_input(saved)?;
    Some(Obstacle {
        what: format!(
            "the chain INPUT of {family} {how}: connections of pods and clients to Services are \
             lost unless a rule of the host accepts them (acceptServiceTraffic is never)"
        ),
        remedy:
            "set acceptServiceTraffic to always, or let Service traffic in by rules of your own"
                .into(),
    })
}

/// A base chain of nftables outside of iptables' tables decides for itself: a packet that another
/// chain has accepted meets it all the same.
fn of_nftables(chain: &InputChain) -> Option<Obstacle> {
    let InputChain { table, name, closing } = chain;
    let how = match (*closing)? {
        Closing::Policy => "has the policy drop",
        Closing::LastRule => ENDS_CLOSED,
    };
    Some(Obstacle {
        what: format!(
            "the nftables chain {name} of the table {table} (hook input) {how}: connections of pods \
             and clients to Services are lost unless a rule there accepts them, and no rule of \
             kube-ipvs can (acceptServiceTraffic has no effect there)"
        ),
        remedy:
            "accept Service traffic in that table: for firewalld, put the pods' interfaces into \
                 the zone trusted, and open NodePorts and load balancers' ports"
                .into(),
    })
}

fn unreadable(error: &netlink::Error) -> Obstacle {
    Obstacle {
        what: format!(
            "the nftables chains of the hook input cannot be read: {error}. One that drops what it does not name \
             would lose connections to Services"
        ),
        remedy: "see `nft list ruleset` for chains with `hook input` outside of iptables' tables"
            .into(),
    }
}

/// With local routes to Services' networks, rules of ours come before others'.
fn before_local(family: Family, rules: &[RoutingRule], is_routed: bool) -> Option<Obstacle> {
    let first = routing_rule::before_local(rules)?;
    if is_routed && first.preference > routing_rule::PREFERENCE {
        return None;
    }
    Some(Obstacle {
        what: format!(
            "a routing rule of {family} with the preference {} comes before the one of the table \
             local: packets that it matches are led past IPVS",
            first.preference
        ),
        remedy:
            "set serviceRoutes, for whose networks kube-ipvs then adds a rule that comes before all \
                 others, or add one: ip rule add pref 1 to SERVICE-RANGE lookup local"
                .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firewall_is_known_by_its_policy_or_its_last_rule() {
        let filter = |rest: &str| format!("*nat\n:INPUT DROP [0:0]\n*filter\n{rest}COMMIT\n");
        let of = |rest: &str| drops_input(&filter(rest)).is_some();
        assert!(of(":INPUT DROP [1:2]\n-A INPUT -i lo -j ACCEPT\n"));
        assert!(of(
            ":INPUT ACCEPT [1:2]\n-A INPUT -i lo -j ACCEPT\n-A INPUT -j REJECT --reject-with x\n"
        ));
        assert!(!of(":INPUT ACCEPT [1:2]\n-A INPUT -i eth9 -j DROP\n-A INPUT -j LOG\n"));
        assert!(!of(":INPUT ACCEPT [1:2]\n-A FORWARD -j DROP\n"));
    }

    #[test]
    fn a_chain_that_drops_is_an_obstacle() {
        let found = of_iptables(Family::V4, "*filter\n:INPUT DROP [0:0]\nCOMMIT\n").unwrap();
        assert!(found.what.starts_with("the chain INPUT of IPv4 has the policy DROP"), "{found:?}");
        assert_eq!(of_iptables(Family::V6, "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n"), None);
    }

    #[test]
    fn another_table_than_those_of_iptables_decides_for_itself() {
        let of = |closing| {
            of_nftables(&InputChain { table: "firewalld".into(), name: "in".into(), closing })
        };
        assert!(of(Some(Closing::Policy)).is_some_and(|it| it.what.contains("the policy drop")));
        assert!(of(Some(Closing::LastRule)).is_some_and(|it| it.what.contains(ENDS_CLOSED)));
        assert_eq!(of(None), None);
    }

    #[test]
    fn an_excluded_network_around_the_node_is_named() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let own = [net("192.168.0.11/24"), net("fd00::11/64")];
        let of = |exclude: &str| in_exclusions(&[net(exclude)], &own).len();
        assert_eq!((of("192.168.0.0/24"), of("fd00::/64"), of("192.168.0.12/32")), (1, 1, 0));
    }

    #[test]
    fn a_routing_rule_before_ours_is_an_obstacle_even_with_routes() {
        let rule =
            |preference| RoutingRule { preference, table: 101, is_selective: true, ours: None };
        let is_obstacle = |preference, is_routed| {
            before_local(Family::V4, &[rule(preference)], is_routed).is_some()
        };
        assert!(is_obstacle(10, false) && !is_obstacle(10, true));
        assert!(is_obstacle(0, true));
    }
}
