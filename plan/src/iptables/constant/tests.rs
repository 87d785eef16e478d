use std::collections::BTreeMap;

use super::*;
use crate::facts::{BoundAddresses, SynCopies};
use crate::rule_set::{COPY_JUMPS, LocalTraffic, OptionalRules, RuleSet};

/// `iptables-save` and `ip6tables-save` after kube-proxy 1.36 in iptables mode, without chains and
/// rules of Services.
const IPV4: &str = include_str!("ipv4.saved");
const IPV6: &str = include_str!("ipv6.saved");

const EVERYTHING: OptionalRules =
    OptionalRules { drop_invalid: true, nfacct: true, localhost_node_ports: true };

fn mk_rule_set(family: Family, optional: OptionalRules) -> RuleSet {
    let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
    RuleSet::iptables(family, &settings.with_optional(optional))
}

/// The chains of a text of `iptables-save` or for `iptables-restore`, each with its rules.
fn chains(text: &str) -> BTreeMap<(&str, &str), Vec<&str>> {
    let (mut table, mut chains) = ("", BTreeMap::<_, Vec<&str>>::new());
    for line in text.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (chain, rule) = rest.split_once(' ').unwrap_or_default();
        if let Some(name) = first.strip_prefix('*') {
            table = name;
        } else if let Some(name) = first.strip_prefix(':') {
            chains.entry((table, name)).or_default();
        } else if first == "-A" {
            chains.entry((table, chain)).or_default().push(rule);
        } else if first == "-I" {
            let rule = rule.strip_prefix("1 ").unwrap();
            chains.entry((table, chain)).or_default().insert(0, rule);
        }
    }
    chains.retain(|(_, chain), rules| chain.starts_with("KUBE-") || !rules.is_empty());
    chains.retain(|(_, chain), _| *chain != "KUBE-PROXY-CANARY");
    chains
}

#[test]
fn the_rules_and_their_order_are_kube_proxys() {
    for (family, saved) in [(Family::V4, IPV4), (Family::V6, IPV6)] {
        let rule_set = mk_rule_set(family, EVERYTHING);
        // kube-proxy has an empty KUBE-FIREWALL of IPv6.
        let is_desired = |line: &&str| family == Family::V4 || !line.contains("KUBE-FIREWALL");
        let desired: String = saved.lines().filter(is_desired).flat_map(|it| [it, "\n"]).collect();
        assert_eq!(chains(&rule_set.first_input()), chains(&desired), "{family}");
        let comparison = rule_set.compare(saved);
        assert!(comparison.matches(), "{family}: {comparison}");
    }
}

#[test]
fn every_lost_line_is_noticed_and_written_again() {
    for (family, saved) in [(Family::V4, IPV4), (Family::V6, IPV6)] {
        let rule_set = mk_rule_set(family, EVERYTHING);
        let of_others = if family == Family::V4 { "CANARY" } else { "KUBE-FIREWALL" };
        let of_ours = |line: &str| {
            line.contains("KUBE-") && !line.contains("CANARY") && !line.contains(of_others)
        };
        let lines: Vec<&str> = saved.lines().collect();
        for lost in (0..lines.len()).filter(|at| of_ours(lines[*at])) {
            // A chain that has rules is declared by these, too.
            let name = lines[lost].trim_start_matches(':').split(' ').next().unwrap();
            let kept = lines.iter().enumerate().filter(|(at, line)| {
                *at != lost
                    && !(lines[lost].starts_with(':') && line.contains(&format!("-A {name} ")))
            });
            let left: String = kept.map(|(_, line)| format!("{line}\n")).collect();
            let comparison = rule_set.compare(&left);
            assert!(!comparison.matches(), "{}", lines[lost]);
            assert!(!comparison.to_string().is_empty());
            let input = rule_set.restore_input(&comparison);
            let written = match lines[lost].split_once(' ').unwrap() {
                ("-A", rule) if rule.starts_with("KUBE-") => format!("-A {rule}\n"),
                ("-A", jump) => format!("-I {}\n", jump.replacen(' ', " 1 ", 1)),
                _ => format!(":{name} - [0:0]\n"),
            };
            assert!(input.contains(&written), "{written} in {input}");
        }
    }
}

