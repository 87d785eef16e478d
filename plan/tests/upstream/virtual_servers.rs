//! Test_syncService, Test_syncEndpoint_updateWeightsOnRestart, TestSessionAffinity: what is done
//! about a virtual server that is found as it should be, otherwise, or not at all.

use plan::event::Event;
use plan::kernel_objects::{Frontend, VirtualServer};
use plan::model::{Overrides, Protocol, Service, ServiceKind};
use plan::problem::Problem;
use plan::scheduler::SchedulerName;
use plan::settings::Settings;

use crate::node::{Node, THIS, check, made, said};
use crate::words::{LOCAL, applied, ip, ips, port, service, slice, slice_with, sliced};

const SERVICE: &str = "10.96.0.9";

fn scheduler(name: &str) -> SchedulerName {
    SchedulerName::new(name).unwrap()
}

/// A node with a Service of one port and one endpoint.
fn node_with(protocol: &str, settings: Settings) -> Node {
    let web =
        Service { ports: vec![port("p", &format!("80/{protocol}"))], ..service("web", &[SERVICE]) };
    let target = format!("8080/{protocol}");
    let endpoints = slice_with("web-1", "web", &[("p", &target)], &["10.244.1.2@n2"]);
    let mut node = Node::new(settings);
    node.run([applied(&web), sliced(&endpoints)]);
    node
}

fn server(name: &str, persistence: Option<u32>, scheduler_flags: u32) -> VirtualServer {
    VirtualServer { scheduler: scheduler(name), persistence, scheduler_flags }
}

/// State in which the kernel's virtual server is found.
enum Start {
    AsItIs,
    Nothing,
    NoAddress,
    Server(Option<VirtualServer>),
}

#[test]
fn a_virtual_server_is_made_or_changed_only_as_far_as_it_has_to() {
    use Protocol::{Sctp, Tcp};
    for (row, protocol, found, expected) in [
        ("as it should be", Tcp, Start::AsItIs, &[][..]),
        ("as it should be, SCTP", Sctp, Start::AsItIs, &[]),
        (
            "persistent, which it should not be",
            Tcp,
            Start::Server(Some(server("rr", Some(10_800), 0))),
            &["change virtual server TCP 10.96.0.9:80 to rr"],
        ),
        (
            "with a flag that it should not have",
            Tcp,
            Start::Server(Some(server("rr", None, 0x10))),
            &["change virtual server TCP 10.96.0.9:80 to rr"],
        ),
        (
            "another scheduler",
            Tcp,
            Start::Server(Some(server("wlc", None, 0))),
            &["change virtual server TCP 10.96.0.9:80 to rr"],
        ),
        (
            "another scheduler, SCTP",
            Sctp,
            Start::Server(Some(server("wlc", None, 0))),
            &["change virtual server SCTP 10.96.0.9:80 to rr"],
        ),
        (
            "balancing in a way that we have no words for",
            Tcp,
            Start::Server(None),
            &["change virtual server TCP 10.96.0.9:80 to rr"],
        ),
        (
            "not there",
            Tcp,
            Start::Nothing,
            &[
                "create virtual server TCP 10.96.0.9:80 rr",
                "add real server 10.244.1.2:8080 weight 1 to TCP 10.96.0.9:80",
            ],
        ),
        (
            "not there, SCTP",
            Sctp,
            Start::Nothing,
            &[
                "create virtual server SCTP 10.96.0.9:80 rr",
                "add real server 10.244.1.2:8080 weight 1 to SCTP 10.96.0.9:80",
            ],
        ),
        (
            "there, with its address on no interface",
            Tcp,
            Start::NoAddress,
            &["add address 10.96.0.9 to kube-ipvs0"],
        ),
    ] {
        let mut node = node_with(&protocol.to_string(), Settings::new(THIS));
        let desired = node.kernel.clone();
        let frontend = Frontend { address: ip(SERVICE), protocol, port: 80 };
        let actual = node.kernel.actual_mut();
        match found {
            Start::AsItIs => {}
            Start::Nothing => drop(actual.virtual_servers.remove(&frontend)),
            Start::NoAddress => drop(actual.addresses.remove(&frontend.address)),
            Start::Server(server) => {
                actual.virtual_servers.get_mut(&frontend).unwrap().server = server;
            }
        }
        assert_eq!(node.compare(), expected, "{row}");
        assert_eq!(node.kernel, desired, "{row}");
    }
}

