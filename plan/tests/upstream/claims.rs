//! Several Services, or one for several reasons, claim the same frontend. kube-proxy lets them take
//! it from each other in every sync.

use plan::actual::{ActualSet, ListedVirtualServer};
use plan::comparison::Reading;
use plan::kernel_objects::{Entry, Frontend};
use plan::model::{Family, Protocol, Service, ServiceKind};
use plan::op::{Op, Subject};
use plan::planner::RoundLimit;
use plan::problem::Problem;
use plan::sets::{SetId, SetKind};
use plan::settings::{NodePortAddresses, Settings};

use crate::node::{Node, THIS, check, said};
use crate::words::{
    CLUSTER, LOCAL, applied, ip, ips, number, port, removed, service, slice, sliced,
};

const PODS: [(&str, &str); 3] =
    [("dns", "10.244.0.2@n1"), ("other", "10.244.0.3@n1"), ("third", "10.244.0.4@n1")];

/// A node that serves node ports at one address, with endpoints for the three Services.
fn node() -> Node {
    let mut settings = Settings::new(THIS);
    settings.node_port_addresses =
        NodePortAddresses::Networks(vec!["192.0.2.0/24".parse().unwrap()]);
    let mut node = Node::new(settings);
    let slices = PODS.map(|(name, pod)| sliced(&slice(&format!("{name}-1"), name, &[pod])));
    node.run(slices);
    node
}

fn dns() -> Service {
    Service { created: 9, ..service("dns", &["10.96.0.10"]) }
}

fn other(created: i64) -> Service {
    Service { created, ..service("other", &["10.96.0.11"]) }
}

/// Addresses that the API server gives come before those that a load balancer's controller writes,
/// and those before what any user may write. Age decides within a kind only.
#[test]
fn the_better_reason_has_a_frontend_however_young_it_is() {
    let node_port = |created| Service {
        kind: ServiceKind::NodePort,
        ports: vec![port("http", "80:30080/TCP")],
        created,
        ..dns()
    };
    let balanced = |name: &str, cluster: &str, created, address: &str| Service {
        kind: ServiceKind::LoadBalancer,
        load_balancer: ips(&[address]),
        created,
        ..service(name, &[cluster])
    };
    let external = |created, address: &str| Service { external: ips(&[address]), ..other(created) };
    let at_port = |created| Service {
        ports: vec![port("http", "30080/TCP")],
        ..external(created, "192.0.2.10")
    };
    for (row, winner, loser, frontend) in [
        ("a cluster address, external", dns(), external(1, "10.96.0.10"), "TCP 10.96.0.10:80"),
        (
            "a cluster address, a load balancer's",
            dns(),
            balanced("other", "10.96.0.11", 1, "10.96.0.10"),
            "TCP 10.96.0.10:80",
        ),
        ("a node port, external", node_port(9), at_port(1), "TCP 192.0.2.10:30080"),
        (
            "a load balancer's, external",
            balanced("dns", "10.96.0.10", 9, "203.0.113.5"),
            external(1, "203.0.113.5"),
            "TCP 203.0.113.5:80",
        ),
        (
            "the older one of two external ones",
            Service { external: ips(&["203.0.113.5"]), created: 1, ..dns() },
            external(2, "203.0.113.5"),
            "TCP 203.0.113.5:80",
        ),
    ] {
        let (mut node, mut alone) = (node(), node());
        alone.run([applied(&winner)]);
        let taken = |node: &Node| node.real_servers(frontend).unwrap();
        node.run([applied(&loser)]);
        assert_eq!(taken(&node), "10.244.0.3:8080", "{row}: nobody else wants it");
        let plan = node.run([applied(&winner)]);
        assert_eq!(taken(&node), "10.244.0.2:8080", "{row}");
        let [(name, problems)] = &plan.problems[..] else { panic!("{row}: {:?}", plan.problems) };
        assert_eq!(*name, loser.name, "{row}");
        assert!(
            matches!(&problems[..], [Problem::FrontendTaken { frontend: it, owner }]
                if it.to_string() == frontend && *owner == winner.name),
            "{row}: {problems:?}"
        );
        // Without a gap: the virtual server stays, and no entry of the loser's about it does.
        let ops = said(&plan.ops);
        let gone = format!("remove virtual server {frontend}");
        assert!(!ops.contains(&gone), "{row}: {ops:#?}");
        let (_, at) = frontend.split_once(' ').unwrap();
        let about = |node: &Node| {
            let at = at.replace(":", ",tcp:");
            let mut entries = node.state();
            entries.retain(|line| line.contains(&at));
            entries
        };
        assert_eq!(about(&node), about(&alone), "{row}");
        let plan = node.run([removed(&winner)]);
        assert_eq!(plan.problems, [(loser.name.clone(), vec![])], "{row}");
        assert_eq!(taken(&node), "10.244.0.3:8080", "{row}: it takes over again");
    }
}

