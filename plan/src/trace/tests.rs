use super::rule::Rule;
use super::*;
use crate::event::Event;
use crate::facts::{BoundAddresses, SynCopies};
use crate::fixtures::{addresses, mk_port, mk_service, mk_slice};
use crate::mode::Mode;
use crate::model::{Family, Node, Overrides, Service, ServiceKind, TrafficPolicy, Weights};
use crate::scheduler::SchedulerName;
use crate::settings::{LocalDetection, RuleForm, Settings};

const POD_HERE: &str = "10.244.1.12:40000";
const OUTSIDE: &str = "192.168.0.100:40000";
const OTHER: &str = "192.168.0.101:40000";
const NODE: &str = "192.0.2.1:40000";
const HERE: &str = "10.244.1.11:8080";
const AWAY: &str = "10.244.2.11:8080";

/// Modes that lead clients, with the forms of their constant rules.
const LEADING: [(Mode, RuleForm); 3] = [
    (Mode::Ipvs, RuleForm::Iptables),
    (Mode::Ipvs, RuleForm::Nftables),
    (Mode::Iptables, RuleForm::Iptables),
];

/// A Service of type LoadBalancer with an endpoint here and one elsewhere, on a node of this mode.
fn mk_planner(mode: (Mode, RuleForm), change: impl FnOnce(&mut Service)) -> Planner {
    let (mode, rule_form) = mode;
    let settings = Settings {
        mode,
        rule_form,
        local_detection: LocalDetection::BridgeInterface("cni0".into()),
        ..Settings::new("n1")
    };
    let mut planner = Planner::new(settings);
    let mut service = Service {
        kind: ServiceKind::LoadBalancer,
        ports: vec![mk_port("http", Protocol::Tcp, 80, Some(30_080))],
        external: addresses(&["198.51.100.10"]),
        load_balancer: addresses(&["203.0.113.10"]),
        ..mk_service()
    };
    change(&mut service);
    let slice = mk_slice(Family::V4, &[("10.244.1.11", "n1"), ("10.244.2.11", "n2")]);
    planner.apply(Event::LocalAddresses(addresses(&["192.0.2.1", "10.244.1.1"])));
    planner.apply(Event::ServiceApplied(Box::new(service)));
    planner.apply(Event::SliceApplied(Box::new(slice)));
    planner.plan();
    planner
}

/// Returns the ways of a packet of TCP.
fn traced(planner: &Planner, source: &str, destination: &str) -> Trace {
    let source: SocketAddr = source.parse().unwrap();
    let interface =
        |name: &str, is_by_bridge_port| Origin::Interface { name: name.into(), is_by_bridge_port };
    let origin = match source.ip().to_string() {
        address if address == "192.0.2.1" => Origin::Node,
        address if address.starts_with("10.244.") => interface("cni0", true),
        _ => interface("eth0", false),
    };
    let destination = destination.parse().unwrap();
    let packet = Packet { protocol: Protocol::Tcp, source, destination, origin };
    planner.trace(&packet).unwrap()
}

/// Returns what can become of a packet, each once.
fn fates(planner: &Planner, source: &str, destination: &str) -> Vec<String> {
    let ways = traced(planner, source, destination).ways;
    let mut fates: Vec<Fate> = ways.into_iter().map(|way| way.fate).collect();
    fates.sort();
    fates.dedup();
    let text = |fate: Fate| match fate {
        Fate::Endpoint { endpoint, source: Source::Client(_) } => format!("{endpoint}"),
        Fate::Endpoint { endpoint, source: Source::Node } => format!("{endpoint} masqueraded"),
        Fate::Unanswered { endpoint, .. } => format!("{endpoint} unanswered"),
        Fate::Refused { .. } => "refused".to_owned(),
        Fate::Dropped => "dropped".to_owned(),
        Fate::Delivered => "delivered".to_owned(),
        Fate::PassedOn => "passed on".to_owned(),
    };
    fates.into_iter().map(text).collect()
}

fn both(suffix: &str) -> Vec<String> {
    [HERE, AWAY].map(|endpoint| format!("{endpoint}{suffix}")).to_vec()
}

#[test]
fn every_mode_leads_clients_to_the_endpoints_of_their_policy() {
    for mode in LEADING {
        let any = mk_planner(mode, |_| {});
        assert_eq!(fates(&any, POD_HERE, "10.96.0.9:80"), both(""), "{mode:?}");
        assert_eq!(fates(&any, OUTSIDE, "10.96.0.9:80"), both(" masqueraded"), "{mode:?}");
        for frontend in ["198.51.100.10:80", "203.0.113.10:80", "192.0.2.1:30080"] {
            assert_eq!(fates(&any, OUTSIDE, frontend), both(" masqueraded"), "{mode:?} {frontend}");
        }
        let local = mk_planner(mode, |it| it.external_policy = TrafficPolicy::Local);
        for frontend in ["198.51.100.10:80", "203.0.113.10:80", "192.0.2.1:30080"] {
            assert_eq!(fates(&local, OUTSIDE, frontend), [HERE], "{mode:?} {frontend}");
            assert_eq!(fates(&local, POD_HERE, frontend), both(""), "{mode:?} {frontend}");
            assert_eq!(fates(&local, NODE, frontend), both(" masqueraded"), "{mode:?} {frontend}");
        }
    }
}