#[test]
fn shared_chains_that_are_there_are_not_emptied() {
    let rule_set = mk_rule_set(Family::V4, EVERYTHING);
    let saved = IPV4.replace(
        "COMMIT\n*mangle",
        "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\nCOMMIT\n*mangle",
    );
    assert!(rule_set.compare(&saved).matches(), "rules of Services are none of it");
    let kubelet = "-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\n";
    let saved = saved
        .replace("-A KUBE-FORWARD -m comment", &format!("{kubelet}-A KUBE-FORWARD -m comment"));
    assert!(rule_set.compare(&saved).matches(), "rules of the kubelet are none of it");
    let missing = saved.replace("-j KUBE-POSTROUTING", "-j KUBE-POSTPONED");
    let input = rule_set.restore_input(&rule_set.compare(&missing));
    let declared: Vec<&str> = input.lines().filter(|line| line.starts_with(':')).collect();
    assert_eq!(
        declared,
        [":KUBE-POSTROUTING - [0:0]", ":KUBE-MARK-MASQ - [0:0]", ":KUBE-FORWARD - [0:0]"]
    );
    let inserted: Vec<&str> = input.lines().filter(|line| line.starts_with("-I")).collect();
    assert_eq!(
        inserted,
        [
            "-I POSTROUTING 1 -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING"
        ]
    );
    assert!(!input.contains("-A KUBE-FIREWALL"));
    let absent = saved.replace("127.0.0.0/8", "127.0.0.0/9");
    let input = rule_set.restore_input(&rule_set.compare(&absent));
    assert!(
        !input.contains(":KUBE-FIREWALL") && input.contains("-A KUBE-FIREWALL ! -s 127.0.0.0/8")
    );
}

#[test]
fn rules_that_a_node_cannot_have_or_does_not_want_are_left_out() {
    let none = mk_rule_set(Family::V4, OptionalRules::default());
    let input = none.first_input();
    assert!(
        !input.contains("INVALID") && !input.contains("nfacct") && !input.contains("127.0.0.0")
    );
    assert!(input.contains("-I INPUT 1 -j KUBE-FIREWALL"));
    let uncounted = OptionalRules { drop_invalid: true, ..OptionalRules::default() };
    let input = mk_rule_set(Family::V6, uncounted).first_input();
    assert!(input.contains("-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n"));
}

#[test]
fn a_jump_of_ipvs_mode_into_a_chain_that_now_drops_is_taken_out() {
    let rule_set = mk_rule_set(Family::V4, EVERYTHING);
    let left = "-A INPUT -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL";
    let saved = IPV4.replacen("*filter\n", "*filter\n:INPUT ACCEPT [0:0]\n", 1);
    let saved = saved.replacen("-A INPUT", &format!("{left}\n-A INPUT"), 1);
    let comparison = rule_set.compare(&saved);
    assert!(!comparison.matches() && comparison.missing_jumps.is_empty(), "{comparison}");
    let input = rule_set.restore_input(&comparison);
    assert!(input.contains(&left.replacen("-A", "-D", 1)), "{input}");
    assert!(rule_set.compare(IPV4).superseded_jumps.is_empty());
}

