use super::rule::Rule;
use super::*;
use crate::event::Event;
use crate::facts::{BoundAddresses, SynCopies};
use crate::fixtures::{addresses, mk_port, mk_service, mk_slice};
use crate::mode::Mode;
use crate::model::{Family, Service, ServiceKind, TrafficPolicy};
use crate::settings::{LocalDetection, Settings};

const POD_HERE: &str = "10.244.1.12:40000";
const OUTSIDE: &str = "192.168.0.100:40000";
const OTHER: &str = "192.168.0.101:40000";
const NODE: &str = "192.0.2.1:40000";
const HERE: &str = "10.244.1.11:8080";
const AWAY: &str = "10.244.2.11:8080";

/// A Service of type LoadBalancer with an endpoint here and one elsewhere, on a node of this mode.
fn mk_planner(mode: Mode, change: impl FnOnce(&mut Service)) -> Planner {
    let settings = Settings {
        mode,
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

/// Returns what can become of a packet, each once.
fn fates(planner: &Planner, source: &str, destination: &str) -> Vec<String> {
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
    let trace = planner.trace(&packet).unwrap();
    let mut fates: Vec<Fate> = trace.ways.into_iter().map(|way| way.fate).collect();
    fates.sort();
    fates.dedup();
    let text = |fate: Fate| match fate {
        Fate::Endpoint { endpoint, source: Source::Client(_) } => format!("{endpoint}"),
        Fate::Endpoint { endpoint, source: Source::Node } => format!("{endpoint} masqueraded"),
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
    for mode in [Mode::Ipvs, Mode::Iptables] {
        let any = mk_planner(mode, |_| {});
        assert_eq!(fates(&any, POD_HERE, "10.96.0.9:80"), both(""), "{mode}");
        assert_eq!(fates(&any, OUTSIDE, "10.96.0.9:80"), both(" masqueraded"), "{mode}");
        for frontend in ["198.51.100.10:80", "203.0.113.10:80", "192.0.2.1:30080"] {
            assert_eq!(fates(&any, OUTSIDE, frontend), both(" masqueraded"), "{mode} {frontend}");
        }
        let local = mk_planner(mode, |it| it.external_policy = TrafficPolicy::Local);
        for frontend in ["198.51.100.10:80", "203.0.113.10:80", "192.0.2.1:30080"] {
            assert_eq!(fates(&local, OUTSIDE, frontend), [HERE], "{mode} {frontend}");
            assert_eq!(fates(&local, POD_HERE, frontend), both(""), "{mode} {frontend}");
            assert_eq!(fates(&local, NODE, frontend), both(" masqueraded"), "{mode} {frontend}");
        }
    }
}

#[test]
fn every_mode_keeps_clients_out_that_are_not_in_a_source_range() {
    for mode in [Mode::Ipvs, Mode::Iptables] {
        let planner = mk_planner(mode, |it| {
            it.source_ranges = vec!["192.168.0.100/32".parse().unwrap()];
        });
        assert_eq!(fates(&planner, OUTSIDE, "203.0.113.10:80"), both(" masqueraded"), "{mode}");
        for source in [OTHER, NODE] {
            assert_eq!(fates(&planner, source, "203.0.113.10:80"), ["dropped"], "{mode} {source}");
        }
    }
}

#[test]
fn an_endpoint_that_reaches_itself_is_masqueraded() {
    for mode in [Mode::Ipvs, Mode::Iptables] {
        let planner = mk_planner(mode, |_| {});
        let expected = [AWAY.to_owned(), format!("{HERE} masqueraded")];
        let mut found = fates(&planner, "10.244.1.11:40000", "10.96.0.9:80");
        found.sort_unstable_by(|one, other| other.cmp(one));
        assert_eq!(found, expected, "{mode}");
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
            let bound = BoundAddresses { routes: vec!["10.96.0.0/16".parse().unwrap()], copies };
            planner.note_bound(Family::BOTH.map(|family| (family, bound.clone())).into());
            for family in Family::BOTH {
                let rule_set = planner.rule_set(family).unwrap();
                let chains = rule_set.chains().iter().chain(rule_set.shared());
                let rules = chains.flat_map(|chain| chain.rules.iter().cloned());
                for rule in rules.chain(rule_set.jumps().iter().map(|jump| jump.rule())) {
                    assert_eq!(Rule::read(&rule).err(), None, "{mode}");
                }
            }
        }
    }
    let unknown = Rule::read("-m set --match-set KUBE-OTHER dst -j DROP").unwrap_err();
    assert!(unknown.to_string().contains("unknown set KUBE-OTHER"), "{unknown}");
}
