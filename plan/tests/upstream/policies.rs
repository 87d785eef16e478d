//! TestTestInternalTrafficPolicyE2E, and the traffic policies of TestCategorizeEndpoints: which
//! list each frontend has.

use std::num::NonZeroU16;

use plan::event::Event;
use plan::model::{OtherNode, Service, ServiceKind, TrafficPolicy};
use plan::planner::Plan;
use plan::problem::Problem;
use plan::settings::{FastPath, InternalFrontendNetworks, RuleForm, Settings};

use crate::node::{Node, THIS, check, said};
use crate::words::{CLUSTER, LOCAL, applied, ips, port, removed, service, slice, sliced};

const NONE_HERE: [&str; 2] = ["10.244.1.2@n2", "10.244.2.2@n3"];
const ONE_HERE: [&str; 2] = ["10.244.0.2@n1", "10.244.1.2@n2"];

fn with(internal: TrafficPolicy, external: TrafficPolicy, is_external: bool) -> Service {
    let mut web = Service {
        internal_policy: internal,
        external_policy: external,
        ..service("web", &["10.96.0.9"])
    };
    if is_external {
        web.kind = ServiceKind::LoadBalancer;
        web.load_balancer = ips(&["203.0.113.5"]);
    }
    web
}

fn run(service: &Service, endpoints: &[&str]) -> Node {
    Node::after([applied(service), sliced(&slice("web-1", "web", endpoints))])
}

#[test]
fn internal_traffic_policy() {
    const REFUSED: &str = "KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80";
    const DROPPED: &str = "KUBE-NO-LOCAL-ENDPOINTS 10.96.0.9,tcp:80";
    const BOTH: &str = "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080";
    const ELSEWHERE: &str = "TCP 10.96.0.9:80 rr: 10.244.1.2:8080, 10.244.2.2:8080";
    for (row, policy, endpoints, expected) in [
        ("Cluster, one is here", CLUSTER, &ONE_HERE[..], &[BOTH][..]),
        ("Cluster, none is here", CLUSTER, &NONE_HERE, &[ELSEWHERE]),
        ("Cluster, there are none", CLUSTER, &[], &[REFUSED]),
        ("Local, one is here", LOCAL, &ONE_HERE, &["TCP 10.96.0.9:80 rr: 10.244.0.2:8080"]),
        ("Local, none is here", LOCAL, &NONE_HERE, &[DROPPED]),
        ("Local, there are none", LOCAL, &[], &[REFUSED]),
        ("Local, the one here is not ready", LOCAL, &["10.244.0.2@n1 unready"], &[REFUSED]),
        (
            "Local, the one here is not ready, another one elsewhere is",
            LOCAL,
            &["10.244.0.2@n1 unready", "10.244.1.2@n2"],
            &[DROPPED],
        ),
        (
            "Local, the one here terminates, another one elsewhere is ready",
            LOCAL,
            &["10.244.0.2@n1 terminating", "10.244.1.2@n2"],
            &["TCP 10.96.0.9:80 rr: 10.244.0.2:8080"],
        ),
        (
            "Local, hints say nothing",
            LOCAL,
            &["10.244.0.2@n1 for-node:n2", "10.244.1.2@n2 for-node:n1"],
            &["TCP 10.96.0.9:80 rr: 10.244.0.2:8080"],
        ),
    ] {
        let node = run(&with(policy, CLUSTER, false), endpoints);
        let mut found = node.virtual_servers();
        found.extend(node.entries("KUBE-NO-"));
        check(row, &found, expected);
    }
}

