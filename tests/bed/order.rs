//! A change to one endpoint touches no other, also where the order of endpoints is part of the
//! scheduler's choice; and what nodes agree on all the same.

use std::time::Duration;

use bed::{Host, Namespace, Protocol, Proxy, Question, Service, Stream, StreamPlan};

use crate::fixture::{Bed, TARGET, annotated, ip};

/// Number of clients that are compared: one address with so many ports.
const CLIENTS: u16 = 48;

/// The real servers of a cluster address, in the kernel's order.
fn listed(node: &Namespace, address: &str) -> Vec<String> {
    let text = node.command("ipvsadm", &["-Ln", "--nosort", "-t", address]).unwrap();
    let sockets = text.lines().filter_map(|line| line.trim().strip_prefix("-> "));
    let sockets = sockets.filter_map(|line| line.split_whitespace().next());
    sockets.filter(|socket| socket.starts_with("10.244.")).map(str::to_owned).collect()
}

/// A Service with a NodePort whose scheduler pays attention to the client's port.
fn hashed<'a>(
    bed: &Bed,
    (scheduler, number): (&str, u8),
    pods: impl IntoIterator<Item = &'a Host>,
) {
    let address = ip(&format!("10.96.0.{number}"));
    let service = Service::new(&format!("{scheduler}-{number}"), address);
    let service = service.node_port(Protocol::Tcp, 80, TARGET, 30_000 + u16::from(number));
    let annotations = format!(
        "kube-ipvs.io/scheduler: {scheduler}, kube-ipvs.io/scheduler-flags: {scheduler}-port"
    );
    let yaml = annotated(&service.pods(pods), &annotations);
    bed.manifests.write(&format!("{scheduler}-{number}.yaml"), &yaml).unwrap();
}

/// Counts the clients that get another endpoint of this NodePort from the second node than from the
/// first. Each is a port that no other connection has.
fn disagreements(bed: &Bed, number: u8) -> usize {
    let client = bed.cluster.client(1).unwrap();
    let chosen = |node: u8, port: u16| {
        let target = (bed.cluster.node(node).unwrap().ipv4, 30_000 + u16::from(number));
        let question = Question::tcp(target).from_source((client.ipv4, port));
        bed::ask(bed.client(), question).unwrap().server
    };
    let first_port = 20_000 + u16::from(number) * CLIENTS;
    let ports = first_port..first_port + CLIENTS;
    ports.filter(|port| chosen(1, *port) != chosen(2, *port)).count()
}

#[test]
fn no_endpoint_is_moved_for_another_and_nodes_agree_as_far_as_is_promised() {
    let bed = Bed::new();
    let all = || [bed.pod(1, 1), bed.pod(1, 2), bed.pod(2, 1), bed.pod(2, 2)];
    hashed(&bed, ("mh", 10), [bed.pod(1, 2), bed.pod(2, 2)]);
    let _first = bed.start(&[]);
    let plan = StreamPlan { interval: Duration::from_millis(20), askers: 2, kept_open: 6 };
    let stream = Stream::start(bed.client(), Question::tcp((ip("10.96.0.10"), 80)), plan).unwrap();
    stream.wait_for_answers(20, Duration::from_secs(30)).unwrap();
    hashed(&bed, ("mh", 10), [bed.pod(1, 1), bed.pod(1, 2), bed.pod(2, 2)]);
    bed.wait_until("a third", || listed(bed.node(), "10.96.0.10:80").len() == 3);
    hashed(&bed, ("mh", 10), all());
    bed.wait_until("a fourth", || listed(bed.node(), "10.96.0.10:80").len() == 4);

    let second = &bed.cluster.node(2).unwrap().namespace;
    let _second = Proxy::start(second, &bed.manifests, &[]).unwrap();
    let sockets = |names: [&str; 4]| names.map(|name| format!("10.244.{name}:8080"));
    // The last one that was added comes first.
    let (by_history, by_address) =
        (sockets(["2.11", "1.11", "2.12", "1.12"]), sockets(["2.12", "2.11", "1.12", "1.11"]));
    assert_eq!(listed(bed.node(), "10.96.0.10:80"), by_history);
    assert_eq!(listed(second, "10.96.0.10:80"), by_address);
    stream.wait_for_answers(40, Duration::from_secs(30)).unwrap();
    let report = stream.stop();
    report.require_no_failure(60).unwrap();
    assert!(report.kept > 20, "{report:?}");

    // These come to both nodes at once.
    for (scheduler, number) in [("mh", 11), ("sh", 12)] {
        hashed(&bed, (scheduler, number), all());
        let address = format!("10.96.0.{number}:80");
        for node in [bed.node(), second] {
            bed.wait_until(&address, || {
                node.command("ipvsadm", &["-Ln", "-t", &address]).is_ok()
                    && listed(node, &address).len() == 4
            });
            assert_eq!(listed(node, &address), by_address);
        }
        assert_eq!(disagreements(&bed, number), 0, "{scheduler}, made of the same endpoints");
    }
    // Whatever came when, few of those who are led by mh notice.
    let few = usize::from(CLIENTS / 16);
    let different = disagreements(&bed, 10);
    assert!(different <= few, "{different} of {CLIENTS} clients");
}
