//! Conditions of the host that keep Service traffic from IPVS, or NodePorts from being removed: chains
//! of INPUT, routing rules before the table `local`, excluded networks around the node.
//!
//! In IPVS mode packets to Services are packets to the node. They have to be routed by the table
//! `local`, and pass INPUT.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;

use ipnet::IpNet;
use plan::model::Family;
use plan::settings::Settings;

use crate::nftables::{Closing, FilterChain, FilterHook, filter_chains};
use crate::packet_fate::{self, Fate, Step};
use crate::routing_rule::{self, RoutingRule};

const ENDS_CLOSED: &str =
    "rejects packets that no rule accepts, by its last rule or in a chain that it jumps to";

/// Something of the host that drops Service traffic, or leads it away, with advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    pub what: String,
    pub remedy: String,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, remedy } = self;
        write!(f, "{what}; {remedy}")
    }
}

/// Looks for what drops Service traffic of IPVS mode in INPUT, and in FORWARD if no rules of ours accept answers there.
/// `saved` is what `iptables-save` prints of each family.
pub fn in_input<'a>(
    settings: &Settings,
    saved: impl IntoIterator<Item = (Family, &'a str)>,
) -> Vec<Obstacle> {
    let saved: Vec<_> = saved.into_iter().collect();
    // Where no program of iptables runs, the kernel shows the rules of iptables-nft.
    let with_iptables = settings.has_tables() && saved.is_empty();
    let mut found = Vec::new();
    if !settings.lets_traffic_in() {
        found.extend(saved.into_iter().filter_map(|(family, text)| of_iptables(family, text)));
    }
    found.extend(of_filter_chains(filter_chains(FilterHook::Input, with_iptables)));
    if settings.has_tables() {
        found.extend(of_filter_chains(filter_chains(FilterHook::Forward, with_iptables)));
    }
    found
}

fn of_filter_chains(read: Result<Vec<FilterChain>, impl fmt::Display>) -> Vec<Obstacle> {
    match read {
        Ok(chains) => chains.iter().filter_map(of_nftables).collect(),
        Err(error) => vec![unreadable(&error)],
    }
}

/// Looks for routing rules before that of the table `local`, in the families that are served.
pub fn in_routing(settings: &Settings) -> Vec<Obstacle> {
    let of_family = |family: &Family| {
        let rules = routing_rule::rules(*family).unwrap_or_default();
        before_local(*family, &rules, !settings.routes(*family).is_empty())
    };
    settings.families.iter().filter_map(of_family).collect()
}

/// Looks for excluded networks with addresses of this node.
pub fn in_exclusions(exclude: &[IpNet], own: &[IpNet]) -> Vec<Obstacle> {
    let has_own = |net: &&IpNet| own.iter().any(|own| net.contains(&own.addr()));
    let around = exclude.iter().filter(has_own);
    around
        .map(|net| Obstacle {
            what: format!(
                "{net} of ipvs.excludeCIDRs has addresses of this node: virtual servers of NodePorts \
                 that go while kube-ipvs does not run stay, after --cleanup as well"
            ),
            remedy: "remove the nodes' network from ipvs.excludeCIDRs: kube-ipvs never removes \
                     unowned virtual servers there"
                .into(),
        })
        .collect()
}

/// Returns what the table `filter` does with a new connection that none of its rules accepts.
pub fn drops_input(saved: &str) -> Option<&'static str> {
    let mut table = "";
    let mut is_dropped = false;
    let mut chains: BTreeMap<&str, Vec<Step>> = BTreeMap::new();
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        if table == "filter" {
            is_dropped |= line.starts_with(":INPUT DROP");
            let rule = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' '));
            if let Some((chain, step)) = rule.and_then(|(chain, rule)| Some((chain, step(rule)?))) {
                chains.entry(chain).or_default().push(step);
            }
        }
    }
    let read = |chain: &str| Ok::<_, Infallible>(chains.remove(chain).unwrap_or_default());
    let Ok(fate) = packet_fate::of_unnamed("INPUT", read);
    if is_dropped {
        Some("has the policy DROP")
    } else {
        (fate == Some(Fate::Refused)).then_some(ENDS_CLOSED)
    }
}

