//! In iptables mode, too, large Services are planned in parts, and others go between.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::chains::{ChainName, ChainOp, ChainScope};
use crate::comparison::Reading;
use crate::fixtures::number;
use crate::mode::Mode;
use crate::model::SlicePort;

const ONE_PART: RoundLimit =
    RoundLimit { services: 1, operations_per_service: 20, ..RoundLimit::NONE };

fn mk_chains() -> Planner {
    let mut planner = Planner::new(Settings { mode: Mode::Iptables, ..Settings::new("n1") });
    planner.apply(Event::LocalAddresses(addresses(&["192.0.2.10"])));
    planner
}

/// A Service with 20 ports, each of them at two addresses of a load balancer, too, and with
/// these endpoints.
fn of_large(endpoints: &[&str]) -> [Event; 2] {
    let names: Vec<String> = (1..=20).map(|port| format!("p{port}")).collect();
    let ports = names.iter().zip(1..).map(|(name, port)| mk_port(name, Protocol::Tcp, port, None));
    let large = Service {
        kind: ServiceKind::LoadBalancer,
        cluster_v4: Some([10, 96, 0, 1].into()),
        load_balancer: addresses(&["198.51.100.1", "198.51.100.2"]),
        ports: ports.collect(),
        ..mk_named("large", 1)
    };
    let port = |name: &String| SlicePort {
        name: name.as_str().into(),
        protocol: Protocol::Tcp,
        port: number(8080),
    };
    let ports = names.iter().map(port).collect();
    [service(large), slice(EndpointSlice { ports, ..mk_slice_of("large-1", "large", endpoints) })]
}

fn of_small() -> [Event; 2] {
    [service(mk_service()), slice(mk_slice_of("web-1", "web", &["10.244.1.2"]))]
}

/// Rules and chains that an operation writes.
fn n_lines(op: &Op) -> usize {
    match op {
        Op::Chain(ChainOp::Write(_, rules)) => 1 + rules.len(),
        _ => 1,
    }
}

/// Plans in parts, and checks that no rule leads to a chain that is not there. Returns the
/// operations of each round.
fn rounds(planner: &mut Planner, chains: &mut BTreeSet<String>) -> Vec<Vec<Op>> {
    let mut rounds = Vec::new();
    while planner.is_dirty() {
        let ops = planner.plan_round(ONE_PART).ops;
        for op in &ops {
            if let Op::Chain(ChainOp::Write(chain, _)) = op {
                chains.insert(chain.name.to_string());
            }
        }
        for rule in ops.iter().flat_map(rules) {
            let to = rule.rsplit_once("-j ").map_or("", |(_, to)| to.split(' ').next().unwrap());
            let is_of_port = to.starts_with("KUBE-SEP-") || to.starts_with("KUBE-SVC-");
            assert!(!is_of_port || chains.contains(to), "{rule}");
        }
        rounds.push(ops);
    }
    rounds
}

fn rules(op: &Op) -> Vec<&str> {
    match op {
        Op::Chain(ChainOp::Write(_, rules)) => rules.iter().map(|rule| &**rule).collect(),
        Op::Chain(ChainOp::Insert(_, rule)) => vec![rule],
        _ => Vec::new(),
    }
}

/// All that a planner wants of a kernel that has nothing.
fn wanted(planner: &Planner) -> Vec<Op> {
    planner.compare(&Reading::Chains(Family::V4, Arc::default(), ChainScope::All))
}

#[test]
fn others_go_between_the_parts_of_a_large_service() {
    let mut planner = mk_chains();
    of_large(&["10.244.1.1", "10.244.1.3"]).into_iter().for_each(|it| planner.apply(it));
    of_small().into_iter().for_each(|it| planner.apply(it));
    let mut chains = BTreeSet::new();
    let all = rounds(&mut planner, &mut chains);
    let is_small = |op: &Op| rules(op).iter().any(|rule| rule.contains("ns/web:http"));
    let small = all.iter().position(|ops| ops.iter().any(is_small));
    assert_eq!(small, Some(1), "{all:#?}");
    // The claim or chain that the limit is in is the last one of its part.
    assert!(all.len() > 10 && all.iter().all(|ops| lines(ops) <= 24), "{:?}", sizes(&all));

    let mut scratch = mk_chains();
    of_small().into_iter().for_each(|it| scratch.apply(it));
    of_large(&["10.244.1.1", "10.244.1.3"]).into_iter().for_each(|it| scratch.apply(it));
    scratch.plan();
    assert_eq!(wanted(&planner), wanted(&scratch));
    let n_rules = |planner: &Planner| planner.n_rules(Family::V4, crate::rule_set::Table::Nat);
    assert_eq!(n_rules(&planner), n_rules(&scratch));
}

fn lines(ops: &[Op]) -> usize {
    ops.iter().map(n_lines).sum()
}

fn sizes(rounds: &[Vec<Op>]) -> Vec<usize> {
    rounds.iter().map(|ops| lines(ops)).collect()
}

#[test]
fn new_endpoints_come_in_parts_and_former_ones_go_with_the_last() {
    let mut planner = mk_chains();
    of_large(&["10.244.1.1"]).into_iter().for_each(|it| planner.apply(it));
    let mut chains = BTreeSet::new();
    rounds(&mut planner, &mut chains);
    of_large(&["10.244.1.2", "10.244.1.3"]).into_iter().for_each(|it| planner.apply(it));
    let all = rounds(&mut planner, &mut chains);
    let is_removed = |op: &Op| matches!(op, Op::Chain(ChainOp::Remove(_)));
    let (last, others) = all.split_last().unwrap();
    assert_eq!(last.iter().filter(|op| is_removed(op)).count(), 20);
    assert!(others.len() > 4, "{:?}", sizes(&all));
    for op in others.iter().flatten() {
        let is_new = matches!(op, Op::Chain(ChainOp::Write(chain, _))
            if matches!(chain.name, ChainName::OfPort(..)));
        assert!(is_new, "{op}");
    }
    let mut scratch = mk_chains();
    of_large(&["10.244.1.2", "10.244.1.3"]).into_iter().for_each(|it| scratch.apply(it));
    scratch.plan();
    assert_eq!(wanted(&planner), wanted(&scratch));
    planner.apply(Event::ServiceRemoved(ObjectName::new("ns", "large")));
    rounds(&mut planner, &mut chains);
    assert_eq!(planner.desired_chains().n_chains(), 0);
}

#[test]
fn chains_of_a_service_that_changes_again_and_again_do_not_pile_up() {
    let mut planner = mk_chains();
    let n_chains = |planner: &Planner| planner.desired_chains().n_chains();
    let mut most = 0;
    for round in 0..100_u8 {
        let endpoints = [format!("10.244.{round}.1"), format!("10.244.{round}.2")];
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        of_large(&endpoints).into_iter().for_each(|it| planner.apply(it));
        planner.plan_round(ONE_PART);
        most = most.max(n_chains(&planner));
    }
    while planner.is_dirty() {
        planner.plan_round(ONE_PART);
    }
    // Two endpoints, the choice of one, and the way from outside, of each port.
    assert_eq!(n_chains(&planner), 20 * 4);
    assert!(most <= 3 * n_chains(&planner), "{most}");
}