#[test]
fn connections_of_the_node_from_a_bound_address_are_masqueraded_before_anything_else() {
    let routes = vec!["10.96.0.0/12".parse().unwrap()];
    for (random_fully, option) in [(false, ""), (true, " --random-fully")] {
        let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, random_fully);
        let settings = settings.unwrap();
        let without = RuleSet::iptables(Family::V4, &settings);
        let bound = BoundAddresses { routes: routes.clone(), hairpins: true, copies: None };
        let with = RuleSet::iptables(Family::V4, &settings.with_bound(Some(bound)));
        let comment = "-m comment --comment \"kubernetes connections of this node from a service \
                       address\"";
        let masquerade = format!("-m conntrack --ctstate DNAT -j MASQUERADE{option}");
        let hairpin = "-m comment --comment \"Kubernetes endpoints dst ip:port, source ip for solving \
                       hairpin purpose\" -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE";
        let expected = [
            hairpin.to_owned(),
            format!("{comment} -m set --match-set KUBE-IPVS-IPS src {masquerade}"),
            format!("-s 10.96.0.0/12 {comment} {masquerade}"),
        ];
        let of = |rule_set: &RuleSet| rule_set.chains()[0].clone();
        assert_eq!(of(&with).name, "KUBE-POSTROUTING");
        assert_eq!(of(&with).rules, [&expected[..], &of(&without).rules].concat());
        assert_eq!(with.chains()[1..], without.chains()[1..]);
        assert!(!without.first_input().contains("match-set"));
    }
    let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
    let bound = settings.with_bound(Some(BoundAddresses::default()));
    let input = RuleSet::iptables(Family::V6, &bound).first_input();
    assert!(input.contains("--match-set KUBE-6-IPVS-IPS src"), "{input}");
}

/// Rules of a node that leaves IPVS mode, whose masquerade mark is this bit.
fn mk_leaving(family: Family, bit: u8, copies: Option<SynCopies>) -> RuleSet {
    let settings = RuleSetSettings::new(false, bit, LocalTraffic::Unknown, true).unwrap();
    let routes = match family {
        Family::V4 => vec!["10.97.0.0/16".parse().unwrap()],
        Family::V6 => Vec::new(),
    };
    RuleSet::iptables(
        family,
        &settings.with_bound(Some(BoundAddresses { routes, hairpins: true, copies })),
    )
}

/// The text with which a table is written.
fn table<'a>(input: &'a str, name: &str) -> &'a str {
    let (_, from) = input.split_once(&format!("*{name}\n")).unwrap();
    from.split_once("COMMIT").unwrap().0
}

#[test]
fn ipvs_is_shown_an_untracked_copy_of_each_syn_that_ends_in_output() {
    let copies = Some(SynCopies { node_ports: true });
    let input = mk_leaving(Family::V4, 14, copies).first_input();
    let syn = "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN";
    let new = format!("{syn} -m conntrack --ctstate NEW");
    let unmarked = "-m mark --mark 0x0/0x8000000";
    let forgets = "-m comment --comment \"kubernetes former connections that ipvs is to forget\"";
    assert_eq!(
        table(&input, "mangle"),
        format!(
            ":KUBE-IPVS-FORGET - [0:0]\n:KUBE-IPVS-COPY - [0:0]\n\
             -A KUBE-IPVS-FORGET {new} -m set --match-set KUBE-IPVS-IPS dst {unmarked} -g KUBE-IPVS-COPY\n\
             -A KUBE-IPVS-FORGET -d 10.97.0.0/16 {new} {unmarked} -g KUBE-IPVS-COPY\n\
             -A KUBE-IPVS-FORGET {new} -m set --match-set KUBE-NODE-PORT-TCP dst -m addrtype \
             --dst-type LOCAL {unmarked} -g KUBE-IPVS-COPY\n\
             -A KUBE-IPVS-COPY -j MARK --set-xmark 0x8000000/0x8000000\n\
             -A KUBE-IPVS-COPY -j TEE --gateway 127.255.255.255\n\
             -A KUBE-IPVS-COPY -j MARK --set-xmark 0x0/0x8000000\n\
             -I PREROUTING 1 {forgets} -j KUBE-IPVS-FORGET\n\
             -I OUTPUT 1 {forgets} -j KUBE-IPVS-FORGET\n"
        )
    );
    let copy = format!("{syn} -m mark --mark 0x8000000/0x8000000 -m conntrack --ctstate UNTRACKED");
    assert!(table(&input, "filter").contains(&format!("-A KUBE-IPVS-COPY {copy} -j DROP\n")));
    assert!(input.find("*filter") < input.find("*mangle"), "what ends a copy is there before it");
    let input = mk_leaving(Family::V6, 14, copies).first_input();
    let mangle = table(&input, "mangle");
    assert!(mangle.contains(&format!("-A KUBE-IPVS-FORGET {copy} -j HL --hl-set 173\n")));
    assert!(mangle.contains("-A KUBE-IPVS-COPY -j TEE --gateway ::1\n"), "{mangle}");
    // Bytes 52 to 55 of the error: of the copy's header the length, TCP, and the hop limit.
    let answer = "-p ipv6-icmp -m icmp6 --icmpv6-type 1/4 -m u32 --u32 \"0x34&0xffff=0x6ad\"";
    let filter = table(&input, "filter");
    assert!(filter.contains(&format!("-A KUBE-IPVS-COPY {answer} -j DROP\n")), "{filter}");
    let without = mk_leaving(Family::V6, 14, Some(SynCopies { node_ports: false })).first_input();
    assert!(!without.contains("NODE-PORT-TCP"), "a rule needs its set");
}