/// All eight combinations for a load balancer's Service. A policy is about its own side only.
#[test]
fn each_side_follows_its_own_policy() {
    const CLUSTER_BOTH: &str = "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080";
    const CLUSTER_LOCAL: &str = "TCP 10.96.0.9:80 rr: 10.244.0.2:8080";
    const CLUSTER_ELSEWHERE: &str = "TCP 10.96.0.9:80 rr: 10.244.1.2:8080, 10.244.2.2:8080";
    const CLUSTER_DROPPED: &str = "KUBE-NO-LOCAL-ENDPOINTS 10.96.0.9,tcp:80";
    const OUTER_BOTH: &str = "TCP 203.0.113.5:80 rr: 10.244.0.2:8080, 10.244.1.2:8080";
    const OUTER_LOCAL: &str = "TCP 203.0.113.5:80 rr: 10.244.0.2:8080";
    const OUTER_ELSEWHERE: &str = "TCP 203.0.113.5:80 rr: 10.244.1.2:8080, 10.244.2.2:8080";
    const OUTER_DROPPED: &str = "KUBE-NO-LOCAL-ENDPOINTS 203.0.113.5,tcp:80";
    const INTERNAL_FRONTEND_BOTH: &str = "TCP 251.0.113.5:80 rr: 10.244.0.2:8080, 10.244.1.2:8080";
    const INTERNAL_FRONTEND_ELSEWHERE: &str =
        "TCP 251.0.113.5:80 rr: 10.244.1.2:8080, 10.244.2.2:8080";
    const LED: &str = "KUBE-INTERNAL-FRONTEND 203.0.113.5,tcp:80";
    for (internal, external, endpoints, expected) in [
        (CLUSTER, CLUSTER, ONE_HERE, &[CLUSTER_BOTH, OUTER_BOTH][..]),
        (CLUSTER, CLUSTER, NONE_HERE, &[CLUSTER_ELSEWHERE, OUTER_ELSEWHERE]),
        (LOCAL, CLUSTER, ONE_HERE, &[CLUSTER_LOCAL, OUTER_BOTH]),
        (LOCAL, CLUSTER, NONE_HERE, &[CLUSTER_DROPPED, OUTER_ELSEWHERE]),
        (CLUSTER, LOCAL, ONE_HERE, &[CLUSTER_BOTH, OUTER_LOCAL, INTERNAL_FRONTEND_BOTH, LED]),
        (
            CLUSTER,
            LOCAL,
            NONE_HERE,
            &[CLUSTER_ELSEWHERE, OUTER_DROPPED, INTERNAL_FRONTEND_ELSEWHERE, LED],
        ),
        (LOCAL, LOCAL, ONE_HERE, &[CLUSTER_LOCAL, OUTER_LOCAL, INTERNAL_FRONTEND_BOTH, LED]),
        (
            LOCAL,
            LOCAL,
            NONE_HERE,
            &[CLUSTER_DROPPED, OUTER_DROPPED, INTERNAL_FRONTEND_ELSEWHERE, LED],
        ),
    ] {
        let node = run(&with(internal, external, true), &endpoints);
        let mut found = node.virtual_servers();
        found.extend(node.entries("KUBE-NO-"));
        found.extend(node.entries("KUBE-INTERNAL-FRONTEND"));
        check(&format!("{internal:?}, {external:?}, {endpoints:?}"), &found, expected);
    }
}

#[test]
fn external_traffic_policy_says_nothing_without_something_external() {
    let node = run(&with(CLUSTER, LOCAL, false), &ONE_HERE);
    check(
        "ClusterIP",
        &node.virtual_servers(),
        &["TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080"],
    );
    check("none is refused", &node.entries("KUBE-NO-"), &[]);
    check("none is led elsewhere", &node.entries("KUBE-INTERNAL-FRONTEND"), &[]);
}

/// A change of policy changes lists and never takes away a frontend that stays.
#[test]
fn a_policy_may_change() {
    let mut node = run(&with(CLUSTER, CLUSTER, true), &ONE_HERE);
    let before = node.kernel.clone();
    let done = |plan: &Plan| said(&plan.ops).into_iter().collect();
    let plan = node.run([applied(&with(LOCAL, LOCAL, true))]);
    check(
        "Local",
        &done(&plan),
        &[
            "add 203.0.113.5,tcp:80 to set KUBE-LOAD-BALANCER-LOCAL",
            "add 251.0.113.5 to set KUBE-IPVS-IPS",
            "create virtual server TCP 251.0.113.5:80 rr",
            "add real server 10.244.0.2:8080 weight 1 to TCP 251.0.113.5:80",
            "add real server 10.244.1.2:8080 weight 1 to TCP 251.0.113.5:80",
            "add address 251.0.113.5 to kube-ipvs0",
            "add 203.0.113.5,tcp:80 to set KUBE-INTERNAL-FRONTEND",
            "remove real server 10.244.1.2:8080 from TCP 10.96.0.9:80",
            "remove real server 10.244.1.2:8080 from TCP 203.0.113.5:80",
        ],
    );
    let led = said(&plan.ops).iter().position(|op| op.ends_with("KUBE-INTERNAL-FRONTEND"));
    let bound = said(&plan.ops).iter().position(|op| op.ends_with("kube-ipvs0"));
    assert!(bound < led, "nobody is led to an internal frontend that is not complete");
    let plan = node.run([applied(&with(CLUSTER, CLUSTER, true))]);
    check(
        "Cluster",
        &done(&plan),
        &[
            "add real server 10.244.1.2:8080 weight 1 to TCP 10.96.0.9:80",
            "add real server 10.244.1.2:8080 weight 1 to TCP 203.0.113.5:80",
            "remove 203.0.113.5,tcp:80 from set KUBE-INTERNAL-FRONTEND",
            "remove address 251.0.113.5 from kube-ipvs0",
            "remove virtual server TCP 251.0.113.5:80",
            "remove 203.0.113.5,tcp:80 from set KUBE-LOAD-BALANCER-LOCAL",
            "remove 251.0.113.5 from set KUBE-IPVS-IPS",
        ],
    );
    let led = said(&plan.ops).iter().position(|op| op.ends_with("KUBE-INTERNAL-FRONTEND"));
    let unbound = said(&plan.ops).iter().position(|op| op.ends_with("kube-ipvs0"));
    assert!(led < unbound, "nobody is led to an internal frontend that is taken apart");
    assert_eq!(node.kernel, before);
}

