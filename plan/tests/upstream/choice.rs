//! TestCategorizeEndpoints: which endpoints of a service port are chosen. The policies are the
//! frontends' affair and in `policies.rs`: here are the two lists that they choose between.

use plan::endpoints::{EndpointChoice, EndpointsByPort, Selection};
use plan::model::{Family, Weights};

use crate::node::THIS;
use crate::words::{port, slice_with};

/// Addresses are written by their last part: `.2` is 10.244.0.2.
struct Row {
    name: &'static str,
    zone: Option<&'static str>,
    endpoints: &'static [&'static str],
    cluster: &'static [u8],
    local: &'static [u8],
    exist: bool,
}

fn choose(zone: Option<&str>, weights: Option<Weights>, endpoints: &[&str]) -> EndpointChoice {
    let endpoints: Vec<String> = endpoints.iter().map(|text| format!("10.244.0{text}")).collect();
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    let slice = slice_with("web-1", "web", &[("http", "8080/TCP")], &endpoints);
    let port = port("http", "80/TCP");
    let candidates = EndpointsByPort::new(Family::V4, &[&slice]).candidates(&port);
    Selection { node_name: THIS, zone, weights, candidates: &candidates }.choose()
}

fn check(rows: &[Row]) {
    for row in rows {
        let choice = choose(row.zone, None, row.endpoints);
        let last = |list: &[plan::kernel_objects::RealServer]| -> Vec<u8> {
            assert!(list.iter().all(|real| real.port == 8080 && real.weight == 1), "{}", row.name);
            let address = |real: &plan::kernel_objects::RealServer| real.address.to_string();
            list.iter()
                .map(|real| address(real).rsplit('.').next().unwrap().parse().unwrap())
                .collect()
        };
        assert_eq!(last(&choice.cluster), row.cluster, "{}: cluster", row.name);
        assert_eq!(last(&choice.local), row.local, "{}: local", row.name);
        assert_eq!(choice.exist, row.exist, "{}: exist", row.name);
        assert_eq!(
            std::sync::Arc::ptr_eq(&choice.cluster, &choice.local),
            row.cluster == row.local,
            "{}: equal lists are one",
            row.name
        );
    }
}

#[test]
fn zone_hints_leave_the_endpoints_for_this_zone() {
    check(&[
        Row {
            name: "some are for this zone",
            zone: Some("a"),
            endpoints: &[".2@n1 for:a", ".3@n2 for:b", ".4@n3 for:c", ".5@n4 for:a"],
            cluster: &[2, 5],
            local: &[2],
            exist: true,
        },
        Row {
            name: "an endpoint that is for several zones is for each of them",
            zone: Some("c"),
            endpoints: &[".2 for:a,b,c", ".3 for:b,c", ".4 for:b,d", ".5 for:c"],
            cluster: &[2, 3, 5],
            local: &[],
            exist: true,
        },
        Row {
            name: "the zone that an endpoint is in says nothing, only whom it is for",
            zone: Some("a"),
            endpoints: &[".2 in:a for:b", ".3 in:b for:a"],
            cluster: &[3],
            local: &[],
            exist: true,
        },
        Row {
            name: "all are for this zone",
            zone: Some("a"),
            endpoints: &[".2 for:a", ".3 for:a,b"],
            cluster: &[2, 3],
            local: &[],
            exist: true,
        },
        Row {
            name: "an unready endpoint for this zone is not used",
            zone: Some("a"),
            endpoints: &[".2 for:a", ".3 for:b", ".4 for:c", ".5 for:a unready"],
            cluster: &[2],
            local: &[],
            exist: true,
        },
    ]);
}

#[test]
fn zone_hints_that_do_not_fit_say_nothing() {
    check(&[
        Row {
            name: "without hints",
            zone: Some("a"),
            endpoints: &[".2 in:a", ".3 in:b"],
            cluster: &[2, 3],
            local: &[],
            exist: true,
        },
        Row {
            name: "this node has no zone",
            zone: None,
            endpoints: &[".2 for:a", ".3 for:b"],
            cluster: &[2, 3],
            local: &[],
            exist: true,
        },
        Row {
            name: "this node's zone has an empty name",
            zone: Some(""),
            endpoints: &[".2 for:a", ".3 for:b"],
            cluster: &[2, 3],
            local: &[],
            exist: true,
        },
        Row {
            name: "none is for this zone",
            zone: Some("z"),
            endpoints: &[".2 for:a", ".3 for:b"],
            cluster: &[2, 3],
            local: &[],
            exist: true,
        },
        Row {
            name: "one ready endpoint lacks the hint",
            zone: Some("a"),
            endpoints: &[".2 for:a", ".3 for:b", ".4", ".5 for:a"],
            cluster: &[2, 3, 4, 5],
            local: &[],
            exist: true,
        },
        Row {
            name: "an unready endpoint lacks the hint: that does not matter",
            zone: Some("a"),
            endpoints: &[".2 for:a", ".3 for:b", ".4 unready", ".5 terminating"],
            cluster: &[2],
            local: &[],
            exist: true,
        },
        Row {
            name: "only unready endpoints are for this zone",
            zone: Some("a"),
            endpoints: &[".2 for:a unready", ".3 for:b", ".4 for:c", ".5 for:a terminating"],
            cluster: &[3, 4],
            local: &[],
            exist: true,
        },
        Row {
            name: "only terminating endpoints are left: zones say nothing any more",
            zone: Some("a"),
            endpoints: &[".2 for:a terminating", ".3 for:b terminating", ".4 for:a unready"],
            cluster: &[2, 3],
            local: &[],
            exist: true,
        },
    ]);
}

