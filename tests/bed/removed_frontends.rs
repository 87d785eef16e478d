//! A frontend, or the endpoints it may use, goes while clients are connected.

use std::time::Duration;

use bed::{Connection, Host, Namespace, Protocol, Question, Refusal, Service, Stream, StreamPlan};

use crate::fixture::{Bed, TARGET, assert_shares, ip, web};

/// Address that clients outside and inside the cluster ask.
const EXTERNAL: &str = "198.51.100.10";
/// Its internal frontend, for those inside while the policy is Local.
const INTERNAL_FRONTEND: &str = "246.51.100.10";

/// `web` with an external address, for all endpoints or for this node's.
fn external<'a>(policy: &str, pods: impl IntoIterator<Item = &'a Host>) -> Service {
    let mut service = web(pods);
    service.external = vec![ip(EXTERNAL)];
    service.more = vec![format!("externalTrafficPolicy: {policy}")];
    service
}

/// The weight of a real server of a virtual server.
fn weight(bed: &Bed, virtual_server: &str, pod: &Host) -> Option<u32> {
    let shown = bed.node().command("ipvsadm", &["-Ln", "-t", virtual_server]).ok()?;
    let socket = format!("{}:{TARGET}", pod.ipv4);
    let line = shown.lines().find(|line| line.split_whitespace().nth(1) == Some(&socket))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

fn stream(from: &Namespace, (address, port): (&str, u16)) -> Stream {
    let plan = StreamPlan { interval: Duration::from_millis(50), askers: 1, kept_open: 4 };
    Stream::start(from, Question::tcp((ip(address), port)), plan).unwrap()
}

/// Lets every stream get some more answers.
fn go_on(streams: &[Stream]) {
    for stream in streams {
        stream.wait_for_answers(15, Duration::from_secs(30)).unwrap();
    }
}

fn assert_no_failure(streams: Vec<Stream>) {
    for stream in streams {
        let report = stream.stop();
        report.require_no_failure(30).unwrap();
        assert!(report.kept > 15, "{report:?}");
    }
}

fn connected(from: &Namespace, target: (&str, u16), to: &Host) -> Connection {
    let question = Question::tcp((ip(target.0), target.1)).within(Duration::from_secs(1));
    let mut connection = Connection::open(from, question).unwrap();
    assert_eq!(connection.say().unwrap().server, to.name);
    connection
}

#[test]
fn a_policy_that_becomes_local_and_cluster_again_fails_no_request_and_cuts_no_connection() {
    let bed = Bed::new();
    let apply = |policy| {
        let service = external(policy, [bed.pod(1, 1), bed.pod(2, 1)]);
        bed.manifests.apply(&service).unwrap();
    };
    apply("Cluster");
    let _proxy = bed.start(&[]);
    let (outside, pod) = (bed.client(), &bed.pod(1, 2).namespace);
    let clients = [outside, pod, bed.node()];
    let mut streams: Vec<Stream> = clients.map(|from| stream(from, (EXTERNAL, 80))).into();
    go_on(&streams);

    apply("Local");
    let frontend = format!("{EXTERNAL}:80");
    bed.wait_until("pod2-1 drains", || weight(&bed, &frontend, bed.pod(2, 1)) == Some(0));
    bed.wait_until("clients inside are led to the internal frontend", || {
        bed.entries().iter().any(|entry| entry.starts_with("KUBE-INTERNAL-FRONTEND "))
    });
    go_on(&streams);
    let target = (ip(EXTERNAL), 80);
    let tally = bed.ask(outside, Protocol::Tcp, target, 4);
    assert_shares(&tally, &[("pod1-1", 4)]);
    for from in [pod, bed.node()] {
        let tally = bed.ask(from, Protocol::Tcp, target, 4);
        assert_eq!(tally.answered(), 4, "{tally}");
    }
    // These are led to the internal frontend, which goes.
    streams.extend([pod, bed.node()].map(|from| stream(from, (EXTERNAL, 80))));
    go_on(&streams);

    apply("Cluster");
    bed.wait_until("pod2-1 is back", || weight(&bed, &frontend, bed.pod(2, 1)) == Some(1));
    bed.wait_until("the internal frontend is gone", || {
        !bed.virtual_servers().contains(INTERNAL_FRONTEND)
    });
    go_on(&streams);
    assert_no_failure(streams);
}

#[test]
fn endpoints_that_move_to_another_node_leave_a_local_policys_clients_what_they_have() {
    let bed = Bed::new();
    let (here, away) = (bed.pod(1, 1), bed.pod(2, 1));
    bed.manifests.apply(&external("Local", [here])).unwrap();
    let proxy = bed.start(&[]);
    let target = (EXTERNAL, 80);
    let pod = &bed.pod(1, 2).namespace;
    let mut held: Vec<Connection> =
        [bed.client(), pod, bed.node()].map(|from| connected(from, target, here)).into();
    bed.manifests.apply(&external("Local", [away])).unwrap();
    let frontend = format!("{EXTERNAL}:80");
    bed.wait_until("its virtual server has weight 0", || weight(&bed, &frontend, here) == Some(0));
    let still_there = |held: &mut Vec<Connection>| {
        for connection in held {
            assert_eq!(connection.say().unwrap().server, here.name);
        }
    };
    still_there(&mut held);
    // There is an endpoint elsewhere, so that a client outside may come to the right node with a
    // later try: it is not refused. Clients inside get that endpoint.
    let question = Question::tcp((ip(EXTERNAL), 80)).within(Duration::from_millis(500));
    assert_eq!(bed::ask(bed.client(), question), Err(Refusal::Timeout));
    for from in [pod, bed.node()] {
        let tally = bed.ask(from, Protocol::Tcp, (ip(EXTERNAL), 80), 2);
        assert_shares(&tally, &[(&away.name, 2)]);
    }
    proxy.stop().unwrap();
    let _proxy = bed.start(&[]);
    assert_eq!(weight(&bed, &frontend, here), Some(0), "a restart changes nothing");
    still_there(&mut held);
    // It comes back before its virtual server has gone.
    bed.manifests.apply(&external("Local", [here, away])).unwrap();
    bed.wait_until("it is back", || weight(&bed, &frontend, here) == Some(1));
    still_there(&mut held);
    let tally = bed.ask(bed.client(), Protocol::Tcp, (ip(EXTERNAL), 80), 2);
    assert_shares(&tally, &[(&here.name, 2)]);
}

/// A Service with two ports, beside one that has the same endpoint.
#[test]
fn a_port_or_a_service_that_goes_takes_nothing_else_along() {
    let bed = Bed::new();
    let pod = bed.pod(2, 1);
    let one_port = || external("Cluster", [pod]);
    let other = Service::new("other", ip("10.96.0.20")).port(Protocol::Tcp, 80, TARGET);
    bed.manifests.apply(&other.pods([pod])).unwrap();
    bed.manifests.apply(&one_port().port(Protocol::Tcp, 81, TARGET)).unwrap();
    let _proxy = bed.start(&[]);
    let of_web = [("10.96.0.10", 80), (EXTERNAL, 80)].map(|target| stream(bed.client(), target));
    let of_other = [bed.client(), bed.node()].map(|from| stream(from, ("10.96.0.20", 80)));
    let (of_web, of_other) = (Vec::from(of_web), Vec::from(of_other));
    go_on(&of_web);
    go_on(&of_other);
    let mut held = connected(bed.client(), (EXTERNAL, 81), pod);

    bed.manifests.apply(&one_port()).unwrap();
    bed.wait_until("port 81 is gone", || !bed.virtual_servers().contains(":81 "));
    for address in ["10.96.0.10", EXTERNAL] {
        let refused = bed::ask(bed.client(), Question::tcp((ip(address), 81)));
        assert_eq!(refused, Err(Refusal::Refused), "{address}");
    }
    // What it had is not promised to live (docs/compatibility.md).
    assert!(held.say().is_err());
    go_on(&of_web);
    assert_no_failure(of_web);

    let mut held = connected(bed.client(), (EXTERNAL, 80), pod);
    bed.manifests.remove("web").unwrap();
    bed.wait_until("the Service is gone", || !bed.virtual_servers().contains(EXTERNAL));
    assert!(held.say().is_err());
    let question = Question::tcp((ip(EXTERNAL), 80)).within(Duration::from_millis(300));
    assert!(bed::ask(bed.client(), question).is_err());
    go_on(&of_other);
    assert_no_failure(of_other);
}