#[test]
fn without_a_network_for_internal_frontends_everybody_gets_this_nodes_endpoints() {
    let mut settings = Settings::new(THIS);
    settings.internal_frontend_networks = InternalFrontendNetworks::NONE;
    for (row, endpoints, expected) in [
        (
            "one is here",
            &ONE_HERE[..],
            &[
                "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
                "TCP 203.0.113.5:80 rr: 10.244.0.2:8080",
            ][..],
        ),
        (
            "none is here",
            &NONE_HERE,
            &[
                "TCP 10.96.0.9:80 rr: 10.244.1.2:8080, 10.244.2.2:8080",
                "KUBE-NO-LOCAL-ENDPOINTS 203.0.113.5,tcp:80",
            ],
        ),
    ] {
        let mut node = Node::new(settings.clone());
        let endpoints = slice("web-1", "web", endpoints);
        node.run([applied(&with(CLUSTER, LOCAL, true)), sliced(&endpoints)]);
        let mut found = node.virtual_servers();
        found.extend(node.entries("KUBE-NO-"));
        found.extend(node.entries("KUBE-INTERNAL-FRONTEND"));
        check(row, &found, expected);
    }
}

/// Two addresses that differ in the first bits only have the same internal frontend: the older Service's
/// has it, and an Event tells the other one.
#[test]
fn an_internal_frontend_belongs_to_one_frontend_and_the_other_goes_without() {
    let older = Service { created: 1, ..with(CLUSTER, LOCAL, true) };
    let second = Service {
        created: 2,
        kind: ServiceKind::LoadBalancer,
        load_balancer: ips(&["219.0.113.5"]),
        external_policy: LOCAL,
        ..service("mail", &["10.96.0.8"])
    };
    let mut node = Node::after([
        // No endpoint is on this node: outside clients get no answer.
        sliced(&slice("web-1", "web", &NONE_HERE)),
        sliced(&slice("mail-1", "mail", &["10.244.2.2@n3"])),
    ]);
    let internal_frontend = |node: &Node| node.real_servers("TCP 251.0.113.5:80");
    let led = |node: &Node| node.set("KUBE-INTERNAL-FRONTEND").into_iter().collect::<Vec<_>>();
    let plan = node.run([applied(&second), applied(&older)]);
    let [(name, problems)] = &plan.problems[..] else { panic!("{:?}", plan.problems) };
    assert_eq!(*name, second.name);
    let [Problem::InternalFrontendTaken { frontend, internal_frontend: taken, owner }] =
        &problems[..]
    else {
        panic!("{problems:?}")
    };
    assert_eq!(frontend.to_string(), "TCP 219.0.113.5:80");
    assert_eq!((taken.to_string(), owner), ("TCP 251.0.113.5:80".to_owned(), &older.name));
    assert_eq!(internal_frontend(&node).unwrap(), "10.244.1.2:8080, 10.244.2.2:8080");
    assert_eq!(led(&node), ["203.0.113.5,tcp:80"]);

    let plan = node.run([removed(&older)]);
    assert_eq!(plan.problems, [(second.name.clone(), vec![])]);
    assert_eq!(internal_frontend(&node).unwrap(), "10.244.2.2:8080");
    assert_eq!(led(&node), ["219.0.113.5,tcp:80"]);
    node.run([removed(&second)]);
    assert_eq!(node.state(), [].into());
}