#[test]
fn node_hints_go_before_zone_hints() {
    check(&[
        Row {
            name: "some are for this node",
            zone: None,
            endpoints: &[".2@n1 for-node:n1", ".3@n2 for-node:n2", ".4@n3 for-node:n3,n1"],
            cluster: &[2, 4],
            local: &[2],
            exist: true,
        },
        Row {
            name: "with zone hints beside them",
            zone: Some("a"),
            endpoints: &[
                ".2@n1 for:a for-node:n1",
                ".3@n2 for:a for-node:n2",
                ".4@n3 for:b for-node:n3",
            ],
            cluster: &[2],
            local: &[2],
            exist: true,
        },
        Row {
            name: "none is for this node: the zone's",
            zone: Some("a"),
            endpoints: &[".2@n2 for:a for-node:n2", ".3@n3 for:b for-node:n3"],
            cluster: &[2],
            local: &[],
            exist: true,
        },
        Row {
            name: "one ready endpoint lacks the node's hint: the zone's",
            zone: Some("a"),
            endpoints: &[".2@n1 for:b for-node:n1", ".3@n2 for:a", ".4@n3 for:a for-node:n3"],
            cluster: &[3, 4],
            local: &[2],
            exist: true,
        },
        Row {
            name: "none is for this node nor for its zone: all",
            zone: Some("z"),
            endpoints: &[".2@n2 for:a for-node:n2", ".3@n3 for:b for-node:n3"],
            cluster: &[2, 3],
            local: &[],
            exist: true,
        },
        Row {
            name: "none is for this node, and there are no hints of zones: all",
            zone: Some("a"),
            endpoints: &[".2@n2 for-node:n2", ".3@n3 for-node:n3"],
            cluster: &[2, 3],
            local: &[],
            exist: true,
        },
        Row {
            name: "the one for this node is not ready: the zone's",
            zone: Some("a"),
            endpoints: &[
                ".2@n1 for:a for-node:n1 unready",
                ".3@n2 for:a for-node:n2",
                ".4@n3 for:b for-node:n3",
            ],
            cluster: &[3],
            local: &[],
            exist: true,
        },
    ]);
}

#[test]
fn hints_say_nothing_about_this_nodes_endpoints() {
    check(&[
        Row {
            name: "this node's endpoints are for another zone",
            zone: Some("a"),
            endpoints: &[".2@n1 for:a", ".3@n1 for:b", ".4@n2 for:c", ".5@n3 for:a"],
            cluster: &[2, 5],
            local: &[2, 3],
            exist: true,
        },
        Row {
            name: "two of two nodes, each for both zones",
            zone: Some("b"),
            endpoints: &[".2@n1 for:a", ".3@n1 for:b", ".4@n2 for:a", ".5@n2 for:b"],
            cluster: &[3, 5],
            local: &[2, 3],
            exist: true,
        },
        Row {
            name: "this node's endpoint is for another node",
            zone: None,
            endpoints: &[".2@n1 for-node:n2", ".3@n2 for-node:n1"],
            cluster: &[3],
            local: &[2],
            exist: true,
        },
    ]);
}

#[test]
fn ready_endpoints_here_and_elsewhere() {
    check(&[
        Row {
            name: "no endpoints",
            zone: None,
            endpoints: &[],
            cluster: &[],
            local: &[],
            exist: false,
        },
        Row {
            name: "all elsewhere",
            zone: None,
            endpoints: &[".2@n2", ".3@n3"],
            cluster: &[2, 3],
            local: &[],
            exist: true,
        },
        Row {
            name: "all here",
            zone: None,
            endpoints: &[".2@n1", ".3@n1"],
            cluster: &[2, 3],
            local: &[2, 3],
            exist: true,
        },
        Row {
            name: "some here",
            zone: None,
            endpoints: &[".2@n1", ".3@n2"],
            cluster: &[2, 3],
            local: &[2],
            exist: true,
        },
        Row {
            name: "whose node is not known is not here",
            zone: None,
            endpoints: &[".2", ".3@"],
            cluster: &[2, 3],
            local: &[],
            exist: true,
        },
        Row {
            name: "in the order of addresses, not of the slice",
            zone: None,
            endpoints: &[".30@n1", ".4@n1", ".200@n1"],
            cluster: &[4, 30, 200],
            local: &[4, 30, 200],
            exist: true,
        },
    ]);
}

