//! Planning in iptables mode.

use super::*;
use crate::chains::{ChainId, ChainOp, ChainSubject, SharedChain};
use crate::iptables::tail;
use crate::mode::Mode;
use crate::rule_set::Table;
use crate::settings::NodePortAddresses;

fn mk_settings() -> Settings {
    Settings { mode: Mode::Iptables, ..Settings::new("n1") }
}

/// A planner that has planned these, with the node's addresses.
fn mk_chains(settings: Settings, events: impl IntoIterator<Item = Event>) -> Planner {
    let mut planner = Planner::new(settings);
    planner.apply(Event::LocalAddresses(addresses(&["127.0.0.1", "192.0.2.10", "fd00::10"])));
    plan(&mut planner, events);
    planner
}

fn mk_udp(node_port: u16) -> Service {
    Service {
        kind: ServiceKind::NodePort,
        ports: vec![mk_port("http", Protocol::Udp, 53, Some(node_port))],
        ..mk_service()
    }
}

fn applied(service: Service) -> Event {
    Event::ServiceApplied(Box::new(service))
}

fn slice(endpoints: &[&str]) -> Event {
    Event::SliceApplied(Box::new(mk_slice_of("web-1", "web", endpoints)))
}

fn udp(address: &str, port: u16) -> Frontend {
    Frontend { address: address.parse().unwrap(), protocol: Protocol::Udp, port }
}

/// The rules that a plan writes into chains of one service port or endpoint.
fn written(plan: &Plan) -> Vec<&str> {
    let writes = plan.ops.iter().filter_map(|op| match op {
        Op::Chain(ChainOp::Write(chain, rules)) if !chain.name.is_shared() => Some(rules),
        _ => None,
    });
    writes.flat_map(|rules| rules.iter()).map(|rule| &**rule).collect()
}

#[test]
fn a_node_ports_flows_are_at_every_address_that_serves_it() {
    let mut planner = mk_chains(mk_settings(), [applied(mk_udp(30_053)), slice(&["10.244.0.1"])]);
    planner.apply(slice(&["10.244.0.2"]));
    let flows = planner.plan().flows;
    let expected = [udp("10.96.0.9", 53), udp("192.0.2.10", 30_053)];
    assert_eq!(flows, expected.into());
    let targets = Some(vec!["10.244.0.2:8080".parse().unwrap()]);
    for frontend in expected {
        assert_eq!(planner.flow_targets(&frontend), targets, "{frontend}");
    }
    for frontend in [udp("127.0.0.1", 30_053), udp("192.0.2.11", 30_053), udp("192.0.2.10", 53)] {
        assert_eq!(planner.flow_targets(&frontend), None, "{frontend}");
    }
    let localhost = Settings { iptables_localhost_node_ports: true, ..mk_settings() };
    let planner = mk_chains(localhost, [applied(mk_udp(30_053)), slice(&["10.244.0.2"])]);
    assert_eq!(planner.flow_targets(&udp("127.0.0.1", 30_053)), targets);
}

#[test]
fn the_last_rules_follow_the_nodes_addresses() {
    let networks = vec!["192.0.2.0/24".parse().unwrap(), "127.0.0.0/8".parse().unwrap()];
    let chosen = NodePortAddresses::Networks(networks);
    let settings = Settings {
        node_port_addresses: chosen,
        iptables_localhost_node_ports: true,
        ..mk_settings()
    };
    let mut planner = mk_chains(settings, [applied(mk_service()), slice(&["10.244.0.1"])]);
    planner.apply(Event::LocalAddresses(addresses(&["127.0.0.1", "192.0.2.10", "192.0.2.11"])));
    let plan = planner.plan();
    let [Op::Chain(ChainOp::Write(chain, rules))] = &*plan.ops else { panic!("{:?}", plan.ops) };
    assert_eq!(*chain, tail::chain(Family::V4));
    let comment = "-m comment --comment \"kubernetes service nodeports; NOTE: this must be the last \
                   rule in this chain\" -j KUBE-NODEPORTS";
    let last: Vec<String> = ["127.0.0.1", "192.0.2.10", "192.0.2.11"]
        .iter()
        .map(|address| format!("-d {address}/32 {comment}"))
        .collect();
    assert!(rules[0].starts_with("-d 10.96.0.9/32 -p tcp "), "{}", rules[0]);
    assert_eq!(rules.iter().skip(1).map(|rule| &**rule).collect::<Vec<_>>(), last);
    assert_eq!(planner.desired_chains().n_rules(Family::V4, Table::Nat), 1 + 3 + 3);

    let all = Planner::new(mk_settings());
    let last = |family| all.desired_chains().shared_rules(&tail::chain(family));
    let everywhere = "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS";
    assert!(last(Family::V4)[0].starts_with("! -d 127.0.0.0/8 -m comment "));
    assert!(last(Family::V6)[0].starts_with("! -d ::1/128 -m comment "));
    assert!(last(Family::V6)[0].ends_with(everywhere));
}