/// On the fast path, an internal frontend that is only faster yields to one that a policy promises, without an Event.
#[test]
fn an_internal_frontend_that_is_promised_comes_before_one_that_is_faster() {
    let faster = Service { created: 1, ..service("web", &["11.0.113.5"]) };
    let promised = Service {
        created: 2,
        kind: ServiceKind::LoadBalancer,
        load_balancer: ips(&["219.0.113.5"]),
        external_policy: LOCAL,
        ..service("mail", &["10.96.0.8"])
    };
    let slices = [
        sliced(&slice("web-1", "web", &ONE_HERE)),
        sliced(&slice("mail-1", "mail", &["10.244.2.2@n3"])),
    ];
    for services in [[applied(&faster), applied(&promised)], [applied(&promised), applied(&faster)]]
    {
        let settings = Settings {
            rule_form: RuleForm::Nftables,
            fast_path: FastPath::Conntrack,
            ..Settings::new(THIS)
        };
        let mut node = Node::new(settings);
        let plan = node.run(slices.clone().into_iter().chain(services));
        assert!(plan.problems.iter().all(|(_, it)| it.is_empty()), "{:?}", plan.problems);
        assert_eq!(node.real_servers("TCP 251.0.113.5:80").unwrap(), "10.244.2.2:8080");
        let led = ["219.0.113.5,tcp:80", "10.96.0.8,tcp:80"].map(str::to_owned);
        assert_eq!(node.set("KUBE-INTERNAL-FRONTEND"), led.into());
    }
}

/// On the fast path, clients outside are led to an internal frontend with this node's endpoints, and those in the cluster to one
/// with all.
#[test]
fn on_the_fast_path_a_frontend_of_policy_local_has_two_internal_frontends() {
    let settings = Settings {
        rule_form: RuleForm::Nftables,
        fast_path: FastPath::Conntrack,
        ..Settings::new(THIS)
    };
    let mut web = with(CLUSTER, LOCAL, true);
    web.load_balancer = ips(&["203.0.113.5"]);
    let mut node = Node::new(settings);
    node.run([sliced(&slice("web-1", "web", &ONE_HERE)), applied(&web)]);
    let led = ["203.0.113.5,tcp:80".to_owned()];
    assert!(node.set("KUBE-INTERNAL-FRONTEND").is_superset(&led.clone().into()));
    assert_eq!(node.set("KUBE-INTERNAL-FRONTEND-LOCAL"), led.into());
    let all = node.real_servers("TCP 251.0.113.5:80").unwrap();
    let here = node.real_servers("TCP 243.0.113.5:80").unwrap();
    assert_eq!(node.real_servers("TCP 203.0.113.5:80").unwrap(), here);
    assert!(all.contains(&here) && all != here, "{all}; {here}");
    // Without endpoints here, clients outside are not answered, and those in the cluster are.
    node.run([sliced(&slice("web-1", "web", &NONE_HERE))]);
    assert_eq!(node.set("KUBE-INTERNAL-FRONTEND-LOCAL"), [].into());
    assert!(
        node.set("KUBE-INTERNAL-FRONTEND").is_superset(&["203.0.113.5,tcp:80".to_owned()].into())
    );
    assert_eq!(node.set("KUBE-NO-LOCAL-ENDPOINTS"), ["203.0.113.5,tcp:80".to_owned()].into());
}

/// The same of one Service with both addresses.
#[test]
fn two_frontends_of_one_service_have_one_internal_frontend_between_them() {
    let mut web = with(CLUSTER, LOCAL, true);
    web.load_balancer = ips(&["203.0.113.5", "219.0.113.5"]);
    let mut node = Node::after([sliced(&slice("web-1", "web", &NONE_HERE))]);
    let plan = node.run([applied(&web)]);
    let [(_, problems)] = &plan.problems[..] else { panic!("{:?}", plan.problems) };
    assert!(matches!(&problems[..], [Problem::InternalFrontendTaken { .. }]), "{problems:?}");
    assert_eq!(node.set("KUBE-INTERNAL-FRONTEND"), ["203.0.113.5,tcp:80".to_owned()].into());
    let endpoints = node.real_servers("TCP 251.0.113.5:80");
    assert_eq!(endpoints.unwrap(), "10.244.1.2:8080, 10.244.2.2:8080");
}