#[test]
fn every_mode_keeps_clients_out_that_are_not_in_a_source_range() {
    for mode in LEADING {
        let planner = mk_planner(mode, |it| {
            it.source_ranges = vec!["192.168.0.100/32".parse().unwrap()];
        });
        assert_eq!(fates(&planner, OUTSIDE, "203.0.113.10:80"), both(" masqueraded"), "{mode:?}");
        for source in [OTHER, NODE] {
            assert_eq!(
                fates(&planner, source, "203.0.113.10:80"),
                ["dropped"],
                "{mode:?} {source}"
            );
        }
    }
}

#[test]
fn an_endpoint_that_reaches_itself_is_masqueraded() {
    for mode in LEADING {
        let planner = mk_planner(mode, |_| {});
        let expected = [AWAY.to_owned(), format!("{HERE} masqueraded")];
        let mut found = fates(&planner, "10.244.1.11:40000", "10.96.0.9:80");
        found.sort_unstable_by(|one, other| other.cmp(one));
        assert_eq!(found, expected, "{mode:?}");
    }
}

#[test]
fn every_constant_rule_can_be_followed() {
    for mode in Mode::ALL {
        let settings = Settings { mode, drop_invalid: true, nfacct: true, ..Settings::new("n1") };
        let mut planner = Planner::new(settings);
        planner.apply(Event::LocalAddresses(addresses(&["192.0.2.1"])));
        planner.plan();
        for copies in [None, Some(SynCopies { node_ports: true })] {
            let routes = vec!["10.96.0.0/16".parse().unwrap()];
            let bound = BoundAddresses { routes, hairpins: true, copies };
            planner.note_bound(Family::BOTH.map(|family| (family, bound.clone())).into());
            for family in Family::BOTH {
                let rule_set = planner.rule_set(family).unwrap();
                let chains = rule_set.chains().iter().chain(rule_set.shared());
                let rules = chains.flat_map(|chain| chain.rules.iter().cloned());
                for rule in rules.chain(rule_set.jumps().iter().map(|jump| jump.rule())) {
                    assert_eq!(Rule::read(&rule).err(), None, "{mode:?}");
                }
            }
        }
    }
    let unknown = Rule::read("-m set --match-set KUBE-OTHER dst -j DROP").unwrap_err();
    assert!(unknown.to_string().contains("unknown set KUBE-OTHER"), "{unknown}");
}

#[test]
fn a_rule_names_the_entries_by_which_sets_know_the_packet() {
    let planner = mk_planner((Mode::Ipvs, RuleForm::Iptables), |it| {
        let ranges = ["192.168.0.101/32", "192.168.0.0/25", "10.0.0.0/8"];
        it.source_ranges = ranges.map(|range| range.parse().unwrap()).into();
    });
    let entries = |source: &str| -> Vec<String> {
        let trace = traced(&planner, source, "203.0.113.10:80");
        let steps = trace.ways[0].steps.iter();
        let entries = steps.filter_map(|step| match step {
            Step::Rule { entries, .. } => Some(entries),
            _ => None,
        });
        entries.flatten().map(|(set, entry)| format!("{set} {entry}")).collect()
    };
    let outside = entries(OUTSIDE);
    let range = "KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.10,tcp:80,192.168.0.0/25";
    assert!(outside.contains(&range.to_owned()), "{outside:?}");
    assert!(outside.contains(&"KUBE-LOAD-BALANCER-FW 203.0.113.10,tcp:80".to_owned()));
    // As the kernel does it: the smallest network that has the address.
    let other = entries(OTHER);
    let range = "KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.10,tcp:80,192.168.0.101/32";
    assert!(other.contains(&range.to_owned()), "{other:?}");
}

#[test]
fn a_new_mark_is_a_step_of_its_own() {
    let marks = |source| -> Vec<u32> {
        let trace =
            traced(&mk_planner((Mode::Ipvs, RuleForm::Iptables), |_| {}), source, "10.96.0.9:80");
        let steps = trace.ways[0].steps.iter();
        let marks = steps.filter_map(|step| match step {
            Step::Marked { mark } => Some(*mark),
            _ => None,
        });
        marks.collect()
    };
    assert_eq!(marks(OUTSIDE), [0x4000, 0], "masqueraded, and the mark is taken off");
    assert_eq!(marks(POD_HERE), [0; 0]);
}