#[test]
fn the_mark_of_copies_is_not_the_one_that_means_masquerade() {
    let input = mk_leaving(Family::V4, 27, Some(SynCopies::default())).first_input();
    assert!(input.contains("-A KUBE-IPVS-COPY -j MARK --set-xmark 0x4000000/0x4000000\n"));
}

#[test]
fn copies_go_with_the_last_of_ipvs_and_not_before() {
    let with = mk_leaving(Family::V4, 14, Some(SynCopies { node_ports: true }));
    let saved = with.first_input().replace("-I ", "-A ").replace(" 1 -", " -");
    assert!(with.compare(&saved).matches(), "{}", with.compare(&saved));
    // A process that was started again has not decided yet.
    let restarted = mk_leaving(Family::V4, 14, None).compare(&saved);
    assert!(restarted.matches(), "{restarted}");
    let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
    let ipvs = [
        RuleSet::new(Family::V4, &settings),
        RuleSet::before_dispatch(Family::V4, &settings),
        RuleSet::iptables(Family::V4, &settings),
    ];
    for rule_set in ipvs {
        let comparison = rule_set.compare(&saved);
        let mut left = comparison.superseded_jumps.clone();
        left.retain(|jump| COPY_JUMPS.contains(jump));
        assert_eq!(left, COPY_JUMPS);
        let input = rule_set.restore_input(&comparison);
        for jump in COPY_JUMPS {
            let removal = format!("-D {} {}\n", jump.from, jump.rule());
            assert!(table(&input, jump.table.name()).contains(&removal), "{input}");
        }
    }
}

#[test]
fn jumps_to_portals_are_spared_until_these_rules_lead_and_then_taken_out() {
    let settings = RuleSetSettings::new(false, 14, LocalTraffic::Unknown, true).unwrap();
    let rule_set = RuleSet::iptables(Family::V4, &settings);
    let written = rule_set.first_input();
    let portals = RuleSet::userspace(Family::V4, &settings, None).first_input();
    // Of userspace mode first, as they would be found.
    let both = format!("{portals}{written}").replace("-I PREROUTING 1 ", "-A PREROUTING ");
    let both = both.replace("-I OUTPUT 1 ", "-A OUTPUT ");
    let spared = rule_set.clone().while_led().compare(&both);
    assert!(spared.is_led_by_rules && spared.portal_jumps.is_empty(), "{spared}");
    let found = rule_set.compare(&both);
    assert!(found.is_led_by_rules && !found.matches());
    let froms: Vec<&str> = found.portal_jumps.iter().map(|(from, _)| *from).collect();
    assert_eq!(froms, ["PREROUTING", "PREROUTING", "OUTPUT", "OUTPUT"]);
    let input = rule_set.restore_input(&found);
    for (from, rule) in &found.portal_jumps {
        assert!(input.contains(&format!("-D {from} {rule}\n")), "{input}");
    }
    assert!(!rule_set.compare(&written).is_led_by_rules);
}