/// 255.255.255.255 is everybody's: packets that really go there would no longer.
#[test]
fn no_internal_frontend_is_at_an_address_that_no_host_can_have() {
    for address in ["15.255.255.255", "31.255.255.255"] {
        let web = Service { external: ips(&[address]), ..with(CLUSTER, LOCAL, false) };
        let mut node = Node::after([sliced(&slice("web-1", "web", &NONE_HERE))]);
        let plan = node.run([applied(&web)]);
        let [(_, problems)] = &plan.problems[..] else { panic!("{:?}", plan.problems) };
        assert!(matches!(&problems[..], [Problem::NoInternalFrontend { .. }]), "{problems:?}");
        let addresses = ["10.96.0.9", address].map(|it| format!("kube-ipvs0 {it}"));
        assert_eq!(node.addresses(), addresses.into());
        assert_eq!(node.set("KUBE-INTERNAL-FRONTEND"), [].into());
    }
}

/// Submariner's global addresses are there by default.
#[test]
fn an_address_inside_the_networks_of_internal_frontends_is_served() {
    let mut web = with(CLUSTER, CLUSTER, false);
    web.external = ips(&["242.1.255.251", "feff::1"]);
    web.cluster_v6 = Some("fd00:96::9".parse().unwrap());
    let mut node = Node::after([sliced(&slice("web-1", "web", &ONE_HERE))]);
    let plan = node.run([applied(&web)]);
    assert_eq!(plan.problems, []);
    let endpoints = "10.244.0.2:8080, 10.244.1.2:8080";
    assert_eq!(node.real_servers("TCP 242.1.255.251:80").unwrap(), endpoints);
    check(
        "bound",
        &node.addresses(),
        &[
            "kube-ipvs0 10.96.0.9",
            "kube-ipvs0 242.1.255.251",
            "kube-ipvs0 fd00:96::9",
            "kube-ipvs0 feff::1",
        ],
    );
    // Clients ask for that one: it comes before an internal frontend, for whatever reason that is wanted.
    let mail = Service {
        created: -1,
        kind: ServiceKind::LoadBalancer,
        load_balancer: ips(&["194.1.255.251"]),
        external_policy: LOCAL,
        ..service("mail", &["10.96.0.8"])
    };
    let plan = node.run([
        applied(&mail),
        sliced(&slice("mail-1", "mail", &["10.244.2.2@n3"])),
        applied(&Service { external: ips(&["242.1.255.251"]), ..web.clone() }),
    ]);
    assert_eq!(node.real_servers("TCP 242.1.255.251:80").unwrap(), endpoints);
    assert!(
        plan.problems
            .iter()
            .flat_map(|(_, it)| it)
            .any(|it| matches!(it, Problem::InternalFrontendTaken { .. })),
        "{:?}",
        plan.problems
    );
}

