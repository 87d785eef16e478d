use super::*;
use crate::model::{Conditions, Hints};

const HERE: &str = "n1";
const ZONE: &str = "a";

fn conditions() -> [Conditions; 5] {
    let of = |ready, serving, terminating| Conditions { ready, serving, terminating };
    [
        of(true, true, false),
        of(false, false, false),
        of(false, true, true),
        of(false, false, true),
        // Of a Service that publishes its endpoints before they are ready.
        of(true, true, true),
    ]
}

fn hints() -> [Option<Arc<Hints>>; 4] {
    let of = |zones: &[&str], nodes: &[&str]| {
        let names = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect();
        Some(Arc::new(Hints { zones: names(zones), nodes: names(nodes) }))
    };
    [None, of(&[ZONE], &[]), of(&["b"], &[HERE]), of(&["b"], &["n2"])]
}

/// An endpoint in each state that selection asks for, on this node and on another one.
fn endpoints(last: u8) -> Vec<Endpoint> {
    let mut endpoints = Vec::new();
    for conditions in conditions() {
        for node in [HERE, "n2"] {
            for hints in hints() {
                endpoints.push(Endpoint {
                    address: [10, 0, 0, last].into(),
                    conditions,
                    node: Some(node.into()),
                    zone: None,
                    hints,
                });
            }
        }
    }
    endpoints
}

/// The choice in other words: filter, and fall back if nothing is left.
fn plainly<'a>(selection: &Selection<'a>, policy: TrafficPolicy) -> Vec<&'a Endpoint> {
    let ready: Vec<&Endpoint> = selection.candidates.iter().map(|it| it.endpoint).collect();
    let ready: Vec<&Endpoint> = ready.into_iter().filter(|it| it.conditions.ready).collect();
    let hinted = |is_for: &dyn Fn(&Hints) -> bool, has: &dyn Fn(&Hints) -> bool| {
        let all = ready.iter().all(|it| it.hints.as_deref().is_some_and(has));
        let meant = ready.iter().copied().filter(|it| it.hints.as_deref().is_some_and(is_for));
        meant.filter(|_| all).collect::<Vec<_>>()
    };
    let is_here = |it: &&Endpoint| it.node.as_deref() == Some(HERE);
    let mut chosen = match policy {
        TrafficPolicy::Local => ready.iter().copied().filter(is_here).collect(),
        TrafficPolicy::Cluster => {
            let for_node =
                hinted(&|it| it.nodes.contains(&HERE.into()), &|it| !it.nodes.is_empty());
            let for_zone =
                hinted(&|it| it.zones.contains(&ZONE.into()), &|it| !it.zones.is_empty());
            let first = [for_node, for_zone].into_iter().find(|it| !it.is_empty());
            first.unwrap_or(ready.clone())
        }
    };
    if chosen.is_empty() {
        let all = selection.candidates.iter().map(|it| it.endpoint);
        let serving = all.filter(|it| it.conditions.serving && it.conditions.terminating);
        chosen = serving.filter(|it| policy == TrafficPolicy::Cluster || is_here(it)).collect();
    }
    chosen
}

#[test]
fn decisions_are_the_choice_with_reasons_whatever_the_endpoints_are() {
    let all: Vec<Vec<Endpoint>> = (1..=3).map(endpoints).collect();
    for first in &all[0] {
        for second in &all[1] {
            for third in &all[2] {
                let candidates =
                    [first, second, third].map(|endpoint| Candidate { port: 80, endpoint });
                let selection = Selection {
                    node_name: HERE,
                    zone: Some(ZONE),
                    weights: None,
                    candidates: &candidates,
                };
                let choice = selection.choose();
                for policy in [TrafficPolicy::Cluster, TrafficPolicy::Local] {
                    let chosen = match policy {
                        TrafficPolicy::Cluster => &choice.cluster,
                        TrafficPolicy::Local => &choice.local,
                    };
                    let chosen: Vec<_> = chosen.iter().map(|it| it.address).collect();
                    let plainly = plainly(&selection, policy);
                    let plainly: Vec<_> = plainly.iter().map(|it| it.address).collect();
                    assert_eq!(chosen, plainly, "{policy:?} {candidates:?}");
                    let decisions = selection.decisions(policy);
                    let used = decisions.iter().zip(&candidates);
                    let used = used.filter(|(decision, _)| decision.is_used());
                    let used: Vec<_> = used.map(|(_, it)| it.endpoint.address).collect();
                    assert_eq!(used, chosen, "{policy:?} {candidates:?}");
                }
            }
        }
    }
}

#[test]
fn an_endpoint_that_is_not_used_has_the_reason_that_keeps_it_away() {
    let [ready, starting, leaving, ended, _] = conditions();
    let [_, this_zone, this_node, others] = hints();
    let of = |address: u8, conditions, node: &str, hints: &Option<Arc<Hints>>| Endpoint {
        address: [10, 0, 0, address].into(),
        conditions,
        node: Some(node.into()),
        zone: None,
        hints: hints.clone(),
    };
    let decisions = |endpoints: &[Endpoint], policy| {
        let candidates: Vec<Candidate<'_>> =
            endpoints.iter().map(|endpoint| Candidate { port: 80, endpoint }).collect();
        let selection =
            Selection { node_name: HERE, zone: Some(ZONE), weights: None, candidates: &candidates };
        selection.decisions(policy)
    };
    let by_zone = [
        of(1, ready, "n2", &this_zone),
        of(2, ready, HERE, &others),
        of(3, starting, HERE, &None),
        of(4, leaving, HERE, &None),
        of(5, ended, HERE, &None),
    ];
    assert_eq!(
        decisions(&by_zone, TrafficPolicy::Cluster),
        [
            Decision::Used,
            Decision::ForOtherZones,
            Decision::NotReady,
            Decision::Terminating,
            Decision::NotServing,
        ]
    );
    assert_eq!(
        decisions(&by_zone, TrafficPolicy::Local),
        [
            Decision::Elsewhere,
            Decision::Used,
            Decision::NotReady,
            Decision::Terminating,
            Decision::NotServing,
        ]
    );
    let by_node = [of(1, ready, HERE, &this_node), of(2, ready, "n2", &others)];
    assert_eq!(
        decisions(&by_node, TrafficPolicy::Cluster),
        [Decision::Used, Decision::ForOtherNodes]
    );
    let leaving = [of(1, leaving, HERE, &None), of(2, leaving, "n2", &None)];
    assert_eq!(
        decisions(&leaving, TrafficPolicy::Local),
        [Decision::UsedAsLastResort, Decision::Elsewhere]
    );
}