#[test]
fn shares_are_known_where_neither_connections_nor_clients_decide() {
    let shares = |mode, scheduler: Option<&str>, weights| -> Vec<Option<f64>> {
        let planner = mk_planner(mode, |it| {
            let scheduler = scheduler.map(|name| SchedulerName::new(name).unwrap());
            let overrides = Overrides { scheduler, weights, ..Overrides::default() };
            it.overrides = Some(overrides.into());
        });
        let mut ways = traced(&planner, POD_HERE, "10.96.0.9:80").ways;
        ways.sort_by(|one, other| one.fate.cmp(&other.fate));
        ways.into_iter().map(|way| way.share).collect()
    };
    let three_to_one = Some(Weights { node: 3, zone: 1, elsewhere: 1 });
    assert_eq!(shares((Mode::Ipvs, RuleForm::Iptables), None, None), [Some(0.5); 2]);
    assert_eq!(shares((Mode::Iptables, RuleForm::Iptables), None, None), [Some(0.5); 2]);
    assert_eq!(shares((Mode::Ipvs, RuleForm::Iptables), Some("rr"), three_to_one), [Some(0.5); 2]);
    assert_eq!(
        shares((Mode::Ipvs, RuleForm::Iptables), Some("wrr"), three_to_one),
        [Some(0.75), Some(0.25)]
    );
    assert_eq!(shares((Mode::Ipvs, RuleForm::Iptables), Some("lc"), None), [None; 2]);
}

/// The same, on a node with pod networks, where pods are told by the cluster's network.
fn mk_planner_of_node(mode: Mode, change: impl FnOnce(&mut Service)) -> Planner {
    let pods = vec!["10.244.0.0/16".parse().unwrap()];
    let settings = Settings {
        mode,
        local_detection: LocalDetection::ClusterCidr(pods),
        ..Settings::new("n1")
    };
    let mut planner = Planner::new(settings);
    planner.apply(Event::NodeApplied(Box::new(Node {
        addresses: addresses(&["192.0.2.1"]),
        pod_cidrs: vec!["10.244.1.0/24".parse().unwrap()],
        ..Node::default()
    })));
    let mut service = Service {
        kind: ServiceKind::NodePort,
        ports: vec![mk_port("http", Protocol::Tcp, 80, Some(30_080))],
        ..mk_service()
    };
    change(&mut service);
    let slice = mk_slice(Family::V4, &[("10.244.1.11", "n1"), ("10.244.2.11", "n2")]);
    planner.apply(Event::LocalAddresses(addresses(&["192.0.2.1", "10.244.1.1"])));
    planner.apply(Event::ServiceApplied(Box::new(service)));
    planner.apply(Event::SliceApplied(Box::new(slice)));
    planner.plan();
    planner
}

#[test]
fn an_answer_between_two_other_hosts_goes_past_this_node() {
    let by_eth0 = |planner: &Planner, source: &str| {
        let origin = Origin::Interface { name: "eth0".into(), is_by_bridge_port: false };
        let (source, destination) = (source.parse().unwrap(), "192.0.2.1:30080".parse().unwrap());
        let packet = Packet { protocol: Protocol::Tcp, source, destination, origin };
        let mut fates: Vec<Fate> =
            planner.trace(&packet).unwrap().ways.into_iter().map(|way| way.fate).collect();
        fates.sort();
        fates
    };
    let endpoint = |address: &str| address.parse::<SocketAddr>().unwrap();
    let local = |service: &mut Service| service.external_policy = TrafficPolicy::Local;
    // Rules take a pod of another node for one of the cluster, and leave it its address.
    let planner = mk_planner_of_node(Mode::Iptables, local);
    let client: IpAddr = "10.244.2.12".parse().unwrap();
    assert_eq!(
        by_eth0(&planner, "10.244.2.12:40000"),
        [
            Fate::Endpoint { endpoint: endpoint(HERE), source: Source::Client(client) },
            Fate::Unanswered { endpoint: endpoint(AWAY), client },
        ]
    );
    let own = by_eth0(&planner, "10.244.1.12:40000");
    assert!(own.iter().all(|fate| matches!(fate, Fate::Endpoint { .. })), "{own:?}");
    // Mode ipvs masquerades it.
    let planner = mk_planner_of_node(Mode::Ipvs, local);
    let fates = by_eth0(&planner, "10.244.2.12:40000");
    let is_masqueraded = |fate: &Fate| matches!(fate, Fate::Endpoint { source: Source::Node, .. });
    assert!(fates.len() == 2 && fates.iter().all(is_masqueraded), "{fates:?}");
    // Without pod networks, the place of the client is not known.
    let mut planner = mk_planner_of_node(Mode::Iptables, local);
    planner.apply(Event::NodeApplied(Box::new(Node {
        addresses: addresses(&["192.0.2.1"]),
        ..Node::default()
    })));
    planner.plan();
    let fates = by_eth0(&planner, "10.244.2.12:40000");
    assert!(fates.iter().all(|fate| matches!(fate, Fate::Endpoint { .. })), "{fates:?}");
}