/// A restart finds the kernel as it was. However few Services are planned in a round, none takes,
/// even for a moment, what another one has a better reason for.
#[test]
fn a_restart_takes_nothing_from_the_one_that_has_it() {
    let thief = Service { external: ips(&["10.96.0.10"]), ..other(1) };
    // It is external itself, and no thief.
    let victim = Service { external: ips(&["203.0.113.5"]), ..dns() };
    let mut before = node();
    before.run([applied(&thief), applied(&victim)]);
    let mut node = node();
    node.kernel = before.kernel.clone();
    for event in [applied(&thief), applied(&victim)] {
        node.planner.apply(event);
    }
    let there = node.kernel.actual().virtual_servers.iter();
    let listed = there.map(|(frontend, there)| {
        let (frontend, server) = (*frontend, there.server.clone());
        ListedVirtualServer { frontend, server }
    });
    let listed = listed.collect();
    let mut found = node.planner.take_over(node.kernel.actual().clone(), listed);
    while node.planner.is_dirty() {
        let plan = node.planner.plan_round(RoundLimit { services: 1, ..RoundLimit::NONE });
        // A frontend that no Service has claimed yet stays as it was found.
        let owner = node.planner.desired().owner(&frontend());
        assert!(owner.is_none_or(|owner| *owner == victim.name), "{owner:?}");
        let lacking = found.adopt(plan.ops).lacking;
        let is_about_it = |op: &Op| op.subject() == Subject::VirtualServer(frontend());
        assert!(lacking.iter().all(|op| !is_about_it(op)), "{lacking:#?}");
    }
    assert_eq!(node.planner.desired().owner(&frontend()), Some(&victim.name));
}

/// The same for a node port that two Services have. The API server gives it to one only, but who
/// reads a list and a watch may see both for a moment.
#[test]
fn a_restart_leaves_a_node_port_to_the_older_one_of_two() {
    let ports = || vec![port("http", "80:30080/TCP")];
    let older = Service { kind: ServiceKind::NodePort, ports: ports(), ..other(1) };
    // Another one claims its external address, too.
    let external = ips(&["203.0.113.5"]);
    let younger = Service { kind: ServiceKind::NodePort, ports: ports(), external, ..dns() };
    let third = Service {
        created: 11,
        external: younger.external.clone(),
        ..service("third", &["10.96.0.12"])
    };
    let mut node = node();
    for event in [&older, &younger, &third].map(applied) {
        node.planner.apply(event);
    }
    drop(node.planner.take_over(node.kernel.actual().clone(), Vec::new()));
    let frontend = Frontend { address: ip("192.0.2.10"), protocol: Protocol::Tcp, port: 30_080 };
    while node.planner.is_dirty() {
        node.planner.plan_round(RoundLimit { services: 1, ..RoundLimit::NONE });
        let owner = node.planner.desired().owner(&frontend);
        assert!(owner.is_none_or(|owner| *owner == older.name), "{owner:?}");
    }
    assert_eq!(node.planner.desired().owner(&frontend), Some(&older.name));
}

fn frontend() -> Frontend {
    Frontend { address: ip("10.96.0.10"), protocol: Protocol::Tcp, port: 80 }
}