/// A restart finds weight 0 where the former process was draining; who is wanted again gets its
/// weight back without being removed, who is not goes on leaving.
#[test]
fn real_servers_are_repaired_one_by_one() {
    let frontend = Frontend { address: ip(SERVICE), protocol: Protocol::Tcp, port: 80 };
    for (row, found, is_plain, expected) in [
        (
            "weight 0",
            &[("10.244.1.2:8080", 0)][..],
            true,
            &["change real server of TCP 10.96.0.9:80 to 10.244.1.2:8080 weight 1"][..],
        ),
        (
            "another weight",
            &[("10.244.1.2:8080", 7)],
            true,
            &["change real server of TCP 10.96.0.9:80 to 10.244.1.2:8080 weight 1"],
        ),
        (
            "another forwarding method",
            &[("10.244.1.2:8080", 1)],
            false,
            &["change real server of TCP 10.96.0.9:80 to 10.244.1.2:8080 weight 1"],
        ),
        (
            "only the other one has another weight",
            &[("10.244.1.2:8080", 1), ("10.244.1.3:8080", 0)],
            true,
            &["remove real server 10.244.1.3:8080 from TCP 10.96.0.9:80"],
        ),
        (
            "the same address with another port",
            &[("10.244.1.2:80", 1)],
            true,
            &[
                "add real server 10.244.1.2:8080 weight 1 to TCP 10.96.0.9:80",
                "remove real server 10.244.1.2:80 from TCP 10.96.0.9:80",
            ],
        ),
        ("none", &[], true, &["add real server 10.244.1.2:8080 weight 1 to TCP 10.96.0.9:80"]),
    ] {
        let mut node = node_with("TCP", Settings::new(THIS));
        let desired = node.virtual_servers();
        let mut left = made(&server("rr", None, 0), found);
        for real in left.real_servers.values_mut() {
            real.plain = is_plain;
        }
        node.kernel.actual_mut().virtual_servers.insert(frontend, left);
        assert_eq!(node.compare(), expected, "{row}");
        assert_eq!(node.virtual_servers(), desired, "{row}");
    }
}

#[test]
fn session_affinity_is_on_every_frontend() {
    let mut sticky = Service {
        kind: ServiceKind::LoadBalancer,
        external: ips(&["198.51.100.7"]),
        load_balancer: ips(&["203.0.113.5"]),
        affinity: Some(10_800),
        ports: vec![port("p", "80:30080/TCP")],
        ..service("web", &[SERVICE])
    };
    let endpoints = slice_with("web-1", "web", &[("p", "8080/TCP")], &["10.244.1.2@n2"]);
    let mut node = Node::after([applied(&sticky), sliced(&endpoints)]);
    check(
        "three hours",
        &node.virtual_servers(),
        &[
            "TCP 10.96.0.9:80 rr persistent 10800: 10.244.1.2:8080",
            "TCP 198.51.100.7:80 rr persistent 10800: 10.244.1.2:8080",
            "TCP 203.0.113.5:80 rr persistent 10800: 10.244.1.2:8080",
            "TCP 192.0.2.10:30080 rr persistent 10800: 10.244.1.2:8080",
        ],
    );
    sticky.external_policy = LOCAL;
    node.run([applied(&sticky)]);
    check(
        "with internal frontends",
        &node.virtual_servers(),
        &[
            "TCP 10.96.0.9:80 rr persistent 10800: 10.244.1.2:8080",
            "TCP 246.51.100.7:80 rr persistent 10800: 10.244.1.2:8080",
            "TCP 251.0.113.5:80 rr persistent 10800: 10.244.1.2:8080",
            "TCP 240.0.2.10:30080 rr persistent 10800: 10.244.1.2:8080",
        ],
    );
    let changed = Service {
        affinity: None,
        ..Service { ports: vec![port("p", "80/TCP")], ..service("web", &[SERVICE]) }
    };
    node.run([applied(&changed)]);
    check("no longer", &node.virtual_servers(), &["TCP 10.96.0.9:80 rr: 10.244.1.2:8080"]);
    let mut settings = Settings::new(THIS);
    settings.scheduler = scheduler("mh");
    let maglev = node_with("TCP", settings);
    check(
        "mh, for the source port to count, and with a fallback while an endpoint drains",
        &maglev.virtual_servers(),
        &["TCP 10.96.0.9:80 mh flags 0x18: 10.244.1.2:8080"],
    );
}