#[test]
fn endpoints_that_are_not_ready_are_not_used() {
    check(&[
        Row {
            name: "none is ready",
            zone: None,
            endpoints: &[".2@n1 unready", ".3@n2 unready"],
            cluster: &[],
            local: &[],
            exist: false,
        },
        Row {
            name: "some are ready",
            zone: None,
            endpoints: &[".2@n1 unready", ".3@n2"],
            cluster: &[3],
            local: &[],
            exist: true,
        },
        Row {
            name: "whoever serves, is not ready and does not terminate is never used",
            zone: None,
            endpoints: &[".2@n1 serving", ".3@n2 serving"],
            cluster: &[],
            local: &[],
            exist: false,
        },
        Row {
            name: "published without being ready counts as ready, also while it terminates",
            zone: None,
            endpoints: &[".2@n1 published", ".3@n2 terminating"],
            cluster: &[2],
            local: &[2],
            exist: true,
        },
    ]);
}

#[test]
fn terminating_endpoints_are_the_last_resort() {
    check(&[
        Row {
            name: "all terminate",
            zone: None,
            endpoints: &[".2@n1 terminating", ".3@n2 terminating"],
            cluster: &[2, 3],
            local: &[2],
            exist: true,
        },
        Row {
            name: "all terminate, and no longer serve",
            zone: None,
            endpoints: &[".2@n1 ended", ".3@n2 ended"],
            cluster: &[],
            local: &[],
            exist: false,
        },
        Row {
            name: "all terminate elsewhere",
            zone: None,
            endpoints: &[".2@n2 terminating", ".3@n3 terminating"],
            cluster: &[2, 3],
            local: &[],
            exist: true,
        },
        Row {
            name: "ready elsewhere, terminating here: each list falls back by itself",
            zone: None,
            endpoints: &[".2@n2", ".3@n1 unready", ".4@n1 terminating", ".5@n2 terminating"],
            cluster: &[2],
            local: &[4],
            exist: true,
        },
        Row {
            name: "ready here, terminating elsewhere",
            zone: None,
            endpoints: &[".2@n1", ".3@n1 terminating", ".4@n2 terminating"],
            cluster: &[2],
            local: &[2],
            exist: true,
        },
        Row {
            name: "one terminates among those that are not ready",
            zone: None,
            endpoints: &[".2@n1 unready", ".3@n1 ended", ".4@n2 serving", ".5@n2 terminating"],
            cluster: &[5],
            local: &[],
            exist: true,
        },
        Row {
            name: "node hints of terminating endpoints say nothing",
            zone: None,
            endpoints: &[".2@n1 for-node:n2 terminating", ".3@n2 for-node:n1 terminating"],
            cluster: &[2, 3],
            local: &[2],
            exist: true,
        },
    ]);
}

#[test]
fn shares_are_by_distance() {
    let weights = Weights { node: 100, zone: 10, elsewhere: 1 };
    let shares = |zone, endpoints: &[&str]| {
        let choice = choose(zone, Some(weights), endpoints);
        let weights = |list: &[plan::kernel_objects::RealServer]| -> Vec<u32> {
            list.iter().map(|real| real.weight).collect()
        };
        (weights(&choice.cluster), weights(&choice.local))
    };
    let everywhere = [".2@n1 in:a", ".3@n2 in:a", ".4@n3 in:b", ".5 in:a", ".6"];
    for (name, zone, endpoints, cluster, local) in [
        ("in a zone", Some("a"), &everywhere[..], &[100, 10, 1, 10, 1][..], &[100][..]),
        ("in no zone", None, &everywhere, &[100, 1, 1, 1, 1], &[100]),
        (
            "this node's endpoint is said to be elsewhere",
            Some("a"),
            &[".2@n1 in:b"],
            &[100],
            &[100],
        ),
        ("hints first", Some("a"), &[".2@n1 in:a for:b", ".3@n2 in:b for:a"], &[1], &[100]),
        ("the last resort too", Some("a"), &[".2@n2 in:a terminating"], &[10], &[]),
    ] {
        assert_eq!(shares(zone, endpoints), (cluster.to_vec(), local.to_vec()), "{name}");
    }
}