/// Action of a rule, as saved, on packets that no rule names.
fn step(rule: &str) -> Option<Step> {
    let words = plan::rule_set::words(rule);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let unnamed = match words.as_slice() {
        ["-m", "comment", "--comment", _, rest @ ..] => rest,
        all => all,
    };
    match unnamed {
        ["-j", "DROP" | "REJECT", ..] => Some(Step::Refuse),
        ["-j", "ACCEPT" | "NFQUEUE" | "QUEUE", ..] => Some(Step::Accept),
        ["-j", "RETURN"] => Some(Step::Return),
        // A target that is no chain is one that has no rules.
        ["-j", to, ..] => Some(Step::Jump((*to).to_owned())),
        ["-g", to, ..] => Some(Step::GoTo((*to).to_owned())),
        [.., "-j", "RETURN"] => Some(Step::ReturnSome),
        _ => None,
    }
}

fn of_iptables(family: Family, saved: &str) -> Option<Obstacle> {
    let how = drops_input(saved)?;
    Some(Obstacle {
        what: format!(
            "the INPUT chain of {family} {how}: connections of pods and clients to Services are \
             lost unless a rule of the host accepts them (acceptServiceTraffic is never)"
        ),
        remedy:
            "set acceptServiceTraffic to always, or accept Service traffic by rules of your own"
                .into(),
    })
}

/// A base chain of nftables outside of iptables' tables decides for itself: a packet that another
/// chain has accepted meets it all the same.
fn of_nftables(chain: &FilterChain) -> Option<Obstacle> {
    let FilterChain { hook, table, name, closing } = chain;
    let how = match (*closing)? {
        Closing::Policy => "has the policy drop",
        Closing::Rule => ENDS_CLOSED,
    };
    Some(match hook {
        FilterHook::Input => Obstacle {
            what: format!(
                "the nftables chain {name} of the table {table} (hook input) {how}: connections of pods \
                 and clients to Services are lost unless a rule there accepts them, and no rule of \
                 kube-ipvs can (acceptServiceTraffic has no effect there)"
            ),
            remedy: "accept Service traffic in that table: for firewalld, put the pods' interfaces \
                     into the zone trusted, and open NodePorts and the ports of load balancers"
                .into(),
        },
        FilterHook::Forward => Obstacle {
            what: format!(
                "the nftables chain {name} of the table {table} (hook forward, FORWARD of iptables) {how}: answers of \
                 endpoints are lost unless a rule there accepts them, and no rule of kube-ipvs in nf_tables can"
            ),
            remedy: "accept established connections and pods' packets there, as network plugins do, or set \
                     ruleBackend: iptables"
                .into(),
        },
    })
}