/// One Service may claim a frontend for several reasons. The best one decides which endpoints it
/// has, and only what follows from that may refuse what is sent there.
#[test]
fn a_cluster_address_that_is_external_too_is_a_cluster_address() {
    const ELSEWHERE: [&str; 1] = ["10.244.1.2@n2"];
    const HERE: [&str; 2] = ["10.244.0.2@n1", "10.244.1.2@n2"];
    const TO_ALL: &str = "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080";
    const TO_ELSEWHERE: &str = "TCP 10.96.0.9:80 rr: 10.244.1.2:8080";
    const TO_HERE: &str = "TCP 10.96.0.9:80 rr: 10.244.0.2:8080";
    const DROPPED: &str = "KUBE-NO-LOCAL-ENDPOINTS 10.96.0.9,tcp:80";
    const REFUSED: &str = "KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80";
    let cases = [
        (CLUSTER, CLUSTER, &HERE[..], TO_ALL),
        (CLUSTER, CLUSTER, &ELSEWHERE, TO_ELSEWHERE),
        (CLUSTER, LOCAL, &HERE, TO_ALL),
        (CLUSTER, LOCAL, &ELSEWHERE, TO_ELSEWHERE),
        (LOCAL, CLUSTER, &HERE, TO_HERE),
        (LOCAL, CLUSTER, &ELSEWHERE, DROPPED),
        (LOCAL, LOCAL, &HERE, TO_HERE),
        (LOCAL, LOCAL, &ELSEWHERE, DROPPED),
        (LOCAL, LOCAL, &[], REFUSED),
        (CLUSTER, LOCAL, &[], REFUSED),
    ];
    for (internal, external, endpoints, expected) in cases {
        for is_balanced in [false, true] {
            let mut web = Service {
                internal_policy: internal,
                external_policy: external,
                ..service("web", &["10.96.0.9"])
            };
            let outer = if is_balanced {
                web.kind = ServiceKind::LoadBalancer;
                &mut web.load_balancer
            } else {
                &mut web.external
            };
            *outer = ips(&["10.96.0.9"]);
            let node = Node::after([applied(&web), sliced(&slice("web-1", "web", endpoints))]);
            let mut found = node.virtual_servers();
            found.extend(node.entries("KUBE-NO-"));
            found.extend(node.entries("KUBE-INTERNAL-FRONTEND"));
            let row = format!("{internal:?}, {external:?}, {endpoints:?}, {is_balanced}");
            check(&row, &found, &[expected]);
            check(&row, &node.addresses(), &["kube-ipvs0 10.96.0.9"]);
        }
    }
}

/// A node port comes before an external address, also of two ports of one Service.
#[test]
fn a_node_port_that_is_an_external_frontend_of_another_port_is_a_node_port() {
    let mut web = Service {
        kind: ServiceKind::NodePort,
        external: ips(&["192.0.2.10"]),
        external_policy: LOCAL,
        ports: vec![port("b", "30080/TCP"), port("http", "80:30080/TCP")],
        ..service("dns", &["10.96.0.10"])
    };
    web.ports[1].node_port = Some(number(30_080));
    let mut node = node();
    let plan = node.run([applied(&web)]);
    assert_eq!(node.real_servers("TCP 192.0.2.10:30080").unwrap(), "10.244.0.2:8080");
    assert_eq!(node.real_servers("TCP 240.0.2.10:30080").unwrap(), "10.244.0.2:8080");
    let [(_, problems)] = &plan.problems[..] else { panic!("{:?}", plan.problems) };
    assert!(matches!(&problems[..], [Problem::FrontendTwice { .. }]), "{problems:?}");
}

/// Entries found inside excluded networks stay, unless they are about what a Service has there: a
/// refusal from before it had endpoints would go on refusing its clients.
#[test]
fn an_old_refusal_of_a_service_inside_excluded_networks_goes() {
    let exclude = vec!["198.51.100.0/24".parse().unwrap()];
    let mut node = Node::new(Settings { exclude, ..Settings::new(THIS) });
    node.run([
        applied(&Service { external: ips(&["198.51.100.7"]), ..dns() }),
        sliced(&slice("dns-1", "dns", &["10.244.0.2@n1"])),
    ]);
    let entry = |address| {
        Entry::AddressPort(Frontend { address: ip(address), protocol: Protocol::Tcp, port: 80 })
    };
    let found = ["198.51.100.7", "198.51.100.9"].map(entry).into_iter().collect::<ActualSet>();
    let set = SetId { kind: SetKind::NoEndpoints, family: Family::V4 };
    let ops = node.planner.compare(&Reading::Set(set, Some(found)));
    assert_eq!(ops, [Op::RemoveEntry(set, entry("198.51.100.7"))]);
}