#[test]
fn many_deletions_from_a_shared_chain_write_it_again() {
    let with_addresses = |n: u8| Service {
        external: (0..n).map(|last| [198, 51, 100, last].into()).collect(),
        ..mk_service()
    };
    let deletions = |n: u8| {
        let events = [applied(with_addresses(n + 1)), slice(&["10.244.0.1"])];
        let mut planner = mk_chains(mk_settings(), events);
        planner.apply(applied(with_addresses(1)));
        planner.plan().ops
    };
    let ops = deletions(25);
    assert_eq!(ops.len(), 25);
    assert!(ops.iter().all(|op| matches!(op, Op::Chain(ChainOp::Delete(..)))));
    let ops = deletions(26);
    let [Op::Chain(ChainOp::Write(chain, rules))] = &*ops else { panic!("{ops:?}") };
    assert_eq!((*chain, rules.len()), (tail::chain(Family::V4), 3));
}

#[test]
fn a_frontend_is_the_older_services_and_the_younger_one_is_told() {
    let named = |name: &str, created| Service {
        kind: ServiceKind::NodePort,
        cluster_v4: Some([10, 96, 0, u8::try_from(created).unwrap()].into()),
        ports: vec![mk_port("http", Protocol::Tcp, 80, Some(30_080))],
        ..mk_named(name, created)
    };
    let mut planner = mk_chains(mk_settings(), [applied(named("b", 2))]);
    planner.apply(applied(named("a", 1)));
    let plan = planner.plan();
    let frontend = Frontend { address: [0, 0, 0, 0].into(), protocol: Protocol::Tcp, port: 30_080 };
    let owner = ServiceName::new("ns", "a");
    assert_eq!(planner.desired_chains().owner(&frontend), Some(&owner));
    let problem = Problem::FrontendTaken { frontend, owner };
    assert_eq!(plan.problems, [(ServiceName::new("ns", "b"), vec![problem])]);
    let ports = ChainId::shared(Family::V4, Table::Filter, SharedChain::ExternalServices);
    let of_ports = plan.ops.iter().filter(|op| matches!(op, Op::Chain(op) if op.chain() == ports));
    let texts: Vec<String> = of_ports.map(ToString::to_string).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].starts_with("insert rule") && texts[0].contains("ns/a:http has no endpoints"));
    assert!(texts[1].starts_with("delete rule") && texts[1].contains("ns/b:http has no endpoints"));
}

#[test]
fn a_new_pod_network_changes_every_service_and_no_constant_rule() {
    let settings = Settings { local_detection: LocalDetection::NodeCidr, ..mk_settings() };
    let mut planner = mk_chains(settings, [applied(mk_service()), slice(&["10.244.0.1"])]);
    let pod_cidrs = vec!["10.244.0.0/24".parse().unwrap()];
    planner.apply(Event::NodeApplied(Box::new(Node { pod_cidrs, ..Node::default() })));
    let plan = planner.plan();
    assert_eq!(plan.ops.len(), 1);
    let rules = written(&plan);
    assert!(rules[0].starts_with("! -s 10.244.0.0/24 -d 10.96.0.9/32 "), "{rules:?}");
}

#[test]
fn with_very_many_endpoints_their_rules_have_no_comments() {
    let many = |count: u16| {
        let address = |n: u16| format!("10.244.{}.{}", n.to_be_bytes()[0], n.to_be_bytes()[1]);
        let endpoints: Vec<String> = (0..count).map(address).collect();
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        Event::SliceApplied(Box::new(mk_slice_of("many-1", "many", &endpoints)))
    };
    let other = Service { cluster_v4: Some([10, 96, 0, 8].into()), ..mk_named("many", 8) };
    let events = [applied(mk_service()), slice(&["10.245.0.1"]), applied(other), many(999)];
    let mut planner = mk_chains(mk_settings(), events);
    let mut commented = |event| {
        planner.apply(event);
        let plan = planner.plan();
        written(&plan).iter().filter(|rule| rule.contains("ns/web:http")).count()
    };
    assert_eq!(commented(many(998)), 0, "unchanged");
    assert_eq!(commented(many(1_000)), 0, "without comments");
    assert_eq!(commented(many(1_001)), 0, "unchanged");
    for n_endpoints in [999, 1_001, 850, 799] {
        assert_eq!(commented(many(n_endpoints)), 0, "{n_endpoints}: as before");
    }
    assert!(commented(many(798)) > 0, "with comments");
    assert_eq!(commented(many(999)), 0, "unchanged");
    assert_eq!(commented(Event::SliceRemoved(SliceName::new("ns", "many-1"))), 0, "unchanged");
}

#[test]
fn what_the_api_server_asks_for_has_the_last_rules_with_it() {
    let name = ServiceName::api_server();
    let service = Service { name: name.clone(), ..mk_service() };
    let slice = EndpointSlice { service: name.clone(), ..mk_slice_of("s", "s", &["10.244.0.1"]) };
    let events = [applied(service), Event::SliceApplied(Box::new(slice))];
    let planner = mk_chains(mk_settings(), events);
    let asked = planner.asked_for_by(&name);
    let last = planner.desired_chains().shared_rules(&tail::chain(Family::V4));
    let last = ChainOp::Delete(tail::chain(Family::V4), last.last().unwrap().as_ref().into());
    assert!(asked.contains(&Subject::Chain(last.subject())));
    let chains = asked.iter().filter(|it| matches!(it, Subject::Chain(ChainSubject::Chain(_))));
    assert_eq!((asked.len(), chains.count()), (4, 2));
}