fn unreadable(error: &impl fmt::Display) -> Obstacle {
    Obstacle {
        what: format!(
            "cannot read the nftables chains of the hook input: {error}. A chain that drops by \
             default would lose connections to Services"
        ),
        remedy: "check `nft list ruleset` for chains with `hook input` outside of iptables' tables"
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
            "a routing rule of {family} with preference {} precedes that of the table local: \
             packets that it matches bypass IPVS",
            first.preference
        ),
        remedy:
            "set serviceRoutes (kube-ipvs then adds a rule for its networks before all others), or \
             add a rule: ip rule add pref 1 to SERVICE-RANGE lookup local"
                .into(),
    })
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "kernel-tests")]
    mod kernel;

    use super::*;

    #[test]
    fn a_firewall_is_known_by_its_policy_or_its_last_rule() {
        let filter = |rest: &str| format!("*nat\n:INPUT DROP [0:0]\n*filter\n{rest}COMMIT\n");
        let of = |rest: &str| drops_input(&filter(rest)).is_some();
        assert!(of(":INPUT DROP [1:2]\n-A INPUT -i lo -j ACCEPT\n"));
        assert!(of(
            ":INPUT ACCEPT [1:2]\n-A INPUT -i lo -j ACCEPT\n-A INPUT -j REJECT --reject-with x\n"
        ));
        assert!(of(":INPUT ACCEPT [1:2]\n-A INPUT -m comment --comment \"the rest\" -j DROP\n"));
        assert!(!of(":INPUT ACCEPT [1:2]\n-A INPUT -i eth9 -j DROP\n-A INPUT -j LOG\n"));
        assert!(!of(":INPUT ACCEPT [1:2]\n-A INPUT -j DROPBOX\n"));
        assert!(!of(":INPUT ACCEPT [1:2]\n-A FORWARD -j DROP\n"));
    }

    /// Chains of ufw. It drops what is for other addresses, whatever it does with the rest.
    const UFW: &str = ":ufw-before-input - [0:0]\n:ufw-not-local - [0:0]\n:ufw-reject-input - [0:0]\n\
        -A INPUT -j ufw-before-logging-input\n-A INPUT -j ufw-before-input\n\
        -A INPUT -j ufw-after-input\n-A INPUT -j ufw-after-logging-input\n\
        -A INPUT -j ufw-reject-input\n-A INPUT -j ufw-track-input\n\
        -A ufw-before-input -i lo -j ACCEPT\n\
        -A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
        -A ufw-before-input -m conntrack --ctstate INVALID -j DROP\n\
        -A ufw-before-input -j ufw-not-local\n-A ufw-before-input -j ufw-user-input\n\
        -A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN\n\
        -A ufw-not-local -m addrtype --dst-type MULTICAST -j RETURN\n-A ufw-not-local -j DROP\n\
        -A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT\n";

    #[test]
    fn a_firewall_is_known_by_the_chains_that_input_leads_to() {
        let of = |rest: &str| drops_input(&format!("*filter\n{rest}COMMIT\n")).is_some();
        assert!(of(&format!(":INPUT DROP [0:0]\n{UFW}")), "ufw default deny");
        let closed = "-A ufw-reject-input -j REJECT --reject-with icmp-port-unreachable\n";
        assert!(of(&format!(":INPUT ACCEPT [0:0]\n{UFW}{closed}")));
        assert!(!of(&format!(":INPUT ACCEPT [0:0]\n{UFW}")), "ufw default allow");
        let red_hat = ":INPUT ACCEPT [0:0]\n:RH-Firewall-1-INPUT - [0:0]\n\
            -A INPUT -j RH-Firewall-1-INPUT\n-A RH-Firewall-1-INPUT -i lo -j ACCEPT\n\
            -A RH-Firewall-1-INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n";
        let closed = "-A RH-Firewall-1-INPUT -j REJECT --reject-with icmp-host-prohibited\n";
        assert!(of(&format!("{red_hat}{closed}")));
        assert!(of(&format!("{}{closed}", red_hat.replace("-A INPUT -j", "-A INPUT -g"))));
        assert!(!of(red_hat));
    }

    #[test]
    fn a_chain_that_drops_is_an_obstacle() {
        let found = of_iptables(Family::V4, "*filter\n:INPUT DROP [0:0]\nCOMMIT\n").unwrap();
        assert!(found.what.starts_with("the INPUT chain of IPv4 has the policy DROP"), "{found:?}");
        assert_eq!(of_iptables(Family::V6, "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n"), None);
    }

    #[test]
    fn another_table_than_those_of_iptables_decides_for_itself() {
        let of = |closing| {
            let (hook, table, name) = (FilterHook::Input, "firewalld".into(), "in".into());
            of_nftables(&FilterChain { hook, table, name, closing })
        };
        assert!(of(Some(Closing::Policy)).is_some_and(|it| it.what.contains("the policy drop")));
        assert!(of(Some(Closing::Rule)).is_some_and(|it| it.what.contains(ENDS_CLOSED)));
        assert_eq!(of(None), None);
    }

    #[test]
    fn chains_that_cannot_be_read_are_an_obstacle() {
        let error = netlink::DecodeError::new("chain", "shorter than struct nfgenmsg");
        let found = of_filter_chains(Err(error));
        let [Obstacle { what, remedy }] = &found[..] else { panic!("{found:?}") };
        assert!(
            what.contains("cannot read the nftables chains of the hook input: ")
                && what.contains("struct nfgenmsg"),
            "{what}"
        );
        assert!(remedy.contains("nft list ruleset"), "{remedy}");
        assert_eq!(of_filter_chains(Ok::<_, netlink::Error>(Vec::new())), []);
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
