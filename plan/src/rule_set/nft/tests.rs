use super::*;
use crate::rule_set::RuleSet;

fn texts(settings: &RuleSetSettings, ranges: &SourceRanges) -> String {
    let mut lines = String::new();
    for chain in RuleSet::new(Family::V4, settings).nft_chains(ranges) {
        lines += &format!("{}:\n", chain.name);
        for rule in &chain.rules {
            lines += &format!("  {}\n", rule.text(Family::V4));
        }
    }
    lines
}

fn cidr() -> RuleSetSettings {
    let pods = LocalTraffic::Cidr("10.244.1.0/24".parse().unwrap());
    RuleSetSettings::new(false, 14, pods, true)
        .unwrap()
        .with_internal_frontend_network(Some("240.0.0.0/4".parse().unwrap()))
        .with_health_port(Some(10256))
}

#[test]
fn the_rules_of_a_node_with_a_pod_network() {
    let mut ranges = SourceRanges::default();
    assert!(ranges.add(Family::V4, 24) && ranges.add(Family::V4, 8) && !ranges.add(Family::V4, 24));
    ranges.add(Family::V6, 64);
    assert_eq!(texts(&cidr(), &ranges), include_str!("ipv4.nft"));
}

#[test]
fn no_rule_depends_on_a_service_and_every_chain_comes_before_what_leads_to_it() {
    for family in Family::BOTH {
        let chains = chains(family, &cidr());
        let mut known = Vec::new();
        for chain in &chains {
            for rule in &chain.rules {
                if let Action::GoTo(to) | Action::Jump(to) = rule.action {
                    assert!(known.contains(&to), "{}: {}", chain.name, rule.text(family));
                }
            }
            known.push(chain.name);
        }
    }
}

#[test]
fn on_the_fast_path_a_frontend_leads_to_its_internal_frontend_and_the_flow_table_takes_it() {
    let texts = |path| texts(&cidr().with_fast_path(path), &SourceRanges::default());
    let off = texts(FastPath::Off);
    let led =
        |set: &str, how: &str| format!("  ip daddr . meta l4proto . th dport @{set} dnat {how}\n");
    let any = led("KUBE-INTERNAL-FRONTEND", "prefix to 240.0.0.0/4");
    let local = led("KUBE-INTERNAL-FRONTEND-LOCAL", "to ip daddr ^ 8.0.0.0 | 240.0.0.0");
    assert!(!off.contains(&any) && !off.contains("forward:"), "{off}");
    let conntrack = texts(FastPath::Conntrack);
    assert_eq!(conntrack.matches(&any).count(), 3, "{conntrack}");
    assert_eq!(conntrack.matches(&local).count(), 2, "{conntrack}");
    assert_eq!(conntrack.replace(&any, "").replace(&local, ""), off);
    let half = |net: &str| {
        let net: IpNet = net.parse().unwrap();
        let rule = Rule { matches: Vec::new(), action: Action::MapToOtherHalf(net) };
        rule.text(Family::of_net(&net))
    };
    assert_eq!(half("0.0.0.0/8"), "dnat to ip daddr & 0.255.255.255 ^ 0.128.0.0");
    assert_eq!(
        half("feff::/16"),
        "dnat to ip6 daddr & feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ^ 0:8000:: | feff::"
    );
    let forward = "forward:\n  ct direction original ct status & (confirmed | dnat) == confirmed | dnat \
                   ct original ip daddr . meta l4proto . ct original proto-dst @KUBE-INTERNAL-FRONTEND flow add @flows\n";
    assert_eq!(texts(FastPath::Offload), conntrack + forward);
}