#[test]
fn a_service_is_balanced_as_it_chose_if_the_kernel_can() {
    let choosing = |overrides: Overrides| Service {
        ports: vec![port("p", "80/TCP")],
        overrides: Some(Box::new(overrides)),
        ..service("web", &[SERVICE])
    };
    let maglev = Overrides { scheduler: Some(scheduler("mh")), ..Overrides::default() };
    let mut node = node_with("TCP", Settings::new(THIS));
    for (row, overrides, expected) in [
        ("nothing", Overrides::default(), "TCP 10.96.0.9:80 rr: 10.244.1.2:8080"),
        ("mh", maglev.clone(), "TCP 10.96.0.9:80 mh flags 0x18: 10.244.1.2:8080"),
        (
            "mh without the port",
            Overrides { scheduler_flags: Some(0x08), ..maglev.clone() },
            "TCP 10.96.0.9:80 mh flags 0x8: 10.244.1.2:8080",
        ),
        (
            "mh without flags, but for the fallback",
            Overrides { scheduler_flags: Some(0), ..maglev.clone() },
            "TCP 10.96.0.9:80 mh flags 0x8: 10.244.1.2:8080",
        ),
        (
            "sh, which falls back while an endpoint drains",
            Overrides { scheduler: Some(scheduler("sh")), ..Overrides::default() },
            "TCP 10.96.0.9:80 sh flags 0x8: 10.244.1.2:8080",
        ),
    ] {
        node.run([applied(&choosing(overrides))]);
        check(row, &node.virtual_servers(), &[expected]);
    }
    node.run([applied(&choosing(maglev))]);
    let plan = node.run([Event::SchedulerMissing(scheduler("mh"))]);
    check("not in the kernel", &node.virtual_servers(), &["TCP 10.96.0.9:80 rr: 10.244.1.2:8080"]);
    let problem = Problem::SchedulerMissing { scheduler: scheduler("mh") };
    let name = service("web", &[]).name;
    assert_eq!(plan.problems, [(name.clone(), vec![problem])]);
    let plan = node.run([applied(&choosing(Overrides::default()))]);
    assert_eq!(plan.problems, [(name, vec![])]);
}

#[test]
fn endpoints_have_the_shares_that_the_service_chose() {
    use plan::model::Weights;
    let weights = Some(Weights { node: 100, zone: 10, elsewhere: 1 });
    let weighted = Service {
        ports: vec![port("p", "80/TCP")],
        overrides: Some(Box::new(Overrides { weights, ..Overrides::default() })),
        ..service("web", &[SERVICE])
    };
    let endpoints = ["10.244.0.2@n1 in:a", "10.244.1.2@n2 in:a", "10.244.2.2@n3 in:b"];
    let endpoints = slice_with("web-1", "web", &[("p", "8080/TCP")], &endpoints);
    let object = plan::model::Node { zone: Some("a".into()), ..plan::model::Node::default() };
    let mut node = Node::after([Event::NodeApplied(Box::new(object)), sliced(&endpoints)]);
    node.run([applied(&weighted)]);
    assert_eq!(
        node.real_servers("TCP 10.96.0.9:80").unwrap(),
        "10.244.0.2:8080 weight 100, 10.244.1.2:8080 weight 10, 10.244.2.2:8080"
    );
    let plan = node.run([applied(&Service { overrides: None, ..weighted })]);
    assert_eq!(
        said(&plan.ops),
        [
            "change real server of TCP 10.96.0.9:80 to 10.244.0.2:8080 weight 1",
            "change real server of TCP 10.96.0.9:80 to 10.244.1.2:8080 weight 1",
        ]
    );
}

/// A node often gets its zone only after it has joined the cluster.
#[test]
fn endpoints_follow_the_zone_of_the_node() {
    let weights = Some(plan::model::Weights { node: 100, zone: 10, elsewhere: 1 });
    let weighted = Service {
        overrides: Some(Box::new(Overrides { weights, ..Overrides::default() })),
        ..service("web", &[SERVICE])
    };
    let hinted = service("mail", &["10.96.0.8"]);
    let node = |zone: Option<&str>| {
        let zone = zone.map(Into::into);
        Event::NodeApplied(Box::new(plan::model::Node { zone, ..plan::model::Node::default() }))
    };
    let in_zones = ["10.244.1.2@n2 in:a", "10.244.2.2@n3 in:b"];
    let for_zones = ["10.244.1.2@n2 for:a", "10.244.2.2@n3 for:b"];
    let mut run = Node::after([
        applied(&weighted),
        applied(&hinted),
        sliced(&slice("web-1", "web", &in_zones)),
        sliced(&slice("mail-1", "mail", &for_zones)),
    ]);
    for (zone, by_weight, by_hint) in [
        (None, "10.244.1.2:8080, 10.244.2.2:8080", "10.244.1.2:8080, 10.244.2.2:8080"),
        (Some("a"), "10.244.1.2:8080 weight 10, 10.244.2.2:8080", "10.244.1.2:8080"),
        (Some("b"), "10.244.1.2:8080, 10.244.2.2:8080 weight 10", "10.244.2.2:8080"),
        (Some("c"), "10.244.1.2:8080, 10.244.2.2:8080", "10.244.1.2:8080, 10.244.2.2:8080"),
    ] {
        run.run([node(zone)]);
        assert_eq!(run.real_servers("TCP 10.96.0.9:80").unwrap(), by_weight, "{zone:?}");
        assert_eq!(run.real_servers("TCP 10.96.0.8:80").unwrap(), by_hint, "{zone:?}");
    }
}