/// Bound here, it could no longer be reached.
#[test]
fn an_address_in_use_is_no_internal_frontend_and_yields_at_once() {
    let mut web = with(CLUSTER, LOCAL, true);
    web.ports[0].node_port = NonZeroU16::new(30_080);
    let mut node = run(&web, &ONE_HERE);
    node.run([Event::LocalAddresses(ips(&["192.0.2.10"]))]);
    let before = node.kernel.clone();
    let slice_at = |address: &str| slice("db-1", "db", &[&format!("{address}@n2")]);
    let object = |networks: &[&str]| {
        let pod_cidrs = networks.iter().map(|net| net.parse().unwrap()).collect();
        Event::NodeApplied(Box::new(plan::model::Node { pod_cidrs, ..Default::default() }))
    };
    let other = |address| Event::OtherNodeApplied("n2".into(), OtherNode::at(ips(&[address])));
    let other_pods = Event::OtherNodeApplied(
        "n2".into(),
        OtherNode { pod_cidrs: vec!["240.10.3.0/24".parse().unwrap()], ..OtherNode::default() },
    );
    let other_gone = || Event::OtherNodeRemoved("n2".into());
    let (balancer, own) = ("TCP 251.0.113.5:80", "TCP 240.0.2.10:30080");
    assert!([balancer, own].iter().all(|it| node.real_servers(it).is_some()));
    for (row, comes, goes, yielding) in [
        ("another node's", other("251.0.113.5"), other_gone(), &[balancer][..]),
        ("another node's, of the NodePort", other("240.0.2.10"), other_gone(), &[own]),
        (
            "an endpoint's",
            sliced(&slice_at("251.0.113.5")),
            Event::SliceRemoved(slice_at("251.0.113.5").name),
            &[balancer],
        ),
        (
            "an endpoint's that moves",
            sliced(&slice_at("251.0.113.5")),
            sliced(&slice_at("251.0.113.6")),
            &[balancer],
        ),
        (
            "an endpoint's, of the NodePort",
            sliced(&slice_at("240.0.2.10")),
            Event::SliceRemoved(slice_at("251.0.113.5").name),
            &[own],
        ),
        ("near another node's pods", other_pods, other_gone(), &[balancer, own]),
        // Not of every Node the podCIDRs are known, and they are near.
        ("near pods", object(&["240.10.3.0/24"]), object(&["10.244.0.0/24"]), &[balancer, own]),
    ] {
        let plan = node.run([comes]);
        for frontend in [balancer, own] {
            let is_there = node.real_servers(frontend).is_some();
            assert_ne!(is_there, yielding.contains(&frontend), "{row}: {frontend}");
        }
        assert_eq!(node.set("KUBE-INTERNAL-FRONTEND").len(), 2 - yielding.len(), "{row}");
        let bound = node.addresses();
        let n_inside = bound.iter().filter(|it| it.contains(" 251.") || it.contains(" 240."));
        assert_eq!(n_inside.count(), 2 - yielding.len(), "{row}: {bound:?}");
        let [(_, problems)] = &plan.problems[..] else { panic!("{row}: {:?}", plan.problems) };
        assert_eq!(problems.len(), yielding.len(), "{row}: {problems:?}");
        assert!(
            problems.iter().all(|it| matches!(it, Problem::NoInternalFrontend { .. })),
            "{row}"
        );
        node.run([goes]);
        assert_eq!(node.kernel, before, "{row}");
    }
}

/// No host should use the networks of internal frontends. A node that does keeps its own address.
#[test]
fn an_address_of_the_node_is_no_internal_frontend() {
    let mut node = run(&with(CLUSTER, LOCAL, true), &ONE_HERE);
    let before = node.kernel.clone();
    let plan = node.run([Event::LocalAddresses(ips(&["192.0.2.10", "251.0.113.5"]))]);
    assert_eq!(node.real_servers("TCP 251.0.113.5:80"), None);
    assert_eq!(node.set("KUBE-INTERNAL-FRONTEND"), [].into());
    check("bound", &node.addresses(), &["kube-ipvs0 10.96.0.9", "kube-ipvs0 203.0.113.5"]);
    let [(_, problems)] = &plan.problems[..] else { panic!("{:?}", plan.problems) };
    assert!(matches!(&problems[..], [Problem::NoInternalFrontend { .. }]), "{problems:?}");
    node.run([Event::LocalAddresses(ips(&["192.0.2.10"]))]);
    assert_eq!(node.kernel, before);
}

/// Claims to a frontend that another Service has lead no clients to an internal frontend.
#[test]
fn who_has_lost_a_frontend_leads_nobody_from_it() {
    let older = Service { created: 1, ..with(CLUSTER, CLUSTER, true) };
    let younger = Service {
        created: 2,
        name: service("mail", &[]).name,
        cluster_v4: Some("10.96.0.8".parse().unwrap()),
        ports: vec![port("http", "80/TCP")],
        ..with(CLUSTER, LOCAL, true)
    };
    let mut node = Node::after([
        applied(&younger),
        sliced(&slice("web-1", "web", &ONE_HERE)),
        sliced(&slice("mail-1", "mail", &["10.244.0.8@n1"])),
    ]);
    assert_eq!(node.set("KUBE-INTERNAL-FRONTEND"), ["203.0.113.5,tcp:80".to_owned()].into());
    node.run([applied(&older)]);
    assert_eq!(node.set("KUBE-INTERNAL-FRONTEND"), [].into());
    assert_eq!(
        node.real_servers("TCP 203.0.113.5:80").unwrap(),
        "10.244.0.2:8080, 10.244.1.2:8080"
    );
    node.run([removed(&older)]);
    assert_eq!(node.set("KUBE-INTERNAL-FRONTEND"), ["203.0.113.5,tcp:80".to_owned()].into());
    assert_eq!(node.real_servers("TCP 203.0.113.5:80").unwrap(), "10.244.0.8:8080");
}
