//! TestEndpointSliceE2E, TestUpdateEndpointsMap, TestEndpointSliceUpdate, the slice cache's tests:
//! from slices to real servers.

use plan::event::Event;
use plan::model::{ObjectName, Service};

use crate::node::{Node, check, said};
use crate::words::{applied, port, service, slice, slice_with, sliced, unsliced};

fn two_ports() -> Service {
    let ports = vec![port("http", "80/TCP"), port("https", "443/TCP")];
    Service { ports, ..service("web", &["10.96.0.9"]) }
}

#[test]
fn endpoints_come_change_and_go() {
    let ready = slice(
        "web-1",
        "web",
        &["10.244.0.2@n1", "10.244.1.2@n2", "10.244.2.2@n3 unready", "10.244.0.3@n1 unready"],
    );
    let mut node = Node::after([applied(&service("web", &["10.96.0.9"])), sliced(&ready)]);
    let always =
        ["kube-ipvs0 10.96.0.9", "KUBE-CLUSTER-IP 10.96.0.9,tcp:80", "KUBE-IPVS-IPS 10.96.0.9"];
    let with = |expected: &[&'static str]| [&always, expected].concat();
    check(
        "ready ones are used; those of this node may come back to themselves, ready or not",
        &node.state(),
        &with(&[
            "TCP 10.96.0.9:80 rr: 10.244.0.2:8080, 10.244.1.2:8080",
            "KUBE-LOOP-BACK 10.244.0.2,tcp:8080,10.244.0.2",
            "KUBE-LOOP-BACK 10.244.0.3,tcp:8080,10.244.0.3",
        ]),
    );
    node.run([unsliced(&ready)]);
    check("the slice is gone", &node.state(), &with(&["KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80"]));
    node.run([sliced(&ready)]);
    node.run([sliced(&slice("web-1", "web", &[]))]);
    check("the slice is empty", &node.state(), &with(&["KUBE-NO-ENDPOINTS 10.96.0.9,tcp:80"]));
}

/// A step is an event and the real servers of both ports after it.
type Step<'a> = (&'a str, Event, [Option<&'a str>; 2]);

fn follow(steps: impl IntoIterator<Item = Step<'static>>) {
    let mut node = Node::after([applied(&two_ports())]);
    for (step, event, expected) in steps {
        node.run([event]);
        let found = ["TCP 10.96.0.9:80", "TCP 10.96.0.9:443"].map(|at| node.real_servers(at));
        assert_eq!(found, expected.map(|it| it.map(str::to_owned)), "{step}");
    }
}

fn web(name: &str, ports: &[(&str, &str)], endpoints: &[&str]) -> Event {
    sliced(&slice_with(name, "web", ports, endpoints))
}

const HTTP: (&str, &str) = ("http", "8080/TCP");
const HTTPS: (&str, &str) = ("https", "8443/TCP");

#[test]
fn one_slice_changes() {
    let one = &["10.244.1.2@n2"][..];
    follow([
        ("one port", web("s", &[HTTP], one), [Some("10.244.1.2:8080"), None]),
        ("the same again", web("s", &[HTTP], one), [Some("10.244.1.2:8080"), None]),
        ("both", web("s", &[HTTP, HTTPS], one), [Some("10.244.1.2:8080"), Some("10.244.1.2:8443")]),
        ("the other", web("s", &[HTTPS], one), [None, Some("10.244.1.2:8443")]),
        (
            "the other's name",
            web("s", &[("http", "8443/TCP")], one),
            [Some("10.244.1.2:8443"), None],
        ),
        ("another number", web("s", &[("http", "9000/TCP")], one), [Some("10.244.1.2:9000"), None]),
        (
            "another endpoint more",
            web("s", &[HTTP], &["10.244.1.2@n2", "10.244.2.2@n3"]),
            [Some("10.244.1.2:8080, 10.244.2.2:8080"), None],
        ),
        (
            "the first is gone",
            web("s", &[HTTP], &["10.244.2.2@n3"]),
            [Some("10.244.2.2:8080"), None],
        ),
        ("another address", web("s", &[HTTP], &["10.244.2.9@n3"]), [Some("10.244.2.9:8080"), None]),
        ("another node", web("s", &[HTTP], &["10.244.2.9@n4"]), [Some("10.244.2.9:8080"), None]),
        ("unready", web("s", &[HTTP], &["10.244.2.9@n4 unready"]), [None, None]),
        ("ready", web("s", &[HTTP], &["10.244.2.9@n4"]), [Some("10.244.2.9:8080"), None]),
        (
            "terminating, and the last",
            web("s", &[HTTP], &["10.244.2.9@n4 terminating"]),
            [Some("10.244.2.9:8080"), None],
        ),
        (
            "terminating, and no longer the last",
            web("s", &[HTTP], &["10.244.2.9@n4 terminating", "10.244.1.2@n2"]),
            [Some("10.244.1.2:8080"), None],
        ),
        ("a port of another protocol", web("s", &[("http", "8080/UDP")], one), [None, None]),
        ("no port at all", web("s", &[], one), [None, None]),
        ("no endpoint", web("s", &[HTTP, HTTPS], &[]), [None, None]),
        (
            "all again",
            web("s", &[HTTP, HTTPS], one),
            [Some("10.244.1.2:8080"), Some("10.244.1.2:8443")],
        ),
        ("gone", Event::SliceRemoved(ObjectName::new("ns", "s")), [None, None]),
        ("gone twice", Event::SliceRemoved(ObjectName::new("ns", "s")), [None, None]),
    ]);
}

#[test]
fn several_slices_are_one_list() {
    let gone = |name| Event::SliceRemoved(ObjectName::new("ns", name));
    let unready = &["10.244.1.2@n2 unready"][..];
    follow([
        ("one", web("s1", &[HTTP], &["10.244.1.2@n2"]), [Some("10.244.1.2:8080"), None]),
        (
            "two",
            web("s2", &[HTTP], &["10.244.2.2@n3"]),
            [Some("10.244.1.2:8080, 10.244.2.2:8080"), None],
        ),
        (
            "a third with the second's endpoint and another one",
            web("s3", &[HTTP], &["10.244.2.2@n3", "10.244.3.2@n4"]),
            [Some("10.244.1.2:8080, 10.244.2.2:8080, 10.244.3.2:8080"), None],
        ),
        (
            "the second goes, its endpoint stays",
            gone("s2"),
            [Some("10.244.1.2:8080, 10.244.2.2:8080, 10.244.3.2:8080"), None],
        ),
        (
            "a slice with another port and the same endpoints",
            web("s4", &[HTTPS], &["10.244.1.2@n2", "10.244.2.2@n3"]),
            [
                Some("10.244.1.2:8080, 10.244.2.2:8080, 10.244.3.2:8080"),
                Some("10.244.1.2:8443, 10.244.2.2:8443"),
            ],
        ),
        (
            "the third goes",
            gone("s3"),
            [Some("10.244.1.2:8080"), Some("10.244.1.2:8443, 10.244.2.2:8443")],
        ),
        (
            "ready in one, unready in another",
            web("s5", &[HTTP], unready),
            [Some("10.244.1.2:8080"), Some("10.244.1.2:8443, 10.244.2.2:8443")],
        ),
        ("the ready one goes", gone("s1"), [None, Some("10.244.1.2:8443, 10.244.2.2:8443")]),
        (
            "ready in one, terminating in another",
            web("s1", &[HTTP], &["10.244.1.2@n2", "10.244.9.2@n2 terminating"]),
            [Some("10.244.1.2:8080"), Some("10.244.1.2:8443, 10.244.2.2:8443")],
        ),
        (
            "terminating in one, ready in another, which was its end",
            web("s5", &[HTTP], &["10.244.9.2@n2"]),
            [Some("10.244.1.2:8080, 10.244.9.2:8080"), Some("10.244.1.2:8443, 10.244.2.2:8443")],
        ),
    ]);
}

#[test]
fn the_same_name_may_be_another_number_in_another_slice() {
    follow([
        (
            "old pods",
            web("old", &[("http", "8080/TCP"), ("https", "8443/TCP")], &["10.244.1.2@n2"]),
            [Some("10.244.1.2:8080"), Some("10.244.1.2:8443")],
        ),
        (
            "new pods that listen elsewhere",
            web("new", &[("http", "9080/TCP"), ("https", "9443/TCP")], &["10.244.2.2@n3"]),
            [Some("10.244.1.2:8080, 10.244.2.2:9080"), Some("10.244.1.2:8443, 10.244.2.2:9443")],
        ),
        (
            "a pod with both numbers, for a moment",
            web("mid", &[("http", "9080/TCP")], &["10.244.1.2@n2"]),
            [
                Some("10.244.1.2:8080, 10.244.1.2:9080, 10.244.2.2:9080"),
                Some("10.244.1.2:8443, 10.244.2.2:9443"),
            ],
        ),
    ]);
}

#[test]
fn a_slice_may_change_hands() {
    let mine = slice("s", "web", &["10.244.1.2@n2"]);
    let mut theirs = mine.clone();
    theirs.service = ObjectName::new("ns", "mail");
    let (web, mail) = (service("web", &["10.96.0.9"]), service("mail", &["10.96.0.8"]));
    let mut node = Node::after([applied(&web), applied(&mail), sliced(&mine)]);
    check("web's", &node.virtual_servers(), &["TCP 10.96.0.9:80 rr: 10.244.1.2:8080"]);
    node.run([sliced(&theirs)]);
    check("mail's", &node.virtual_servers(), &["TCP 10.96.0.8:80 rr: 10.244.1.2:8080"]);
    let mut of_other_namespace = theirs.clone();
    of_other_namespace.service = ObjectName::new("other", "mail");
    node.run([sliced(&of_other_namespace)]);
    check("nobody's", &node.virtual_servers(), &[]);
}

/// A service port without a name is its only one, and so is that of its slices.
#[test]
fn a_port_without_a_name_is_matched_by_that() {
    let nameless = Service { ports: vec![port("", "80/TCP")], ..service("web", &["10.96.0.9"]) };
    let mut node = Node::after([applied(&nameless)]);
    node.run([web("s", &[("", "8080/TCP")], &["10.244.1.2@n2"])]);
    assert_eq!(node.real_servers("TCP 10.96.0.9:80").unwrap(), "10.244.1.2:8080");
    node.run([web("s", &[("http", "8080/TCP")], &["10.244.1.2@n2"])]);
    assert_eq!(node.real_servers("TCP 10.96.0.9:80"), None);
}

#[test]
fn only_what_changed_is_touched() {
    let mut node = Node::after([
        applied(&two_ports()),
        web("s", &[HTTP, HTTPS], &["10.244.1.2@n2", "10.244.2.2@n3"]),
    ]);
    let plan = node.run([web("s", &[HTTP, HTTPS], &["10.244.1.2@n2", "10.244.3.2@n4"])]);
    assert_eq!(
        said(&plan.ops),
        [
            "add real server 10.244.3.2:8080 weight 1 to TCP 10.96.0.9:80",
            "add real server 10.244.3.2:8443 weight 1 to TCP 10.96.0.9:443",
            "remove real server 10.244.2.2:8080 from TCP 10.96.0.9:80",
            "remove real server 10.244.2.2:8443 from TCP 10.96.0.9:443",
        ]
    );
    let plan = node.run([web("s", &[HTTP, HTTPS], &["10.244.3.2@n4", "10.244.1.2@n2"])]);
    assert_eq!(plan.ops, [], "another order is no change");
}
